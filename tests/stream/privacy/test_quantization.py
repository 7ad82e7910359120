import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from stream.privacy import quantization
from stream.privacy.quantization import client_scale, quantize, stochastic_round

FALSE_ALARM = 1e-9
LIMITS = {"int8": 127, "int16": 32767}


class CountingGenerator(np.random.Generator):
    """A real generator that counts how often it was asked for an array."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self.calls = 0

    def random(self, size=None, dtype=np.float64, out=None):
        self.calls += 1
        return super().random(size, dtype, out)


class AlwaysUp(CountingGenerator):
    """Planted: every value that is not whole is rounded up."""

    def random(self, size=None, dtype=np.float64, out=None):
        self.calls += 1
        return np.zeros(size, dtype)


def hoeffding_radius(samples: int, comparisons: int) -> float:
    """How far a mean of ``samples`` values in [0, 1] strays with probability FALSE_ALARM.

    Hoeffding's inequality and a union bound over ``comparisons`` means.
    """
    return math.sqrt(math.log(2 * comparisons / FALSE_ALARM) / (2 * samples))


def squared_norm(grid: NDArray[np.int8] | NDArray[np.int16]) -> int:
    return sum(int(value) ** 2 for value in grid)


@pytest.mark.parametrize(
    ("grid_l2_bound", "dimension", "loss_percent"),
    [
        (4000, 1_000_000, 0.88),
        (16384, 1_000_000, 0.07),
        (1024, 10_000, 0.47),
        (16384, 10_000_000, 0.49),
    ],
)
def test_the_scale_loses_what_the_privacy_page_says(grid_l2_bound, dimension, loss_percent):
    loss = 1 - client_scale(grid_l2_bound, dimension) / grid_l2_bound
    assert round(100 * loss, 2) == loss_percent


@given(st.integers(1, 10**8), st.floats(1, 1e4))
def test_the_scale_leaves_room_for_the_rounding(dimension, factor):
    grid_l2_bound = math.ceil(10 + factor * math.sqrt(dimension))
    c = client_scale(grid_l2_bound, dimension)
    t = math.sqrt(2 * math.log(1e10))
    inflated = c**2 + dimension / 4 + t * (c + math.sqrt(dimension) / 2)
    assert inflated == pytest.approx(grid_l2_bound**2, rel=1e-9)
    assert grid_l2_bound / 2 <= c < grid_l2_bound


@given(st.integers(1, 10**9))
def test_the_bound_that_the_error_names_is_the_smallest_that_works(dimension):
    with pytest.raises(ValueError, match="use at least") as caught:
        client_scale(1, dimension)
    smallest = int(str(caught.value).rsplit(" ", 1)[1])
    assert client_scale(smallest, dimension) >= smallest / 2
    with pytest.raises(ValueError, match=f"use at least {smallest}"):
        client_scale(smallest - 1, dimension)


@st.composite
def quantizations(draw):
    """Return a gradient and the arguments of `quantize`, extremes included."""
    float_dtype = draw(st.sampled_from([np.float32, np.float64]))
    width = 32 if float_dtype is np.float32 else 64
    finite = st.floats(allow_nan=False, allow_infinity=False, width=width)
    elements = draw(st.sampled_from([st.floats(-100, 100, width=width), finite]))
    gradient = draw(hnp.arrays(float_dtype, st.integers(1, 60), elements=elements))
    assume(float(np.abs(gradient).max()) < 1e300)
    dtype = draw(st.sampled_from(sorted(LIMITS)))
    largest = math.isqrt(LIMITS[dtype] ** 2 * gradient.size)
    rng_class = draw(st.sampled_from([CountingGenerator, AlwaysUp]))
    return gradient, {
        "l2_clip_norm": draw(st.floats(1e-200, 1e200) | st.floats(0.01, 100)),
        "grid_l2_bound": draw(st.integers(20, largest)),
        "coordinate_limit": LIMITS[dtype],
        "dtype": dtype,
        "rng": rng_class(draw(st.integers(0, 2**32))),
    }


@given(quantizations())
def test_the_exact_squared_norm_never_exceeds_the_bound(case):
    gradient, arguments = case
    grid = quantize(gradient, **arguments)
    assert grid.dtype == arguments["dtype"]
    assert grid.shape == gradient.shape
    assert squared_norm(grid) <= arguments["grid_l2_bound"] ** 2
    assert max(abs(int(value)) for value in grid) <= arguments["coordinate_limit"]


@given(quantizations())
def test_a_coordinate_moves_by_less_than_one_grid_step(case):
    gradient, arguments = case
    grid = quantize(gradient, **arguments).astype(np.float64)
    scale = client_scale(arguments["grid_l2_bound"], gradient.size)
    largest = max(float(np.abs(gradient).max()), np.finfo(np.float64).tiny)
    norm = float(np.linalg.norm(gradient.astype(np.float64) / largest)) * largest
    wanted = gradient.astype(np.float64) * (scale / max(norm, arguments["l2_clip_norm"]))
    wanted = np.clip(wanted, -arguments["coordinate_limit"], arguments["coordinate_limit"])
    assert np.abs(grid - wanted).max() <= 1.01


@pytest.mark.parametrize("float_dtype", [np.float32, np.float64])
@given(seed=st.integers(0, 2**32))
def test_a_gradient_on_the_grid_is_kept(float_dtype, seed):
    values = np.arange(-20, 21).astype(float_dtype)
    np.testing.assert_array_equal(stochastic_round(values, np.random.default_rng(seed)), values)


def bias_of_rounding(rounding) -> float:
    """Return by how many alarm radii the worst value's mean strays (above 1: alarm)."""
    values = np.array([0.001, 0.25, 0.5, 0.7, -0.001, -0.4, 5.3, -90.9], dtype=np.float32)
    samples = 200_000
    rounded = rounding(np.repeat(values, samples)).reshape(len(values), samples)
    deviation = np.abs(rounded.mean(axis=1, dtype=np.float64) - values)
    return float(deviation.max()) / hoeffding_radius(samples, len(values))


@pytest.mark.statistical
def test_stochastic_rounding_is_unbiased():
    """False alarm: at most 1e-9 a run (Hoeffding), and the seed is fixed."""
    rng = np.random.default_rng(20260101)
    assert bias_of_rounding(lambda values: stochastic_round(values, rng)) <= 1


@pytest.mark.parametrize("planted", [np.rint, np.floor, np.trunc])
def test_the_test_of_unbiasedness_catches_a_deterministic_rounding(planted):
    assert bias_of_rounding(planted) > 1


def bias_of_quantization() -> float:
    """The same for whole updates, from gradient units to the grid."""
    dimension, repeats = 500, 1000
    rng = np.random.default_rng(7)
    gradient = rng.standard_normal(dimension, dtype=np.float32)
    gradient /= 2 * np.float32(np.linalg.norm(gradient))
    total = np.zeros(dimension)
    for _ in range(repeats):
        total += quantize(
            gradient,
            l2_clip_norm=1.0,
            grid_l2_bound=300,
            coordinate_limit=127,
            dtype="int8",
            rng=rng,
        )
    wanted = gradient.astype(np.float64) * client_scale(300, dimension)
    return float(np.abs(total / repeats - wanted).max()) / hoeffding_radius(repeats, dimension)


@pytest.mark.statistical
def test_quantization_is_unbiased():
    """False alarm: at most 1e-9 a run (Hoeffding; redrawing adds below 1e-10), fixed seed."""
    assert bias_of_quantization() <= 1


def test_the_test_of_quantization_catches_rounding_to_the_nearest(monkeypatch):
    monkeypatch.setattr(quantization, "stochastic_round", lambda values, rng: np.rint(values))
    assert bias_of_quantization() > 1


def scale_without_room(grid_l2_bound: int, dimension: int) -> float:
    """Planted: what rounding adds in the mean is allowed for, and nothing for its spread."""
    return math.sqrt(grid_l2_bound**2 - dimension / 4)


def scale_a_step_too_large(grid_l2_bound: int, dimension: int) -> float:
    """Planted: nearly right."""
    return client_scale(grid_l2_bound, dimension) * grid_l2_bound / (grid_l2_bound - 1)


def overshoot_probability(grid_l2_bound: int, dimension: int) -> float:
    """Return the exact chance that one rounding of equal coordinates breaks the bound.

    With v = floor(v) + f in each coordinate, the squared norm is ``d floor(v)^2`` and
    ``2 floor(v) + 1`` for each coordinate that is rounded up: a binomial number of them. Halfway
    between grid points, no gradient of this norm has a squared norm that varies more.
    """
    value = quantization.client_scale(grid_l2_bound, dimension) / math.sqrt(dimension)
    low = math.floor(value)
    up = value - low
    allowed = (grid_l2_bound**2 - dimension * low**2) // (2 * low + 1)
    return math.fsum(
        math.comb(dimension, count) * up**count * (1 - up) ** (dimension - count)
        for count in range(allowed + 1, dimension + 1)
    )


HARD_BOUNDS = range(50, 450)


def test_one_rounding_is_accepted_with_the_stated_probability():
    overshoots = [overshoot_probability(grid_l2_bound, 100) for grid_l2_bound in HARD_BOUNDS]
    # The statement is 1e-10, and it is not empty: less room would soon break it.
    assert 1e-12 < max(overshoots) <= 1e-10


@pytest.mark.parametrize("planted", [scale_without_room, scale_a_step_too_large])
def test_the_test_of_the_probability_catches_a_scale_with_too_little_room(monkeypatch, planted):
    monkeypatch.setattr(quantization, "client_scale", planted)
    assert max(overshoot_probability(grid_l2_bound, 100) for grid_l2_bound in HARD_BOUNDS) > 1e-10


def redrawn_of_two_thousand() -> int:
    """Quantize 2000 gradients at the clip norm, one chunk each; return the roundings redrawn."""
    rng = CountingGenerator(3)
    gradients = np.random.default_rng(4).standard_normal((1000, 100))
    for gradient in (*gradients, *np.sign(gradients)):
        quantize(
            gradient,
            l2_clip_norm=1.0,
            grid_l2_bound=437,
            coordinate_limit=127,
            dtype="int8",
            rng=rng,
        )
    return rng.calls - 2000


@pytest.mark.statistical
def test_the_first_rounding_is_accepted():
    """False alarm: two redrawn of 2000, at most 2e-14 a run (1e-10 each), and a fixed seed."""
    assert redrawn_of_two_thousand() <= 1


def test_the_test_of_acceptance_catches_a_scale_without_room(monkeypatch):
    monkeypatch.setattr(quantization, "client_scale", scale_without_room)
    assert redrawn_of_two_thousand() > 1


class UpAtFirst(AlwaysUp):
    """Planted: the first roundings go up, the later ones are real."""

    def __init__(self, failures: int) -> None:
        super().__init__(0)
        self.failures = failures

    def random(self, size=None, dtype=np.float64, out=None):
        if self.calls < self.failures:
            return super().random(size, dtype, out)
        return CountingGenerator.random(self, size, dtype, out)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_rounding_that_breaks_the_bound_is_drawn_again(failures):
    gradient = np.ones(1000)
    rng = UpAtFirst(failures)
    grid = quantize(
        gradient, l2_clip_norm=1.0, grid_l2_bound=101, coordinate_limit=127, dtype="int8", rng=rng
    )
    assert rng.calls == failures + 1
    assert len(np.unique(grid)) == 2  # rounded at random, not truncated
    assert squared_norm(grid) <= 101**2


@pytest.mark.parametrize("float_dtype", [np.float32, np.float64])
def test_after_three_failures_the_vector_is_truncated_toward_zero(float_dtype):
    gradient = np.tile(np.array([1, -1], dtype=float_dtype), 500)
    rng = AlwaysUp(0)
    grid = quantize(
        gradient, l2_clip_norm=1.0, grid_l2_bound=101, coordinate_limit=127, dtype="int8", rng=rng
    )
    assert rng.calls == 3
    whole = int(client_scale(101, 1000) / math.sqrt(1000))
    np.testing.assert_array_equal(grid, whole * np.sign(gradient))
    assert squared_norm(grid) <= 101**2


@pytest.mark.parametrize("dtype", sorted(LIMITS))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_coordinate_saturates_symmetrically(dtype, sign):
    gradient = np.zeros(100_000, dtype=np.float32)
    gradient[70_000] = sign
    grid = quantize(
        gradient,
        l2_clip_norm=1.0,
        grid_l2_bound=10 * LIMITS[dtype],
        coordinate_limit=LIMITS[dtype],
        dtype=dtype,
        rng=np.random.default_rng(0),
    )
    assert int(grid[70_000]) == sign * LIMITS[dtype]
    assert np.count_nonzero(grid) == 1


@pytest.mark.parametrize("magnitude", [1e30, 3e38])
def test_a_huge_float32_gradient_is_clipped_not_lost(magnitude):
    grid = quantize(
        np.full(10_000, magnitude, dtype=np.float32),
        l2_clip_norm=1.0,
        grid_l2_bound=1000,
        coordinate_limit=127,
        dtype="int8",
        rng=np.random.default_rng(0),
    )
    assert float(grid.mean(dtype=np.float64)) == pytest.approx(
        client_scale(1000, 10_000) / 100, abs=0.05
    )


def test_a_subnormal_float32_gradient_rounds_to_zero():
    grid = quantize(
        np.full(100, 1e-44, dtype=np.float32),
        l2_clip_norm=1.0,
        grid_l2_bound=100,
        coordinate_limit=127,
        dtype="int8",
        rng=np.random.default_rng(0),
    )
    assert not grid.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match="NaN or an infinity"):
        quantize(
            np.array([bad] * 100),
            l2_clip_norm=1.0,
            grid_l2_bound=100,
            coordinate_limit=127,
            dtype="int8",
            rng=np.random.default_rng(0),
        )


def test_a_clip_norm_that_cannot_be_divided_by_is_refused():
    with pytest.raises(ValueError, match="too small to divide by"):
        quantize(
            np.zeros(100),
            l2_clip_norm=1e-320,
            grid_l2_bound=100,
            coordinate_limit=127,
            dtype="int8",
            rng=np.random.default_rng(0),
        )


def test_quantizing_leaves_the_gradient_alone():
    gradient = np.linspace(-5, 5, 100)
    before = gradient.copy()
    quantize(
        gradient,
        l2_clip_norm=1.0,
        grid_l2_bound=100,
        coordinate_limit=127,
        dtype="int8",
        rng=np.random.default_rng(0),
    )
    np.testing.assert_array_equal(gradient, before)
