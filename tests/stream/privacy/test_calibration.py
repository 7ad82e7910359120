"""Agreement with dp_accounting and the ledger, and what holds of all arguments.

The reference values are in test_reference_values.py.
"""

import dataclasses
import math
from fractions import Fraction

import dp_accounting
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stream.budget import Ledger
from stream.errors import BudgetExhaustedError
from stream.privacy.accounting import (
    UNITS_PER_RHO,
    gaussian_charge_units,
    zcdp_epsilon,
)
from stream.privacy.calibration import (
    Calibration,
    PrivacyFilter,
    calibrate,
    solve_epsilon,
    solve_noise_multiplier,
    solve_windows,
)
from stream.privacy.event import GaussianEvent
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

STEP = 1e-6
FILTERS = list(PrivacyFilter)
GRID = [
    (epsilon, delta, windows)
    for epsilon in (0.1, 1.0, 4.0, 20.0)
    for delta in (1e-5, 1e-6, 1e-10)
    for windows in (1, 7, 1000)
]

filters = st.sampled_from(FILTERS)
epsilons = st.floats(0.01, 100)
deltas = st.floats(-30, -1).map(lambda exponent: 10.0**exponent)
counts = st.integers(1, 10**6)
multipliers = st.floats(-1, 4).map(lambda exponent: 10.0**exponent)
factors = st.floats(1.001, 10)


# --- Agreement with other implementations --------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta", "windows"), GRID)
def test_the_noise_is_that_of_an_independent_calibration(epsilon, delta, windows):
    found = solve_noise_multiplier(epsilon=epsilon, delta=delta, windows=windows)
    # T equal Gaussian releases are as private as one with sqrt(T) times less noise.
    once = dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-12)
    assert found.noise_multiplier / math.sqrt(windows) == pytest.approx(once, rel=2e-8)


def test_the_comparison_sees_a_noise_that_is_too_small_by_a_millionth():
    found = solve_noise_multiplier(epsilon=4.0, delta=1e-6, windows=1)
    once = dp_accounting.get_sigma_gaussian(4.0, 1e-6, tol=1e-12)
    assert found.noise_multiplier * (1 - 1e-6) != pytest.approx(once, rel=2e-8)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("multiplier", [0.5, 3.3, 10.0, 200.0])
@pytest.mark.parametrize("windows", [1, 10, 1000])
def test_epsilon_is_that_of_an_independent_conversion(delta, multiplier, windows):
    found = solve_epsilon(delta=delta, windows=windows, noise_multiplier=multiplier)
    theirs = dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(windows), delta)
    assert -1e-9 * theirs <= found.epsilon - theirs <= STEP + 1e-9 * theirs


@pytest.mark.parametrize(("epsilon", "delta", "windows"), GRID)
def test_the_windows_are_the_last_that_an_independent_conversion_allows(epsilon, delta, windows):
    once = dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-12)
    for more in (0.001, 0.999):
        multiplier = once * math.sqrt(windows + more)
        found = solve_windows(epsilon=epsilon, delta=delta, noise_multiplier=multiplier)
        assert found.windows == windows


@pytest.mark.parametrize("windows", [1, 70, 1000])
def test_a_plan_of_the_same_budget_has_the_same_noise(windows):
    plan = PrivacyPlan(
        name="same",
        dimension=400,
        cluster_count=1,
        assignment="hash",
        assignment_key="public",
        expected_clients=1000,
        start_ms=0,
        window_length_ms=1000,
        grace_ms=100,
        release_delay_ms=300,
        l2_clip_norm=1.0,
        grid_l2_bound=500,
        count_weight=50,
        update_dtype="int8",
        epsilon=4.0,
        delta=1e-6,
        horizon_windows=windows,
        optimizer=OptimizerSpec("sgd", 0.1),
        normalizer="expected_clients",
    )
    found = solve_noise_multiplier(epsilon=4.0, delta=1e-6, windows=windows)
    assert found.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-8)
    # A plan cuts the last digits off, which machines could disagree about.
    assert 0 <= found.cap_units - plan.cap_units < 3e-11 * plan.cap_units
    assert found.spent_epsilon <= plan.epsilon


@pytest.mark.parametrize("multiplier", [1.3, 4.0, 10.0])
def test_a_ledger_admits_exactly_the_windows_that_were_solved_for(multiplier):
    found = solve_windows(epsilon=4.0, delta=1e-6, noise_multiplier=multiplier)
    # The sensitivity in grid steps does not matter, only the ratio.
    event = GaussianEvent(10**6, 10**6 * Fraction(multiplier) ** 2)
    ledger = Ledger(found.cap_units)
    for _ in range(found.windows):
        ledger = ledger.after(ledger.charge(event))
    with pytest.raises(BudgetExhaustedError):
        ledger.charge(event)


# --- Every answer is kept, and is the best one ---------------------------------------------


@given(filters, epsilons, deltas, multipliers)
def test_windows_solved_for_fit_and_one_more_does_not(privacy_filter, epsilon, delta, multiplier):
    budget = {"epsilon": epsilon, "delta": delta, "privacy_filter": privacy_filter}
    cap = privacy_filter.cap_units(epsilon, delta)
    assume(cap >= gaussian_charge_units(1, Fraction(multiplier) ** 2))
    found = solve_windows(noise_multiplier=multiplier, **budget)
    assert found.fits
    assert not dataclasses.replace(found, windows=found.windows + 1).fits
    assert found.spent_epsilon <= epsilon
    back = solve_epsilon(
        delta=delta,
        windows=found.windows,
        noise_multiplier=multiplier,
        privacy_filter=privacy_filter,
    )
    assert back.epsilon <= max(epsilon, STEP)


@given(filters, counts, deltas, multipliers)
def test_epsilon_solved_for_fits_and_a_smaller_one_does_not(
    privacy_filter, windows, delta, multiplier
):
    assume(windows / multiplier**2 < 1e5)
    found = solve_epsilon(
        delta=delta, windows=windows, noise_multiplier=multiplier, privacy_filter=privacy_filter
    )
    assert found.fits
    again = solve_windows(
        epsilon=found.epsilon,
        delta=delta,
        noise_multiplier=multiplier,
        privacy_filter=privacy_filter,
    )
    assert again.windows >= windows
    if found.epsilon > 1e-3:
        assert not dataclasses.replace(found, epsilon=found.epsilon - 1.5 * STEP).fits


@given(filters, epsilons, deltas, counts)
def test_noise_solved_for_fits_and_a_little_less_does_not(privacy_filter, epsilon, delta, windows):
    budget = {"epsilon": epsilon, "delta": delta, "privacy_filter": privacy_filter}
    found = solve_noise_multiplier(windows=windows, **budget)
    assert found.fits
    assert found.spent_epsilon <= epsilon
    assert solve_windows(noise_multiplier=found.noise_multiplier, **budget).windows >= windows
    less = found.noise_multiplier * (1 - 1.1e-8)
    assert not dataclasses.replace(found, noise_multiplier=less).fits
    assert float(f"{found.noise_multiplier:.9g}") == found.noise_multiplier


@given(epsilons, deltas)
def test_zcdp_never_allows_more_than_the_filter_of_the_product(epsilon, delta):
    caps = [item.cap_units(epsilon, delta) for item in (PrivacyFilter.ZCDP, PrivacyFilter.GDP)]
    assert caps[0] <= caps[1]


@given(epsilons, deltas)
def test_the_zcdp_cap_is_the_largest_that_is_private(epsilon, delta):
    cap = PrivacyFilter.ZCDP.cap_units(epsilon, delta)
    assert zcdp_epsilon(cap / UNITS_PER_RHO, delta) <= epsilon
    assert zcdp_epsilon(cap * (1 + 1e-3) / UNITS_PER_RHO, delta) > epsilon - 2 * STEP
    assert PrivacyFilter.ZCDP.epsilon(cap, delta) <= epsilon
    assert PrivacyFilter.ZCDP.epsilon(cap + 1 + cap // 10**6, delta) > epsilon


# --- More of one thing costs another -------------------------------------------------------


@given(filters, epsilons, deltas, counts, factors)
def test_more_epsilon_means_less_noise_and_more_windows(filter_, epsilon, delta, windows, factor):
    def noise(epsilon: float) -> float:
        return solve_noise_multiplier(
            epsilon=epsilon, delta=delta, windows=windows, privacy_filter=filter_
        ).noise_multiplier

    def admitted(epsilon: float) -> int:
        return solve_windows(
            epsilon=epsilon, delta=delta, noise_multiplier=1e4, privacy_filter=filter_
        ).windows

    assert noise(epsilon * factor) < noise(epsilon)
    assert admitted(epsilon * factor) >= admitted(epsilon)


@given(filters, deltas, counts, multipliers, factors)
def test_more_noise_means_more_windows_and_less_epsilon(
    filter_, delta, windows, multiplier, factor
):
    assume(windows / multiplier**2 < 1e5)

    def epsilon(multiplier: float) -> float:
        return solve_epsilon(
            delta=delta, windows=windows, noise_multiplier=multiplier, privacy_filter=filter_
        ).epsilon

    def admitted(multiplier: float) -> int:
        return solve_windows(
            epsilon=1e5, delta=delta, noise_multiplier=multiplier, privacy_filter=filter_
        ).windows

    assert epsilon(multiplier * factor) <= epsilon(multiplier)
    assert admitted(multiplier * factor) >= admitted(multiplier)


@given(filters, epsilons, deltas, counts, counts)
def test_more_windows_mean_more_noise(filter_, epsilon, delta, windows, more):
    few, many = (
        solve_noise_multiplier(epsilon=epsilon, delta=delta, windows=count, privacy_filter=filter_)
        for count in (windows, windows + more)
    )
    assert few.noise_multiplier <= many.noise_multiplier


# --- Two of three, or all three ------------------------------------------------------------


@pytest.mark.parametrize("missing", ["epsilon", "windows", "noise_multiplier"])
@pytest.mark.parametrize("privacy_filter", FILTERS)
def test_the_missing_one_is_solved_for(missing, privacy_filter):
    numbers = {"epsilon": 4, "windows": 70, "noise_multiplier": 10, missing: None}
    solver = {
        "epsilon": solve_epsilon,
        "windows": solve_windows,
        "noise_multiplier": solve_noise_multiplier,
    }[missing]
    two = {name: value for name, value in numbers.items() if value is not None}
    more = {"delta": 1e-6, "privacy_filter": privacy_filter}
    assert calibrate(**numbers, **more) == solver(**two, **more)


@pytest.mark.parametrize(("windows", "fits"), [(1, True), (70, True), (71, False)])
def test_all_three_are_answered_with_whether_they_fit(windows, fits):
    found = calibrate(epsilon=4.0, delta=1e-6, windows=windows, noise_multiplier=10.0)
    assert found == Calibration(4.0, 1e-6, windows, 10.0)
    assert found.fits is fits
    assert (found.spent_epsilon <= 4.0) is fits


@pytest.mark.parametrize("only", [{"epsilon": 4.0}, {"windows": 7}, {"noise_multiplier": 1.0}, {}])
def test_fewer_than_two_are_refused(only):
    numbers = {"epsilon": None, "windows": None, "noise_multiplier": None, **only}
    with pytest.raises(ValueError, match="give two or three of"):
        calibrate(delta=1e-6, **numbers)


# --- What is refused -----------------------------------------------------------------------

GOOD = {"epsilon": 4.0, "delta": 1e-6, "windows": 70, "noise_multiplier": 10.0}
NO_NUMBERS = [0.0, -1.0, math.nan, math.inf, -math.inf]
BAD = {
    "epsilon": ([*NO_NUMBERS, 1.1e6], "epsilon must be above 0 and at most"),
    "delta": ([*NO_NUMBERS, 1.0, 1e-301], "delta must be at least 1e-300 and below 1"),
    "windows": ([0, -1, 10**30 + 1], "windows must be a whole number from 1"),
    "noise_multiplier": ([*NO_NUMBERS, 1e-5, 1e10], "the noise multiplier must be from"),
}


BAD_CASES = [
    pytest.param(GOOD | {name: value} | solved_for, message, id=f"{name}={value} {[*solved_for]}")
    for name, (values, message) in BAD.items()
    for value in values
    for solved_for in ({}, {"epsilon": None}, {"windows": None}, {"noise_multiplier": None})
    if name not in solved_for
]


@pytest.mark.parametrize("privacy_filter", FILTERS)
@pytest.mark.parametrize(("numbers", "message"), BAD_CASES)
def test_a_number_out_of_range_is_refused_whatever_is_solved_for(numbers, message, privacy_filter):
    with pytest.raises(ValueError, match=message):
        calibrate(**numbers, privacy_filter=privacy_filter)


@pytest.mark.parametrize("privacy_filter", FILTERS)
def test_a_budget_that_pays_for_nothing_is_refused_and_told_what_to_change(privacy_filter):
    more = {"delta": 1e-6, "privacy_filter": privacy_filter}
    with pytest.raises(
        ValueError, match=r"does not pay for one window: .* epsilon 5\.\d+ .* raise"
    ):
        solve_windows(epsilon=4.0, noise_multiplier=0.9, **more)
    with pytest.raises(ValueError, match=r"cannot be spread over .* windows: lower windows"):
        solve_noise_multiplier(epsilon=4.0, windows=10**20, **more)
    with pytest.raises(ValueError, match="nothing can be granted"):
        privacy_filter.cap_units(1e-7, 1e-30)
    with pytest.raises(ValueError, match="which promises nothing: raise the noise multiplier"):
        solve_epsilon(windows=10**30, noise_multiplier=1.0, **more)


@pytest.mark.parametrize("privacy_filter", FILTERS)
def test_windows_that_cost_next_to_nothing_get_the_least_epsilon_that_can_be_asked(privacy_filter):
    found = solve_epsilon(delta=0.5, windows=1, noise_multiplier=1e9, privacy_filter=privacy_filter)
    assert found.epsilon == STEP
    assert found.fits


def test_an_answer_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Calibration(**GOOD).epsilon = 5.0
