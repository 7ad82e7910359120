"""Tests of the sampler. The keystreams are fixed, so each test gives the same result each time.

False-alarm probabilities are those for a random keystream. A chi-square test fails below
p = 1e-12 and a z-score beyond 8 (p = 1.3e-15), so that the 60-odd of them fail a correct
sampler together with probability below 1e-10.
"""

import ast
import hashlib
import inspect
import math
import tracemalloc
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from stream import privacy
from stream.privacy import noise
from stream.privacy.keystream import Keystream
from stream.privacy.noise import RoundedGaussian
from stream.privacy.noise_tables import build_tables, noise_tables

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
    Fraction(10**6),
    Fraction(10**10),
    Fraction(1 << 60),
]

# fmt: off
KNOWN_10 = [15, 15, -3, 18, -6, 22, 4, 10, -3, -13, 2, 4, -10, 14, -5, 14]
KNOWN_100000 = [
    147153, 147207, -26428, 177635, -58429, 221271, 41127, 103512,
    -29145, -125378, 19514, 44870, -104297, 145596, -49349, 140954,
]
KNOWN_HALF = [1, 1, 0, 1, 0, 1, 0, 1, 0, -1, 0, 0, -1, 1, 0, 1]
# fmt: on


def fixed_entropy(label):
    """Different bytes at each call, the same in each run."""
    calls = 0

    def entropy(count):
        nonlocal calls
        calls += 1
        return hashlib.shake_256(f"{label} {calls}".encode()).digest(count)

    return entropy


def draw(variance, size=SIZE, label="noise"):
    return RoundedGaussian(fixed_entropy(label)).sample(variance, size)


def _masses(cuts, stddev):
    """Return the probabilities of the cells between integer ``cuts`` (each ends a cell)."""
    upper = (np.asarray(cuts, float) + 0.5) / stddev
    left = special.ndtr(np.concatenate([[-np.inf], upper, [np.inf]]))
    right = special.ndtr(-np.concatenate([[-np.inf], upper, [np.inf]]))
    return np.where(left[1:] < 0.5, np.diff(left), -np.diff(right))  # accurate in both tails


def law_p(samples, variance):
    """Return the p-value of a chi-square test against the rounded Gaussian."""
    stddev = math.sqrt(variance)
    if stddev <= 1000:
        reach = math.floor(9 * stddev) + 2
        cuts = np.arange(-reach, reach)
    else:
        cuts = np.round(special.ndtri(np.arange(1, 4096) / 4096) * stddev).astype(np.int64)
    cells = np.searchsorted(cuts, samples, side="left")
    observed = np.bincount(cells, minlength=cuts.size + 1)
    return _chi_square_p(observed, _masses(cuts, stddev) * samples.size)


def _chi_square_p(observed, expected):
    """Merge neighbouring cells until each expects 25, then test."""
    group = np.floor(np.cumsum(expected) / 25).astype(int)
    _, group = np.unique(group, return_inverse=True)
    group = np.minimum(group, group[-2] if group.size > 1 else 0)
    seen, meant = np.bincount(group, observed), np.bincount(group, expected)
    statistic = ((seen - meant) ** 2 / meant).sum()
    return stats.chi2.sf(statistic, seen.size - 1)


def moment_scores(samples, variance):
    """Return z-scores of the mean, the variance and the correlation of neighbours."""
    stddev, n = math.sqrt(variance), samples.size
    second, fourth = float(variance) + 1 / 12, 3 * float(variance) ** 2 + float(variance) / 2
    if stddev < 50:
        values = np.arange(-600, 601)
        mass = _masses(values[:-1], stddev)
        second, fourth = (mass * values**2.0).sum(), (mass * values**4.0).sum()
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


@pytest.mark.statistical
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_draws_follow_the_rounded_gaussian(variance):
    """False alarm: 11 tests at 1e-12."""
    assert law_p(draw(variance), variance) > SMALLEST_P


@pytest.mark.statistical
def test_draws_beyond_the_first_part_follow_it_too():
    """False alarm: 1e-12."""
    assert law_p(draw(Fraction(100), (1 << 20) + 50_000)[1 << 20 :], 100) > SMALLEST_P


@pytest.mark.statistical
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_mean_variance_and_neighbours_are_right(variance):
    """False alarm: 33 scores at 1.3e-15."""
    assert max(map(abs, moment_scores(draw(variance), variance))) < LARGEST_Z


@pytest.mark.statistical
@pytest.mark.parametrize("modulus", [2**4, 2**8, 2**12, 3, 1000])
@pytest.mark.parametrize("stddev", [10**5, 1 << 30])
def test_low_digits_are_uniform(stddev, modulus):
    """The true residues deviate by exp(-2 pi^2 (stddev/modulus)^2). False alarm: 10 at 1e-12."""
    assert residue_p(draw(Fraction(stddev) ** 2), modulus) > SMALLEST_P


def _discrete_gaussian(variance, size):
    values = np.arange(-40, 41)
    weights = np.exp(-(values**2) / (2 * float(variance)))
    generator = np.random.default_rng(1)
    return generator.choice(values, size, p=weights / weights.sum())


def test_noise_too_small_by_a_tenth_is_noticed():
    for variance in (Fraction(1, 4), Fraction(100), Fraction(10**10)):
        faulty = draw(variance * Fraction(81, 100))
        assert law_p(faulty, variance) < SMALLEST_P
        assert abs(moment_scores(faulty, variance)[1]) > LARGEST_Z


def test_a_discrete_gaussian_in_place_of_a_rounded_one_is_noticed():
    assert law_p(_discrete_gaussian(Fraction(1, 4), SIZE), Fraction(1, 4)) < SMALLEST_P


def test_rounding_toward_zero_is_noticed():
    faulty = np.trunc(np.random.default_rng(1).standard_normal(SIZE) * 10).astype(np.int64)
    assert law_p(faulty, Fraction(100)) < SMALLEST_P


def test_rounding_down_is_noticed():
    faulty = np.floor(np.random.default_rng(1).standard_normal(SIZE) * 10).astype(np.int64)
    assert abs(moment_scores(faulty, Fraction(100))[0]) > LARGEST_Z


def test_a_repeated_draw_is_noticed():
    faulty = np.repeat(draw(Fraction(100), SIZE // 2), 2)
    assert abs(moment_scores(faulty, Fraction(100))[2]) > LARGEST_Z


def test_lost_low_digits_are_noticed():
    x = draw(Fraction(10**10))
    assert residue_p(np.where(x % 64 == 1, x + 1, x), 2**8) < SMALLEST_P
    assert law_p(x, Fraction(10**10)) > SMALLEST_P


class CountingKeystream(Keystream):
    def __init__(self, entropy):
        super().__init__(entropy)
        self.exact_words = 0

    def word(self):
        self.exact_words += 1
        return super().word()


def draw_exactly(variance, size, tolerance=0.3):
    """Draw with early tails and a vague estimate: thousands of decisions are exact ones."""
    stream = CountingKeystream(fixed_entropy("slow"))
    samples = np.empty(size, np.int64)
    noise.fill_exactly(samples, build_tables(variance, Fraction(3, 2)), stream, tolerance)
    assert stream.exact_words > size / 10
    return samples


@pytest.mark.statistical
@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(9), Fraction(12345, 7), 10**6])
def test_exact_decisions_and_tails_follow_the_law(variance):
    """False alarm: 4 tests at 1e-12 and 12 scores at 1.3e-15."""
    samples = draw_exactly(Fraction(variance), 8_000)
    assert law_p(samples, variance) > SMALLEST_P
    assert max(map(abs, moment_scores(samples, variance))) < LARGEST_Z


def test_a_fault_in_the_exact_decision_is_noticed(monkeypatch):
    right = noise._acceptance_bounds

    def too_high(low_y, high_y, height, variance, bits):
        return right(low_y, high_y, height * 2, variance, bits)

    monkeypatch.setattr(noise, "_acceptance_bounds", too_high)
    assert law_p(draw_exactly(Fraction(9), 8_000), 9) < SMALLEST_P


def test_a_fault_in_the_tails_is_noticed(monkeypatch):
    monkeypatch.setattr(noise, "_geometric", lambda stream: 0)
    assert law_p(draw_exactly(Fraction(9), 8_000, noise._TOLERANCE), 9) < SMALLEST_P


def test_an_exact_decision_gives_the_integer_of_its_position_or_rejects():
    tables = noise_tables(Fraction(100))  # blocks of width 1/8
    stream = Keystream(fixed_entropy("cell"))
    last_bits = 2**53 - 1
    assert noise._decide_exactly(8, 0, 0, tables, stream) == 1
    assert noise._decide_exactly(7, 0, last_bits, tables, stream) == 0
    assert noise._decide_exactly(-1, 0, last_bits, tables, stream) == -1
    assert noise._decide_exactly(tables.layout.last - 1, last_bits, 0, tables, stream) is None


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


def test_the_first_look_accepts_below_its_bound_and_not_at_it():
    tables = noise_tables(Fraction(10**6))
    slot = 30_000
    block = int(tables.entries[slot]) >> 25
    bound = int(tables.accept_below[block - tables.layout.first + 1])
    words = [coin << 40 | 5 << 16 | slot for coin in (bound - 1, bound, 0, 2**24 - 1)]
    values = np.empty(4, np.int64)
    pending = noise._propose(values, tables, ScriptedStream(words))
    assert values.tolist() == [block * 8 + 5] * 4  # blocks of width 8
    assert pending.target.tolist() == [1, 3]
    assert pending.coin.tolist() == [bound, 2**24 - 1]
    assert pending.offset.tolist() == [5, 5]


def test_the_second_look_rejects_from_its_bound_on_without_further_bits():
    tables = noise_tables(Fraction(10**6))
    bound = int(tables.reject_from[1])
    block = tables.layout.first
    columns = (np.array(column) for column in ([0, 1], [block] * 2, [0, 0], [bound - 1, bound]))
    stream = ScriptedStream([2**64 - 1, 0, 7])
    pending = noise._Proposals(*columns)
    accepted = noise._second_look(np.zeros(2, np.int64), pending, tables, stream, 2.0**-44)
    assert accepted.tolist() == [False, False]
    assert stream.script == [7]


def test_what_the_float_estimate_cannot_decide_is_decided_exactly(monkeypatch):
    half, margin = 2**52, 2**8  # an estimate of 1/2 is trusted to 2^-45 = 2^8 units of 2^-53
    coins = [half - margin - 1, half - margin, half, half + margin - 1, half + margin]
    asked = []

    def decide(block, coin, position, tables, stream):
        asked.append(coin)
        return 77 if coin == half else None

    tables = noise_tables(Fraction(100))
    position = np.zeros(5, np.int64)
    monkeypatch.setattr(noise, "_more_bits", lambda *_: (np.array(coins), position))
    monkeypatch.setattr(noise, "_estimate", lambda *_: np.full(5, 0.5))
    monkeypatch.setattr(noise, "_decide_exactly", decide)
    pending = noise._Proposals(np.arange(5), position, position, position)
    values = np.full(5, -1)
    accepted = noise._second_look(values, pending, tables, ScriptedStream([]), 2.0**-44)
    assert asked == coins[1:4]
    assert accepted.tolist() == [True, False, True, False, False]
    assert values.tolist() == [-1, -1, 77, -1, -1]


def test_an_exact_decision_takes_more_bits_until_it_is_clear(monkeypatch):
    asked = []

    def bounds(low_y, high_y, height, variance, bits):
        asked.append((bits, low_y, high_y))
        middle = (5 << bits) >> 53  # the true acceptance probability is 5 units of 2^-53
        return middle - 1, middle + 1

    monkeypatch.setattr(noise, "_acceptance_bounds", bounds)
    tables = noise_tables(Fraction(4**9))  # blocks of width 4
    below = noise._decide_exactly(3, 4, 9, tables, ScriptedStream([2**62, 2**63, 0]))
    assert below == 12
    assert [bits for bits, _, _ in asked] == [85, 149]
    assert asked[1][1] == 12 + 4 * Fraction(2 * 9 + 1, 2**54)
    assert asked[1][2] - asked[1][1] == Fraction(4, 2**117)
    assert noise._decide_exactly(3, 5, 9, tables, ScriptedStream([2**62, 2**63])) is None


@pytest.mark.parametrize("offset_bits", [0, 3, 23])
def test_the_first_bits_of_coin_and_position_are_those_already_drawn(offset_bits):
    tables = noise_tables(Fraction(4) ** (7 + offset_bits))
    assert tables.layout.offset_bits == offset_bits
    coin, offset = 2**24 - 2, 2**offset_bits - 1
    stream = ScriptedStream([(2**29 - 3) << 35 | 99, 0, 1 << 63, (2**64 - 1)])
    coins, positions = noise._more_bits(np.array([coin, 0]), np.array([offset, 0]), tables, stream)
    assert coins.tolist() == [coin << 29 | 2**29 - 3, 0]
    free = 53 - offset_bits
    assert positions.tolist() == [offset << free | 1 << free - 1, 2**free - 1]


@pytest.mark.parametrize("word", [1, 2, 8, 1 << 63])
def test_a_tail_segment_counts_the_zeros_before_the_first_one(word):
    assert noise._geometric(ScriptedStream([0, word])) == 64 + word.bit_length() - 1


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_the_float_estimate_is_within_its_tolerance_of_the_truth(variance):
    tables = noise_tables(variance)
    layout = tables.layout
    generator = np.random.default_rng(1)
    blocks = np.concatenate(
        [generator.integers(layout.first, layout.last, 400), [-1, 0, 1, layout.last - 1]]
    ).clip(layout.first, layout.last - 1)
    rows = blocks - layout.first + 1
    positions = generator.integers(0, 1 << 53, blocks.size)
    positions[::7], positions[1::7] = 0, (1 << 53) - 1
    estimates = noise._estimate(tables, rows, positions)
    with mpmath.workprec(240):
        for block, position, estimate in zip(blocks, positions, estimates, strict=True):
            slots = tables.slots[block - layout.first + 1]
            height = mpmath.mpf(tables.scale.numerator) / tables.scale.denominator / slots
            for bits in (int(position), int(position) + 1):
                y = (int(block) + Fraction(bits, 1 << 53)) * layout.width
                exponent = (y - Fraction(1, 2)) ** 2 / (2 * variance)
                exact = height * mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
                assert abs(mpmath.mpf(float(estimate)) / exact - 1) < 2.0**-48  # proven: 32 ulp


def test_a_tail_has_no_estimate():
    tables = noise_tables(Fraction(100))
    rows = np.array([0, len(tables.slots) - 1])
    assert np.isnan(noise._estimate(tables, rows, np.array([0, 5]))).all()


def test_known_answers_do_not_change():
    assert draw(Fraction(100), 16, "known").tolist() == KNOWN_10
    assert draw(Fraction(10**10), 16, "known").tolist() == KNOWN_100000
    assert draw(Fraction(1, 4), 16, "known").tolist() == KNOWN_HALF


def _correlation_score(x, y):
    """Return the z-score of the correlation of two draws of one law."""
    x, y = x.astype(float), y.astype(float)
    return (x @ y) / math.sqrt((x @ x) * (y @ y)) * math.sqrt(x.size)


@pytest.mark.statistical
def test_each_call_draws_from_a_key_of_its_own():
    """False alarm: 1.3e-15."""
    requests = []
    fresh = fixed_entropy("fresh")

    def entropy(count):
        requests.append(count)
        return fresh(count)

    source = RoundedGaussian(entropy)
    first, second = source.sample(Fraction(100), SIZE), source.sample(Fraction(100), SIZE)
    assert requests == [48, 48]
    assert not np.array_equal(first, second)
    assert abs(_correlation_score(first, second)) < LARGEST_Z


def test_a_reused_key_is_noticed():
    source = RoundedGaussian(lambda count: bytes(count))
    first, second = source.sample(Fraction(100), SIZE), source.sample(Fraction(121), SIZE)
    assert abs(_correlation_score(first, second)) > LARGEST_Z


def _audited_mu(shrink, stddev, clients=1_000_000):
    """Return a lower bound on mu, wrong with probability 1e-10, from one release.

    Each client adds 4000 to a coordinate of its own if its coin shows heads; the auditor
    guesses each coin from the noisy coordinate.
    """
    step = 4000
    coins = np.random.default_rng(7).integers(0, 2, clients)
    released = coins * step + draw((step * stddev * shrink) ** 2, clients, "audit")
    right = int(((released > step / 2) == coins).sum())
    least_accuracy = stats.beta.ppf(1e-10, right, clients - right + 1)
    return 2 * special.ndtri(least_accuracy)


@pytest.mark.statistical
@pytest.mark.parametrize("stddev", [1, 2, 5])
def test_an_audit_of_one_release_finds_no_more_than_the_claim(stddev):
    """False alarm: 3 audits at 1e-10."""
    found = _audited_mu(Fraction(1), Fraction(stddev))
    assert 0.9 / stddev < found <= 1 / stddev


@pytest.mark.parametrize("stddev", [1, 2, 5])
def test_an_audit_finds_noise_too_small_by_a_tenth(stddev):
    assert _audited_mu(Fraction(9, 10), Fraction(stddev)) > 1 / stddev


@pytest.mark.parametrize("size", [0, 1, (1 << 14) + 1])
def test_a_draw_has_the_size_asked_for(size):
    samples = draw(Fraction(100), size)
    assert samples.shape == (size,)
    assert samples.dtype == np.int64


def test_parameters_out_of_range_are_refused():
    source = RoundedGaussian(fixed_entropy("range"))
    for variance in (Fraction(0), Fraction(-1), Fraction(1, 65), Fraction(2) ** 61):
        with pytest.raises(ValueError, match=r"outside 1/64 \.\. 2\^60"):
            source.sample(variance, 1)
    with pytest.raises(ValueError, match="cannot draw -1 samples"):
        source.sample(Fraction(1), -1)


def test_a_large_draw_needs_at_most_8_mb_beside_its_result():
    noise_tables.cache_clear()
    tracemalloc.start()
    try:
        samples = draw(Fraction(10**10), 10**7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - samples.nbytes <= 8e6


def test_production_noise_takes_no_seed():
    assert list(inspect.signature(RoundedGaussian).parameters) == ["entropy"]
    assert list(inspect.signature(RoundedGaussian.sample).parameters)[1:] == ["variance", "size"]


def _names_of_foreign_randomness(source):
    """Return uses of numpy's or the standard library's generators."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "random":
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [f"{module}.{alias.name}".strip(".") for alias in node.names]
            found += [name for name in names if {"random", "secrets"} & set(name.split("."))]
    return found


def test_no_module_of_privacy_but_quantization_uses_another_generator():
    for path in Path(privacy.__file__).parent.glob("*.py"):
        if path.name != "quantization.py":  # client-side rounding; no privacy rests on it
            assert _names_of_foreign_randomness(path.read_text()) == [], path.name


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from random import gauss",
        "from numpy import random as r",
        "import numpy.random",
        "x = np.random.default_rng()",
        "import secrets",
    ],
)
def test_another_generator_is_noticed(line):
    assert _names_of_foreign_randomness(line)
