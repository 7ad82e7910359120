import math
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.budget import Ledger
from stream.errors import BudgetExhaustedError, LedgerError
from stream.privacy.accounting import UNITS_PER_RHO
from stream.privacy.event import GaussianEvent

EVENT = GaussianEvent(1, Fraction(100))  # rho = 0.005
EVENTS = st.builds(GaussianEvent, st.integers(1, 2**40), st.fractions(min_value=1, max_value=2**40))


def admitted(ledger: Ledger, event: GaussianEvent) -> int:
    """How often ``event`` is admitted before it is refused."""
    count = 0
    while True:
        try:
            receipt = ledger.charge(event)
        except BudgetExhaustedError:
            return count
        ledger, count = ledger.after(receipt), count + 1


def test_four_quarters_of_a_cap_are_admitted_and_no_fifth():
    # PRIVACY, K5: a filter that adds floats may refuse the fourth of 0.005 under a cap of 0.02.
    assert admitted(Ledger(4 * EVENT.units), EVENT) == 4


def test_one_unit_less_than_four_charges_pays_for_three():
    assert admitted(Ledger(4 * EVENT.units - 1), EVENT) == 3


def test_a_cap_is_spread_over_exactly_its_windows():
    cap = math.floor(Fraction(2, 100) * UNITS_PER_RHO)
    event = GaussianEvent(1, Fraction(UNITS_PER_RHO, 2 * (cap // 4)))
    assert admitted(Ledger(cap), event) == 4


def test_the_boundary_is_charged():
    units = EVENT.units
    receipt = Ledger(units).charge(EVENT)
    assert (receipt.units, receipt.spent_units, receipt.cap_units) == (units, units, units)
    with pytest.raises(BudgetExhaustedError, match=f"{units} units are asked, {units - 1} are"):
        Ledger(units - 1).charge(EVENT)


def test_a_refused_charge_is_not_recorded():
    ledger = Ledger(EVENT.units, spent_units=1, sequence=3)
    with pytest.raises(BudgetExhaustedError):
        ledger.charge(EVENT)
    assert ledger == Ledger(EVENT.units, 1, 3)


def test_a_charge_alone_changes_nothing():
    ledger = Ledger(10 * EVENT.units)
    assert ledger.charge(EVENT) == ledger.charge(EVENT)
    assert ledger.spent_units == 0


def test_what_was_paid_is_spent():
    ledger = Ledger(10 * EVENT.units)
    after = ledger.after(ledger.charge(EVENT))
    assert after == Ledger(10 * EVENT.units, EVENT.units, 1)


@given(cap=st.integers(1, 2**64), events=st.lists(EVENTS, max_size=30))
def test_the_total_never_passes_the_cap_and_never_falls(cap, events):
    ledger, total, count = Ledger(cap), 0, 0
    for event in events:
        try:
            receipt = ledger.charge(event)
        except BudgetExhaustedError:
            assert total + event.units > cap
            continue
        before, ledger = ledger, ledger.after(receipt)
        total, count = total + event.units, count + 1
        assert before.spent_units < ledger.spent_units == total <= cap
        assert ledger.sequence == receipt.sequence == count


def test_receipts_are_paid_in_order_and_once():
    ledger = Ledger(10 * EVENT.units)
    first = ledger.charge(EVENT)
    later = ledger.after(first)
    second = later.charge(EVENT)
    with pytest.raises(LedgerError, match="receipt 1 does not follow 1"):
        later.after(first)
    with pytest.raises(LedgerError, match="receipt 2 does not follow 0"):
        ledger.after(second)


@pytest.mark.parametrize(
    "change", [{"spent_units": 0}, {"units": 1}, {"sequence": 0}, {"sequence": 2}]
)
def test_a_receipt_that_does_not_add_up_is_refused(change):
    ledger = Ledger(10 * EVENT.units)
    with pytest.raises(LedgerError, match="does not follow"):
        ledger.after(replace(ledger.charge(EVENT), **change))


def test_a_receipt_of_another_cap_is_refused():
    mine, other = Ledger(10 * EVENT.units), Ledger(20 * EVENT.units)
    with pytest.raises(LedgerError):
        mine.after(other.charge(EVENT))


@pytest.mark.parametrize(
    ("cap", "spent", "sequence"),
    [
        (0, 0, 0),
        (-1, 0, 0),
        (5, 6, 1),
        (5, -1, 1),
        (5, 0, -1),
        (math.nan, 0, 0),
        (5, math.nan, 1),
    ],
)
def test_a_state_that_no_charges_can_lead_to_is_refused(cap, spent, sequence):
    with pytest.raises(LedgerError):
        Ledger(cap, spent, sequence)


@pytest.mark.parametrize(
    ("squared", "variance"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1, math.nan), (math.nan, 1)]
)
def test_a_charge_of_nothing_or_less_does_not_exist(squared, variance):
    with pytest.raises(ValueError, match="must be positive"):
        Ledger(2**64).charge(GaussianEvent(squared, variance))


def test_a_ledger_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Ledger(5).spent_units = 0


# --- A window without a release, and a cap that is each client's ---------------------------


def test_a_window_without_a_release_takes_a_number_and_costs_nothing():
    ledger = Ledger(10 * EVENT.units, EVENT.units, 1)
    assert ledger.after_no_release() == Ledger(10 * EVENT.units, EVENT.units, 2)
    receipt = ledger.after_no_release().charge(EVENT)
    assert receipt.sequence == 3
    with pytest.raises(LedgerError, match="receipt 3 does not follow 1"):
        ledger.after(receipt)


def test_where_each_client_has_a_cap_releases_go_on_and_the_total_stops_at_it():
    ledger = Ledger(2 * EVENT.units + 1, is_per_client=True)
    totals = []
    for number in range(1, 6):
        receipt = ledger.charge(EVENT)
        assert (receipt.sequence, receipt.units) == (number, EVENT.units)
        ledger = ledger.after(receipt)
        totals.append(ledger.spent_units)
    cap = ledger.cap_units
    assert totals == [EVENT.units, 2 * EVENT.units, cap, cap, cap]
    assert ledger.after_no_release().is_per_client


def test_a_charge_above_the_cap_of_a_client_is_for_its_own_budget_to_refuse():
    # Nobody could pay for it: every update is refused, and the window is empty.
    assert Ledger(EVENT.units - 1, is_per_client=True).charge(EVENT).spent_units == EVENT.units - 1


@given(cap=st.integers(1, 2**64), events=st.lists(EVENTS, max_size=30))
def test_the_total_of_a_client_that_is_always_there_never_passes_its_cap(cap, events):
    ledger, total = Ledger(cap, is_per_client=True), 0
    for event in events:
        ledger, total = ledger.after(ledger.charge(event)), total + event.units
        assert ledger.spent_units == min(total, cap)


def test_a_receipt_of_the_other_scope_is_refused():
    per_client, per_cluster = (
        Ledger(EVENT.units, EVENT.units, 1, is_per_client=True),
        Ledger(EVENT.units, EVENT.units, 1),
    )
    with pytest.raises(LedgerError, match="does not follow"):
        per_cluster.after(per_client.charge(EVENT))
