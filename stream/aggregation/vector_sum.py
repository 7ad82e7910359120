"""Exact sums of clients' integer vectors, each one measured while it is added.

The memory is what limits a head, so each vector is read once: block by block it is converted to
floating point in the processor's cache, squared, and added. Floating point is exact here, and the
reason is the same each time: every number is an integer, and so is every partial sum, in any
order; below 2^24 (float32) or 2^53 (float64) they are all represented.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan

from .validation import squared_norm

_Work = np.float32 | np.float64

# Coordinates that are converted, squared and added while they are in the cache.
_BLOCK = 1 << 15
# BLAS starts threads for longer ones.
_DOT = 1 << 13
# Vectors that are short enough to be taken many at a time, and how many coordinates of them.
SHORT = 1 << 12
_TOGETHER = 1 << 17
_MOST_ROWS = 256


class VectorSum:
    """The sum of a window's vectors; sensitive.

    It is kept in the floating-point type of `VectorAdder`, and in int64 what has outgrown that.
    """

    __slots__ = ("_capacity", "_held", "_overflow", "part")

    def __init__(self, size: int, dtype: np.dtype[_Work], capacity: int) -> None:
        """Begin with zeros, shape ``(size,)``; ``capacity`` vectors keep ``part`` exact."""
        self.part: NDArray[_Work] = np.zeros(size, dtype)
        self._held = 0
        self._capacity = capacity
        self._overflow: NDArray[np.int64] | None = None

    def make_room(self, count: int) -> None:
        """Make sure that ``count`` vectors more can be added to ``part``."""
        if self._held + count > self._capacity:
            self._overflow = self.total()
            self.part[:] = 0
            self._held = 0
        self._held += count

    def add(self, vector: NDArray[np.integer]) -> None:
        """Add a vector that is within bounds."""
        self.make_room(1)
        np.add(self.part, vector, out=self.part)

    def add_rows(self, rows: NDArray[_Work]) -> None:
        """Add vectors that are within bounds, as `VectorAdder.measure` has converted them."""
        self.make_room(len(rows))
        np.add(self.part, np.add.reduce(rows, axis=0), out=self.part)

    def total(self) -> NDArray[np.int64]:
        """Return the sum, shape ``(size,)``, a copy.

        It cannot wrap: each vector adds at most 2^15 to a coordinate, so 2^48 vectors fit.
        """
        part = self.part.astype(np.int64)
        return part if self._overflow is None else np.add(part, self._overflow, out=part)


class VectorAdder:
    """Measures and adds the vectors of one plan; has scratch memory, so one thread at a time."""

    def __init__(self, plan: PrivacyPlan) -> None:
        """Set up for the plan's type, length and bounds."""
        self._size = plan.coordinate_count
        self._bound = plan.grid_l2_bound**2
        self._dtype = np.dtype(plan.update_dtype)
        self._lowest = -plan.coordinate_limit
        # Where the lowest number of the type is the only one that is forbidden.
        self._forbidden = b"\x80" if plan.update_dtype == "int8" else None
        self._work: np.dtype[_Work] = np.dtype(np.float32 if self._forbidden else np.float64)
        self._exact = _exact_below(self._work)
        self._capacity = _capacity_of(self._work, plan.coordinate_limit)
        self.is_short = self._size <= SHORT
        self.rows = min(_MOST_ROWS, max(1, _TOGETHER // self._size)) if self.is_short else 1
        shape = (self.rows, self._size) if self.is_short else (1, min(_BLOCK, self._size))
        self._scratch: NDArray[_Work] = np.empty(shape, self._work)

    def new_sum(self) -> VectorSum:
        """Return a sum of nothing."""
        return VectorSum(self._size, self._work, self._capacity)

    def measure(self, vectors: Sequence[bytes]) -> tuple[NDArray[_Work], list[bool]]:
        """Convert up to `rows` short vectors, and say of each one whether it is within bounds.

        Returns:
            Shape ``(len(vectors), size)``, to be used before the next call; and the verdicts.
        """
        joined = b"".join(vectors)
        raw = np.frombuffer(joined, self._dtype).reshape(len(vectors), self._size)
        rows = self._scratch[: len(vectors)]
        np.copyto(rows, raw)
        squares = np.einsum("ij,ij->i", rows, rows).tolist()
        if not self._may_have_forbidden(joined, 0, raw) and max(squares) < self._exact:
            return rows, [square <= self._bound for square in squares]
        return rows, [self._is_within(vector) for vector in raw]

    def add_if_within(self, total: VectorSum, value: bytes, start: int) -> bool:
        """Add the vector at ``start`` of ``value`` if it is within bounds; say whether it is."""
        vector = np.frombuffer(value, self._dtype, -1, start)
        if self._may_have_forbidden(value, start, vector):
            return False
        total.make_room(1)
        square = 0
        for begin in range(0, self._size, _BLOCK):
            block = vector[begin : begin + _BLOCK]
            work = self._scratch[0, : block.size]
            np.copyto(work, block)
            square += self._square(work, block)
            target = total.part[begin : begin + _BLOCK]
            np.add(target, work, out=target)
        if square <= self._bound:
            return True
        self.take_back(total, value, start)
        return False

    def take_back(self, total: VectorSum, value: bytes, start: int) -> None:
        """Undo an addition, which is as exact as all that is done here."""
        vector = np.frombuffer(value, self._dtype, -1, start)
        np.subtract(total.part, vector, out=total.part)

    def _square(self, work: NDArray[_Work], block: NDArray[np.integer]) -> int:
        square = 0
        for begin in range(0, work.size, _DOT):
            piece = work[begin : begin + _DOT]
            part = float(np.dot(piece, piece))
            # Partial sums of squares only grow: below the limit at the end, below it throughout.
            is_exact = part < self._exact
            square += int(part) if is_exact else squared_norm(block[begin : begin + _DOT])
        return square

    def _may_have_forbidden(self, value: bytes, start: int, vector: NDArray[np.integer]) -> bool:
        if self._forbidden is not None:
            return value.find(self._forbidden, start) >= 0
        return bool(vector.min() < self._lowest)

    def _is_within(self, vector: NDArray[np.integer]) -> bool:
        return bool(vector.min() >= self._lowest) and squared_norm(vector) <= self._bound


def _exact_below(work: np.dtype[_Work]) -> int:
    """Return the number up to which a floating-point type has every integer."""
    return 1 << np.finfo(work).nmant + 1


def _capacity_of(work: np.dtype[_Work], coordinate_limit: int) -> int:
    """Return how many vectors may be added before a coordinate could outgrow the type."""
    return _exact_below(work) // (coordinate_limit + 1)
