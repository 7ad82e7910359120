"""Tests of the sources of noise. The law itself is tested with `noise_rejection`.

The keystreams are fixed, so each test gives the same result each time; false-alarm probabilities
are those for a random keystream.
"""

import ast
import hashlib
import inspect
import math
import subprocess
import sys
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from stream import privacy
from stream.privacy.discrete_gaussian import DiscreteGaussian
from stream.privacy.discrete_laplace import DiscreteLaplace
from stream.privacy.noise import NOISE_SOURCES, RoundedGaussian, noise_source
from stream.privacy.noise_tables import noise_tables
from stream.testing import insecure_entropy

LARGEST_Z = 8
SIZE = 400_000

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


def test_known_answers_do_not_change():
    assert draw(Fraction(100), 16, "known").tolist() == KNOWN_10
    assert draw(Fraction(10**10), 16, "known").tolist() == KNOWN_100000
    assert draw(Fraction(1, 4), 16, "known").tolist() == KNOWN_HALF


# PRIVACY notes, K2: P[0] and the variance of the rounded Gaussian, by sigma.
K2 = {
    Fraction(1, 2): ("0.682689492137086", "0.325412762586"),
    Fraction(1): ("0.382924922548026", "1.08333332236"),
    Fraction(2): ("0.197412651365847", "4.08333333333"),
    Fraction(10): ("0.0398776116767449", "100.083333333"),
}


def _rounded_masses(stddev):
    """Return P[k] for abs(k) <= 200 to 50 digits, from the normal distribution function."""
    with mpmath.workdps(50):
        sigma = mpmath.mpf(stddev.numerator) / stddev.denominator
        half = mpmath.mpf(1) / 2
        tails = [mpmath.erfc((k - half) / sigma / mpmath.sqrt(2)) / 2 for k in range(1, 202)]
        one_side = [outer - inner for outer, inner in pairwise(tails)]
        return [*reversed(one_side), 1 - 2 * tails[0], *one_side]


@pytest.mark.parametrize("stddev", K2)
def test_k2_the_reference_values_are_those_of_the_rounded_gaussian(stddev):
    mass = _rounded_masses(stddev)
    with mpmath.workdps(50):
        values = zip(range(-200, 201), mass, strict=True)
        found = mass[200], mpmath.fsum(p * k * k for k, p in values)
        for value, printed in zip(found, K2[stddev], strict=True):
            digits = len(printed.lstrip("0.").replace(".", ""))
            assert abs(value / mpmath.mpf(printed) - 1) < mpmath.mpf(10) ** (1 - digits)


def _reference_scores(samples, stddev):
    """Return z-scores of the share of zeros and of the variance against K2."""
    share, variance = map(float, K2[stddev])
    fourth = math.fsum(
        k**4 * float(p) for k, p in zip(range(-200, 201), _rounded_masses(stddev), strict=True)
    )
    n, x = samples.size, samples.astype(float)
    return (
        ((samples == 0).mean() - share) / math.sqrt(share * (1 - share) / n),
        ((x**2).mean() - variance) / math.sqrt((fourth - variance**2) / n),
    )


@pytest.mark.statistical
@pytest.mark.parametrize("stddev", K2)
def test_k2_the_noise_has_the_reference_values(stddev):
    """False alarm: 8 scores at 1.3e-15."""
    assert max(map(abs, _reference_scores(draw(stddev**2), stddev))) < LARGEST_Z


@pytest.mark.parametrize("stddev", K2)
def test_k2_noise_too_small_by_a_tenth_is_noticed(stddev):
    faulty = draw((stddev * Fraction(9, 10)) ** 2)
    assert min(map(abs, _reference_scores(faulty, stddev))) > LARGEST_Z


ALL_SOURCES = [RoundedGaussian, DiscreteGaussian, DiscreteLaplace]


def _correlation_score(x, y):
    """Return the z-score of the correlation of two draws of one law."""
    x, y = x.astype(float), y.astype(float)
    return (x @ y) / math.sqrt((x @ x) * (y @ y)) * math.sqrt(x.size)


@pytest.mark.statistical
@pytest.mark.parametrize("make_source", ALL_SOURCES)
def test_each_call_draws_from_a_key_of_its_own(make_source):
    """False alarm: 3 scores at 1.3e-15."""
    requests = []
    fresh = fixed_entropy("fresh")

    def entropy(count):
        requests.append(count)
        return fresh(count)

    source = make_source(entropy)
    first, second = source.sample(Fraction(100), SIZE), source.sample(Fraction(100), SIZE)
    assert requests == [48, 48]
    assert not np.array_equal(first, second)
    assert abs(_correlation_score(first, second)) < LARGEST_Z


@pytest.mark.parametrize("make_source", ALL_SOURCES)
def test_a_reused_key_is_noticed(make_source):
    source = make_source(lambda count: bytes(count))
    first, second = source.sample(Fraction(100), SIZE), source.sample(Fraction(121), SIZE)
    assert abs(_correlation_score(first, second)) > LARGEST_Z


FORK = """
import os
from fractions import Fraction
from itertools import pairwise
from stream.privacy.discrete_gaussian import DiscreteGaussian
from stream.privacy.discrete_laplace import DiscreteLaplace
from stream.privacy.noise import RoundedGaussian
from stream.testing import insecure_entropy

source = {source}({entropy})
source.sample(Fraction(1000), 8)
reader, writer = os.pipe()
child = os.fork()
mine = source.sample(Fraction(1000), 64).tobytes()
if child == 0:
    os.write(writer, mine)
    os._exit(0)
os.waitpid(child, 0)
print(mine.hex(), os.read(reader, 1024).hex())
"""


def _noise_on_both_sides_of_a_fork(source, entropy):
    script = FORK.format(source=source.__name__, entropy=entropy)
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    parent, child = done.stdout.split()
    assert len(parent) == len(child) == 2 * 8 * 64
    return parent, child


@pytest.mark.parametrize("source", ALL_SOURCES)
def test_two_processes_draw_different_noise_after_a_fork(source):
    """False alarm: below 1e-60, the chance that 64 draws agree."""
    parent, child = _noise_on_both_sides_of_a_fork(source, "os.urandom")
    assert parent != child


def test_a_generator_that_a_fork_copies_is_noticed():
    parent, child = _noise_on_both_sides_of_a_fork(RoundedGaussian, "insecure_entropy(1)")
    assert parent == child


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
@pytest.mark.parametrize("make_source", ALL_SOURCES)
def test_a_draw_has_the_size_asked_for(make_source, size):
    samples = make_source(fixed_entropy("size")).sample(Fraction(100), size)
    assert samples.shape == (size,)
    assert samples.dtype == np.int64


@pytest.mark.parametrize("make_source", NOISE_SOURCES.values())
def test_a_large_draw_needs_at_most_8_mb_beside_its_result(make_source):
    noise_tables.cache_clear()
    tracemalloc.start()
    try:
        samples = make_source(fixed_entropy("large"), "numpy").sample(Fraction(10**10), 10**7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - samples.nbytes <= 8e6


@pytest.mark.parametrize(
    ("make_source", "parameters"),
    [
        (RoundedGaussian, ["entropy", "kernel"]),
        (DiscreteGaussian, ["entropy", "kernel"]),
        (DiscreteLaplace, ["entropy"]),
    ],
)
def test_production_noise_takes_no_seed(make_source, parameters):
    assert list(inspect.signature(make_source).parameters) == parameters
    scale = "scale" if make_source is DiscreteLaplace else "variance"
    assert list(inspect.signature(make_source.sample).parameters) == ["self", scale, "size"]


@pytest.mark.parametrize(
    ("kind", "source"),
    [("rounded_gaussian", RoundedGaussian), ("discrete_gaussian", DiscreteGaussian)],
)
def test_a_source_is_found_by_the_name_that_plans_use(kind, source):
    found = noise_source(kind, insecure_entropy(1))
    assert type(found) is source
    expected = source(insecure_entropy(1)).sample(Fraction(9), 20)
    assert np.array_equal(found.sample(Fraction(9), 20), expected)


@pytest.mark.parametrize("kind", ["", "gaussian", "RoundedGaussian", "discrete_laplace"])
def test_an_unknown_noise_is_refused_and_the_known_ones_named(kind):
    with pytest.raises(ValueError, match="write one of rounded_gaussian, discrete_gaussian"):
        noise_source(kind, insecure_entropy(1))


@pytest.mark.parametrize("kind", NOISE_SOURCES)
def test_an_unknown_kernel_is_refused_before_anything_is_drawn(kind):
    with pytest.raises(ValueError, match="write 'numpy' or 'numba'"):
        noise_source(kind, insecure_entropy(1), "fortran")


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


# Client-side rounding and choice of coordinates: no privacy rests on them.
CLIENT_SIDE = {"quantization.py", "sparsification.py"}


def test_no_module_of_privacy_but_the_client_side_uses_another_generator():
    for path in Path(privacy.__file__).parent.glob("*.py"):
        if path.name not in CLIENT_SIDE:
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
