"""What is fuzzed of a head's memory: its ledger's chain, and who has spent what."""

import contextlib
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
from fuzz_plans import ADAPTIVE, PER_CLIENT, PLAN, SHORT, Choices

from schemas import (
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    decode_ledger_record,
    encode_ledger_record,
    record_hash,
)
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead
from stream.errors import LedgerError
from stream.ledger_chain import continuation, genesis, readable_records, verify_records
from stream.participation_log import SNAPSHOT_INTERVAL, digest_of, rebuild, records_for
from stream.privacy.plan import PrivacyPlan
from stream.testing import UnsafeNoNoise

_PLANS = (PLAN, ADAPTIVE, SHORT, PER_CLIENT)
_WINDOWS = 4
_MOST_CHANGES = 12
_CAP = 100
_BIG = (0, 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1, 2**255)


def ledger(data: bytes) -> None:
    """A ledger of any records is read, or refused with a LedgerError; its sums are right."""
    choices = Choices(data)
    plan = _PLANS[choices.number(1) % len(_PLANS)]
    read = (_verify, _continue, _open)[choices.number(1) % 3]
    is_complete = choices.number(1) % 2 == 0
    records = _spoilt(list(_honest_records(plan)), choices)
    assert len(readable_records(records)) <= len(records)
    with contextlib.suppress(LedgerError):
        read(plan, records, is_complete=is_complete)


def participation_log(data: bytes) -> None:
    """What is left of the topic is enough and untouched, or is refused with a LedgerError."""
    choices = Choices(data)
    sequence, digest, snapshot = _honest_participation()[1:]
    records = _spoilt(list(_honest_participation()[0]), choices)
    with contextlib.suppress(LedgerError):
        budgets = rebuild(_CAP, records, PLAN.plan_id, 0, sequence, digest)
        keys, spent = budgets.snapshot()
        assert (keys.tolist(), spent.tolist()) == snapshot


@cache
def _honest_records(plan: PrivacyPlan) -> tuple[bytes, ...]:
    records = [encode_ledger_record(genesis(plan, 0, 0, 0, 0))]
    head = _head(plan, records, is_complete=True)
    for window in range(_WINDOWS):
        head.expect(window, 0)
        cell = head.seal(plan.window_end_ms(window))
        head.commit(cell)
        if cell.ledger_record is not None:
            records.append(cell.ledger_record)
    return tuple(records)


@cache
def _honest_participation() -> tuple[tuple[bytes, ...], int, bytes, tuple[list[int], list[int]]]:
    """Records around a snapshot, the newest one's number and digest, and what they add up to."""
    budgets, digest, records = ClientBudgets(_CAP), b"", []
    end = SNAPSHOT_INTERVAL + 3
    for sequence in range(1, end + 1):
        present = [sequence % 3, 5, 2**63] if sequence % 50 == 0 else []
        keys = np.array(present, np.uint64)
        budgets = budgets.after(keys, 1)
        written = records_for(PLAN.plan_id, 0, sequence, sequence, budgets, keys, 1)
        digest = digest_of(digest, [value for _, value in written])
        records += [value for _, value in written if sequence >= SNAPSHOT_INTERVAL]
    keys, spent = budgets.snapshot()
    return tuple(records), end, digest, (keys.tolist(), spent.tolist())


def _spoilt(records: list[bytes], choices: Choices) -> list[bytes]:
    for _ in range(_MOST_CHANGES):
        if choices.are_over:
            break
        action, place = choices.number(1) % 8, choices.number(1) % (len(records) + 1)
        near = records[place : place + 1]
        if action == 0:
            records.insert(place, choices.sized_piece())
        elif action == 1:
            records[place:place] = near
        elif action == 2:
            records[place : place + 2] = records[place : place + 2][::-1]
        else:
            records[place : place + 1] = [
                changed for data in near for changed in _changed(data, action, records, choices)
            ]
    return records


def _changed(data: bytes, action: int, records: list[bytes], choices: Choices) -> list[bytes]:
    if action == 3 or not data:
        return []
    if action == 4:
        changed = bytearray(data)
        at, byte = choices.number(1) % len(changed), choices.number(1)
        changed[at] = byte
        return [bytes(changed)]
    return [_forged(data, records[: records.index(data)], choices)]


def _forged(data: bytes, before: list[bytes], choices: Choices) -> bytes:
    """Another record in its place, which names the right hash of the one before."""
    try:
        record = decode_ledger_record(data)
    except MalformedMessageError:
        return data
    small, big = choices.signed(1), _BIG[choices.number(1) % len(_BIG)]
    changes: tuple[dict[str, object], ...] = (
        {},
        {"sequence": max(0, record.sequence + small)},
        {"window": max(-1, record.window + small)},
        {"window": 2**63 - 1},
        {"next_offset": max(0, record.next_offset + small)},
        {"next_offset": 2**64 - 1},
        {"charge_units": big},
        {"spent_units": max(0, record.spent_units + small)},
        {"next_units": big},
        {"noise_variance": Fraction(abs(small) + 1, 7)},
        {"kind": LedgerKind(abs(small) % 4 + 1), "release_digest": b"", "noise_variance": 0},
        {"sealed_at_ms": 2**64 - 1},
        {"participation_digest": choices.piece(32)},
        {"clip": None},
    )
    change = changes[choices.number(1) % len(changes)]
    if before:
        change = {**change, "previous_hash": record_hash(before[-1])}
    try:
        return encode_ledger_record(replace(record, **change))
    except ValueError:
        return data


def _assert_adds_up(plan: PrivacyPlan, records: list[LedgerRecord]) -> None:
    for before, after in pairwise(records):
        assert after.sequence == before.sequence + 1
        assert after.window == before.window + 1
        spent = before.spent_units + after.charge_units
        # Where each client has a budget, the most that one can have spent stops at its cap.
        assert after.spent_units == (min(spent, plan.cap_units) if plan is PER_CLIENT else spent)
        assert after.spent_units <= plan.cap_units


def _verify(plan: PrivacyPlan, records: list[bytes], *, is_complete: bool) -> None:
    newest = verify_records(plan, 0, records, is_complete=is_complete)
    decoded = [decode_ledger_record(record) for record in records]
    _assert_adds_up(plan, decoded)
    assert newest == decoded[-1]
    assert not is_complete or decoded[0].sequence == 0


def _continue(plan: PrivacyPlan, records: list[bytes], *, is_complete: bool) -> None:
    honest = _honest_records(plan)
    end = honest[0] if is_complete else honest[-2]
    rest = continuation(plan, 0, end, records, lambda *_: True)
    _assert_adds_up(plan, [decode_ledger_record(record) for record in (end, *rest)])


def _open(plan: PrivacyPlan, records: list[bytes], *, is_complete: bool) -> None:
    """Take over the ledger as a head does, and seal one more window."""
    head = _head(plan, records, is_complete=is_complete)
    head.offer([])
    head.expect(head.next_window, head.position)
    cell = head.seal(0)
    if cell.ledger_record is not None:
        _assert_adds_up(
            plan, [decode_ledger_record(data) for data in (records[-1], cell.ledger_record)]
        )
    head.commit(cell)


def _head(plan: PrivacyPlan, records: list[bytes], *, is_complete: bool) -> ClusterHead:
    return ClusterHead(
        plan,
        0,
        UnsafeNoNoise(),
        records,
        is_complete=is_complete,
        max_open_windows=2,
        clients=ClientBudgets(plan.cap_units) if plan is PER_CLIENT else None,
    )


TARGETS = {"ledger": ledger, "participation_log": participation_log}
