"""PRIVACY notes 2.2, row by row and to the printed digits; delta is 1e-6 unless a row has its own.

What is printed stands here as text, so that its number of digits is part of the test. Rows that
are not here concern what does not ship: H (subsampling) and J (matrix mechanism); and K1 and K2,
the laws of the samplers, which the samplers' tests hold them to. Columns headed RDP and PLD have
dp_accounting for an oracle, the rows D OpenDP, the rows E the exact sum of Canonne, Kamath and
Steinke (2020), Theorem 7.

Where the notes and an exact computation differ, the test has what is exact and says so.
"""

import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld, rdp
from dp_accounting.pld import privacy_loss_distribution

from stream.budget import Ledger
from stream.errors import BudgetExhaustedError
from stream.privacy.accounting import (
    UNITS_PER_RHO,
    epsilon_from_units,
    gaussian_charge_units,
    gdp_cap_units,
    gdp_delta,
    gdp_epsilon,
    zcdp_epsilon,
    zcdp_epsilon_simple,
)
from stream.privacy.calibration import PrivacyFilter, solve_epsilon, solve_windows
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
from stream.privacy.event import GaussianEvent

DELTA = 1e-6
STEP = 1e-6  # the product rounds epsilon up to this
GRID = 1e-4  # of dp_accounting's privacy loss distributions, which round up
LOG = math.sqrt(2 * math.log(1.25 / DELTA))  # of the classic Gaussian mechanism


def half_digit(printed):
    """Return half a unit in the last place of ``printed``, and a trifle for a tie."""
    return 0.500001 * 10.0 ** Decimal(printed).as_tuple().exponent


def prints_as(value, printed):
    return abs(value - float(printed)) <= half_digit(printed)


def is_epsilon(printed, mu, delta=DELTA):
    """Tell whether the exact epsilon of mu-GDP, which is nowhere computed, prints so."""
    low, high = float(printed) - half_digit(printed), float(printed) + half_digit(printed)
    return gdp_delta(high, mu) <= delta <= gdp_delta(low, mu)


def rounds_up(value, printed):
    """Tell whether ``value``, rounded up to a step, can be of what was printed to the nearest."""
    return -half_digit(printed) <= value - float(printed) <= half_digit(printed) + STEP


def charge(multiplier):
    """Return what the ledger charges, for a sensitivity of 1000 grid steps."""
    return gaussian_charge_units(10**6, Fraction(float(multiplier)) ** 2 * 10**6)


@pytest.mark.parametrize("printed", ["4.886554", ".316227766", "1.6079e-8", "266.896", "1.0"])
def test_the_comparison_sees_a_last_digit_that_is_off_by_one(printed):
    unit = Decimal(1).scaleb(Decimal(printed).as_tuple().exponent)
    assert prints_as(float(printed), printed)
    assert not prints_as(float(Decimal(printed) + unit), printed)
    assert not prints_as(float(Decimal(printed) - unit), printed)


def test_the_comparison_sees_an_epsilon_that_is_off_by_one():
    assert [is_epsilon(text, 1.0) for text in ("4.886553", "4.886554", "4.886555")] == [
        False,
        True,
        False,
    ]


# --- A: pure mechanisms and their composition ----------------------------------------------


def laplace(scale):
    return privacy_loss_distribution.from_laplace_mechanism(
        scale, value_discretization_interval=GRID
    )


def test_row_a1_one_laplace():
    assert laplace(1.0).get_epsilon_for_delta(0.0) == 1.0
    assert prints_as(laplace(1.0).get_epsilon_for_delta(1e-5), "0.99998000030")


def test_row_a2_ten_laplaces():
    assert prints_as(laplace(1.0).self_compose(10).get_epsilon_for_delta(1e-5), "9.98996231699")
    assert basic_epsilon([(1.0, 10)]) == 10


def test_row_a3_a_hundred_laplaces_by_five_accountings():
    hundred = [(0.1, 100)]
    assert basic_epsilon(hundred) == pytest.approx(10, rel=1e-15)
    assert prints_as(drv_epsilon(hundred, slack=DELTA), "6.308230950513")
    assert prints_as(advanced_epsilon(hundred, slack=DELTA), "5.756105519336")
    assert prints_as(zcdp_epsilon(100 * pure_dp_rho(0.1), DELTA), "5.221534444530")
    exact = laplace(10.0).self_compose(100).get_epsilon_for_delta(DELTA)
    assert prints_as(exact, "4.692667438644")  # the notes leave off its last digits, 3728


def test_row_a4_ten_discrete_laplaces():
    one = privacy_loss_distribution.from_discrete_laplace_mechanism(
        1.0, sensitivity=1, value_discretization_interval=GRID
    )
    assert prints_as(one.self_compose(10).get_epsilon_for_delta(1e-5), "9.99977063453")


def test_row_a5_the_law_of_the_discrete_laplace():
    weights = {value: math.exp(-abs(value)) for value in range(-60, 61)}
    total = math.fsum(weights.values())
    variance = math.fsum(value**2 * weight for value, weight in weights.items()) / total
    assert prints_as(weights[0] / total, "0.46211715726001")
    assert prints_as(variance, "1.84134718841558")


def test_row_a6_opendp_says_the_same_of_its_integer_laplace(opendp):
    space = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
    assert opendp.m.make_laplace(*space, scale=1.0).map(1) == 1.0


@pytest.mark.parametrize(
    ("row", "epsilon", "mu", "rho"),
    [("A7", 0.1, "0.125309012212", "0.005"), ("A8", 1.0, "1.232035385345", "0.5")],
)
def test_pure_privacy_is_the_printed_mu_and_rho(row, epsilon, mu, rho):
    assert prints_as(pure_dp_mu(epsilon), mu)
    assert pure_dp_rho(epsilon) == pytest.approx(float(rho), rel=1e-15)


# --- B: one Gaussian -----------------------------------------------------------------------

ANALYTIC = {  # epsilon, delta; classic and analytic noise; true delta of the classic one
    # The notes print 7.031826675583, from a value already rounded: it is 7.03182667558249...
    "B1": (0.5, 1e-5, "9.689610525211", "7.031826675582", "1.6079e-8"),
    "B2": (1, 1e-5, "4.844805262605", "3.730631634816", "4.1137e-8"),
    "B3": (1, 1e-6, "5.298802526850", "4.224678889327", "3.1999e-9"),
    "B4": (0.1, 1e-6, "52.988025268505", "36.304690426196", "2.0488e-10"),
    "B5": (4, 1e-5, "1.211201315651", "1.081161849520", "6.845e-7"),
    "B6": (8, 1e-5, "0.605600657826", "0.600229072199", "7.971e-6"),
    "B7": (10, 1e-6, "0.529880252685", "0.541086831818", "1.902e-6"),
}
EXCESSIVE = {  # epsilon claimed: true epsilon and true delta of the classic noise
    10: ("10.2543", "1.902e-6"),  # B7
    20: ("24.4198", "1.6e-4"),  # B8, and the next two
    50: ("88.5651", "0.247"),
    100: ("266.896", "1.0"),
}


@pytest.mark.parametrize("row", ANALYTIC)
def test_the_analytic_gaussian_has_the_printed_noise(row):
    epsilon, delta, _, analytic, _ = ANALYTIC[row]
    assert prints_as(analytic_noise_multiplier(epsilon, delta), analytic)
    with mpmath.workprec(200):
        low, high = (float(analytic) + sign * half_digit(analytic) for sign in (-1, 1))
        assert exact_delta(epsilon, 1 / mpmath.mpf(high)) < delta
        assert exact_delta(epsilon, 1 / mpmath.mpf(low)) > delta
    # The cap allows for float errors: a trifle more noise than the least.
    capped = math.sqrt(UNITS_PER_RHO / (2 * gdp_cap_units(epsilon, delta)))
    assert -0.5e-12 < capped - float(analytic) < 1e-11 * capped


def exact_delta(epsilon, mu):
    """Return delta to the working precision of mpmath."""
    a = mu / 2 - epsilon / mu
    second = mpmath.exp(epsilon) * mpmath.erfc((mu - a) / mpmath.sqrt(2))
    return (mpmath.erfc(-a / mpmath.sqrt(2)) - second) / 2


@pytest.mark.parametrize("row", ANALYTIC)
def test_the_classic_gaussian_has_the_printed_noise_where_it_is_proven_and_none_elsewhere(row):
    epsilon, delta, classic, _, true_delta = ANALYTIC[row]
    assert prints_as(math.sqrt(2 * math.log(1.25 / delta)) / epsilon, classic)
    assert prints_as(gdp_delta(epsilon, 1 / float(classic)), true_delta)
    if epsilon < 1:
        assert prints_as(classic_noise_multiplier(epsilon, delta), classic)
    else:
        with pytest.raises(ValueError, match="use analytic_noise_multiplier"):
            classic_noise_multiplier(epsilon, delta)


@pytest.mark.parametrize("epsilon", EXCESSIVE)
def test_rows_b7_and_b8_the_classic_gaussian_would_break_its_promise_and_is_refused(epsilon):
    true_epsilon, true_delta = EXCESSIVE[epsilon]
    with pytest.raises(ValueError, match=f"below 1, not {epsilon}: .* can be too little"):
        classic_noise_multiplier(epsilon, DELTA)
    mu = epsilon / LOG
    assert is_epsilon(true_epsilon, mu)
    assert prints_as(gdp_delta(epsilon, mu), true_delta)
    assert 1 / mu < analytic_noise_multiplier(epsilon, DELTA)


def test_row_b9_noise_as_large_as_the_sensitivity():
    assert prints_as(gdp_delta(1, 1), "0.126936737507")
    assert is_epsilon("4.377178095681", 1.0, 1e-5)
    assert gdp_epsilon(1, 1e-5) == 4.377179


# --- C: the discrete Gaussian beside the rounded one ---------------------------------------

SINGLE = {  # noise, releases; PLD of the discrete Gaussian, GDP, zCDP-opt, zCDP-simple
    "C1": (0.5, 1, "9.996248", "10.997151", "11.688596", "12.513044"),
    "C2": (1, 1, "4.499591", "4.886554", "5.221534", "5.756522"),
    "C3": (2, 1, "2.275793", "2.254085", "2.419093", "2.753261"),
    "C4": (4, 1, "1.063486", "1.060702", "1.142926", "1.345380"),
    "C5": (10, 1, "0.396790", "0.396857", "0.429941", "0.530652"),
    "C6": (100, 1, "0.033724", "0.033674", "0.037105", "0.052615"),
    "C7": (2, 4, "4.900586", "4.886554", "5.221534", "5.756522"),
    "C8, 16 releases": (4, 16, "4.887045", "4.886554", "5.221534", "5.756522"),
    "C8, 100 releases": (10, 100, "4.886836", "4.886554", "5.221534", "5.756522"),
}
# The notes name one grid for all of 2.2. This value is on half of it; on 1e-4 it is 4.887102.
GRIDS = {"C8, 100 releases": GRID / 2}


@pytest.mark.parametrize("row", SINGLE)
def test_single_noises_cost_what_the_table_says(row):
    multiplier, releases, _, gdp, optimal, simple = SINGLE[row]
    units = releases * gaussian_charge_units(1, Fraction(multiplier) ** 2)
    rho = units / UNITS_PER_RHO
    assert is_epsilon(gdp, math.sqrt(2 * rho))
    assert rounds_up(epsilon_from_units(units, DELTA), gdp)
    assert prints_as(zcdp_epsilon(rho, DELTA), optimal)
    assert prints_as(zcdp_epsilon_simple(rho, DELTA), simple)


@pytest.mark.parametrize("row", SINGLE)
def test_the_discrete_gaussian_has_the_printed_privacy_loss(row):
    multiplier, releases, printed, gdp, optimal, _ = SINGLE[row]
    one = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        multiplier, sensitivity=1, value_discretization_interval=GRIDS.get(row, GRID)
    )
    composed = one.self_compose(releases) if releases > 1 else one
    assert prints_as(composed.get_epsilon_for_delta(DELTA), printed)
    # What the notes call `> GDP` is why the discrete Gaussian has no GDP ledger.
    assert (float(printed) > float(gdp)) == (row not in ("C1", "C2", "C5"))
    assert float(printed) < float(optimal)


# --- D: OpenDP -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opendp():
    # It takes seconds to import: only by the tests that ask for it.
    import opendp.prelude as prelude

    prelude.enable_features("contrib", "honest-but-curious")
    return prelude


def integers(opendp):
    return opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)


@pytest.mark.parametrize(
    ("row", "scale", "rho", "at_1e_6", "at_1e_9"),
    [
        ("D1", 10, "0.005", "0.42994146883695", "0.56489328430204"),
        ("D2", 1000, "5.0000000000000010e-7", "0.00307798847183", "0.00474135807553"),
    ],
)
def test_opendp_and_our_conversion_print_the_same(opendp, row, scale, rho, at_1e_6, at_1e_9):
    space = opendp.atom_domain(T=int), opendp.absolute_distance(T=float)
    gaussian = opendp.m.make_gaussian(*space, scale=float(scale))
    assert gaussian.map(1.0) == float(rho)
    theirs = opendp.c.make_zCDP_to_approxDP(gaussian).map(1.0)
    ours = 1 / (2 * scale**2)
    units = gaussian_charge_units(1, Fraction(scale) ** 2)
    assert 0 <= units - Fraction(UNITS_PER_RHO, 2 * scale**2) < 1
    for delta, printed in ((1e-6, at_1e_6), (1e-9, at_1e_9)):
        assert prints_as(theirs.epsilon(delta), printed)
        assert prints_as(zcdp_epsilon(ours, delta), printed)


def test_row_d3_opendp_charges_a_vector_by_its_norm_as_we_do(opendp):
    assert opendp.m.make_gaussian(*integers(opendp), scale=1000.0).map(1000.0) == 0.5
    assert gaussian_charge_units(10**6, Fraction(10**6)) == UNITS_PER_RHO // 2


def test_row_d4_a_hundred_releases_by_opendp_are_ours_but_for_its_floats(opendp):
    one = opendp.m.make_gaussian(*integers(opendp), scale=10.0)
    hundred = opendp.c.make_composition([one] * 100)
    assert hundred.map(1.0) == 0.5000000000000004
    theirs = opendp.c.make_zCDP_to_approxDP(hundred).map(1.0).epsilon(DELTA)
    assert prints_as(theirs, "5.221534444530")
    units = 100 * gaussian_charge_units(1, Fraction(100))
    assert 0 <= units - UNITS_PER_RHO // 2 < 100
    assert prints_as(zcdp_epsilon(units / UNITS_PER_RHO, DELTA), "5.221534444530")


# --- E: the exact delta of the discrete Gaussian -------------------------------------------


def discrete_deltas(sigma, epsilons, sensitivity=1):
    """Return the exact delta at every epsilon (Canonne, Kamath, Steinke 2020, Theorem 7)."""
    reach = 60 * sigma + sensitivity
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    at_least = np.append(np.cumsum(weights[::-1])[::-1], 0.0) / math.fsum(weights)
    beyond = epsilons * sigma**2 / sensitivity - sensitivity / 2
    first = np.searchsorted(values, beyond, side="right")
    second = np.searchsorted(values, beyond + sensitivity, side="right")
    return at_least[first] - np.exp(epsilons) * at_least[second]


@pytest.mark.parametrize(
    ("row", "sigma", "epsilon", "discrete", "continuous"),
    [
        ("E1", 1, 1.0, "0.141351339406", "0.126936737507"),
        ("E2", 2, 1.0, "0.007248776846", "0.006829594983"),
        ("E3", 4, 0.5, "0.002752923676", "0.002708880218"),
    ],
)
def test_the_discrete_gaussian_is_not_gdp(row, sigma, epsilon, discrete, continuous):
    assert prints_as(discrete_deltas(sigma, np.array([epsilon]))[0], discrete)
    assert prints_as(gdp_delta(epsilon, 1 / sigma), continuous)
    assert float(discrete) > float(continuous)


@pytest.mark.parametrize(  # E4
    ("sensitivity", "multiplier", "printed"),
    [
        (1, 1, "1.61e-2"),
        (1, 2, "2.06e-3"),
        (2, 2, "5.2e-4"),
        (10, 1, "1.66e-4"),
        (100, 1, "1.66e-6"),
    ],
)
def test_the_excess_of_the_discrete_gaussian_shrinks_and_stays(sensitivity, multiplier, printed):
    epsilons = np.linspace(0, 6 / multiplier + 1, 2001)
    discrete = discrete_deltas(sensitivity * multiplier, epsilons, sensitivity)
    continuous = [gdp_delta(epsilon, 1 / multiplier) for epsilon in epsilons]
    assert prints_as(max(discrete - continuous), printed)


# --- F and G: sequences of releases --------------------------------------------------------

_T = np.arange
_SEQUENCES = {  # noise multipliers
    "F1": np.full(1, 1.0),
    "F2": np.full(10, 10.0),
    "F3": np.full(100, 10.0),
    "F4": np.full(100, 20.0),
    "F5": np.full(1000, 50.0),
    "F6": np.full(10000, 100.0),
    "G1": 40 * 0.995 ** _T(500),
    "G2": 40 * 0.99 ** _T(300),
    "G3": 10 + 15 * (1 + np.cos(np.pi * _T(200) / 199)),
    "G4": np.repeat([32.0, 16.0, 8.0], 100),
    "G5": np.linspace(40, 10, 200),
    "G6": 0.995 ** _T(1000),
    "G7": 2 * 0.99 ** _T(100),
}
SEQUENCES = {row: Counter(multipliers.tolist()) for row, multipliers in _SEQUENCES.items()}
COSTS = {
    # rho, mu, simple, zCDP-opt, RDP, its order if printed, GDP, adv.comp, linear; all of the first
    # two to nine decimals, though the notes leave off trailing zeros
    "F1": "0.500000000 1.000000000 5.756522 5.221534 5.221540 5.9 4.886554 32.06 5.299",
    "F2": "0.050000000 .316227766 1.712258 1.471595 1.471656 16 1.367571 8.90 5.299",
    "F3": "0.500000000 1.000000000 5.756522 5.221534 5.221540 - 4.886554 39.78 52.988",
    "F4": "0.125000000 0.500000000 2.753261 2.419093 2.419102 10.6 2.254085 16.20 26.494",
    "F5": "0.200000000 .632455532 3.524516 3.131056 3.131090 8.6 2.921601 22.84 105.976",
    "F6": "0.500000000 1.000000000 5.756522 5.221534 5.221540 - 4.886554 44.00 529.880",
    "G1": "4.630235647 3.043102248 20.626369 19.578092 19.581518 2.7 18.495535 216.4 296.808",
    "G2": "6.384175771 3.573283020 25.167216 24.023410 24.025912 2.4 22.735924 260.1 254.306",
    "G3": "0.313593750 0.791951703 4.476505 4.018103 4.018220 7.1 3.754569 29.85 53.054",
    "G4": "1.025390625 1.432054905 8.553018 7.880149 7.880496 4.5 7.393678 68.29 115.911",
    "G5": "0.251418616 0.709110169 3.978872 3.553424 3.553480 7.8 3.318054 25.78 49.058",
    # The notes print `nan` for adv.comp, where exp overflowed.
    "G6": "1120785.596 1497.188 1128655.6 1128648.9 1232999 1.1 1127901.4 1775661.6 157416.6",
    "G7": "39.793898798 8.921199336 86.688377 84.903364 84.931920 1.6 81.399847 773.0 454.287",
}
# Rows whose PLD is printed: it is the printed GDP.
LOSSES = ["F1", "F2", "F3", "F4", "F5", "G4"]


@pytest.mark.parametrize("row", COSTS)
def test_sequences_cost_what_the_table_says(row):
    rho, mu, simple, optimal, _, _, gdp, advanced, _ = COSTS[row].split()
    charges = [(charge(multiplier), count) for multiplier, count in SEQUENCES[row].items()]
    total = sum(units * count for units, count in charges) / UNITS_PER_RHO
    assert prints_as(total, rho)
    assert prints_as(math.sqrt(2 * total), mu)
    found = compare_accountings(charges, DELTA)
    assert is_epsilon(gdp, math.sqrt(2 * total))
    assert rounds_up(found[Accounting.GDP], gdp)
    assert prints_as(found[Accounting.ZCDP_OPTIMAL], optimal)
    assert prints_as(found[Accounting.ZCDP_SIMPLE], simple)
    # The notes call the column DRV; its numbers are those of the sharper form, as in row A3.
    assert prints_as(found[Accounting.ADVANCED], advanced)


@pytest.mark.parametrize("row", COSTS)
def test_rdp_says_what_the_table_says_and_never_less_than_zcdp(row):
    _, _, _, optimal, printed, order, gdp, _, _ = COSTS[row].split()
    accountant = rdp.RdpAccountant()
    for multiplier, count in SEQUENCES[row].items():
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    epsilon, best_order = accountant.get_epsilon_and_optimal_order(DELTA)
    assert prints_as(epsilon, printed)
    assert order == "-" or prints_as(best_order, order)
    assert float(gdp) < float(optimal) <= float(printed)


@pytest.mark.parametrize("row", LOSSES)
def test_the_privacy_loss_distribution_is_that_of_gdp(row):
    accountant = pld.PLDAccountant(value_discretization_interval=GRID)
    for multiplier, count in SEQUENCES[row].items():
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    assert prints_as(accountant.get_epsilon(DELTA), COSTS[row].split()[6])


def linear_epsilon(row):
    """Return the sum of classic epsilons: the published recipe, which nothing of ours computes."""
    return LOG * sum(count / multiplier for multiplier, count in SEQUENCES[row].items())


@pytest.mark.parametrize("row", COSTS)
def test_the_sum_of_classic_epsilons_is_what_the_table_says_and_no_bound(row):
    gdp, printed = COSTS[row].split()[6], COSTS[row].split()[8]
    assert prints_as(linear_epsilon(row), printed)
    assert (linear_epsilon(row) < float(gdp)) == (row == "G6")


def test_row_g6_costs_seven_times_what_the_sum_of_classic_epsilons_reports():
    mu = math.sqrt(2 * float(COSTS["G6"].split()[0]))
    assert prints_as(gdp_epsilon(mu, DELTA) / linear_epsilon("G6"), "7.2")


# --- K: the ledger -------------------------------------------------------------------------

CAPS = {  # K6, epsilon: rho for simple, zCDP-opt and GDP
    0.5: ("0.004443844", "0.006641524", "0.007701168"),
    1: ("0.017468905", "0.024355970", "0.028014482"),
    2: ("0.067573882", "0.088152688", "0.100502020"),
    4: ("0.253935578", "0.311064955", "0.351003648"),
    8: ("0.909706830", "1.052358005", "1.172815224"),
}


def test_row_k3_a_charge_is_exact_and_rounded_up():
    squared = 16_000_000 + 400**2
    assert Fraction(squared, 2 * 64_000_000) == Fraction(101, 800)
    assert gaussian_charge_units(squared, Fraction(64_000_000)) == 145556339956614431


def test_row_k4_a_hundred_charges_convert_to_the_known_epsilons():
    squared, variance = 16_000_000 + 400**2, Fraction(160_000**2)
    assert Fraction(squared, 2) / variance == Fraction(101, 320000)
    one = gaussian_charge_units(squared, variance)
    assert one == 363890849891537
    rho = 100 * one / UNITS_PER_RHO
    assert prints_as(zcdp_epsilon(rho, DELTA), "1.1490442326")
    assert is_epsilon("1.0664107257", math.sqrt(2 * rho))
    assert epsilon_from_units(100 * one, DELTA) == 1.066411


def test_row_k5_a_quarter_of_a_cap_fits_exactly_four_times():
    ledger = Ledger(math.floor(Fraction(2, 100) * UNITS_PER_RHO))
    event = GaussianEvent(1, Fraction(UNITS_PER_RHO, 2 * (ledger.cap_units // 4)))
    for _ in range(4):
        ledger = ledger.after(ledger.charge(event))
    with pytest.raises(BudgetExhaustedError):
        ledger.charge(event)


def test_row_k5_a_filter_of_floats_refuses_the_fourth(opendp):
    space = integers(opendp)
    adaptive = opendp.c.make_fully_adaptive_composition(
        *space, opendp.zero_concentrated_divergence()
    )
    ask = opendp.c.make_privacy_filter(adaptive, d_in=10.0, d_out=0.02)([1] * 5)
    query = opendp.m.make_gaussian(*space, scale=100.0)
    assert query.map(10.0) == 0.005
    for _ in range(3):
        ask(query)
    with pytest.raises(opendp.OpenDPException, match=r"0\.020000000000000004"):
        ask(query)


@pytest.mark.parametrize("epsilon", CAPS)
def test_row_k6_caps_are_those_of_the_table(epsilon):
    simple, optimal, gdp = CAPS[epsilon]
    for privacy_filter, printed in ((PrivacyFilter.GDP, gdp), (PrivacyFilter.ZCDP, optimal)):
        assert prints_as(privacy_filter.cap_units(epsilon, DELTA) / UNITS_PER_RHO, printed)
    # The textbook's conversion, solved for rho.
    log = -math.log(DELTA)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    assert zcdp_epsilon_simple(rho, DELTA) == pytest.approx(epsilon, rel=1e-14)
    assert prints_as(rho, simple)


@pytest.mark.parametrize(("privacy_filter", "windows"), [("gdp", 70), ("zcdp", 62)])
def test_row_k7_noise_of_ten_sensitivities_lasts_the_known_number_of_windows(
    privacy_filter, windows
):
    found = solve_windows(
        epsilon=4.0,
        delta=DELTA,
        noise_multiplier=10.0,
        privacy_filter=PrivacyFilter(privacy_filter),
    )
    assert found.windows == windows
    assert (found.epsilon, found.delta, found.noise_multiplier) == (4.0, DELTA, 10.0)
    assert found.rho == pytest.approx(windows / 200, rel=1e-15)


def test_row_k7_other_accountings_allow_fewer_windows():
    assert zcdp_epsilon_simple(50 / 200, DELTA) <= 4 < zcdp_epsilon_simple(51 / 200, DELTA)
    assert math.floor(4 / (LOG / 10)) == 7


def test_a_hundred_windows_are_solved_for_the_epsilons_of_row_f3():
    costs = [
        solve_epsilon(
            delta=DELTA, windows=100, noise_multiplier=10.0, privacy_filter=privacy_filter
        ).epsilon
        for privacy_filter in (PrivacyFilter.GDP, PrivacyFilter.ZCDP)
    ]
    assert costs == [4.886555, 5.221535]  # 4.886554 and 5.221534, rounded to the nearest
