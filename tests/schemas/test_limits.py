"""Each field has its limits, and the message says which one was broken."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schemas import (
    LedgerKind,
    LedgerRecord,
    ModelSnapshot,
    ModelState,
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
SNAPSHOT = ModelSnapshot(PLAN_ID, 0, -1, 0, np.ones(1, np.float32))
STATE = ModelState(PLAN_ID, 0, -1, 0, (-1,), "sgd", 0, np.ones((1, 1)))
REJECT = RejectRecord(PLAN_ID, 0, "late", "", 0, 0, 0, "")

VALIDATORS = {
    Update: limits.validate_update,
    Release: limits.validate_release,
    LedgerRecord: limits.validate_ledger_record,
    ModelSnapshot: limits.validate_model_snapshot,
    ModelState: limits.validate_model_state,
    RejectRecord: limits.validate_reject_record,
}
VALID = [UPDATE, RELEASE, GENESIS, RECORD, EXHAUSTED, SNAPSHOT, STATE, REJECT]
BROKEN = [
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
