"""Sums and norms of either kernel are those of exact integers."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import KERNELS

from stream.aggregation import vector_kernel
from stream.aggregation.vector_kernel import find_kernel

DTYPES = [np.dtype(np.int8), np.dtype("<i2")]


def squared(vector) -> int:
    """Return the squared norm in Python's integers, or -1 where a kernel says so."""
    has_lowest = np.iinfo(vector.dtype).min in vector.tolist()
    return -1 if has_lowest else sum(int(x) ** 2 for x in vector)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 9),
    size=st.sampled_from([1, 2, 31, 1000]),
    pad=st.integers(0, 3),
    low=st.integers(-32768, 0),
    high=st.integers(0, 32767),
)
@settings(max_examples=60)
def test_rows_are_summed_and_measured_as_exact_integers_are(
    kernel, dtype, seed, count, size, pad, low, high
):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    # As they lie in joined messages: something else stands between them.
    whole = rng.integers(
        max(low, info.min), min(high, info.max), (count, pad + size), dtype, endpoint=True
    )
    rows = whole[:, pad:]
    adder = find_kernel(kernel, dtype)
    sums = np.full(size, 99, adder.sum_dtype)
    squares = adder.add_rows(whole.ravel(), pad + size, sums)
    assert squares.tolist() == [squared(row) for row in rows]
    assert sums.tolist() == rows.sum(axis=0, dtype=np.int64).tolist()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [1, 127, 32767])
def test_a_long_vector_is_added_to_what_is_there_and_measured(kernel, dtype, largest):
    largest = min(largest, np.iinfo(dtype).max)
    size = vector_kernel._BLOCK + 1001
    vector = np.random.default_rng(largest).integers(-largest, largest, size, dtype, endpoint=True)
    adder = find_kernel(kernel, dtype)
    sums = np.full(size, 5, adder.sum_dtype)
    # As they lie in messages: anywhere; and more of them than are taken in one call.
    updates = [b"x" * n + (vector // (n + 1)).tobytes() for n in range(19)]
    vectors = [vector // (n + 1) for n in range(19)]
    assert adder.add_long(updates, sums).tolist() == [squared(each) for each in vectors]
    assert sums.tolist() == (5 + np.sum(vectors, axis=0, dtype=np.int64)).tolist()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [0, 40_000, vector_kernel._BLOCK + 1000])
def test_the_lowest_number_of_the_type_is_seen_wherever_it_stands(kernel, dtype, at):
    vector = np.zeros(vector_kernel._BLOCK + 10_001, dtype)
    adder = find_kernel(kernel, dtype)
    sums = np.zeros(vector.size, adder.sum_dtype)
    assert adder.add_long([vector.tobytes()], sums).tolist() == [0]
    vector[at] = np.iinfo(dtype).min
    (square,) = adder.add_long([b"header" + vector.tobytes()], sums)
    assert square < 0
    assert sums.tolist() == vector.tolist(), "it is added all the same"
    rows = np.stack([vector[at - 2 if at else 0 :][:5], np.zeros(5, dtype)])
    assert adder.add_rows(rows.ravel(), 5, sums[:5]).tolist() == [-1, 0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127), ("int16", 32767)])
@pytest.mark.parametrize("size", [1000, 1041, 40_000])
def test_squares_beyond_what_floating_point_holds_are_exact(kernel, dtype, largest, size):
    vector = np.full(size, largest, dtype)
    vector[0] = 1
    exact = (size - 1) * largest**2 + 1
    adder = find_kernel(kernel, np.dtype(dtype))
    sums = np.zeros(size, adder.sum_dtype)
    assert adder.add_rows(vector, size, sums).tolist() == [exact]
    assert adder.add_long([vector.tobytes()], sums).tolist() == [exact]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_exact_below_what_the_kernel_says(kernel, dtype):
    adder = find_kernel(kernel, dtype)
    number = adder.sum_dtype.type
    assert int(number(adder.exact_below - 1)) == adder.exact_below - 1
    assert int(number(adder.exact_below)) - int(number(adder.exact_below - 1)) == 1


@pytest.mark.parametrize("name", ["", "Numba", "auto"])
def test_an_unknown_kernel_is_refused(name):
    with pytest.raises(ValueError, match="write 'numpy' or 'numba'"):
        find_kernel(name, np.dtype(np.int8))


def test_numba_that_is_missing_is_refused_and_the_extra_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stream.aggregation.vector_numba", None)
    with pytest.raises(ImportError, match=r"sdp-stream\[fast\]"):
        find_kernel("numba", np.dtype(np.int8))
    assert find_kernel("numpy", np.dtype(np.int8)).exact_below == 2**24
