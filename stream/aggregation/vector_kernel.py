"""Adding and measuring integer vectors, where a head's time goes, and the choice of who does it.

Kernels differ in speed alone. The memory is what limits them, so each vector is read once.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream.privacy.noise_kernel import Kernel

from .validation import squared_norm

# Coordinates that are converted, squared and added while they are in the cache.
_BLOCK = 1 << 15
# BLAS starts threads for longer ones.
_DOT = 1 << 13

Number = np.float32 | np.float64 | np.int32 | np.int64
Sums = NDArray[Number]


class VectorKernel(Protocol):
    """Adds vectors of one type, int8 or int16, and measures them on the way.

    Attributes:
        sum_dtype: The type of sums, in which integers below ``exact_below`` are exact.
        exact_below: See there.
    """

    sum_dtype: np.dtype[Number]
    exact_below: int

    def add_rows(
        self, coordinates: NDArray[np.integer], step: int, sums: Sums
    ) -> NDArray[np.int64]:
        """Write the sum of short vectors to ``sums``.

        Args:
            coordinates: Shape ``(n * step,)``; each ``step`` of them end with a vector.
            step: At least ``size``.
            sums: Shape ``(size,)``; what it holds does not matter.

        Returns:
            The squared norm of each, shape ``(n,)``; -1 where it has the lowest number of its
            type. They fit: there are at most 2^33 coordinates to 2^30.
        """

    def add_long(self, updates: Sequence[bytes], sums: Sums) -> NDArray[np.int64]:
        """Add the long vectors that stand at the ends of ``updates`` to ``sums``, all of them.

        Returns:
            The squared norm of each; negative where it has the lowest number of its type.
        """


def find_kernel(kernel: Kernel, dtype: np.dtype[np.int8 | np.int16]) -> VectorKernel:
    """Return what adds vectors of type ``dtype``.

    Raises:
        ValueError: there is no such kernel.
        ImportError: numba is asked for and not installed; the message names the extra.
    """
    if kernel == "numpy":
        return NumpyKernel(dtype)
    if kernel != "numba":
        raise ValueError(f"no kernel is named {kernel!r}: write 'numpy' or 'numba'")
    try:
        from .vector_numba import NumbaKernel
    except ImportError as error:
        raise ImportError("kernel 'numba': install sdp-stream[fast], or use 'numpy'") from error
    return NumbaKernel(dtype)


def rows_of(coordinates: NDArray[np.integer], step: int, size: int) -> NDArray[np.integer]:
    """Return the vectors at the end of each ``step`` coordinates, shape ``(n, size)``; a view."""
    return coordinates.reshape(-1, step)[:, step - size :]


class NumpyKernel:
    """Block by block in floating point, which is exact here, for the same reason each time.

    Every number is an integer, and so is every partial sum, in any order; below 2^24 (float32)
    or 2^53 (float64) all of them are represented.
    """

    def __init__(self, dtype: np.dtype[np.int8 | np.int16]) -> None:
        """Set up for vectors of type ``dtype``; has scratch memory, so one thread at a time."""
        work = np.float32 if dtype == np.int8 else np.float64
        self.sum_dtype: np.dtype[Number] = np.dtype(work)
        self.exact_below = 1 << np.finfo(work).nmant + 1
        self._dtype = dtype
        self._lowest = np.iinfo(dtype).min
        self._scratch: Sums = np.empty(0, self.sum_dtype)

    def add_rows(
        self, coordinates: NDArray[np.integer], step: int, sums: Sums
    ) -> NDArray[np.int64]:
        """See `VectorKernel`."""
        rows = rows_of(coordinates, step, sums.size)
        work = self._work(rows.size).reshape(rows.shape)
        np.copyto(work, rows)
        np.add.reduce(work, axis=0, out=sums)
        measured = np.einsum("ij,ij->i", work, work)
        squares: NDArray[np.int64] = measured.astype(np.int64)
        # Partial sums of squares only grow: below the limit at the end, below it throughout.
        if measured.max() >= self.exact_below:
            squares = np.array([squared_norm(row) for row in rows], np.int64)
        if rows.min() == self._lowest:
            squares[(rows == self._lowest).any(axis=1)] = -1
        return squares

    def add_long(self, updates: Sequence[bytes], sums: Sums) -> NDArray[np.int64]:
        """See `VectorKernel`."""
        size = sums.size * self._dtype.itemsize
        vectors = (np.frombuffer(each, self._dtype, -1, len(each) - size) for each in updates)
        return np.array([self._add_one(vector, sums) for vector in vectors], np.int64)

    def _add_one(self, vector: NDArray[np.integer], sums: Sums) -> int:
        square = 0
        for begin in range(0, vector.size, _BLOCK):
            block = vector[begin : begin + _BLOCK]
            work = self._work(block.size)
            np.copyto(work, block)
            square += self._square(work, block)
            target = sums[begin : begin + _BLOCK]
            np.add(target, work, out=target)
        return -1 if int(vector.min()) == self._lowest else square

    def _work(self, size: int) -> Sums:
        if self._scratch.size < size:
            self._scratch = np.empty(size, self.sum_dtype)
        return self._scratch[:size]

    def _square(self, work: Sums, block: NDArray[np.integer]) -> int:
        square = 0
        for begin in range(0, work.size, _DOT):
            piece = work[begin : begin + _DOT]
            part = float(np.dot(piece, piece))
            is_exact = part < self.exact_below
            square += int(part) if is_exact else squared_norm(block[begin : begin + _DOT])
        return square
