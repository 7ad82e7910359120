import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.budget.client_budgets import ClientBudgets, client_key
from stream.errors import LedgerError

CAP = 20
# Neighbouring keys above 2^53 are one number to a float64.
KEYS = st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
CHARGES = st.lists(st.tuples(st.sets(KEYS), st.integers(0, 9)), max_size=25)


def array(keys):
    return np.array(sorted(keys), np.uint64)


def many_keys(count, seed=1):
    # An odd factor makes distinct numbers of distinct ones, spread over all 64 bits.
    numbers = np.arange(seed * count, (seed + 1) * count, dtype=np.uint64)
    return np.sort(numbers * np.uint64(0x9E3779B97F4A7C15))


def state(budgets):
    keys, spent = budgets.snapshot()
    return dict(zip(keys.tolist(), spent.tolist(), strict=True))


class SlowBudgets:
    """The same filter as a dict of exact rationals."""

    def __init__(self, cap):
        self.cap, self.spent = Fraction(cap), {}

    def may_pay(self, key, units):
        return self.spent.get(key, Fraction(0)) + units <= self.cap

    def charge(self, keys, units):
        if units:
            self.spent.update({key: self.spent.get(key, Fraction(0)) + units for key in keys})


@given(charges=CHARGES, probe=st.integers(0, CAP + 1))
def test_each_decision_and_total_is_that_of_a_dict_of_rationals(charges, probe):
    budgets, slow = ClientBudgets(CAP), SlowBudgets(CAP)
    for asking, units in charges:
        paying = {key for key in asking if slow.may_pay(key, units)}
        assert {key for key in asking if budgets.may_pay(key, units)} == paying
        budgets.charge(array(paying), units)
        slow.charge(paying, units)
        assert state(budgets) == slow.spent
        assert budgets.client_count == len(slow.spent)
        assert all(budgets.spent(key) == slow.spent.get(key, 0) for key in asking)
        expected = sum(not slow.may_pay(key, probe) for key in slow.spent)
        assert budgets.exhausted_count(probe) == expected


@given(charges=CHARGES)
def test_a_charge_takes_all_or_nobody(charges):
    budgets, slow = ClientBudgets(CAP), SlowBudgets(CAP)
    for keys, units in charges:
        if all(slow.may_pay(key, units) for key in keys):
            budgets.charge(array(keys), units)
            slow.charge(keys, units)
        else:
            with pytest.raises(LedgerError, match="nobody is charged"):
                budgets.charge(array(keys), units)
        assert state(budgets) == slow.spent


@given(charges=CHARGES)
def test_what_comes_after_a_charge_is_known_before_it(charges):
    budgets = ClientBudgets(CAP)
    for asking, units in charges:
        keys = array({key for key in asking if budgets.may_pay(key, units)})
        before, after = state(budgets), budgets.after(keys, units)
        assert state(budgets) == before
        budgets.charge(keys, units)
        assert state(after) == state(budgets)


def accepted_of_others(decide, stream, absent):
    """Who is accepted in each window, client 0 aside; ``absent`` are missing from the stream."""
    accepted = []
    for asking, units in stream:
        present = asking - absent
        accepted.append({client for client in present if decide(client, units)} - {0})
    return accepted


class Filter:
    """Admits and charges; ``key_of`` is what a client's budget is kept under."""

    def __init__(self, key_of):
        self.budgets, self.key_of = ClientBudgets(CAP), key_of

    def __call__(self, client, units):
        key = self.key_of(client)
        if not self.budgets.may_pay(key, units):
            return False
        self.budgets.charge(array([key]), units)
        return True


@given(
    stream=st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(1, 9)), max_size=30
    )
)
def test_without_one_client_all_others_are_accepted_as_before(stream):
    worlds = [
        accepted_of_others(Filter(lambda client: client), stream, absent) for absent in (set(), {0})
    ]
    assert worlds[0] == worlds[1]


def test_a_budget_that_two_clients_share_is_found_by_that_test():
    stream = [({0, 1}, 9)] * 3
    worlds = [
        accepted_of_others(Filter(lambda client: client // 2), stream, absent)
        for absent in (set(), {0})
    ]
    assert worlds[0] != worlds[1]


def test_exactly_the_cap_is_admitted_and_one_unit_more_is_not():
    budgets = ClientBudgets(4 * 5)
    for _ in range(4):
        assert budgets.may_pay(7, 5)
        budgets.charge(array([7]), 5)
    assert budgets.spent(7) == budgets.cap_units
    assert not budgets.may_pay(7, 1)
    with pytest.raises(LedgerError):
        budgets.charge(array([7]), 1)
    assert budgets.may_pay(8, 20)
    assert not budgets.may_pay(8, 21)


def test_the_largest_cap_does_not_wrap():
    cap = 2**63 - 1
    budgets = ClientBudgets(cap)
    budgets.charge(array([1, 2]), cap - 1)
    budgets.charge(array([1]), 1)
    assert (budgets.spent(1), budgets.spent(2)) == (cap, cap - 1)
    for units in (1, cap, 2**64, 2**70):
        assert not budgets.may_pay(1, units)
        with pytest.raises(LedgerError):
            budgets.charge(array([1, 3]), units)
    assert budgets.exhausted_count(1) == 1
    assert budgets.exhausted_count(2) == budgets.exhausted_count(2**70) == 2
    assert state(budgets) == {1: cap, 2: cap - 1}


@pytest.mark.parametrize("cap", [0, -1, 2**63, 2**64])
def test_a_cap_that_64_bits_cannot_hold_twice_is_refused(cap):
    with pytest.raises(LedgerError, match="not from 1 to"):
        ClientBudgets(cap)


@pytest.mark.parametrize(
    "keys",
    [
        np.array([2, 1], np.uint64),
        np.array([1, 1], np.uint64),
        np.array([1, 2], np.int64),
        np.array([[1, 2]], np.uint64),
    ],
)
def test_keys_that_are_not_sorted_and_unique_are_refused(keys):
    budgets = ClientBudgets(CAP)
    with pytest.raises(ValueError, match="sorted unique"):
        budgets.charge(keys, 1)
    with pytest.raises(LedgerError, match="sorted unique"):
        ClientBudgets.from_snapshot(CAP, keys, np.ones(keys.shape, np.uint64))
    assert budgets.client_count == 0


def test_a_negative_charge_is_no_refund():
    budgets = ClientBudgets(CAP)
    budgets.charge(array([1]), 5)
    with pytest.raises(ValueError, match="at least 0"):
        budgets.charge(array([1]), -1)
    assert budgets.spent(1) == 5


@given(charges=CHARGES)
def test_a_snapshot_leads_back_to_the_same_budgets(charges):
    budgets = ClientBudgets(CAP)
    for asking, units in charges:
        budgets.charge(array({key for key in asking if budgets.may_pay(key, units)}), units)
    again = ClientBudgets.from_snapshot(CAP, *budgets.snapshot())
    assert state(again) == state(budgets)


def test_a_snapshot_stays_as_it_was_taken():
    budgets = ClientBudgets(CAP)
    budgets.charge(array([1, 2]), 5)
    keys, spent = budgets.snapshot()
    budgets.charge(array([2]), 5)
    budgets.charge(array([0]), 5)
    assert (keys.tolist(), spent.tolist()) == ([1, 2], [5, 5])
    with pytest.raises(ValueError, match="read-only"):
        spent[0] = 0


def test_the_callers_arrays_stay_the_callers():
    keys, spent = array([1, 2]), np.full(2, 5, np.uint64)
    budgets = ClientBudgets.from_snapshot(CAP, keys, spent)
    other = ClientBudgets(CAP)
    other.charge(keys, 3)
    keys[0], spent[0] = 0, 1
    assert state(budgets) == {1: 5, 2: 5}
    assert state(other) == {1: 3, 2: 3}


@pytest.mark.parametrize("spent", [[0, 5], [5, CAP + 1], [5], [5, 2**64 - 1]])
def test_a_snapshot_that_no_charges_lead_to_is_refused(spent):
    with pytest.raises(LedgerError):
        ClientBudgets.from_snapshot(CAP, array([1, 2]), np.array(spent, np.uint64))


def test_a_million_clients_take_at_most_40_bytes_each_while_they_grow_and_are_charged():
    count = 1_000_000
    keys = many_keys(count)
    for batches in ([keys], [keys[::2].copy(), keys[1::2].copy()], [keys, keys, keys[::10].copy()]):
        budgets = ClientBudgets(CAP)
        tracemalloc.start()
        try:
            for batch in batches:
                budgets.charge(batch, 5)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert budgets.client_count == count
        assert budgets.nbytes == 16 * count
        assert peak <= 40 * count
        assert budgets.spent(int(keys[123_456])) == 5 * sum(keys[123_456] in b for b in batches)


def test_a_key_depends_on_the_plan_and_on_the_client():
    keys = {client_key(plan, client) for plan in (bytes(16), b"p" * 16) for client in ("a", "b")}
    assert len(keys) == 4
    assert all(0 <= key < 2**64 for key in keys)
    # Pinned: after a change, a restart would no longer find what clients have spent.
    assert client_key(bytes(range(16)), "region-7/device-123") == 5125772819890648836


def test_ten_thousand_clients_of_one_plan_have_ten_thousand_keys():
    # All but surely: a collision among so many has probability 2.8e-12, and the names are fixed.
    assert len({client_key(bytes(16), f"client-{number}") for number in range(10_000)}) == 10_000
