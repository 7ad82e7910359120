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
    kernel.add_vector(np.ones(3, dtype), np.zeros(3, sums))
    assert kernel._add.signatures == [signature]
    with pytest.raises(TypeError):
        kernel._add(np.ones(3, np.float32), 3, np.zeros(3, sums), np.zeros(1, np.int64))


def test_the_compiled_code_does_what_its_python_says():
    rows = np.array([[1, -2, 9], [-128, 5, 9]], np.int8)
    for run in (vector_numba.add_with(np.int32), NumbaKernel(rows.dtype)._add):
        sums, squares = np.zeros(2, np.int32), np.full(2, -128)
        run(rows.ravel(), 3, sums, squares)
        assert sums.tolist() == [-127, 3]
        assert squares.tolist() == [5, -1]
