"""Tests of what is particular to the discrete Gaussian; the core is tested in `noise_rejection`.

The keystreams are fixed, so each test gives the same result each time; false-alarm probabilities
are those for a random keystream.
"""

import hashlib
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from stream.privacy.discrete_gaussian import DiscreteGaussian
from stream.privacy.noise import RoundedGaussian
from stream.privacy.noise_tables import Law, noise_tables

LARGEST_Z = 8
SMALLEST_P = 1e-12
SIZE = 400_000

# fmt: off
KNOWN = {
    Fraction(1, 4): [1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1],
    Fraction(100): [14, 14, -3, 17, -6, 20, 4, 10, -3, -12, 26, 4, -10, 14, -5, 14],
    Fraction(10**10): [
        147153, 147207, -26428, 177635, -58429, 221271, 41127, 103512,
        -29145, -125378, 19514, 44870, -104297, 145596, -49349, 140954,
    ],
    Fraction(1 << 60): [
        1586320081, 1600731911, -292141884, 1934136803, -630872125, 2460348503, 450560167,
        1121400920, -321228249, -1359722946, 210455610, 481638214, -1131701097, 1581117628,
        -542874821, 1524454042,
    ],
}
# fmt: on


def draw(variance, size=SIZE, label="noise", make_source=DiscreteGaussian):
    def entropy(count):
        return hashlib.shake_256(f"{label} 1".encode()).digest(count)

    return make_source(entropy).sample(Fraction(variance), size)


@pytest.mark.parametrize("variance", KNOWN, ids=str)
def test_known_answers_do_not_change(variance):
    assert draw(variance, 16, "known").tolist() == KNOWN[variance]


# PRIVACY notes, K1: P[0] and the variance of the discrete Gaussian, by sigma.
K1 = {
    Fraction(1, 2): ("0.786570707041948", "0.215012675088138"),
    Fraction(1): ("0.398942278266862", "0.999999788767728"),
    Fraction(2): ("0.199471140200716", "4.0"),
    Fraction(10): ("0.0398942280401433", "100.0"),
}


def _moments(stddev):
    """Return P[0] and the second and fourth moments, to 50 digits, by summing the closed form."""
    with mpmath.workdps(50):
        exponent = mpmath.mpf((2 * stddev**2).denominator) / (2 * stddev**2).numerator
        weights = {k: mpmath.exp(-k * k * exponent) for k in range(-200, 201)}
        total = mpmath.fsum(weights.values())
        powers = [mpmath.fsum(w * k**p for k, w in weights.items()) / total for p in (2, 4)]
        return 1 / total, *powers


@pytest.mark.parametrize("stddev", K1)
def test_k1_the_reference_values_are_those_of_the_discrete_gaussian(stddev):
    for value, printed in zip(_moments(stddev), K1[stddev], strict=False):
        digits = max(len(printed.lstrip("0.").replace(".", "")), 12)
        assert abs(value / mpmath.mpf(printed) - 1) < mpmath.mpf(10) ** (1 - digits)


def _reference_scores(samples, stddev):
    """Return z-scores of the share of zeros and of the variance against K1."""
    share, variance = map(float, K1[stddev])
    fourth = float(_moments(stddev)[2])
    n, x = samples.size, samples.astype(float)
    return (
        ((samples == 0).mean() - share) / math.sqrt(share * (1 - share) / n),
        ((x**2).mean() - variance) / math.sqrt((fourth - variance**2) / n),
    )


@pytest.mark.statistical
@pytest.mark.parametrize("stddev", K1)
def test_k1_the_noise_has_the_reference_values(stddev):
    """False alarm: 8 scores at 1.3e-15."""
    assert max(map(abs, _reference_scores(draw(stddev**2), stddev))) < LARGEST_Z


@pytest.mark.parametrize("stddev", K1)
def test_k1_noise_too_small_by_a_tenth_is_noticed(stddev):
    faulty = draw((stddev * Fraction(9, 10)) ** 2)
    assert min(map(abs, _reference_scores(faulty, stddev))) > LARGEST_Z


@pytest.mark.parametrize("stddev", [Fraction(1, 2), Fraction(1)])
def test_k1_a_rounded_gaussian_is_noticed(stddev):
    faulty = draw(stddev**2, make_source=RoundedGaussian)
    assert min(map(abs, _reference_scores(faulty, stddev))) > LARGEST_Z


def _proposed(tables, x):
    """Return how likely a proposal is x, in units of 2^-16."""
    layout = tables.layout
    width = int(layout.width)
    if layout.first * width <= x < layout.last * width:
        return Fraction(tables.slots[x // width - layout.first + 1], width)
    beyond = x - layout.last * width if x > 0 else layout.first * width - 1 - x
    segment = beyond // int(layout.tail_width)
    return Fraction(tables.slots[0], 2 ** (segment + 1)) / layout.tail_width


@pytest.mark.parametrize(
    "variance", [Fraction(1, 64), Fraction(1), Fraction(12345, 7), 128**2, 10**10, 1 << 60], ids=str
)
def test_every_integer_is_proposed_often_enough_to_get_its_share(variance):
    """The envelope: 2^-16 c rho(x) / w never exceeds the mass of x among the proposals."""
    tables = noise_tables(Law.DISCRETE_GAUSSIAN, Fraction(variance))
    layout = tables.layout
    edges = [layout.first * int(layout.width), layout.last * int(layout.width)]
    steps = [int(layout.tail_width) * g for g in range(12)]
    spread = int(math.sqrt(variance))
    points = {0, 1, -1, *range(-9 * spread, 9 * spread, spread // 50 + 1)}
    points |= {edges[0] - step - near for step in steps for near in (0, 1, 2)}
    points |= {edges[1] + step - near for step in steps for near in (0, 1, 2)}
    with mpmath.workprec(240):
        for x in points:
            exponent = Fraction(x * x) / (2 * Fraction(variance))
            rho = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
            share = tables.scale / layout.width
            proposed = _proposed(tables, x)
            assert rho * share.numerator / share.denominator <= (
                mpmath.mpf(proposed.numerator) / proposed.denominator
            )


def test_the_cells_of_a_large_draw_follow_the_closed_form():
    """Chi-square over all integers, sigma = 3. False alarm: 1e-12."""
    samples = draw(9, 2_000_000)
    values = np.arange(-14, 15)
    weights = np.exp(-(values**2) / 18)
    observed = np.bincount(np.clip(samples, -14, 14) + 14, minlength=29)
    expected = weights / weights.sum() * samples.size
    assert stats.chisquare(observed, expected).pvalue > SMALLEST_P
    shifted = np.roll(observed, 1)
    assert stats.chisquare(shifted, expected).pvalue < SMALLEST_P
