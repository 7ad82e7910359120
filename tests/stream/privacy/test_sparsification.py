import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream.privacy.clipping import clip_l2, l2_norm
from stream.privacy.sparsification import kept_count, sparsify

FALSE_ALARM = 1e-9
FLOAT_DTYPES = (np.float32, np.float64)


@given(st.integers(1, 500), st.floats(0.01, 1), st.integers(0, 2**32))
def test_exactly_k_coordinates_are_kept_and_scaled(dimension, keep_fraction, seed):
    gradient = np.arange(1, dimension + 1) / 7
    count = max(1, round(keep_fraction * dimension))
    keep_fraction = max(keep_fraction, 1 / dimension)
    sparse = sparsify(gradient, keep_fraction, np.random.default_rng(seed))
    kept = np.flatnonzero(sparse)
    assert len(kept) == kept_count(keep_fraction, dimension) == count
    np.testing.assert_allclose(sparse[kept], gradient[kept] * (dimension / count), rtol=1e-15)


def bias_of(sparsification) -> float:
    """Return by how many alarm radii the worst coordinate's mean strays (above 1: alarm).

    A coordinate is 0 or ``d/k`` times itself. Hoeffding's inequality, and a union bound over the
    coordinates.
    """
    gradient = np.linspace(-3, 5, 20)
    samples, scale = 20_000, 20 / 5
    rng = np.random.default_rng(20260102)
    mean = sum(sparsification(gradient, 0.25, rng) for _ in range(samples)) / samples
    radius = math.sqrt(math.log(2 * gradient.size / FALSE_ALARM) / (2 * samples)) * scale
    return float(np.abs(mean / gradient - 1).max()) / radius


@pytest.mark.statistical
def test_sparsification_is_unbiased():
    """False alarm: at most 1e-9 a run (Hoeffding), and the seed is fixed."""
    assert bias_of(sparsify) <= 1


def without_scaling(gradient, keep_fraction, rng):
    return sparsify(gradient, keep_fraction, rng) * keep_fraction


def with_replacement(gradient, keep_fraction, rng):
    """Draw k times, repetitions included: fewer than k coordinates are kept on average."""
    sparse = np.zeros_like(gradient)
    chosen = rng.integers(0, gradient.size, round(keep_fraction * gradient.size))
    sparse[chosen] = gradient[chosen] / keep_fraction
    return sparse


def with_a_favourite(gradient, keep_fraction, rng):
    """Keep the first coordinate more often than is its due."""
    sparse = sparsify(gradient, keep_fraction, rng)
    if rng.random() < 0.15:
        sparse[0] = gradient[0] / keep_fraction
    return sparse


@pytest.mark.parametrize("planted", [without_scaling, with_replacement, with_a_favourite])
def test_the_test_of_unbiasedness_catches_a_planted_fault(planted):
    assert bias_of(planted) > 1


def test_all_subsets_are_drawn():
    rng = np.random.default_rng(5)
    gradient = np.ones(5)
    drawn = {tuple(np.flatnonzero(sparsify(gradient, 0.4, rng))) for _ in range(1000)}
    assert len(drawn) == math.comb(5, 2)


def clipped_norm(gradient: NDArray[np.float32 | np.float64], l2_clip_norm: float) -> float:
    sparse = sparsify(gradient, 0.1, np.random.default_rng(0))
    assert l2_norm(sparse) > 2 * l2_norm(gradient)
    return l2_norm(clip_l2(sparse, l2_clip_norm))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_clipping_afterwards_bounds_what_the_scaling_inflated(dtype):
    gradient = np.random.default_rng(1).standard_normal(1000).astype(dtype)
    norm = l2_norm(gradient)
    assert clipped_norm(gradient, norm) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_the_dtype_is_kept_and_the_gradient_left_alone(dtype):
    gradient = np.ones(10, dtype=dtype)
    assert sparsify(gradient, 0.5, np.random.default_rng(0)).dtype == dtype
    np.testing.assert_array_equal(gradient, 1)


def test_all_coordinates_may_be_kept():
    gradient = np.linspace(-1, 1, 10)
    np.testing.assert_array_equal(sparsify(gradient, 1.0, np.random.default_rng(0)), gradient)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("seed", range(5))
def test_a_gradient_that_is_not_finite_is_refused_wherever_it_is_not(bad, seed):
    gradient = np.zeros(100)
    gradient[50] = bad
    with pytest.raises(ValueError, match="NaN or an infinity"):
        sparsify(gradient, 0.01, np.random.default_rng(seed))


def test_a_coordinate_that_outgrows_its_dtype_is_refused():
    gradient = np.full(100, 3e38, dtype=np.float32)
    with pytest.raises(ValueError, match="exceeds the largest float32"):
        sparsify(gradient, 0.5, np.random.default_rng(0))


@pytest.mark.parametrize("bad", [0, -0.1, 1.000001, math.nan, math.inf])
def test_a_fraction_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        kept_count(bad, 100)


def test_a_fraction_that_keeps_nothing_is_refused_with_the_least_that_keeps_something():
    with pytest.raises(ValueError, match=r"none of 1000 coordinates: use at least 0\.001"):
        kept_count(0.0004, 1000)
    assert kept_count(0.001, 1000) == 1
