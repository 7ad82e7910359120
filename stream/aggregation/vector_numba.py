"""The kernel of `vector_kernel`, compiled: the same sums and norms, each vector read once.

Needs numba, the extra `sdp-stream[fast]`. Integers only, so that a compiler has nothing to round.
"""

from collections.abc import Callable, Sequence
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from .vector_kernel import Number, Sums

# Not "import numba": type checks must come out the same with and without the extra.
_numba = import_module("numba")
_types = _numba.types

_Add = Callable[[NDArray[np.integer], int, Sums, NDArray[np.int64]], None]

# So many squares of int8 fit in int32, which a processor adds twice as fast as int64.
_BLOCK = 1 << 13
# Messages that are taken in one call: their sums stay in the cache from one to the next.
_MESSAGES = 16
_LOWEST_INT8 = -128
# So low that no squares added to it make it anything but negative.
_HAS_LOWEST = -(1 << 62)


def add_with(number: type[np.int32 | np.int64]) -> _Add:
    """Return what adds and measures vectors, a block's squares being summed as ``number``."""

    def add(
        coordinates: NDArray[np.integer],
        step: int,
        sums: Sums,
        squares: NDArray[np.int64],
    ) -> None:
        """Add the vectors that begin every ``step`` coordinates to ``sums``.

        ``squares`` holds the lowest number of their type for each vector; it is replaced by the
        squared norm, or by -1 where the vector has that number.
        """
        for row in range(squares.size):
            vector = coordinates[row * step : row * step + sums.size]
            total = 0
            lowest = np.int32(0)
            for begin in range(0, sums.size, _BLOCK):
                block, target = vector[begin : begin + _BLOCK], sums[begin : begin + _BLOCK]
                square = number(0)
                for i in range(block.size):
                    value = np.int32(block[i])
                    target[i] += value
                    square = number(square + np.int32(value * value))
                    lowest = np.int32(min(lowest, value))
                total += int(square)
            squares[row] = total if lowest > squares[row] else -1

    return add


def add_messages(
    messages: Sequence[bytes],
    starts: NDArray[np.int64],
    sums: Sums,
    squares: NDArray[np.int64],
) -> None:
    """Add the int8 vectors that stand in the first messages, one for each of ``squares``.

    ``starts`` says where they begin. ``squares`` holds zeros, and is replaced by the squared norms,
    negative where the vector has the lowest number.
    """
    for begin in range(0, sums.size, _BLOCK):
        target = sums[begin : begin + _BLOCK]
        for k in range(squares.size):
            message = messages[k]
            # Unsigned, or each index would be asked whether it counts from the end.
            at = np.uint64(starts[k] + begin)
            square = np.int32(0)
            lowest = np.int32(0)
            for i in range(np.uint64(target.size)):
                value = np.int32(np.int8(message[at + i]))
                target[i] += value
                square = np.int32(square + np.int32(value * value))
                lowest = np.int32(min(lowest, value))
            squares[k] += square
            if lowest == _LOWEST_INT8:
                squares[k] = _HAS_LOWEST


# All are compiled here, so that no update waits for the compiler; not cached on disk, since a
# service may have no directory to write to.
def _compiled(vectors: object, sums: object, number: type[np.int32 | np.int64]) -> _Add:
    signature = _types.void(
        _types.Array(vectors, 1, "C", readonly=True),
        _types.int64,
        _types.Array(sums, 1, "C"),
        _types.int64[::1],
    )
    compiled: _Add = _numba.njit(signature, nogil=True)(add_with(number))
    return compiled


_BY_TYPE: dict[str, tuple[_Add, type[np.int32 | np.int64]]] = {
    "int8": (_compiled(_types.int8, _types.int32, np.int32), np.int32),
    "int16": (_compiled(_types.int16, _types.int64, np.int64), np.int64),
}
_add_messages = _numba.njit(
    _types.void(
        _types.UniTuple(_numba.typeof(b""), _MESSAGES),
        _types.int64[::1],
        _types.int32[::1],
        _types.int64[::1],
    ),
    nogil=True,
)(add_messages)


class NumbaKernel:
    """One compiled pass over each vector."""

    def __init__(self, dtype: np.dtype[np.int8 | np.int16]) -> None:
        """Set up for vectors of type ``dtype``."""
        self._add, number = _BY_TYPE[dtype.name]
        self._dtype = dtype
        self.sum_dtype: np.dtype[Number] = np.dtype(number)
        self.exact_below = int(np.iinfo(number).max)
        self._lowest = int(np.iinfo(dtype.type).min)

    def add_rows(
        self, coordinates: NDArray[np.integer], step: int, sums: Sums
    ) -> NDArray[np.int64]:
        """See `VectorKernel`."""
        sums[:] = 0
        squares = np.full(coordinates.size // step, self._lowest, np.int64)
        self._add(coordinates[step - sums.size :], step, sums, squares)
        return squares

    def add_long(self, updates: Sequence[bytes], sums: Sums) -> NDArray[np.int64]:
        """See `VectorKernel`."""
        if self._dtype.itemsize > 1:
            return np.concatenate([self._add_one(update, sums) for update in updates])
        squares = np.zeros(len(updates), np.int64)
        for begin in range(0, len(updates), _MESSAGES):
            some = tuple(updates[begin : begin + _MESSAGES])
            starts = np.fromiter(map(len, some), np.int64) - sums.size
            # What is beyond their number is not looked at.
            filled = some + some[-1:] * (_MESSAGES - len(some))
            _add_messages(filled, starts, sums, squares[begin : begin + len(some)])
        return squares

    def _add_one(self, update: bytes, sums: Sums) -> NDArray[np.int64]:
        start = len(update) - sums.size * self._dtype.itemsize
        vector = np.frombuffer(update, self._dtype, -1, start)
        aligned = vector if vector.flags.aligned else vector.copy()
        square = np.full(1, self._lowest, np.int64)
        self._add(aligned, aligned.size, sums, square)
        return square
