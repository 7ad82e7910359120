"""Who has spent what: its keys, its limits; the golden bytes are in test_codec.py."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import schemas
from schemas import (
    DELTA_KEYS,
    MAX_DELTA_CLIENTS,
    MAX_SNAPSHOT_CLIENTS,
    MalformedMessageError,
    Participation,
    ParticipationKind,
    decode_participation,
    encode_participation,
    participation_key,
)
from schemas.v1 import wire_pb2

PLAN_ID = bytes(range(16))
DELTA = Participation(
    PLAN_ID, 3, 9, 7, ParticipationKind.DELTA, 2**60, 0, 1, np.array([1, 5, 2**63], np.uint64), None
)
PART = replace(
    DELTA,
    kind=ParticipationKind.SNAPSHOT,
    charge_units=0,
    part=2,
    parts=300,
    spent=np.array([3, 0, 2], np.uint64),
)
NOBODY = np.array([], np.uint64)


def changed(message, vector=None, **values):
    """What a hostile writer makes of ``message``: its own bytes, but for what is given."""
    parsed = wire_pb2.Participation.FromString(encode_participation(message))
    for name in values:
        parsed.header.ClearField(name)
    parsed.header.MergeFrom(wire_pb2.ParticipationHeader(**values))
    if vector is not None:
        parsed.vector = np.array(vector, "<u8").tobytes()
    return parsed.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("sequence", "key"),
    [(0, b"d0"), (9, b"d9"), (255, b"d255"), (256, b"d0"), (2**64 - 1, b"d255")],
)
def test_the_key_of_a_delta_comes_back_after_256_records(sequence, key):
    assert participation_key(replace(DELTA, sequence=sequence)) == key
    assert DELTA_KEYS == 256


@pytest.mark.parametrize(("part", "key"), [(0, b"s0"), (299, b"s299")])
def test_the_key_of_a_snapshot_is_its_part(part, key):
    assert participation_key(replace(PART, part=part)) == key


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(replace(DELTA, clients=NOBODY), id="nobody took part"),
        pytest.param(replace(DELTA, charge_units=0), id="nothing charged"),
        pytest.param(replace(DELTA, charge_units=2**256 - 1), id="a charge of 256 bits"),
        pytest.param(
            replace(DELTA, clients=np.array([0, 2**64 - 1], np.uint64)), id="extreme keys"
        ),
        pytest.param(replace(PART, clients=NOBODY, spent=NOBODY), id="an empty part"),
        pytest.param(replace(PART, window=-1), id="before the first window"),
        pytest.param(replace(PART, part=299), id="the last part"),
        pytest.param(replace(PART, spent=np.array([2**64 - 1] * 3, np.uint64)), id="much spent"),
    ],
)
def test_what_is_within_the_limits_comes_back(message):
    decoded = decode_participation(encode_participation(message))
    assert decoded.clients.dtype == np.uint64
    assert decoded.clients.tolist() == message.clients.tolist()
    assert (decoded.spent is None) == (message.spent is None)
    if decoded.spent is not None:
        assert decoded.spent.tolist() == message.spent.tolist()
    for name in ("plan_id", "cluster", "sequence", "window", "kind", "charge_units"):
        assert getattr(decoded, name) == getattr(message, name)
    assert (decoded.part, decoded.parts) == (message.part, message.parts)


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (DELTA, {"kind": 0}),
        (DELTA, {"kind": 3}),
        (DELTA, {"kind": 2}),
        (PART, {"kind": 1}),
        (DELTA, {"plan_id": bytes(15)}),
        (DELTA, {"cluster": 2**31}),
        (DELTA, {"window": -1}),
        (PART, {"window": -2}),
        (DELTA, {"charge_units": b"\x00\x01"}),
        (DELTA, {"charge_units": b"\x01" * 33}),
        (PART, {"charge_units": b"\x01"}),
        (DELTA, {"part": 1}),
        (DELTA, {"parts": 0}),
        (DELTA, {"parts": 2}),
        (PART, {"part": 300}),
        (PART, {"parts": 0}),
        (PART, {"parts": 2**31}),
        (DELTA, {"client_count": 0}),
        (DELTA, {"client_count": 2}),
        (DELTA, {"client_count": 4}),
        (DELTA, {"client_count": 2**32 - 1}),
        (PART, {"client_count": 6}),
        (DELTA, {"vector": []}),
        (DELTA, {"vector": [1, 5]}),
        (DELTA, {"vector": [1, 5, 6, 7]}),
        (DELTA, {"vector": [1, 1, 5]}),
        (DELTA, {"vector": [5, 1, 6]}),
        (DELTA, {"vector": [2**63, 5, 2**64 - 1]}),
        (PART, {"vector": [1, 5, 6]}),
        (PART, {"vector": [1, 1, 6, 0, 0, 0]}),
        (PART, {"vector": [1, 5, 6, 0, 0]}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else value.kind.name,
)
def test_a_value_that_no_writer_of_ours_writes_is_malformed(message, values):
    assert changed(message) == encode_participation(message)
    with pytest.raises(MalformedMessageError):
        decode_participation(changed(message, **values))


def test_an_empty_vector_that_is_written_out_is_malformed():
    data = encode_participation(replace(DELTA, clients=NOBODY))
    assert decode_participation(data).clients.size == 0
    for end in (b"\x12", b"\x12\x00", b"\x12\x80\x00", b"\x00", bytes(8)):
        with pytest.raises(MalformedMessageError):
            decode_participation(data + end)


@pytest.mark.parametrize("dtype", ["<i8", ">u8", "<u4", "<f8"])
def test_numbers_of_another_type_are_not_written(dtype):
    with pytest.raises(ValueError, match="uint64"):
        encode_participation(replace(DELTA, clients=np.array([1, 2], dtype)))
    with pytest.raises(ValueError, match="uint64"):
        encode_participation(replace(PART, spent=np.array([1, 2, 3], dtype)))


def test_a_strided_array_is_written_in_its_order():
    keys = np.array([1, 0, 5, 0, 2**63, 0], np.uint64)[::2]
    assert encode_participation(replace(DELTA, clients=keys)) == encode_participation(DELTA)


@pytest.mark.parametrize(
    ("message", "most"), [(DELTA, MAX_DELTA_CLIENTS), (PART, MAX_SNAPSHOT_CLIENTS)]
)
def test_a_record_has_as_many_clients_as_its_topic_takes_and_no_more(message, most):
    spent = None if message.spent is None else np.ones(most, np.uint64)
    largest = replace(message, clients=np.arange(most, dtype=np.uint64), spent=spent)
    data = encode_participation(largest)
    table = schemas.topic_table("sdp", 1, 1, 1, has_participation=True)
    assert len(data) + 4096 <= table[-1].max_message_bytes
    assert decode_participation(data).clients.size == most
    spent = None if message.spent is None else np.ones(most + 1, np.uint64)
    larger = replace(message, clients=np.arange(most + 1, dtype=np.uint64), spent=spent)
    with pytest.raises(ValueError, match="too many"):
        encode_participation(larger)
    words = larger.clients if spent is None else np.concatenate((larger.clients, spent))
    with pytest.raises(MalformedMessageError, match="too many"):
        decode_participation(changed(message, words, client_count=most + 1))


def test_decoding_copies_no_keys():
    count = MAX_SNAPSHOT_CLIENTS
    keys = np.arange(count, dtype=np.uint64)
    data = encode_participation(replace(PART, clients=keys, spent=keys))
    decode_participation(encode_participation(PART))
    tracemalloc.start()
    decoded = decode_participation(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # One truth value a key, of whether it ascends.
    assert peak < 2 * count
    written = np.frombuffer(data, np.int8)
    assert np.shares_memory(decoded.clients, written)
    assert np.shares_memory(decoded.spent, written)
    assert not decoded.clients.flags.writeable


def test_a_validator_that_forgets_the_order_of_keys_would_be_seen(monkeypatch):
    monkeypatch.setattr(schemas.limits, "_validate_clients", lambda clients, most: None)
    assert decode_participation(changed(DELTA, [5, 1, 6])).clients.tolist() == [5, 1, 6]
