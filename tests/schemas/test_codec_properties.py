"""What holds for any message, and for any bytes."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import schemas
from schemas import (
    ClipNorm,
    ClipState,
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    ModelSnapshot,
    ModelState,
    Participation,
    ParticipationKind,
    RejectRecord,
    Release,
    Update,
)

KINDS = (
    "update",
    "release",
    "ledger_record",
    "model_snapshot",
    "model_state",
    "reject_record",
    "participation",
)

plan_ids = st.binary(min_size=16, max_size=16)
digests = st.binary(min_size=32, max_size=32).filter(any)
uint64s = st.integers(0, 2**64 - 1)
windows = st.integers(0, 2**63 - 1)
windows_or_none = st.integers(-1, 2**63 - 1)
clusters = st.integers(0, 2**31 - 1)
variances = st.fractions(min_value=Fraction(1, 2**60), max_value=2**128, max_denominator=2**60)
norms = st.floats(0, exclude_min=True, allow_infinity=False)
norms_or_none = st.just(0.0) | norms
int64s = st.integers(-(2**63), 2**63 - 1)
clip_states = st.builds(ClipState, norms, norms_or_none, int64s, int64s)
clip_histories = st.dictionaries(st.tuples(clusters, windows), norms, max_size=5).map(
    lambda norm_by_place: tuple(
        ClipNorm(*place, norm_by_place[place]) for place in sorted(norm_by_place)
    )
)
# charge <= spent <= cap
units = st.lists(st.integers(1, 2**256 - 1), min_size=3, max_size=3).map(sorted)


def texts(shortest: int, longest: int) -> st.SearchStrategy[str]:
    alphabet = st.characters(codec="utf-8")
    return st.text(alphabet, min_size=shortest, max_size=longest // 4)


def vectors(dtypes: list[str], shortest: int = 1) -> st.SearchStrategy[np.ndarray]:
    shapes = hnp.array_shapes(min_dims=1, max_dims=1, min_side=shortest, max_side=40)
    return st.sampled_from(dtypes).flatmap(lambda dtype: hnp.arrays(dtype, shapes))


def floats(width: int) -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False, width=width)


@st.composite
def updates(draw: st.DrawFn) -> Update:
    clip_norm = draw(norms_or_none)
    return Update(
        plan_id=draw(plan_ids),
        client_id=draw(texts(1, 128)),
        model_version=draw(uint64s),
        vector=draw(vectors(["<i1", "<i2"])),
        clip_norm=clip_norm,
        is_below_clip=clip_norm > 0 and draw(st.booleans()),
    )


@st.composite
def releases(draw: st.DrawFn) -> Release:
    charge, spent, cap = draw(units)
    clip_norm = draw(norms_or_none)
    next_clip_norm = draw(norms_or_none) if clip_norm else 0.0
    return Release(
        plan_id=draw(plan_ids),
        cluster=draw(clusters),
        window=draw(windows),
        sequence=draw(uint64s),
        charge_units=charge,
        spent_units=spent,
        cap_units=cap,
        noise_variance=draw(variances),
        l2_sensitivity_squared=draw(st.integers(1, 2**64 - 1)),
        vector=draw(vectors(["<i4", "<i8"], shortest=2)),
        clip_norm=clip_norm,
        next_clip_norm=next_clip_norm,
        next_clip_window=draw(st.integers(1, 2**63 - 1)) if next_clip_norm else 0,
    )


@st.composite
def ledger_records(draw: st.DrawFn) -> LedgerRecord:
    charge, spent, cap = draw(units)
    kind = draw(st.sampled_from(LedgerKind))
    is_release = kind is LedgerKind.RELEASE
    is_sealed = is_release or kind is LedgerKind.THROTTLED
    return LedgerRecord(
        plan_id=draw(plan_ids),
        cluster=draw(clusters),
        sequence=draw(uint64s),
        kind=kind,
        window=draw(windows_or_none),
        next_offset=draw(uint64s),
        charge_units=charge if is_release else 0,
        spent_units=spent,
        cap_units=cap,
        noise_variance=draw(variances) if is_release else Fraction(0),
        l2_sensitivity_squared=draw(st.integers(1, 2**64 - 1)),
        release_digest=draw(digests) if is_release else b"",
        previous_hash=bytes(32) if kind is LedgerKind.GENESIS else draw(digests),
        sealed_at_ms=draw(uint64s),
        next_units=draw(st.integers(0, 2**256 - 1)),
        participation_digest=draw(st.just(b"") | digests) if is_sealed else b"",
        clip=draw(st.none() | clip_states),
    )


@st.composite
def participations(draw: st.DrawFn) -> Participation:
    is_delta = draw(st.booleans())
    keys = np.array(sorted(draw(st.sets(uint64s, max_size=20))), "<u8")
    parts = 1 if is_delta else draw(st.integers(1, 2**31 - 1))
    return Participation(
        plan_id=draw(plan_ids),
        cluster=draw(clusters),
        sequence=draw(uint64s),
        window=draw(windows if is_delta else windows_or_none),
        kind=ParticipationKind.DELTA if is_delta else ParticipationKind.SNAPSHOT,
        charge_units=draw(st.integers(0, 2**256 - 1)) if is_delta else 0,
        part=draw(st.integers(0, parts - 1)),
        parts=parts,
        clients=keys,
        spent=None if is_delta else draw(hnp.arrays("<u8", keys.shape)),
    )


MESSAGES = {
    "update": updates(),
    "release": releases(),
    "ledger_record": ledger_records(),
    "model_snapshot": st.builds(
        ModelSnapshot,
        plan_ids,
        uint64s,
        windows_or_none,
        uint64s,
        hnp.arrays("<f4", st.integers(1, 40), elements=floats(32)),
        clip_histories,
    ),
    "model_state": st.builds(
        ModelState,
        plan_ids,
        uint64s,
        windows_or_none,
        uint64s,
        st.lists(windows_or_none, min_size=1, max_size=9).map(tuple),
        texts(1, 64),
        uint64s,
        hnp.arrays("<f8", st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=floats(64)),
        clip_histories,
    ),
    "reject_record": st.builds(
        RejectRecord,
        plan_ids,
        clusters,
        texts(1, 64),
        texts(0, 128),
        st.integers(-(2**63), 2**63 - 1),
        clusters,
        uint64s,
        texts(0, 1024),
    ),
    "participation": participations(),
}


def encode(kind, message):
    return getattr(schemas, f"encode_{kind}")(message)


def decode(kind, data):
    return getattr(schemas, f"decode_{kind}")(data)


def assert_canonical_or_malformed(kind, data):
    try:
        message = decode(kind, data)
    except MalformedMessageError:
        return
    assert encode(kind, message) == data


def values(message):
    """The fields as plain values; floats as their bytes, so that -0.0 is not 0.0."""
    return [
        (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for value in (getattr(message, name) for name in message.__slots__)
    ]


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_message_comes_back_as_it_was(kind, data):
    message = data.draw(MESSAGES[kind])
    assert values(decode(kind, encode(kind, message))) == values(message)


@given(st.data())
def test_a_codec_that_forgets_a_field_would_be_seen(data):
    forgotten = data.draw(clip_states.filter(lambda clip: clip.bit_total))
    record = replace(data.draw(ledger_records()), clip=forgotten)
    written = replace(record, clip=replace(forgotten, bit_total=0))
    assert values(decode("ledger_record", encode("ledger_record", written))) != values(record)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=200))
def test_any_bytes_decode_or_are_malformed(kind, data):
    assert_canonical_or_malformed(kind, data)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_mutated_message_is_canonical_or_malformed(kind, data):
    wire = bytearray(encode(kind, data.draw(MESSAGES[kind])))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(wire)))
        mutation = data.draw(st.sampled_from(("truncate", "flip", "insert", "delete")))
        if mutation == "truncate":
            del wire[position:]
        elif mutation == "insert":
            wire[position:position] = data.draw(st.binary(min_size=1, max_size=4))
        elif mutation == "delete":
            del wire[position : position + 1]
        elif position < len(wire):
            wire[position] ^= data.draw(st.integers(1, 255))
    assert_canonical_or_malformed(kind, bytes(wire))


@pytest.mark.parametrize(
    "kind", ["update", "release", "model_snapshot", "model_state", "participation"]
)
@given(st.data())
def test_a_message_with_a_vector_cannot_be_cut(kind, data):
    wire = encode(kind, data.draw(MESSAGES[kind]))
    cut = data.draw(st.integers(0, len(wire) - 1))
    with pytest.raises(MalformedMessageError):
        decode(kind, wire[:cut])
