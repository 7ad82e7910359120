"""Agreement with other implementations, and what holds of all arguments.

The reference values are in test_reference_values.py.
"""

import math
from fractions import Fraction

import dp_accounting
import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.accounting import (
    UNITS_PER_RHO,
    _surely_private,
    epsilon_from_units,
    gaussian_charge_units,
    gdp_cap_units,
    gdp_delta,
    gdp_epsilon,
    zcdp_epsilon,
    zcdp_epsilon_simple,
)

DELTA = 1e-6
STEP = 1e-6


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("sigma", [0.1, 0.5, 1, 3.3, 10, 100, 1000])
def test_epsilon_agrees_with_the_formula_of_dp_accounting(sigma, delta):
    theirs = dp_accounting.get_epsilon_gaussian(sigma, delta)
    assert -1e-9 * theirs <= gdp_epsilon(1 / sigma, delta) - theirs <= STEP + 1e-9 * theirs


def _exact_delta(epsilon, mu):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    a = mu / 2 - epsilon / mu
    upper = mpmath.erfc(-a / mpmath.sqrt(2)) / 2
    return upper - mpmath.exp(epsilon) * mpmath.erfc((mu - a) / mpmath.sqrt(2)) / 2


@given(st.floats(-9, 3.5), st.floats(-3, 36))
def test_what_is_called_private_is_private_to_400_bits(log_mu, deviations):
    mu = 10**log_mu
    epsilon = max(0.0, (mu / 2 + deviations) * mu)
    with mpmath.workprec(400):
        exact = _exact_delta(epsilon, mu)
        if 1e-290 < exact < 0.999:
            assert not _surely_private(epsilon, mu, float(exact * (1 - mpmath.mpf(2) ** -50)))
            assert _surely_private(epsilon + 1e-6 * (epsilon + mu) + 1e-9, mu, float(exact))


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12, 1e-100])
@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1, 7, 50])
def test_epsilon_is_the_least_step_that_is_safe(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    with mpmath.workprec(400):
        assert _exact_delta(epsilon, mu) <= delta
        if epsilon > 0:
            assert _exact_delta(epsilon - STEP * (1 + 1e-3), mu) > delta


EPSILONS = st.integers(1, 50_000_000).map(lambda steps: steps / 10**6)
DELTAS = st.floats(-30, -1).map(lambda exponent: 10.0**exponent)


@given(EPSILONS, DELTAS)
def test_the_cap_grants_what_was_asked_and_no_more(epsilon, delta):
    cap = gdp_cap_units(epsilon, delta)
    assert epsilon_from_units(cap, delta) <= epsilon
    assert epsilon_from_units(cap + 1, delta) > epsilon
    with mpmath.workprec(400):
        granted = _exact_delta(epsilon, mpmath.sqrt(mpmath.mpf(2 * cap) / UNITS_PER_RHO))
        assert granted <= delta
        assert epsilon < 1e-3 or granted > delta * 0.999


@given(st.floats(1e-5, 50), DELTAS)
def test_an_epsilon_between_two_steps_is_not_exceeded(epsilon, delta):
    assert epsilon_from_units(gdp_cap_units(epsilon, delta), delta) <= epsilon


@given(st.integers(1, 10**12), st.fractions(Fraction(1, 64), 10**12))
def test_a_charge_is_the_least_whole_number_of_units_above_the_cost(squared, variance):
    units = gaussian_charge_units(squared, variance)
    cost = Fraction(squared * UNITS_PER_RHO) / (2 * variance)
    assert units - 1 < cost <= units
    assert units >= 1


@given(
    st.integers(1, 10**12),
    st.fractions(Fraction(1, 64), 10**12),
    st.fractions(Fraction(1, 10**9), 1),
)
def test_less_noise_or_more_sensitivity_never_costs_less(squared, variance, less):
    units = gaussian_charge_units(squared, variance)
    assert gaussian_charge_units(squared, variance - variance * less / 2) >= units
    assert gaussian_charge_units(squared + 1, variance) >= units


@given(st.floats(0.001, 100), st.floats(1.0001, 10), DELTAS)
def test_less_noise_means_more_epsilon_by_every_conversion(mu, factor, delta):
    assert gdp_epsilon(mu * factor, delta) >= gdp_epsilon(mu, delta)
    assert gdp_delta(mu, mu * factor) >= gdp_delta(mu, mu)
    rho = mu**2 / 2
    assert zcdp_epsilon(rho * factor, delta) >= zcdp_epsilon(rho, delta)
    assert zcdp_epsilon_simple(rho * factor, delta) > zcdp_epsilon_simple(rho, delta)


@given(st.floats(1e-6, 1e4), DELTAS)
def test_the_conversions_are_ordered(rho, delta):
    gdp = gdp_epsilon(math.sqrt(2 * rho), delta)
    optimal = zcdp_epsilon(rho, delta)
    assert gdp - STEP <= optimal * (1 + 1e-12) <= zcdp_epsilon_simple(rho, delta) * (1 + 2e-12)


@given(st.floats(1e-6, 1e4), DELTAS, st.floats(1e-3, 1e3))
def test_no_other_order_gives_a_better_zcdp_bound(rho, delta, excess):
    other = (1 + excess) * rho - math.log1p(1 / excess)
    other += (math.log(1 / delta) - math.log1p(excess)) / excess
    assert zcdp_epsilon(rho, delta) <= max(other, 0) * (1 + 1e-9) + 1e-12


def test_the_tiniest_charge_costs_one_unit():
    assert gaussian_charge_units(1, Fraction(10**40)) == 1


def test_nothing_spent_is_nothing_lost():
    assert epsilon_from_units(0, DELTA) == 0
    assert epsilon_from_units(1, DELTA) == 0  # one unit is (0, 1e-9)-DP
    assert gdp_epsilon(1e-9, 1e-12) > 0


BAD = [0.0, -1.0, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", BAD)
def test_parameters_that_are_not_finite_and_positive_are_refused(bad):
    for call in (
        lambda: gdp_delta(1, bad),
        lambda: gdp_epsilon(bad, DELTA),
        lambda: gdp_cap_units(bad, DELTA),
        lambda: zcdp_epsilon(bad, DELTA),
        lambda: zcdp_epsilon_simple(bad, DELTA),
    ):
        with pytest.raises(ValueError, match="must be finite and positive"):
            call()


@pytest.mark.parametrize("bad", [*BAD, 1.0, 1e-301])
def test_a_delta_outside_its_range_is_refused(bad):
    for call in (
        lambda: gdp_epsilon(1, bad),
        lambda: gdp_cap_units(1, bad),
        lambda: epsilon_from_units(0, bad),
        lambda: zcdp_epsilon(1, bad),
        lambda: zcdp_epsilon_simple(1, bad),
    ):
        with pytest.raises(ValueError, match="delta must be at least 1e-300 and below 1"):
            call()


@pytest.mark.parametrize("bad", [0, -1])
def test_charges_need_positive_sensitivity_and_variance(bad):
    with pytest.raises(ValueError, match="squared sensitivity must be positive"):
        gaussian_charge_units(bad, Fraction(1))
    with pytest.raises(ValueError, match="noise variance must be positive"):
        gaussian_charge_units(1, Fraction(bad))


def test_negative_amounts_are_refused():
    with pytest.raises(ValueError, match="units must not be negative"):
        epsilon_from_units(-1, DELTA)
    for bad in (-1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be finite and not negative"):
            gdp_delta(bad, 1)


def test_a_budget_that_grants_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing can be granted"):
        gdp_cap_units(1e-7, 1e-30)
