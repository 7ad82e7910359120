"""Each field has its limits, and the message says which one was broken."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

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
    limits,
)

PLAN_ID = bytes(range(16))
UPDATE = Update(PLAN_ID, "ada", 0, np.array([1], np.int8))
RELEASE = Release(PLAN_ID, 0, 0, 1, 1, 2, 3, Fraction(1, 2), 1, np.array([1, 2], np.int32))
GENESIS = LedgerRecord(
    PLAN_ID, 0, 0, LedgerKind.GENESIS, -1, 0, 0, 0, 3, Fraction(0), 1, b"", bytes(32), 0
)
RECORD = replace(
    GENESIS,
    kind=LedgerKind.RELEASE,
    charge_units=1,
    spent_units=2,
    noise_variance=Fraction(1),
    release_digest=bytes(32),
    previous_hash=b"\x01" * 32,
)
EXHAUSTED = replace(GENESIS, kind=LedgerKind.EXHAUSTED, previous_hash=b"\x01" * 32)
THROTTLED = replace(EXHAUSTED, kind=LedgerKind.THROTTLED, participation_digest=bytes(32))
CLIP = ClipState(1.25, 0.5, -3, 300)
SCALED_UPDATE = replace(UPDATE, clip_norm=1.25, is_below_clip=True)
SCALED_RELEASE = replace(RELEASE, clip_norm=1.25, next_clip_norm=0.5, next_clip_window=1)
SCALED_RECORD = replace(RECORD, next_units=2**256 - 1, participation_digest=bytes(32), clip=CLIP)
SNAPSHOT = ModelSnapshot(PLAN_ID, 0, -1, 0, np.ones(1, np.float32))
STATE = ModelState(PLAN_ID, 0, -1, 0, (-1,), "sgd", 0, np.ones((1, 1)))
SCALED_STATE = replace(STATE, clip_norms=(ClipNorm(0, 0, 1.0), ClipNorm(0, 2**63 - 1, 2.0)))
REJECT = RejectRecord(PLAN_ID, 0, "late", "", 0, 0, 0, "")
KEYS = np.array([0, 2**64 - 1], np.uint64)
DELTA = Participation(PLAN_ID, 0, 0, 0, ParticipationKind.DELTA, 0, 0, 1, KEYS, None)
PART = replace(DELTA, kind=ParticipationKind.SNAPSHOT, window=-1, part=1, parts=2, spent=KEYS)

VALIDATORS = {
    Update: limits.validate_update,
    Release: limits.validate_release,
    LedgerRecord: limits.validate_ledger_record,
    ModelSnapshot: limits.validate_model_snapshot,
    ModelState: limits.validate_model_state,
    RejectRecord: limits.validate_reject_record,
    Participation: limits.validate_participation,
}
VALID = [
    UPDATE,
    SCALED_UPDATE,
    RELEASE,
    SCALED_RELEASE,
    replace(RELEASE, clip_norm=1.25),
    GENESIS,
    RECORD,
    EXHAUSTED,
    THROTTLED,
    SCALED_RECORD,
    SNAPSHOT,
    STATE,
    SCALED_STATE,
    REJECT,
    DELTA,
    PART,
]
BAD_NORMS = [-1.0, -0.0, -5e-324, np.nan, np.inf, -np.inf]
BROKEN = [
    (UPDATE, "clip_norm", BAD_NORMS),
    (UPDATE, "is_below_clip", [True]),
    (SCALED_UPDATE, "clip_norm", [0.0, *BAD_NORMS]),
    (RELEASE, "clip_norm", BAD_NORMS),
    (RELEASE, "next_clip_norm", [0.5, *BAD_NORMS]),
    (RELEASE, "next_clip_window", [1]),
    (SCALED_RELEASE, "clip_norm", [0.0, *BAD_NORMS]),
    (SCALED_RELEASE, "next_clip_norm", [0.0, *BAD_NORMS]),
    (SCALED_RELEASE, "next_clip_window", [-1, 0, 2**63]),
    (RECORD, "next_units", [-1, 2**256]),
    (RECORD, "participation_digest", [bytes(31), bytes(33)]),
    (THROTTLED, "participation_digest", [bytes(31), bytes(33)]),
    (THROTTLED, "charge_units", [-1, 1]),
    (THROTTLED, "noise_variance", [Fraction(1)]),
    (THROTTLED, "release_digest", [bytes(32)]),
    (THROTTLED, "previous_hash", [bytes(32)]),
    (GENESIS, "participation_digest", [bytes(32)]),
    (EXHAUSTED, "participation_digest", [bytes(32)]),
    (RECORD, "clip", [replace(CLIP, norm=norm) for norm in (0.0, *BAD_NORMS)]),
    (RECORD, "clip", [replace(CLIP, next_norm=norm) for norm in BAD_NORMS]),
    (RECORD, "clip", [replace(CLIP, bit_total=total) for total in (-(2**63) - 1, 2**63)]),
    (RECORD, "clip", [replace(CLIP, count_total=total) for total in (-(2**63) - 1, 2**63)]),
    (STATE, "clip_norms", [(ClipNorm(0, 0, norm),) for norm in (0.0, *BAD_NORMS)]),
    (SNAPSHOT, "clip_norms", [(ClipNorm(c, w, 1.0),) for c, w in ((-1, 0), (2**31, 0), (0, -1))]),
    (SNAPSHOT, "clip_norms", [SCALED_STATE.clip_norms[::-1], SCALED_STATE.clip_norms[:1] * 2]),
    (DELTA, "cluster", [-1, 2**31]),
    (DELTA, "sequence", [-1, 2**64]),
    (DELTA, "window", [-1, 2**63]),
    (PART, "window", [-2, 2**63]),
    (DELTA, "charge_units", [-1, 2**256]),
    (PART, "charge_units", [-1, 1]),
    (DELTA, "part", [-1, 1]),
    (DELTA, "parts", [0, 2]),
    (PART, "part", [-1, 2]),
    (PART, "parts", [0, 1, 2**31]),
    (DELTA, "clients", [KEYS[::-1], np.zeros(2, np.uint64), KEYS.astype(np.int64), KEYS[None]]),
    (DELTA, "spent", [KEYS]),
    (PART, "spent", [None, KEYS[:1], KEYS.astype(np.int64), KEYS[None]]),
    (UPDATE, "client_id", ["", "a" * 129, "é" * 65, "\ud800"]),
    (UPDATE, "model_version", [-1, 2**64]),
    (RELEASE, "cluster", [-1, 2**31]),
    (RELEASE, "window", [-1, 2**63]),
    (RELEASE, "sequence", [-1, 2**64]),
    (RELEASE, "charge_units", [-1, 0, 3]),
    (RELEASE, "spent_units", [0, 4]),
    (RELEASE, "noise_variance", [Fraction(0), Fraction(-1)]),
    (RELEASE, "l2_sensitivity_squared", [0, 2**64]),
    (RELEASE, "vector", [np.array([1], np.int32)]),
    (RECORD, "cluster", [-1, 2**31]),
    (RECORD, "sequence", [-1, 2**64]),
    (RECORD, "window", [-2, 2**63]),
    (RECORD, "next_offset", [-1, 2**64]),
    (RECORD, "charge_units", [0, 3]),
    (RECORD, "noise_variance", [Fraction(0)]),
    (RECORD, "l2_sensitivity_squared", [0, 2**64]),
    (RECORD, "release_digest", [b"", bytes(31), bytes(33)]),
    (RECORD, "previous_hash", [b"", bytes(31), bytes(32), b"\x01" * 33]),
    (RECORD, "sealed_at_ms", [-1, 2**64]),
    (GENESIS, "previous_hash", [b"", b"\x01" * 32]),
    (GENESIS, "charge_units", [-1, 4]),
    (GENESIS, "spent_units", [-1, 4]),
    (EXHAUSTED, "release_digest", [bytes(32)]),
    (EXHAUSTED, "noise_variance", [Fraction(1)]),
    (EXHAUSTED, "previous_hash", [bytes(32)]),
    (SNAPSHOT, "model_version", [-1, 2**64]),
    (SNAPSHOT, "window", [-2, 2**63]),
    (SNAPSHOT, "published_at_ms", [-1, 2**64]),
    (SNAPSHOT, "vector", [np.array([np.nan], np.float32), np.array([np.inf], np.float32)]),
    (STATE, "model_version", [-1, 2**64]),
    (STATE, "window", [-2, 2**63]),
    (STATE, "next_offset", [-1, 2**64]),
    (STATE, "merged_through", [(), (-2,), (0, 2**63)]),
    (STATE, "optimizer", ["", "a" * 65]),
    (STATE, "step", [-1, 2**64]),
    (STATE, "vectors", [np.ones((0, 1)), np.ones((5, 1)), np.array([[-np.inf]])]),
    (REJECT, "cluster", [-1, 2**31]),
    (REJECT, "reason", ["", "a" * 65]),
    (REJECT, "client_id", ["a" * 129]),
    (REJECT, "window", [-(2**63) - 1, 2**63]),
    (REJECT, "partition", [-1, 2**31]),
    (REJECT, "offset", [-1, 2**64]),
    (REJECT, "detail", ["a" * 1025]),
    *((message, "plan_id", [b"", bytes(15), bytes(17)]) for message in VALID),
]


def test_a_parsed_message_outside_its_limits_is_malformed():
    assert limits.accept(UPDATE, limits.validate_update) is UPDATE
    with pytest.raises(MalformedMessageError, match="clip_norm"):
        limits.accept(replace(UPDATE, clip_norm=-0.0), limits.validate_update)


@pytest.mark.parametrize("message", VALID, ids=lambda message: type(message).__name__)
def test_a_message_within_its_limits_is_valid(message):
    VALIDATORS[type(message)](message)


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        pytest.param(message, field, value, id=f"{type(message).__name__}-{field}-{number}")
        for message, field, several in BROKEN
        for number, value in enumerate(several)
    ],
)
def test_a_field_outside_its_limits_is_refused(message, field, value):
    with pytest.raises(ValueError, match=r".") as refusal:
        VALIDATORS[type(message)](replace(message, **{field: value}))
    assert len(str(refusal.value)) < 200
