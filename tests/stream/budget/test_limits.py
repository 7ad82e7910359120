from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.budget.limits import RateLimit, SlidingLimits
from stream.errors import LedgerError

HOUR = RateLimit("hour", windows=3, cap_units=10)
DAY = RateLimit("day", windows=7, cap_units=15)
LIMITS = st.lists(
    st.builds(RateLimit, st.sampled_from(["hour", "day"]), st.integers(1, 9), st.integers(1, 40)),
    max_size=3,
).map(tuple)


def slow_refusing(limits, history, units):
    """What `SlidingLimits.refusing` must say, from the whole history in exact rationals."""
    for limit in limits:
        run = (
            [*([0] * limit.windows), *history][-(limit.windows - 1) :] if limit.windows > 1 else []
        )
        if sum(map(Fraction, run), Fraction(units)) > limit.cap_units:
            return limit
    return None


def heaviest_run(history, windows):
    return max(sum(history[i : i + windows]) for i in range(len(history)))


def spend(limits, asked):
    """The history of a head that asks for each of ``asked`` and throttles what is refused."""
    sliding, history = SlidingLimits(limits, ()), []
    for units in asked:
        history.append(0 if sliding.refusing(units) else units)
        sliding.push(history[-1])
    return history


@given(limits=LIMITS, asked=st.lists(st.integers(0, 25), max_size=40))
def test_each_decision_is_that_of_the_whole_history(limits, asked):
    sliding, history = SlidingLimits(limits, ()), []
    for units in asked:
        expected = slow_refusing(limits, history, units)
        assert sliding.refusing(units) == expected
        history.append(units if expected is None else 0)
        sliding.push(history[-1])


@given(limits=LIMITS, asked=st.lists(st.integers(0, 25), min_size=1, max_size=40))
def test_no_run_of_windows_spends_more_than_its_limit(limits, asked):
    history = spend(limits, asked)
    for limit in limits:
        assert heaviest_run(history, limit.windows) <= limit.cap_units


@given(limits=LIMITS, asked=st.lists(st.integers(0, 25), max_size=40), cut=st.integers(0, 60))
def test_a_restart_decides_as_if_there_had_been_none(limits, asked, cut):
    history = spend(limits, asked)
    live = SlidingLimits(limits, history)
    longest = max((limit.windows for limit in limits), default=1)
    needed = max(longest - 1, len(history) - cut)
    restarted = SlidingLimits(limits, history[-needed:] if needed else ())
    for units in (1, 7, 0, 12, 3, 25, 25, 1):
        assert restarted.refusing(units) == live.refusing(units)
        charge = 0 if live.refusing(units) else units
        live.push(charge)
        restarted.push(charge)


def test_one_window_less_than_needed_lets_too_much_through():
    # The planted fault that the restart test must find: the oldest charge of the run is lost.
    charges = [9, 0, 0, 0, 0, 5]
    assert SlidingLimits((DAY,), charges).refusing(2) is DAY
    assert SlidingLimits((DAY,), charges[1:]).refusing(2) is None


def test_exactly_the_cap_is_admitted_and_one_unit_more_is_not():
    sliding = SlidingLimits((HOUR,), [4, 3])
    assert sliding.refusing(3) is None
    assert sliding.refusing(4) is HOUR


def test_the_first_limit_that_refuses_is_named():
    assert SlidingLimits((HOUR, DAY), [9, 0, 0, 0, 6, 0]).refusing(5) is HOUR
    assert SlidingLimits((DAY, HOUR), [9, 0, 0, 0, 6, 0]).refusing(5) is DAY
    assert SlidingLimits((HOUR, DAY), [9, 0, 0, 0, 6, 0]).refusing(1) is DAY
    # One window later the 9 has left the day.
    assert SlidingLimits((HOUR, DAY), [9, 0, 0, 0, 6, 0, 0]).refusing(9) is None


def test_a_charge_leaves_when_its_run_is_over():
    sliding = SlidingLimits((HOUR,), [10])
    decisions = []
    for _ in range(4):
        decisions.append(sliding.refusing(10))
        sliding.push(0)
    assert decisions == [HOUR, HOUR, None, None]


def test_a_calendar_limit_would_let_twice_the_cap_through():
    # 10 in the last window of one hour and 10 in the first window of the next one.
    asked = [0, 0, 10, 10, 0, 0]
    assert heaviest_run(asked, HOUR.windows) == 2 * HOUR.cap_units
    assert heaviest_run(spend((HOUR,), asked), HOUR.windows) == HOUR.cap_units


def test_charges_beyond_64_bits_are_exact():
    limit = RateLimit("day", 3, 2**80)
    sliding = SlidingLimits((limit,), [2**79, 2**79 - 1])
    assert sliding.refusing(1) is None
    assert sliding.refusing(2) is limit


def test_a_charge_that_breaks_a_limit_cannot_be_noted():
    sliding = SlidingLimits((HOUR,), [4, 3])
    with pytest.raises(LedgerError, match="breaks the hour limit of 10 units in 3 windows"):
        sliding.push(4)
    with pytest.raises(LedgerError, match="-1 units"):
        sliding.push(-1)
    assert sliding.refusing(3) is None


def test_a_ledger_that_broke_its_limits_is_refused():
    with pytest.raises(LedgerError, match="compare the ledger topic"):
        SlidingLimits((HOUR,), [6, 0, 5])


@pytest.mark.parametrize(("windows", "cap"), [(0, 1), (-1, 1), (1, 0), (1, -5)])
def test_a_limit_of_nothing_does_not_exist(windows, cap):
    with pytest.raises(ValueError, match="at least 1"):
        RateLimit("hour", windows, cap)


def test_a_day_of_seconds_takes_one_integer_a_window():
    day = RateLimit("day", 86_400, 86_400 * 2)
    sliding = SlidingLimits((RateLimit("hour", 3_600, 10_000), day), ())
    for _ in range(100_000):
        sliding.push(2 if sliding.refusing(2) is None else 0)
    assert sliding.refusing(2) is None
    assert sliding.refusing(3) is day
