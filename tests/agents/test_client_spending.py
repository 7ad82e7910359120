import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from agents.client_spending import ClientSpending, budgets_at, newest_participation
from schemas import LedgerKind, LedgerRecord
from stream.budget.client_budgets import ClientBudgets
from stream.errors import LedgerError
from stream.ledger_chain import genesis
from stream.participation_log import digest_of, records_for
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec

PLAN = PrivacyPlan(
    name="spending",
    dimension=5,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=3.0,
    delta=1e-3,
    horizon_windows=10,
    optimizer=OptimizerSpec("sgd", learning_rate=0.1),
    normalizer="expected_clients",
    scope="client",
)


def budgets(*spent: int, cap: int = 100) -> ClientBudgets:
    keys = np.arange(len(spent), dtype=np.uint64)
    return ClientBudgets.from_snapshot(cap, keys, np.array(spent, np.uint64))


def test_nobody_has_spent_anything_at_first() -> None:
    assert ClientSpending.of(ClientBudgets(100), 10) == ClientSpending(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("spent", "median"), [((7,), 7), ((1, 9), 1), ((9, 1, 5), 5), ((4, 1, 3, 2), 2)]
)
def test_half_of_the_clients_have_spent_at_most_the_median(
    spent: tuple[int, ...], median: int
) -> None:
    found = ClientSpending.of(budgets(*spent), 10)
    assert found.median_units == median
    assert 2 * sum(units <= median for units in spent) >= len(spent)
    assert (found.clients, found.largest_units) == (len(spent), max(spent))


def test_who_cannot_pay_another_window_is_at_the_cap() -> None:
    assert ClientSpending.of(budgets(90, 91, 100), 10).at_cap == 2


def record(sequence: int, kind: LedgerKind) -> LedgerRecord:
    first = genesis(PLAN, 0, 0, 0, 0)
    digest = bytes([sequence]) * 32 if kind is not LedgerKind.EXHAUSTED else b""
    return dataclasses.replace(
        first,
        sequence=sequence,
        kind=kind,
        noise_variance=Fraction(1),
        participation_digest=b"" if kind is LedgerKind.GENESIS else digest,
    )


def test_genesis_and_the_closing_record_say_nothing_of_who_took_part() -> None:
    records = [record(0, LedgerKind.GENESIS)]
    assert newest_participation(records) == (0, b"")
    records += [record(1, LedgerKind.RELEASE), record(2, LedgerKind.THROTTLED)]
    assert newest_participation(records) == (2, b"\2" * 32)
    records.append(record(3, LedgerKind.EXHAUSTED))
    assert newest_participation(records) == (2, b"\2" * 32)


def test_the_budgets_at_a_record_are_the_same_when_later_ones_are_there() -> None:
    found, digest, values, digests = ClientBudgets(PLAN.cap_units), b"", [], []
    for sequence in (1, 2, 3):
        keys = np.arange(sequence, dtype=np.uint64)
        found = found.after(keys, 5)
        written = records_for(PLAN.plan_id, 0, sequence, sequence - 1, found, keys, 5)
        values += [value for _, value in written]
        digest = digest_of(digest, [value for _, value in written])
        digests.append(digest)
    second = budgets_at(PLAN, 0, values, 2, digests[1])
    assert [array.tolist() for array in second.snapshot()] == [[0, 1], [10, 5]]
    with pytest.raises(LedgerError, match="names the digest of"):
        budgets_at(PLAN, 0, values, 2, digests[2])
    with pytest.raises(LedgerError, match="cannot be read"):
        budgets_at(PLAN, 0, [*values, b"garbage"], 2, digests[1])
    keys = np.arange(1, dtype=np.uint64)
    ((_, others),) = records_for(bytes(16), 0, 4, 3, found, keys, 5)
    with pytest.raises(LedgerError, match="under plan 0000"):
        budgets_at(PLAN, 0, [*values, others], 2, digests[1])
