"""Tests of the sampler's core, for both laws.

The keystreams are fixed, so each test gives the same result each time. False-alarm probabilities
are those for a random keystream. A chi-square test fails below p = 1e-12 and a z-score beyond 8
(p = 1.3e-15), so that the 200-odd of them fail a correct sampler together with probability below
1e-9.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from stream.privacy import noise_rejection as rejection
from stream.privacy.keystream import Keystream
from stream.privacy.noise_kernel import find_propose
from stream.privacy.noise_tables import Law, build_tables, noise_tables
from stream.testing import insecure_entropy

ROUNDED, DISCRETE = Law.ROUNDED_GAUSSIAN, Law.DISCRETE_GAUSSIAN
NUMPY = find_propose("numpy")
SMALLEST_P = 1e-12
LARGEST_Z = 8
SIZE = 400_000
VARIANCES = [
    Fraction(1, 64),
    Fraction(1, 60),
    Fraction(1, 4),
    Fraction(26, 100),
    Fraction(1),
    Fraction(33, 10),
    Fraction(100),
    Fraction(12345, 7),
    Fraction(1 << 14),  # the discrete law's widest blocks of one integer
    Fraction(10**6),
    Fraction(10**10),
    Fraction(1 << 60),
]
each_law = pytest.mark.parametrize("law", list(Law), ids=lambda law: law.name)
each_variance = pytest.mark.parametrize("variance", VARIANCES, ids=str)
# Below, the draws are so rarely other than zero that no z-score is normal.
each_wide_variance = pytest.mark.parametrize("variance", VARIANCES[2:], ids=str)


def draw(law, variance, size=SIZE, seed=1):
    return rejection.draw_exactly(law, Fraction(variance), size, insecure_entropy(seed), NUMPY)


def _masses(law, cuts, stddev):
    """Return the probabilities of the cells between integer ``cuts`` (each ends a cell).

    Beyond a standard deviation of 1000 those of the two laws agree to 1e-7 of themselves.
    """
    cuts = np.asarray(cuts, float)
    if law is DISCRETE and stddev <= 1000:
        exponents = (np.arange(cuts[0] + 1, cuts[-1] + 1) / stddev) ** 2 / 2
        weights = np.exp(-exponents)
        return np.concatenate([[0], weights / weights.sum(), [0]])
    upper = (cuts + 0.5) / stddev
    left = special.ndtr(np.concatenate([[-np.inf], upper, [np.inf]]))
    right = special.ndtr(-np.concatenate([[-np.inf], upper, [np.inf]]))
    return np.where(left[1:] < 0.5, np.diff(left), -np.diff(right))  # accurate in both tails


def law_p(samples, law, variance):
    """Return the p-value of a chi-square test against the law: all integers, or 4096 cells."""
    stddev = math.sqrt(variance)
    if stddev <= 1000:
        reach = math.floor(9 * stddev) + 2
        cuts = np.arange(-reach, reach)
    else:
        cuts = np.round(special.ndtri(np.arange(1, 4096) / 4096) * stddev).astype(np.int64)
    cells = np.searchsorted(cuts, samples, side="left")
    observed = np.bincount(cells, minlength=cuts.size + 1)
    return _chi_square_p(observed, _masses(law, cuts, stddev) * samples.size)


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


def moment_scores(samples, law, variance):
    """Return z-scores of the mean, the variance and the correlation of neighbours."""
    stddev, n = math.sqrt(variance), samples.size
    if stddev < 50:
        values = np.arange(-600, 601)
        mass = _masses(law, np.arange(-600, 600), stddev)
        second, fourth = (mass * values**2.0).sum(), (mass * values**4.0).sum()
    else:
        second = float(variance) + (1 / 12 if law is ROUNDED else 0)
        fourth = 3 * float(variance) ** 2 + (float(variance) / 2 if law is ROUNDED else 0)
    x = samples.astype(float)
    return [
        x.mean() / math.sqrt(second / n),
        ((x**2).mean() - second) / math.sqrt((fourth - second**2) / n),
        (x[1:] * x[:-1]).mean() / (second / math.sqrt(n - 1)),
    ]


def residue_p(samples, modulus):
    """Return the p-value of a chi-square test that residues are uniform."""
    observed = np.bincount(samples % modulus, minlength=modulus)
    return _chi_square_p(observed, np.full(modulus, samples.size / modulus))


def sign_score(samples):
    """Return the z-score of the hypothesis that both signs are equally likely."""
    above, below = int((samples > 0).sum()), int((samples < 0).sum())
    return (above - below) / math.sqrt(max(above + below, 1))


def mirror_p(samples):
    """Return the p-value of a chi-square test that k and -k are equally likely, by size of k."""
    present = samples[samples != 0]
    sizes = np.abs(present)
    edges = np.unique(np.quantile(sizes, np.arange(101) / 100, method="nearest"))
    cells = np.searchsorted(edges, sizes)
    both = np.bincount(cells)
    positive = np.bincount(cells, present > 0)
    enough = both >= 50
    statistic = ((2 * positive - both)[enough] ** 2 / both[enough]).sum()
    return stats.chi2.sf(statistic, enough.sum())


@pytest.mark.statistical
@each_law
@each_wide_variance
def test_draws_follow_the_law(law, variance):
    """False alarm: 20 tests at 1e-12."""
    assert law_p(draw(law, variance), law, variance) > SMALLEST_P


@pytest.mark.statistical
@pytest.mark.parametrize("variance", VARIANCES[:2], ids=str)
def test_draws_follow_the_narrowest_laws(variance):
    """False alarm: 2 tests at 1e-12; 5e-10 that a draw of the discrete law is not zero."""
    assert law_p(draw(ROUNDED, variance, 2_000_000), ROUNDED, variance) > SMALLEST_P
    assert law_p(draw(ROUNDED, variance * 2, 2_000_000), ROUNDED, variance) < SMALLEST_P
    assert not draw(DISCRETE, variance, 2_000).any()


@pytest.mark.statistical
@each_law
def test_draws_beyond_the_first_part_follow_it_too(law):
    """False alarm: 2 tests at 1e-12."""
    samples = draw(law, 100, (1 << 20) + 50_000)[1 << 20 :]
    assert law_p(samples, law, 100) > SMALLEST_P


@pytest.mark.statistical
@each_law
@each_wide_variance
def test_mean_variance_and_neighbours_are_right(law, variance):
    """False alarm: 60 scores at 1.3e-15."""
    assert max(map(abs, moment_scores(draw(law, variance), law, variance))) < LARGEST_Z


@pytest.mark.statistical
@each_law
@pytest.mark.parametrize("variance", [Fraction(1, 4), 1, 100, 12345, 10**10, 1 << 60], ids=str)
def test_a_value_is_as_likely_as_its_negative(law, variance):
    """False alarm: 12 tests at 1e-12 and 12 scores at 1.3e-15."""
    samples = draw(law, variance)
    assert mirror_p(samples) > SMALLEST_P
    assert abs(sign_score(samples)) < LARGEST_Z


@pytest.mark.statistical
@each_law
@pytest.mark.parametrize("modulus", [2**4, 2**8, 2**12, 3, 1000])
@pytest.mark.parametrize("stddev", [10**5, 1 << 30])
def test_low_digits_are_uniform(law, stddev, modulus):
    """The true residues deviate by exp(-2 pi^2 (stddev/modulus)^2). False alarm: 20 at 1e-12."""
    assert residue_p(draw(law, stddev**2), modulus) > SMALLEST_P


@each_law
@pytest.mark.parametrize("variance", [Fraction(1, 4), 100, 10**10])
def test_noise_too_small_by_a_tenth_is_noticed(law, variance):
    faulty = draw(law, variance * Fraction(81, 100))
    assert law_p(faulty, law, variance) < SMALLEST_P
    assert abs(moment_scores(faulty, law, variance)[1]) > LARGEST_Z


def test_one_law_in_place_of_the_other_is_noticed():
    assert law_p(draw(DISCRETE, Fraction(1, 4)), ROUNDED, Fraction(1, 4)) < SMALLEST_P
    assert law_p(draw(ROUNDED, Fraction(1, 4)), DISCRETE, Fraction(1, 4)) < SMALLEST_P


@each_law
def test_rounding_toward_zero_is_noticed(law):
    faulty = np.trunc(np.random.default_rng(1).standard_normal(SIZE) * 10).astype(np.int64)
    assert law_p(faulty, law, 100) < SMALLEST_P


@each_law
def test_rounding_down_is_noticed(law):
    faulty = np.floor(np.random.default_rng(1).standard_normal(SIZE) * 10).astype(np.int64)
    assert abs(moment_scores(faulty, law, 100)[0]) > LARGEST_Z
    assert abs(sign_score(faulty)) > LARGEST_Z
    assert mirror_p(faulty) < SMALLEST_P


@each_law
def test_a_repeated_draw_is_noticed(law):
    faulty = np.repeat(draw(law, 100, SIZE // 2), 2)
    assert abs(moment_scores(faulty, law, 100)[2]) > LARGEST_Z


@each_law
def test_lost_low_digits_are_noticed(law):
    x = draw(law, 10**10)
    assert residue_p(np.where(x % 64 == 1, x + 1, x), 2**8) < SMALLEST_P
    assert law_p(x, law, 10**10) > SMALLEST_P


class CountingKeystream(Keystream):
    def __init__(self, entropy):
        super().__init__(entropy)
        self.exact_words = 0

    def word(self):
        self.exact_words += 1
        return super().word()


def draw_slowly(law, variance, size, tolerance=0.3):
    """Draw with early tails and a vague estimate: thousands of decisions are exact ones."""
    stream = CountingKeystream(insecure_entropy(2))
    samples = np.empty(size, np.int64)
    tables = build_tables(law, Fraction(variance), Fraction(3, 2))
    rejection.fill_exactly(samples, tables, stream, NUMPY, tolerance)
    assert stream.exact_words > size / 20
    return samples


@pytest.mark.statistical
@each_law
@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(12345, 7), 10**10])
def test_exact_decisions_and_tails_follow_the_law(law, variance):
    """False alarm: 6 tests at 1e-12 and 18 scores at 1.3e-15."""
    samples = draw_slowly(law, variance, 5_000)
    assert law_p(samples, law, variance) > SMALLEST_P
    assert max(map(abs, moment_scores(samples, law, variance))) < LARGEST_Z


@each_law
def test_a_fault_in_the_exact_decision_is_noticed(law, monkeypatch):
    right = rejection._acceptance_bounds

    def too_high(low_x, high_x, height, variance, bits):
        return right(low_x, high_x, height * 2, variance, bits)

    monkeypatch.setattr(rejection, "_acceptance_bounds", too_high)
    assert law_p(draw_slowly(law, 9, 5_000), law, 9) < SMALLEST_P


@each_law
def test_a_fault_in_the_tails_is_noticed(law, monkeypatch):
    monkeypatch.setattr(rejection, "_geometric", lambda stream: 0)
    assert law_p(draw_slowly(law, 9, 5_000, rejection._TOLERANCE), law, 9) < SMALLEST_P


def test_an_exact_decision_gives_the_integer_of_its_position_or_rejects():
    tables = noise_tables(ROUNDED, Fraction(100))  # blocks of width 1/8
    stream = Keystream(insecure_entropy(3))
    last_bits = 2**53 - 1
    assert rejection._decide_exactly(8, 0, 0, tables, stream) == 1
    assert rejection._decide_exactly(7, 0, last_bits, tables, stream) == 0
    assert rejection._decide_exactly(-1, 0, last_bits, tables, stream) == -1
    outermost = tables.layout.last - 1
    assert rejection._decide_exactly(outermost, last_bits, 0, tables, stream) is None


def test_an_exact_discrete_decision_is_about_one_integer(monkeypatch):
    asked = []
    right = rejection._acceptance_bounds

    def bounds(low_x, high_x, *rest):
        asked.append((low_x, high_x))
        return right(low_x, high_x, *rest)

    monkeypatch.setattr(rejection, "_acceptance_bounds", bounds)
    tables = noise_tables(DISCRETE, Fraction(4**9))  # blocks of width 4
    stream = Keystream(insecure_entropy(3))
    position = 3 << 51  # the last integer of a block
    assert rejection._decide_exactly(-7, 0, position, tables, stream) == -25
    assert asked == [(-25, -25)]


@pytest.mark.parametrize(("word", "position"), [(0, 0), (2**64 - 1, 1023)])
def test_a_discrete_tail_begins_beside_the_last_block(word, position):
    tables = noise_tables(DISCRETE, Fraction(4**9))  # blocks of 4, tail segments of 1024
    layout = tables.layout
    right = rejection._decide_exactly(
        layout.last, 0, 0, tables, ScriptedStream([1, word, *[0] * 9])
    )
    assert right == layout.last * 4 + position
    left = rejection._decide_exactly(
        layout.first - 1, 0, 0, tables, ScriptedStream([1, word, *[0] * 9])
    )
    assert left == layout.first * 4 - 1024 + position


class ScriptedStream:
    """Gives the words it was told to, whoever asks; records how many were taken."""

    def __init__(self, words):
        self.script = list(words)

    def borrow(self, count):
        taken, self.script = self.script[:count], self.script[count:]
        return np.array(taken, np.uint64)

    words = borrow

    def word(self):
        return int(self.borrow(1)[0])


@each_law
def test_the_first_look_accepts_below_its_bound_and_not_at_it(law):
    tables = noise_tables(law, Fraction(10**6))
    slot = 30_000
    block = int(tables.entries[slot]) >> 25
    bound = int(tables.accept_below[block - tables.layout.first + 1])
    words = [coin << 40 | 5 << 16 | slot for coin in (bound - 1, bound, 0, 2**24 - 1)]
    values = np.empty(4, np.int64)
    pending = rejection._first_look(values, tables, ScriptedStream(words), NUMPY)
    assert values.tolist() == [block * 8 + 5] * 4  # blocks of width 8
    assert pending.target.tolist() == [1, 3]
    assert pending.coin.tolist() == [bound, 2**24 - 1]
    assert pending.offset.tolist() == [5, 5]


def test_the_second_look_rejects_from_its_bound_on_without_further_bits():
    tables = noise_tables(ROUNDED, Fraction(10**6))
    bound = int(tables.reject_from[1])
    block = tables.layout.first
    columns = (np.array(column) for column in ([0, 1], [block] * 2, [0, 0], [bound - 1, bound]))
    stream = ScriptedStream([2**64 - 1, 0, 7])
    pending = rejection._Proposals(*columns)
    accepted = rejection._second_look(np.zeros(2, np.int64), pending, tables, stream, 2.0**-44)
    assert accepted.tolist() == [False, False]
    assert stream.script == [7]


def test_what_the_float_estimate_cannot_decide_is_decided_exactly(monkeypatch):
    half, margin = 2**52, 2**8  # an estimate of 1/2 is trusted to 2^-45 = 2^8 units of 2^-53
    coins = [half - margin - 1, half - margin, half, half + margin - 1, half + margin]
    asked = []

    def decide(block, coin, position, tables, stream):
        asked.append(coin)
        return 77 if coin == half else None

    tables = noise_tables(ROUNDED, Fraction(100))
    position = np.zeros(5, np.int64)
    monkeypatch.setattr(rejection, "_more_bits", lambda *_: (np.array(coins), position))
    monkeypatch.setattr(rejection, "_estimate", lambda *_: np.full(5, 0.5))
    monkeypatch.setattr(rejection, "_decide_exactly", decide)
    pending = rejection._Proposals(np.arange(5), position, position, position)
    values = np.full(5, -1)
    accepted = rejection._second_look(values, pending, tables, ScriptedStream([]), 2.0**-44)
    assert asked == coins[1:4]
    assert accepted.tolist() == [True, False, True, False, False]
    assert values.tolist() == [-1, -1, 77, -1, -1]


@each_law
def test_an_exact_decision_takes_more_bits_until_it_is_clear(law, monkeypatch):
    asked = []

    def bounds(low_x, high_x, height, variance, bits):
        asked.append((bits, low_x, high_x))
        middle = (5 << bits) >> 53  # the true acceptance probability is 5 units of 2^-53
        return middle - 1, middle + 1

    monkeypatch.setattr(rejection, "_acceptance_bounds", bounds)
    tables = noise_tables(law, Fraction(4**9))  # blocks of width 4
    below = rejection._decide_exactly(3, 4, 9, tables, ScriptedStream([2**62, 2**63, 0]))
    assert below == 12
    assert [bits for bits, _, _ in asked] == [85, 149]
    if law is DISCRETE:
        assert asked[1][1:] == (12, 12)
    else:
        assert asked[1][1] == 12 + 4 * Fraction(2 * 9 + 1, 2**54) - Fraction(1, 2)
        assert asked[1][2] - asked[1][1] == Fraction(4, 2**117)
    stream = ScriptedStream([2**62, 2**63])
    assert rejection._decide_exactly(3, 5, 9, tables, stream) is None


@pytest.mark.parametrize("offset_bits", [0, 3, 23])
def test_the_first_bits_of_coin_and_position_are_those_already_drawn(offset_bits):
    coin, offset = 2**24 - 2, 2**offset_bits - 1
    asked = np.array([coin, 0]), np.array([offset, 0])
    script = [(2**29 - 3) << 35 | 99, 0, 1 << 63, (2**64 - 1)]
    free = 53 - offset_bits
    for law, positions, left in [
        (ROUNDED, [offset << free | 1 << free - 1, 2**free - 1], 0),
        (DISCRETE, [offset << free, 0], 2),
    ]:
        tables = noise_tables(law, Fraction(4) ** (7 + offset_bits))
        assert tables.layout.offset_bits == offset_bits
        stream = ScriptedStream(script)
        coins, found = rejection._more_bits(*asked, tables, stream)
        assert coins.tolist() == [coin << 29 | 2**29 - 3, 0]
        assert found.tolist() == positions
        assert len(stream.script) == left


@pytest.mark.parametrize("word", [1, 2, 8, 1 << 63])
def test_a_tail_segment_counts_the_zeros_before_the_first_one(word):
    assert rejection._geometric(ScriptedStream([0, word])) == 64 + word.bit_length() - 1


def _asked_points(law, block, position, layout):
    """Return the x between which a proposal lies, from the definition of the law."""
    if law is DISCRETE:
        x = block * layout.width + (position >> (53 - layout.offset_bits))
        return x, x
    start = block * layout.width - Fraction(1, 2)
    return (start + layout.width * Fraction(bits, 1 << 53) for bits in (position, position + 1))


@each_law
@each_variance
def test_the_float_estimate_is_within_its_tolerance_of_the_truth(law, variance):
    tables = noise_tables(law, variance)
    layout = tables.layout
    generator = np.random.default_rng(1)
    blocks = np.concatenate(
        [generator.integers(layout.first, layout.last, 400), [-1, 0, 1, layout.last - 1]]
    ).clip(layout.first, layout.last - 1)
    rows = blocks - layout.first + 1
    positions = generator.integers(0, 1 << 53, blocks.size)
    positions[::7], positions[1::7] = 0, (1 << 53) - 1
    if law is DISCRETE:
        free = 53 - layout.offset_bits
        positions = positions >> free << free
    estimates = rejection._estimate(tables, rows, positions)
    with mpmath.workprec(240):
        for block, position, estimate in zip(blocks, positions, estimates, strict=True):
            slots = tables.slots[block - layout.first + 1]
            height = mpmath.mpf(tables.scale.numerator) / tables.scale.denominator / slots
            for x in _asked_points(law, int(block), int(position), layout):
                exponent = Fraction(x) ** 2 / (2 * variance)
                exact = height * mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
                assert abs(mpmath.mpf(float(estimate)) / exact - 1) < 2.0**-48  # proven: 32 ulp


@each_law
def test_a_tail_has_no_estimate(law):
    tables = noise_tables(law, Fraction(100))
    rows = np.array([0, len(tables.slots) - 1])
    assert np.isnan(rejection._estimate(tables, rows, np.array([0, 5]))).all()


@each_law
def test_parameters_out_of_range_are_refused(law):
    for variance in (Fraction(0), Fraction(-1), Fraction(1, 65), Fraction(2) ** 61):
        with pytest.raises(ValueError, match=r"outside 1/64 \.\. 2\^60"):
            draw(law, variance, 1)
    with pytest.raises(ValueError, match="cannot draw -1 samples"):
        draw(law, 1, -1)
