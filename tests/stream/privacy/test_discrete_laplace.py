"""The keystreams are fixed, so each test gives the same result each time.

False-alarm probabilities are those for a random keystream: a chi-square test fails below
p = 1e-12, a z-score beyond 8 (p = 1.3e-15).
"""

import hashlib
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stream.privacy import discrete_laplace
from stream.privacy.discrete_laplace import (
    DiscreteLaplace,
    digit_bounds,
    draw_geometric,
    power_bounds,
)
from stream.privacy.keystream import Keystream
from stream.testing import insecure_entropy

SMALLEST_P = 1e-12
LARGEST_Z = 8
SIZE = 200_000
SCALES = [Fraction(1, 64), Fraction(1, 4), Fraction(1), Fraction(22, 7), 100, 10**6, 1 << 30]
each_scale = pytest.mark.parametrize("scale", SCALES, ids=str)

# fmt: off
KNOWN = {
    Fraction(1, 2): [0, 0, 0, 0, -1, 0, 0, 1, 0, 0, 0, 1, 0, -1, 1, 0],
    Fraction(10): [1, -16, -6, 4, -6, 38, 10, 0, 0, 24, -1, -11, 13, -1, -2, -46],
    Fraction(1 << 30): [
        98609390, -907436303, -732109588, -594953152, 865485212, 184238139, -1531311770,
        465930883, 785351236, -193250409, -1093565270, -494819724, 1438038741, 1810009052,
        -2474131252, 973150778,
    ],
}
# fmt: on


def draw(scale, size=SIZE, seed=1):
    return DiscreteLaplace(insecure_entropy(seed)).sample(Fraction(scale), size)


def draw_slowly(scale, size, coin_bits=3):
    """Draw with coins that few bits decide, as the difference of two geometric draws."""
    stream = Keystream(insecure_entropy(2))
    one, two = (draw_geometric(Fraction(scale), size, stream, coin_bits) for _ in range(2))
    return one - two


@pytest.mark.parametrize("scale", KNOWN, ids=str)
def test_known_answers_do_not_change(scale):
    source = DiscreteLaplace(lambda count: hashlib.shake_256(b"known 1").digest(count))
    assert source.sample(scale, 16).tolist() == KNOWN[scale]


def _chi_square_p(observed, expected):
    """Merge neighbouring cells until each expects 25, then test."""
    starts, total = [0], 0.0
    for i, mean in enumerate(expected):
        if total >= 25:
            starts.append(i)
            total = 0.0
        total += mean
    if total < 25:
        starts.pop()
    seen, meant = np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)
    return stats.chi2.sf(((seen - meant) ** 2 / meant).sum(), seen.size - 1)


def law_p(samples, scale):
    """Return the p-value of a chi-square test: all integers, or 200 cells beyond scale 20."""
    scale = float(scale)
    if scale <= 20:
        reach = math.ceil(12 * scale) + 1
        ends = np.arange(-reach, reach)
    else:
        outward = np.round(-scale * np.log(np.arange(100, 0, -1) / 100)).astype(np.int64)
        ends = np.unique(np.concatenate([-outward - 1, outward]))
    # P[X <= end] of the negative ends, P[X > end] of the others.
    outer = np.exp(-np.abs(ends + (ends >= 0)) / scale) / (1 + math.exp(-1 / scale))
    masses = np.diff(np.concatenate([[0], np.where(ends < 0, outer, 1 - outer), [1]]))
    observed = np.bincount(np.searchsorted(ends, samples, side="left"), minlength=masses.size)
    return _chi_square_p(observed, masses * samples.size)


def moments(scale):
    """Return P[0] and the second and fourth moments, from q."""
    with mpmath.workdps(40):
        q = mpmath.exp(-mpmath.mpf(Fraction(scale).denominator) / Fraction(scale).numerator)
        second = 2 * q / (1 - q) ** 2
        return (1 - q) / (1 + q), second, second * (1 + 10 * q + q**2) / (1 - q) ** 2


def scores(samples, scale):
    """Return z-scores of the share of zeros, the mean, the variance and neighbours' correlation."""
    share, second, fourth = map(float, moments(scale))
    n, x = samples.size, samples.astype(float)
    return [
        ((samples == 0).mean() - share) / math.sqrt(share * (1 - share) / n),
        x.mean() / math.sqrt(second / n),
        ((x**2).mean() - second) / math.sqrt((fourth - second**2) / n),
        (x[1:] * x[:-1]).mean() / (second / math.sqrt(n - 1)),
    ]


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES[1:], ids=str)
def test_draws_follow_the_discrete_laplace_law(scale):
    """False alarm: 6 tests at 1e-12."""
    assert law_p(draw(scale), scale) > SMALLEST_P


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES[1:], ids=str)
def test_zeros_mean_variance_and_neighbours_are_right(scale):
    """False alarm: 24 scores at 1.3e-15."""
    assert max(map(abs, scores(draw(scale), scale))) < LARGEST_Z


def test_a_draw_of_the_narrowest_law_is_not_zero_with_a_probability_of_3e_28():
    """False alarm: below 1e-22."""
    assert not draw(Fraction(1, 64)).any()


@pytest.mark.statistical
@pytest.mark.parametrize("scale", [Fraction(1, 4), 1, 100, 1 << 30])
def test_a_value_is_as_likely_as_its_negative(scale):
    """False alarm: 4 scores at 1.3e-15."""
    samples = draw(scale)
    above, below = int((samples > 0).sum()), int((samples < 0).sum())
    assert abs(above - below) < LARGEST_Z * math.sqrt(above + below)


@pytest.mark.statistical
@pytest.mark.parametrize("modulus", [2, 16, 1024])
def test_low_digits_are_uniform(modulus):
    """The true residues deviate by about (modulus/scale)^2. False alarm: 3 tests at 1e-12."""
    residues = np.bincount(draw(1 << 30) % modulus, minlength=modulus)
    assert stats.chisquare(residues).pvalue > SMALLEST_P


@pytest.mark.parametrize("scale", [Fraction(1, 4), 1, 100, 10**6])
def test_noise_too_small_by_a_tenth_is_noticed(scale):
    faulty = draw(Fraction(scale) * Fraction(9, 10))
    assert law_p(faulty, scale) < SMALLEST_P
    assert abs(scores(faulty, scale)[2]) > LARGEST_Z


def test_zero_counted_twice_is_noticed():
    """The classic fault: a sign for every magnitude, so that 0 comes from both signs."""
    magnitudes = draw_geometric(Fraction(1), SIZE, Keystream(insecure_entropy(3)))
    signs = np.random.default_rng(1).choice([-1, 1], SIZE)
    assert law_p(magnitudes * signs, 1) < SMALLEST_P


def test_a_repeated_draw_is_noticed():
    assert abs(scores(np.repeat(draw(10, SIZE // 2), 2), 10)[3]) > LARGEST_Z


def test_a_lost_digit_is_noticed():
    samples = draw(1 << 30)
    assert stats.chisquare(np.bincount((samples & ~4) % 16, minlength=16)).pvalue < SMALLEST_P


def test_a5_the_reference_values_are_those_of_the_law_and_of_the_noise():
    """False alarm: 2 scores at 1.3e-15."""
    share, variance, fourth = moments(1)
    assert float(share) == pytest.approx(0.46211715726001, abs=1e-14)
    assert float(variance) == pytest.approx(1.84134718841558, abs=1e-14)
    direct = mpmath.fsum(k**4 * share * mpmath.exp(-abs(k)) for k in range(-200, 201))
    assert float(fourth) == pytest.approx(float(direct), rel=1e-12)
    found = scores(draw(1), 1)
    assert abs(found[0]) < LARGEST_Z
    assert abs(found[2]) < LARGEST_Z


@pytest.mark.statistical
@pytest.mark.parametrize("scale", [Fraction(1, 4), Fraction(22, 7), 100, 1 << 30])
def test_coins_that_their_first_bits_do_not_decide_follow_the_law(scale, monkeypatch):
    """False alarm: 4 tests and 12 scores, below 1e-11 each."""
    exact = []
    right = discrete_laplace._flip_exactly
    monkeypatch.setattr(
        discrete_laplace, "_flip_exactly", lambda *args: exact.append(1) or right(*args)
    )
    samples = draw_slowly(scale, 3_000)
    assert len(exact) > 3_000 / 5
    assert law_p(samples, scale) > SMALLEST_P
    assert max(map(abs, scores(samples, scale)[:3])) < LARGEST_Z


def test_a_fault_in_the_exact_coin_is_noticed(monkeypatch):
    monkeypatch.setattr(discrete_laplace, "_flip_exactly", lambda *_: True)
    assert law_p(draw_slowly(Fraction(22, 7), 3_000), Fraction(22, 7)) < SMALLEST_P


def test_a_part_beyond_the_digits_is_added_as_often_as_its_heads(monkeypatch):
    """With q^(2^n) = 1/2 in place of 2^-65, H is geometric with ratio 1/2."""
    monkeypatch.setattr(
        discrete_laplace, "power_bounds", lambda _: lambda bits: (1 << bits - 1, 1 << bits - 1)
    )
    drawn = draw_geometric(Fraction(1), 20_000, Keystream(insecure_entropy(4)))
    beyond = np.bincount(drawn >> 6, minlength=4)[:4]
    assert np.abs(beyond - 20_000 / 2.0 ** np.arange(1, 5)).max() < LARGEST_Z * 70


class ScriptedStream:
    def __init__(self, words):
        self.script = list(words)

    def words(self, count):
        taken, self.script = self.script[:count], self.script[count:]
        return np.array(taken, np.uint64)

    def word(self):
        return int(self.words(1)[0])


def test_a_coin_is_decided_by_its_first_bits_except_between_its_bounds():
    third = digit_bounds(Fraction(1))  # 1 / (1 + e)
    low, high = third(64)
    assert high - low <= 2
    later = third(128)[0] - (low << 64)
    stream = ScriptedStream([low - 1, high, low, low, later - 1, later + 2])
    heads = discrete_laplace._flip(third, 4, stream, 64)
    assert heads.tolist() == [True, False, True, False]
    assert stream.script == []


def test_an_undecided_coin_takes_more_bits_until_it_is_clear():
    def bounds(bits):
        return (5 << bits - 3, (5 << bits - 3) + 1)

    beginning = 5
    stream = ScriptedStream([0, 2**64 - 1])
    assert discrete_laplace._flip_exactly(bounds, beginning, 3, stream) is False
    assert discrete_laplace._flip_exactly(bounds, 4, 3, ScriptedStream([7])) is True
    assert stream.script == []


@given(
    st.fractions(min_value=Fraction(1, 1 << 30), max_value=128),
    st.integers(min_value=1, max_value=260),
)
def test_bounds_enclose_the_probability_and_are_close(exponent, bits):
    with mpmath.workprec(600):
        power = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        for bounds, probability in [
            (power_bounds(exponent), power),
            (digit_bounds(exponent), power / (1 + power)),
        ]:
            low, high = bounds(bits)
            assert 0 <= low <= probability * 2**bits <= high
            assert high - low <= 3


@each_scale
def test_digits_reach_so_far_that_more_is_improbable_and_an_int64_holds_all(scale):
    """The premises of the docstring, from the definition of n."""
    digits = (math.ceil(45 * Fraction(scale)) - 1).bit_length()
    assert 45 * scale <= 2**digits < max(2, 90 * scale + 2)
    assert digits + 26 <= 62
    with mpmath.workprec(200):
        assert mpmath.exp(-mpmath.mpf(2**digits) / float(scale)) < mpmath.mpf(2) ** -64


@given(st.sampled_from([Fraction(1, 64), Fraction(1, 3), Fraction(1), Fraction(22, 7)]))
def test_digits_and_the_part_beyond_make_up_the_geometric_law(scale):
    """The identity of the docstring (a), to 60 digits."""
    with mpmath.workdps(80):
        q = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
        digits = (math.ceil(45 * scale) - 1).bit_length()
        for k in range(3 * 2**digits):
            ones = [q ** (2**i) / (1 + q ** (2**i)) for i in range(digits)]
            mass = mpmath.fprod(p if k >> i & 1 else 1 - p for i, p in enumerate(ones))
            mass *= (1 - q ** (2**digits)) * q ** (2**digits * (k >> digits))
            assert abs(mass / ((1 - q) * q**k) - 1) < mpmath.mpf(10) ** -60


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(1, 65), Fraction(2) ** 31])
def test_a_scale_out_of_range_is_refused_with_the_range(scale):
    with pytest.raises(ValueError, match=r"outside 1/64 \.\. 2\^30"):
        DiscreteLaplace(insecure_entropy(1)).sample(scale, 1)


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="cannot draw -1 samples"):
        DiscreteLaplace(insecure_entropy(1)).sample(Fraction(1), -1)


def test_a_draw_of_several_parts_has_no_repetition():
    """False alarm: below 2^-300."""
    size = discrete_laplace._PART_SIZE
    samples = draw(10**6, size + 100)
    assert samples.shape == (size + 100,)
    assert not np.array_equal(samples[size:], samples[:100])
