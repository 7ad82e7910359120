import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from stream.privacy.clipping import (
    clip_l2,
    clip_layers,
    flatten,
    l2_norm,
    validate_layer_clip_norms,
)

FLOAT_DTYPES = (np.float32, np.float64)


def exact_norm(gradient: NDArray[np.generic]) -> float:
    """Slow oracle: the squares are summed as fractions."""
    squared = sum((Fraction(float(value)) ** 2 for value in gradient), Fraction(0))
    # isqrt of the scaled fraction: 2**400 keeps enough digits for every float in these tests.
    return math.isqrt((squared.numerator << 4400) // squared.denominator) / (1 << 2200)


def gradients(**limits: float) -> st.SearchStrategy[NDArray[np.float32] | NDArray[np.float64]]:
    dtype = st.sampled_from(FLOAT_DTYPES)
    return dtype.flatmap(
        lambda kind: hnp.arrays(
            kind,
            st.integers(1, 30),
            elements=st.floats(allow_nan=False, allow_infinity=False, width=32, **limits),
        )
    )


@given(gradients())
def test_the_norm_agrees_with_exact_arithmetic(gradient):
    assert l2_norm(gradient) == pytest.approx(exact_norm(gradient), rel=1e-14, abs=0)


@pytest.mark.parametrize("magnitude", [1e-320, 1e-200, 1e-126, 1e30, 1e155, 1e300])
def test_the_norm_of_extreme_float64_gradients_neither_vanishes_nor_overflows(magnitude):
    assert l2_norm(np.array([3.0, 4.0]) * magnitude) == pytest.approx(5 * magnitude, rel=1e-3)


def test_the_norm_of_a_gradient_longer_than_a_chunk_counts_every_coordinate():
    gradient = np.ones(3 * 8192 + 5, dtype=np.float32)
    assert l2_norm(gradient) == pytest.approx(math.sqrt(gradient.size), rel=1e-14)


@given(gradients(), st.floats(1e-10, 1e10))
def test_a_clipped_gradient_lies_within_the_bound(gradient, l2_clip_norm):
    clipped = clip_l2(gradient, l2_clip_norm)
    slop = 1e-6 if gradient.dtype == np.float32 else 1e-14
    assert clipped.dtype == gradient.dtype
    assert l2_norm(clipped) <= l2_clip_norm * (1 + slop)


@given(gradients(min_value=-100, max_value=100))
def test_clipping_keeps_the_direction(gradient):
    clipped = clip_l2(gradient, 1.0)
    factor = max(1.0, l2_norm(gradient))
    np.testing.assert_allclose(clipped * factor, gradient, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_gradient_inside_the_ball_is_returned_as_it_is(dtype):
    gradient = np.array([0.6, 0.7], dtype=dtype)
    assert clip_l2(gradient, 1.0) is gradient


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_clipping_leaves_its_argument_alone(dtype):
    gradient = np.array([30.0, 40.0], dtype=dtype)
    np.testing.assert_allclose(clip_l2(gradient, 5.0), [3.0, 4.0])
    np.testing.assert_array_equal(gradient, [30.0, 40.0])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_zero_gradient_stays_zero(dtype):
    assert not clip_l2(np.zeros(5, dtype=dtype), 1.0).any()


def test_a_float32_gradient_whose_squares_overflow_float32_is_clipped():
    clipped = clip_l2(np.full(4, 1e30, dtype=np.float32), 1.0)
    np.testing.assert_allclose(clipped, 0.5, rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_gradient_that_is_not_finite_is_refused(bad, dtype):
    with pytest.raises(ValueError, match="NaN or an infinity"):
        clip_l2(np.array([1.0, bad], dtype=dtype), 1.0)


def test_a_norm_above_the_largest_float_is_refused():
    with pytest.raises(ValueError, match="largest float64"):
        clip_l2(np.full(4, 1.7e308), 1.0)


def test_each_layer_is_clipped_to_its_own_norm_and_keeps_its_shape():
    layers = [np.full((2, 2), 10.0), np.array([3.0, 4.0]), np.array(-7.0)]
    clipped = clip_layers(layers, [2.0, 50.0, 1.0])
    np.testing.assert_allclose(clipped[0], np.full((2, 2), 1.0))
    np.testing.assert_array_equal(clipped[1], [3.0, 4.0])
    assert clipped[2] == -1.0
    assert clipped[2].shape == ()


layers_and_norms = st.lists(
    st.tuples(gradients(), st.floats(1e-10, 1e10)), min_size=1, max_size=5
).map(lambda pairs: tuple(zip(*pairs, strict=True)))


@given(layers_and_norms)
def test_layers_within_their_norms_make_a_gradient_within_the_clip_norm(case):
    layers, norms = case
    l2_clip_norm = math.hypot(*norms)
    validate_layer_clip_norms(norms, l2_clip_norm)
    clipped = clip_layers(layers, norms)
    for layer, norm in zip(clipped, norms, strict=True):
        assert l2_norm(layer) <= norm * (1 + 1e-6)
    assert l2_norm(flatten(clipped).astype(np.float64)) <= l2_clip_norm * (1 + 1e-6)


def test_a_large_layer_does_not_silence_a_small_one():
    layers = [np.full(4, 1000.0), np.full(4, 0.1)]
    flat = clip_l2(flatten(layers).astype(np.float64), 1.0)
    assert l2_norm(flat[4:]) < 1e-3
    assert l2_norm(clip_layers(layers, [0.8, 0.6])[1]) == pytest.approx(0.2)


def test_a_clip_norm_split_evenly_is_accepted_whatever_the_rounding():
    for count in range(1, 200):
        validate_layer_clip_norms([1 / math.sqrt(count)] * count, 1.0)
        validate_layer_clip_norms([round(0.3 / math.sqrt(count), 8)] * count, 0.3)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_norms_that_are_too_large_together_are_refused_with_the_factor_that_helps(norms, bound):
    joint = math.hypot(*norms)
    if joint <= bound * (1 + 1e-6):
        validate_layer_clip_norms(norms, bound)
        return
    with pytest.raises(ValueError, match="multiply each by") as caught:
        validate_layer_clip_norms(norms, bound)
    factor = float(str(caught.value).rsplit(" ", 1)[1])
    assert factor == pytest.approx(bound / joint, rel=1e-6)
    validate_layer_clip_norms([norm * factor for norm in norms], bound)


@pytest.mark.parametrize("bad", [[], [0.1, 0.0], [-0.1], [math.nan], [math.inf]])
def test_a_layer_clip_norm_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="one number above 0 for each layer"):
        validate_layer_clip_norms(bad, 1.0)


def test_another_number_of_layers_than_of_norms_is_refused():
    with pytest.raises(ValueError, match="2 layers and 1 layer_clip_norms"):
        clip_layers([np.zeros(2), np.zeros(2)], [1.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_layer_that_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match="NaN or an infinity"):
        clip_layers([np.zeros(2), np.array([bad, 0.0])], [1.0, 1.0])


def test_layers_are_flattened_in_list_order_and_c_order():
    weights = np.arange(6.0).reshape(2, 3)
    flat = flatten([weights, np.array([6.0, 7.0]), 8.0])
    np.testing.assert_array_equal(flat, np.arange(9.0))


def test_memory_layout_does_not_change_the_order_of_coordinates():
    weights = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(flatten([np.asfortranarray(weights)]), np.arange(6.0))


def test_layers_of_one_dtype_keep_it():
    layers = [np.zeros(2, dtype=np.float32), np.zeros((2, 2), dtype=np.float32)]
    assert flatten(layers).dtype == np.float32


def test_no_layers_is_an_error():
    with pytest.raises(ValueError, match="at least one layer"):
        flatten([])
