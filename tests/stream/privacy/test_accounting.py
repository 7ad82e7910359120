"""Reference values: PRIVACY notes 2.2, whose row names are used; delta = 1e-6 unless given."""

import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld, rdp
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

_T = np.arange
# Row: noise multipliers z_t = sigma_t / sensitivity; rho; simple; zCDP-opt; GDP.
SCHEDULES = {
    "F1": (np.full(1, 1.0), 0.5, 5.756522, 5.221534, 4.886554),
    "F2": (np.full(10, 10.0), 0.05, 1.712258, 1.471595, 1.367571),
    "F3": (np.full(100, 10.0), 0.5, 5.756522, 5.221534, 4.886554),
    "F4": (np.full(100, 20.0), 0.125, 2.753261, 2.419093, 2.254085),
    "F5": (np.full(1000, 50.0), 0.2, 3.524516, 3.131056, 2.921601),
    "F6": (np.full(10000, 100.0), 0.5, 5.756522, 5.221534, 4.886554),
    "G1": (40 * 0.995 ** _T(500), 4.630235647, 20.626369, 19.578092, 18.495535),
    "G2": (40 * 0.99 ** _T(300), 6.384175771, 25.167216, 24.023410, 22.735924),
    "G3": (
        10 + 15 * (1 + np.cos(np.pi * _T(200) / 199)),
        0.313593750,
        4.476505,
        4.018103,
        3.754569,
    ),
    "G4": (np.repeat([32.0, 16.0, 8.0], 100), 1.025390625, 8.553018, 7.880149, 7.393678),
    "G5": (np.linspace(40, 10, 200), 0.251418616, 3.978872, 3.553424, 3.318054),
    "G6": (0.995 ** _T(1000), 1120785.596, 1128655.6, 1128648.9, 1127901.4),
    "G7": (2 * 0.99 ** _T(100), 39.793898798, 86.688377, 84.903364, 81.399847),
}
DIGITS = {"G6": (1e-3, 0.05)}  # what is printed of rho and of epsilon; others 9 and 6 digits
SINGLE = {  # sigma (sensitivity 1), releases; GDP, zCDP-opt, zCDP-simple
    "C1": (0.5, 1, 10.997151, 11.688596, 12.513044),
    "C2": (1, 1, 4.886554, 5.221534, 5.756522),
    "C3": (2, 1, 2.254085, 2.419093, 2.753261),
    "C4": (4, 1, 1.060702, 1.142926, 1.345380),
    "C5": (10, 1, 0.396857, 0.429941, 0.530652),
    "C6": (100, 1, 0.033674, 0.037105, 0.052615),
    "C7": (2, 4, 4.886554, 5.221534, 5.756522),
    "C8": (4, 16, 4.886554, 5.221534, 5.756522),
}
ANALYTIC = {  # epsilon, delta; classic sigma, analytic sigma, true delta of the classic one
    "B1": (0.5, 1e-5, 9.689610525211, 7.031826675583, 1.6079e-8),
    "B2": (1, 1e-5, 4.844805262605, 3.730631634816, 4.1137e-8),
    "B3": (1, 1e-6, 5.298802526850, 4.224678889327, 3.1999e-9),
    "B4": (0.1, 1e-6, 52.988025268505, 36.304690426196, 2.0488e-10),
    "B5": (4, 1e-5, 1.211201315651, 1.081161849520, 6.845e-7),
    "B6": (8, 1e-5, 0.605600657826, 0.600229072199, 7.971e-6),
    "B7": (10, 1e-6, 0.529880252685, 0.541086831818, 1.902e-6),
}
CAPS = {  # K6, epsilon: rho for simple, zCDP-opt and GDP
    0.5: (0.004443844, 0.006641524, 0.007701168),
    1: (0.017468905, 0.024355970, 0.028014482),
    2: (0.067573882, 0.088152688, 0.100502020),
    4: (0.253935578, 0.311064955, 0.351003648),
    8: (0.909706830, 1.052358005, 1.172815224),
}


def _is_printed(value, printed, digits=6):
    return abs(value - printed) <= 0.5000001 * 10.0**-digits


def _is_rounded_up(value, printed, half_digit=0.5e-6):
    """``printed`` is rounded to the nearest, ``value`` up to a step."""
    return -half_digit - 1e-12 <= value - printed <= half_digit + STEP


def _units(multipliers):
    """Charge each release as the ledger does, for a sensitivity of 1000 grid steps."""
    return sum(
        gaussian_charge_units(10**6, Fraction(z) ** 2 * 10**6) for z in map(float, multipliers)
    )


@pytest.mark.parametrize("row", SCHEDULES)
def test_schedules_cost_what_the_table_says(row):
    multipliers, rho, simple, optimal, gdp = SCHEDULES[row]
    rho_digit, epsilon_digit = DIGITS.get(row, (1e-9, 0.5e-6))
    units = _units(multipliers)
    total = units / UNITS_PER_RHO
    assert abs(total - rho) <= rho_digit
    assert abs(zcdp_epsilon_simple(total, DELTA) - simple) <= epsilon_digit * 1.000001
    assert abs(zcdp_epsilon(total, DELTA) - optimal) <= epsilon_digit * 1.000001
    assert _is_rounded_up(epsilon_from_units(units, DELTA), gdp, epsilon_digit)


@pytest.mark.parametrize("row", SINGLE)
def test_single_noises_cost_what_the_table_says(row):
    sigma, releases, gdp, optimal, simple = SINGLE[row]
    units = releases * gaussian_charge_units(1, Fraction(sigma) ** 2)
    rho = units / UNITS_PER_RHO
    assert _is_rounded_up(epsilon_from_units(units, DELTA), gdp)
    assert _is_printed(zcdp_epsilon(rho, DELTA), optimal)
    assert _is_printed(zcdp_epsilon_simple(rho, DELTA), simple)


@pytest.mark.parametrize("row", ANALYTIC)
def test_the_cap_of_one_release_is_the_analytic_gaussian(row):
    epsilon, delta, classic, analytic, classic_delta = ANALYTIC[row]
    sigma = math.sqrt(UNITS_PER_RHO / (2 * gdp_cap_units(epsilon, delta)))
    # The cap allows for float errors: a trifle more noise than the exact optimum.
    assert -0.5e-12 < sigma - analytic < 1e-11 * analytic
    assert gdp_delta(epsilon, 1 / analytic) == pytest.approx(delta, rel=1e-9)
    assert gdp_delta(epsilon, 1 / classic) == pytest.approx(classic_delta, rel=1e-4)
    assert classic == pytest.approx(math.sqrt(2 * math.log(1.25 / delta)) / epsilon)


def test_the_classic_gaussian_fails_its_claim_for_large_epsilon():
    for epsilon, true_epsilon, digits in [
        (10, 10.2543, 4),  # B7, B8
        (20, 24.4198, 4),
        (50, 88.5651, 4),
        (100, 266.896, 3),
    ]:
        mu = epsilon / math.sqrt(2 * math.log(1.25 / DELTA))
        assert _is_printed(gdp_epsilon(mu, DELTA) - STEP / 2, true_epsilon, digits)
        assert gdp_delta(epsilon, mu) > DELTA
    assert gdp_delta(20, 20 / 5.298802526850) == pytest.approx(1.6e-4, rel=0.05)
    assert gdp_delta(50, 50 / 5.298802526850) == pytest.approx(0.247, rel=0.005)
    assert gdp_delta(100, 100 / 5.298802526850) == pytest.approx(1.0, rel=0.01)


def test_noise_as_large_as_the_sensitivity_has_the_known_delta_and_epsilon():
    assert _is_printed(gdp_delta(1, 1), 0.126936737507, 12)  # B9
    assert gdp_delta(4.377178095681, 1) == pytest.approx(1e-5, rel=1e-11)
    assert gdp_epsilon(1, 1e-5) == 4.377179
    assert _is_printed(gdp_delta(1, 0.5), 0.006829594983, 12)  # E2
    assert _is_printed(gdp_delta(0.5, 0.25), 0.002708880218, 12)  # E3


def test_zcdp_conversion_agrees_with_opendp_to_its_last_digits():
    assert zcdp_epsilon(0.005, 1e-6) == pytest.approx(0.42994146883695, rel=1e-13)  # D1
    assert zcdp_epsilon(0.005, 1e-9) == pytest.approx(0.56489328430204, rel=1e-13)
    assert zcdp_epsilon(5e-7, 1e-6) == pytest.approx(0.00307798847183, rel=1e-11)  # D2
    assert zcdp_epsilon(5e-7, 1e-9) == pytest.approx(0.00474135807553, rel=1e-11)


def test_a_charge_is_exact_and_rounded_up():
    squared = 16_000_000 + 400**2
    assert gaussian_charge_units(squared, Fraction(64_000_000)) == 145556339956614431  # K3
    assert Fraction(squared, 2 * 64_000_000) == Fraction(101, 800)
    assert gaussian_charge_units(squared, Fraction(160_000**2)) == 363890849891537  # K4


def test_a_hundred_charges_convert_to_the_known_epsilons():
    units = 100 * gaussian_charge_units(16_160_000, Fraction(160_000**2))  # K4
    rho = units / UNITS_PER_RHO
    assert _is_printed(zcdp_epsilon(rho, DELTA), 1.1490442326, 10)
    assert gdp_delta(1.0664107257, math.sqrt(2 * rho)) == pytest.approx(DELTA, rel=1e-8)
    assert epsilon_from_units(units, DELTA) == 1.066411


def test_a_quarter_of_a_cap_fits_exactly_four_times():
    cap = math.floor(Fraction(2, 100) * UNITS_PER_RHO)  # K5
    variance = Fraction(UNITS_PER_RHO, 2 * (cap // 4))
    charge = gaussian_charge_units(1, variance)
    admitted = spent = 0
    while spent + charge <= cap:
        admitted, spent = admitted + 1, spent + charge
    assert admitted == 4


@pytest.mark.parametrize("epsilon", CAPS)
def test_caps_are_those_of_the_table(epsilon):
    simple, optimal, gdp = CAPS[epsilon]
    assert _is_printed(gdp_cap_units(epsilon, DELTA) / UNITS_PER_RHO, gdp, 9)
    assert zcdp_epsilon(optimal, DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert zcdp_epsilon_simple(simple, DELTA) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("sigma", [0.1, 0.5, 1, 3.3, 10, 100, 1000])
def test_epsilon_agrees_with_the_formula_of_dp_accounting(sigma, delta):
    theirs = dp_accounting.get_epsilon_gaussian(sigma, delta)
    assert -1e-9 * theirs <= gdp_epsilon(1 / sigma, delta) - theirs <= STEP + 1e-9 * theirs


@pytest.mark.parametrize(("sigma", "releases"), [(1.0, 1), (10.0, 100), (20.0, 100), (8.0, 300)])
def test_epsilon_agrees_with_the_privacy_loss_distribution_and_is_below_rdp(sigma, releases):
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), releases)
    ours = epsilon_from_units(releases * gaussian_charge_units(1, Fraction(sigma) ** 2), DELTA)
    by_pld = pld.PLDAccountant().compose(event).get_epsilon(DELTA)  # rounds up on a 1e-4 grid
    by_rdp = rdp.RdpAccountant().compose(event).get_epsilon(DELTA)
    optimal = zcdp_epsilon(releases / (2 * sigma**2), DELTA)
    assert ours == pytest.approx(by_pld, abs=3e-6)
    assert ours < optimal <= by_rdp <= optimal * 1.0002


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
