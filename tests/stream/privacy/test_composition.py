"""Soundness against exact oracles; the reference values are in test_reference_values.py."""

import itertools
import math
from fractions import Fraction

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.accounting import (
    UNITS_PER_RHO,
    epsilon_from_units,
    gaussian_charge_units,
    gdp_delta,
    zcdp_epsilon,
    zcdp_epsilon_simple,
)
from stream.privacy.composition import (
    Accounting,
    advanced_epsilon,
    analytic_noise_multiplier,
    basic_epsilon,
    classic_noise_multiplier,
    compare_accountings,
    drv_epsilon,
    pure_dp_mu,
    pure_dp_rho,
)

STEP = 1e-6
TEN = gaussian_charge_units(1, Fraction(100))  # noise of ten sensitivities

epsilons = st.floats(0.001, 3)
deltas = st.floats(-30, -1).map(lambda exponent: 10.0**exponent)
mixed = st.lists(st.tuples(epsilons, st.integers(1, 1000)), min_size=1, max_size=5)
charges = st.lists(
    st.tuples(
        st.floats(-10, 3).map(lambda x: math.ceil(10.0**x * UNITS_PER_RHO)), st.integers(1, 1000)
    ),
    min_size=1,
    max_size=5,
)


# --- Composition of epsilons ---------------------------------------------------------------


def exact_delta(each, epsilon):
    """Return the exact delta of randomized responses, the worst mechanisms of their epsilons."""
    total = 0.0
    for answers in itertools.product((True, False), repeat=len(each)):
        loss = sum(e if truth else -e for e, truth in zip(each, answers, strict=True))
        likely = math.prod(
            1 / (1 + math.exp(-e if truth else e)) for e, truth in zip(each, answers, strict=True)
        )
        total += likely * max(0.0, 1 - math.exp(epsilon - loss))
    return total


@given(st.lists(epsilons, min_size=1, max_size=8), st.floats(1e-12, 0.5))
def test_what_the_bounds_promise_holds_for_the_worst_mechanisms(each, slack):
    counted = [(epsilon, 1) for epsilon in each]
    assert exact_delta(each, basic_epsilon(counted) * (1 + 1e-12)) == 0
    assert exact_delta(each, advanced_epsilon(counted, slack=slack)) <= slack
    assert exact_delta(each, drv_epsilon(counted, slack=slack)) <= slack


def test_the_exact_delta_sees_a_bound_that_forgets_the_drift():
    each, slack = [0.5] * 8, 0.2
    drift = sum(e * math.tanh(e / 2) for e in each)
    promised = advanced_epsilon([(0.5, 8)], slack=slack)
    assert exact_delta(each, promised) <= slack < exact_delta(each, (promised - drift) / 2)


@given(mixed, st.floats(1e-12, 0.5))
def test_the_sharper_form_is_never_above_the_first_one(counted, slack):
    assert advanced_epsilon(counted, slack=slack) <= drv_epsilon(counted, slack=slack)


@given(mixed, st.floats(1e-12, 0.5))
def test_a_number_of_equal_mechanisms_stands_for_each_of_them(counted, slack):
    split = [pair for epsilon, count in counted for pair in ((epsilon, 1), (epsilon, count - 1))]
    assert basic_epsilon(split) == pytest.approx(basic_epsilon(counted), rel=1e-12)
    for bound in (drv_epsilon, advanced_epsilon):
        assert bound(split, slack=slack) == pytest.approx(bound(counted, slack=slack), rel=1e-12)


def test_advanced_composition_pays_off_for_many_mechanisms_alone():
    few, many = [(0.1, 2)], [(0.1, 10_000)]
    assert basic_epsilon(few) < advanced_epsilon(few, slack=1e-6)
    assert advanced_epsilon(many, slack=1e-6) < basic_epsilon(many)


def test_an_epsilon_whose_exponential_overflows_costs_everything_or_its_sum():
    assert drv_epsilon([(1000.0, 2)], slack=1e-6) == math.inf
    assert 2000 < advanced_epsilon([(1000.0, 2)], slack=1e-6) < 10_000


# --- Pure privacy as zCDP and GDP ----------------------------------------------------------


@given(epsilons, st.floats(1.01, 100))
def test_randomized_response_is_within_the_zcdp_of_its_epsilon(epsilon, order):
    likely = 1 / (1 + math.exp(-epsilon))
    moments = likely * math.exp((order - 1) * epsilon)
    moments += (1 - likely) * math.exp((1 - order) * epsilon)
    # Near order 1 the moment is near 1, and its last bits are magnified by 1 / (order - 1).
    assert math.log(moments) / (order - 1) <= order * pure_dp_rho(epsilon) + 1e-13


@given(st.floats(1e-6, 30))
def test_randomized_response_is_within_the_gdp_of_its_epsilon_and_touches_it(epsilon):
    mu = pure_dp_mu(epsilon)
    # Both tell neighbours apart equally well where false alarms are as likely as misses.
    assert gdp_delta(0.0, mu) == pytest.approx(math.tanh(epsilon / 2), rel=1e-9)
    for part in (0.1, 0.5, 0.9):
        # 1 - exp(E - e), times the likelihood of the likely answer.
        exact = -math.expm1((part - 1) * epsilon) / (1 + math.exp(-epsilon))
        assert exact <= gdp_delta(part * epsilon, mu) * (1 + 1e-9)


def test_a_large_epsilon_has_a_finite_mu():
    assert pure_dp_mu(1e4) == pytest.approx(math.sqrt(8e4), rel=1e-3)


# --- One Gaussian --------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_the_analytic_noise_is_that_of_an_independent_calibration(epsilon, delta):
    theirs = dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-12)
    assert analytic_noise_multiplier(epsilon, delta) == pytest.approx(theirs, rel=1e-10)


@given(st.floats(1e-3, 1e3), deltas)
def test_the_analytic_noise_is_enough_and_the_least(epsilon, delta):
    multiplier = analytic_noise_multiplier(epsilon, delta)
    assert gdp_delta(epsilon, 1 / multiplier) <= delta
    assert gdp_delta(epsilon, 1 / (multiplier * (1 - 1e-9))) > delta


@given(st.floats(1e-3, 1, exclude_max=True), deltas)
def test_the_classic_noise_is_enough_where_it_is_given_and_more_than_the_least(epsilon, delta):
    classic = classic_noise_multiplier(epsilon, delta)
    assert gdp_delta(epsilon, 1 / classic) <= delta
    assert analytic_noise_multiplier(epsilon, delta) < classic


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 20.0, 100.0, math.inf, math.nan, 0.0, -0.5])
def test_the_classic_noise_is_refused_elsewhere_with_what_to_use(epsilon):
    with pytest.raises(ValueError, match=r"below 1, not .*; use analytic_noise_multiplier"):
        classic_noise_multiplier(epsilon, 1e-6)


# --- The same releases by every accounting -------------------------------------------------


def test_a_hundred_releases_by_every_accounting():
    found = compare_accountings([(TEN, 100)], 1e-6)
    rho = 100 * TEN / UNITS_PER_RHO
    assert list(found) == list(Accounting)
    assert found[Accounting.GDP] == epsilon_from_units(100 * TEN, 1e-6)
    assert found[Accounting.ZCDP_OPTIMAL] == zcdp_epsilon(rho, 1e-6)
    assert found[Accounting.ZCDP_SIMPLE] == zcdp_epsilon_simple(rho, 1e-6)
    half = dp_accounting.get_epsilon_gaussian(10.0, 1e-6 / 200)
    whole = dp_accounting.get_epsilon_gaussian(10.0, 1e-6 / 100)
    advanced = advanced_epsilon([(half, 100)], slack=5e-7)
    assert found[Accounting.ADVANCED] == pytest.approx(advanced, rel=1e-9)
    assert found[Accounting.BASIC] == pytest.approx(100 * whole, rel=1e-9)


@given(charges, deltas)
def test_no_accounting_beats_the_exact_one(counted, delta):
    found = compare_accountings(counted, delta)
    for accounting in Accounting:
        assert found[accounting] >= (found[Accounting.GDP] - STEP) * (1 - 1e-9)
    assert found[Accounting.ZCDP_OPTIMAL] <= found[Accounting.ZCDP_SIMPLE] * (1 + 1e-9)


def test_releases_of_different_noise_are_taken_together():
    one, two = (TEN, 30), (4 * TEN, 20)
    assert compare_accountings([one, two], 1e-6) == pytest.approx(
        compare_accountings([two, (TEN, 10), (TEN, 20)], 1e-6), rel=1e-12
    )
    fewer, more = compare_accountings([one], 1e-6), compare_accountings([one, two], 1e-6)
    assert all(fewer[accounting] < more[accounting] for accounting in Accounting)


def test_one_release_is_its_own_basic_composition():
    found = compare_accountings([(UNITS_PER_RHO // 2, 1)], 1e-6)
    assert found[Accounting.GDP] - STEP < found[Accounting.BASIC] <= found[Accounting.GDP]


def test_a_million_releases_are_not_rounded_up_each():
    small = gaussian_charge_units(1, Fraction(10**6))
    found = compare_accountings([(small, 10**6)], 1e-6)
    once = dp_accounting.get_epsilon_gaussian(1000.0, 1e-12)
    assert found[Accounting.BASIC] == pytest.approx(10**6 * once, rel=1e-9)
    assert math.ceil(once / STEP) * STEP != pytest.approx(once, rel=1e-9)


def test_releases_that_hide_in_delta_cost_no_epsilon():
    assert compare_accountings([(1, 1)], 0.1)[Accounting.BASIC] == 0


# --- What is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [[], [(TEN, 0)], [(0, 5)], [(TEN, -1)], [(-1, 3), (TEN, 1)]])
def test_releases_that_cannot_be_compared_are_refused(nothing):
    with pytest.raises(ValueError, match="charges and their numbers must be positive"):
        compare_accountings(nothing, 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_out_of_range_is_refused(delta):
    with pytest.raises(ValueError, match="delta must be"):
        compare_accountings([(TEN, 1)], delta)
    with pytest.raises(ValueError, match="delta must be"):
        analytic_noise_multiplier(1.0, delta)
    with pytest.raises(ValueError, match="delta must be"):
        classic_noise_multiplier(0.5, delta)
    for bound in (drv_epsilon, advanced_epsilon):
        with pytest.raises(ValueError, match="slack must be"):
            bound([(0.1, 1)], slack=delta)


@pytest.mark.parametrize("epsilon", [-1.0, math.inf, math.nan])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    for single in (pure_dp_rho, pure_dp_mu, lambda e: analytic_noise_multiplier(e, 1e-6)):
        with pytest.raises(ValueError, match="epsilon must be finite and positive"):
            single(epsilon)
    with pytest.raises(ValueError, match="epsilon must be finite and not negative"):
        basic_epsilon([(0.1, 1), (epsilon, 1)])


def test_a_negative_number_of_mechanisms_is_refused():
    with pytest.raises(ValueError, match="number of mechanisms must not be negative"):
        basic_epsilon([(0.1, -1)])
