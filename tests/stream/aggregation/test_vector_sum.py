"""Sums and norms in floating point are those of exact integers; where it ends is seen."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import KERNELS

from stream.aggregation import vector_sum
from stream.aggregation.vector_kernel import find_kernel
from stream.aggregation.vector_sum import VectorAdder
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

LONG = vector_sum.SHORT + 40_000
PLAN = PrivacyPlan(
    name="sums",
    dimension=5,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=7,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


def largest_bound(dtype: str, dimension: int) -> int:
    return math.isqrt(dimension * np.iinfo(dtype).max ** 2)


def plan(dtype="int8", dimension=5, bound=10**9) -> PrivacyPlan:
    bound = min(bound, largest_bound(dtype, dimension))
    return replace(PLAN, update_dtype=dtype, dimension=dimension, grid_l2_bound=bound)


def squared(vector) -> int:
    return sum(int(x) ** 2 for x in vector)


def rows_of(updates):
    return np.frombuffer(b"".join(updates), np.uint8).reshape(len(updates), -1)


def add(adder, total, vector, pad=b"abc") -> bool:
    """Add one vector, which stands at the end of a message, as the plan's kind is added."""
    update = pad + vector.tobytes()
    if adder.is_short:
        measured = adder.measure(rows_of([update]))
        (is_within,) = measured.are_within.tolist()
        measured.add_to(total, None if is_within else [])
        return is_within
    (is_within,) = adder.add_if_within(total, [update])
    return is_within


@pytest.mark.parametrize("dimension", [5, LONG])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@given(seed=st.integers(0, 2**32), low=st.integers(-32768, 0), high=st.integers(0, 32767))
@settings(max_examples=30)
def test_norms_are_decided_as_exact_integers_decide(dtype, dimension, seed, low, high):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    vector = rng.integers(max(low, info.min), min(high, info.max), dimension, dtype, endpoint=True)
    exact = squared(vector)
    near = {math.isqrt(exact) + step for step in (-1, 0, 1, 2)}
    for bound in [
        each
        for each in near
        if math.isqrt(16 * dimension) <= each <= largest_bound(dtype, dimension)
    ]:
        adder = VectorAdder(plan(dtype, dimension, bound))
        total = adder.new_sum()
        is_sound = vector.min() > info.min and exact <= bound**2
        assert add(adder, total, vector) == is_sound
        assert total.total().tolist() == (vector if is_sound else 0 * vector).tolist()


@pytest.mark.parametrize("dimension", [5, 1000, vector_sum.SHORT, LONG])
@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127), ("int16", 32767)])
def test_one_step_above_the_bound_is_seen_where_squares_are_largest(dtype, largest, dimension):
    vector = np.full(dimension, largest, dtype)
    square = dimension * largest**2
    # A vector one step shorter has the bound below exactly this square.
    bound = math.isqrt(square - 1)
    adder = VectorAdder(plan(dtype, dimension, bound))
    assert not add(adder, adder.new_sum(), vector)
    vector[0] -= 1
    assert add(adder, adder.new_sum(), vector) == (squared(vector) <= bound**2)


@pytest.mark.parametrize("dimension", [5, LONG])
def test_many_rows_are_measured_together_and_only_the_right_ones_added(dimension):
    # Ten steps in each of these are just within the bound.
    filled = {5: 1, LONG: 6400}[dimension]
    bound = 10 * math.isqrt(filled)
    adder = VectorAdder(plan(dimension=dimension, bound=bound))
    total = adder.new_sum()
    expected = np.zeros(dimension, np.int64)
    for n in range(60):
        vector = np.zeros(dimension, np.int8)
        vector[:filled] = n % 21 - 10
        vector[-1] = n % 2
        is_within = squared(vector) <= bound**2
        assert add(adder, total, vector) == is_within
        expected += vector if is_within else 0
    assert total.total().tolist() == expected.tolist()


@pytest.mark.parametrize("dimension", [5, LONG])
@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127), ("int16", 32767)])
def test_more_vectors_than_floating_point_holds_are_summed_exactly(
    monkeypatch, dtype, largest, dimension
):
    monkeypatch.setattr(vector_sum, "_capacity_of", lambda *_: 7)
    adder = VectorAdder(plan(dtype, dimension))
    total = adder.new_sum()
    vector = np.full(dimension, 1 - largest, dtype)
    for _ in range(50):
        assert add(adder, total, vector)
    total.add(vector)
    assert total.total().tolist() == [51 * (1 - largest)] * dimension


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_the_capacity_leaves_room_for_one_that_is_out_of_bounds(kernel, dtype):
    kernel, limit = find_kernel(kernel, np.dtype(dtype)), np.iinfo(dtype).max
    capacity = vector_sum._capacity_of(kernel, limit)
    assert (capacity - 1) * limit + limit + 1 <= kernel.exact_below
    assert capacity > 100_000


def test_what_is_taken_back_leaves_no_trace():
    adder = VectorAdder(plan(dimension=LONG))
    total = adder.new_sum()
    first, second = (np.random.default_rng(n).integers(-127, 128, LONG, np.int8) for n in range(2))
    assert add(adder, total, first)
    assert add(adder, total, second)
    adder.take_back(total, b"xy" + second.tobytes())
    assert total.total().tolist() == first.tolist()


@pytest.mark.parametrize("dimension", [5, LONG])
def test_the_lowest_number_of_the_type_is_refused_and_leaves_nothing(dimension):
    adder = VectorAdder(plan(dimension=dimension))
    for at in (0, dimension // 2, dimension - 1):
        vector = np.zeros(dimension, np.int8)
        vector[at] = -128
        total = adder.new_sum()
        assert not add(adder, total, vector)
        assert not total.total().any()
    # Before the vector it is only a byte.
    assert add(adder, adder.new_sum(), np.zeros(dimension, np.int8), b"\x80")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("pad", [b"", b"a", b"bc"])
def test_of_rows_that_were_measured_together_any_part_can_be_added(kernel, dtype, pad):
    adder = VectorAdder(plan(dtype, bound=30), kernel)
    vectors = np.random.default_rng(3).integers(-20, 21, (5, 5), dtype)
    measured = adder.measure(rows_of([pad + vector.tobytes() for vector in vectors]))
    assert measured.are_within.tolist() == [squared(vector) <= 900 for vector in vectors]
    assert {True, False} == set(measured.are_within.tolist())
    kept = [row for row in range(5) if measured.are_within[row]][1:]
    total = adder.new_sum()
    measured.add_to(total, kept)
    assert total.total().tolist() == vectors[kept].sum(axis=0, dtype=np.int64).tolist()
