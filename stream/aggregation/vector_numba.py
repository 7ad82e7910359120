"""The kernel of `vector_kernel`, compiled: the same sums and norms, each vector read once.

Needs numba, the extra `sdp-stream[fast]`. Integers only, so that a compiler has nothing to round.
"""

from collections.abc import Callable
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

# Not "import numba": type checks must come out the same with and without the extra.
_numba = import_module("numba")
_types = _numba.types


def _add(
    coordinates: NDArray[np.integer],
    step: int,
    sums: NDArray[np.integer],
    squares: NDArray[np.int64],
) -> None:
    """Add the vectors that begin every ``step`` coordinates to ``sums``.

    ``squares`` holds the lowest number of their type for each vector; it is replaced by the squared
    norm, or by -1 where the vector has that number.
    """
    for row in range(squares.size):
        vector = coordinates[row * step : row * step + sums.size]
        square = 0
        lowest = 0
        for i in range(sums.size):
            value = np.int32(vector[i])
            sums[i] += value
            square += value * value
            lowest = min(lowest, value)
        squares[row] = square if lowest > squares[row] else -1


def _compiled(vectors: object, sums: object) -> Callable[..., None]:
    # Compiled here, so that no update waits for the compiler; not cached on disk, since a service
    # may have no directory to write to.
    signature = _types.void(
        _types.Array(vectors, 1, "C", readonly=True),
        _types.int64,
        _types.Array(sums, 1, "C"),
        _types.int64[::1],
    )
    compiled: Callable[..., None] = _numba.njit(signature, nogil=True)(_add)
    return compiled


_BY_TYPE = {
    "int8": (_compiled(_types.int8, _types.int32), np.dtype(np.int32)),
    "int16": (_compiled(_types.int16, _types.int64), np.dtype(np.int64)),
}


class NumbaKernel:
    """One compiled pass over each vector."""

    def __init__(self, dtype: np.dtype[np.int8 | np.int16]) -> None:
        """Set up for vectors of type ``dtype``; has scratch memory, so one thread at a time."""
        self._add, self.sum_dtype = _BY_TYPE[dtype.name]
        self.exact_below = np.iinfo(self.sum_dtype).max
        self._lowest = np.iinfo(dtype).min
        self._square = np.empty(1, np.int64)

    def add_rows(
        self, coordinates: NDArray[np.integer], step: int, sums: NDArray[np.integer]
    ) -> list[int]:
        """See `VectorKernel`."""
        sums[:] = 0
        squares = np.full(coordinates.size // step, self._lowest, np.int64)
        self._add(coordinates[step - sums.size :], step, sums, squares)
        as_list: list[int] = squares.tolist()
        return as_list

    def add_vector(self, vector: NDArray[np.integer], sums: NDArray[np.integer]) -> int:
        """See `VectorKernel`."""
        aligned = vector if vector.flags.aligned else vector.copy()
        self._square[0] = self._lowest
        self._add(aligned, aligned.size, sums, self._square)
        return int(self._square[0])
