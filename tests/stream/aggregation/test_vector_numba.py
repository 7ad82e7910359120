"""What only the compiled kernel has: it is compiled before the first update, for both types."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the extra sdp-stream[fast] is not installed")

from stream.aggregation import vector_numba
from stream.aggregation.vector_numba import NumbaKernel


@pytest.mark.parametrize(("dtype", "sums"), [("int8", np.int32), ("int16", np.int64)])
def test_each_type_is_compiled_already_and_for_nothing_else(dtype, sums):
    kernel = NumbaKernel(np.dtype(dtype))
    assert kernel.sum_dtype == sums
    (signature,) = kernel._add.signatures
    kernel.add_long([np.ones(3, dtype).tobytes()], np.zeros(3, sums))
    kernel.add_rows(np.ones(6, dtype), 3, np.zeros(3, sums))
    assert kernel._add.signatures == [signature]
    assert len(vector_numba._add_messages.signatures) == 1
    with pytest.raises(TypeError):
        kernel._add(np.ones(3, np.float32), 3, np.zeros(3, sums), np.zeros(1, np.int64))


def test_the_compiled_code_does_what_its_python_says():
    rows = np.array([[1, -2, 9], [-128, 5, 9]], np.int8)
    for run in (vector_numba.add_with(np.int32), NumbaKernel(rows.dtype)._add):
        sums, squares = np.zeros(2, np.int32), np.full(2, -128)
        run(rows.ravel(), 3, sums, squares)
        assert sums.tolist() == [-127, 3]
        assert squares.tolist() == [5, -1]


def test_the_compiled_code_for_messages_does_what_its_python_says():
    rng = np.random.default_rng(1)
    vectors = rng.integers(-127, 128, (3, 5), np.int8)
    vectors[1, 2] = -128
    messages = tuple(bytes(n) + vectors[n % 3].tobytes() for n in range(vector_numba._MESSAGES))
    for run in (vector_numba.add_messages, vector_numba._add_messages):
        sums, squares = np.zeros(5, np.int32), np.zeros(3, np.int64)
        if run is vector_numba.add_messages:
            messages_of = tuple(np.frombuffer(each, np.int8) for each in messages)
        else:
            messages_of = messages
        run(messages_of, np.arange(3), sums, squares)
        assert sums.tolist() == vectors.sum(axis=0, dtype=np.int64).tolist()
        assert squares[1] < 0
        assert squares[[0, 2]].tolist() == (vectors[[0, 2]].astype(int) ** 2).sum(axis=1).tolist()
