"""Exact sums of clients' integer vectors, each one measured while it is added."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream.privacy.noise_kernel import Kernel
from stream.privacy.plan import PrivacyPlan

from .vector_kernel import Sums, VectorKernel, find_kernel, rows_of

# Vectors that are short enough to be taken many at a time, and how many coordinates of them.
SHORT = 1 << 12
_TOGETHER = 1 << 19


class VectorSum:
    """The sum of a window's vectors; sensitive.

    It is kept in the kernel's type, and in int64 what has outgrown that.
    """

    __slots__ = ("_capacity", "_held", "_overflow", "part")

    def __init__(self, size: int, kernel: VectorKernel, capacity: int) -> None:
        """Begin with zeros, shape ``(size,)``; ``capacity`` vectors keep ``part`` exact."""
        self.part: Sums = np.zeros(size, kernel.sum_dtype)
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

    def add(self, vector: NDArray[np.integer] | Sums, count: int = 1) -> None:
        """Add a vector that is within bounds, or the sum of ``count`` such ones."""
        self.make_room(count)
        np.add(self.part, vector, out=self.part)

    def take_back(self, vector: NDArray[np.integer]) -> None:
        """Undo an addition, which is as exact as all that is done here."""
        np.subtract(self.part, vector, out=self.part)

    def total(self) -> NDArray[np.int64]:
        """Return the sum, shape ``(size,)``, a copy.

        It cannot wrap: each vector adds at most 2^15 to a coordinate, so 2^48 vectors fit.
        """
        part = self.part.astype(np.int64)
        return part if self._overflow is None else np.add(part, self._overflow, out=part)


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """Short vectors, whether each is within bounds, and the sum of all, those that are not too."""

    rows: NDArray[np.integer]
    are_within: NDArray[np.bool_]
    sums: Sums

    def add_to(self, total: VectorSum, kept: Sequence[int] | None = None) -> None:
        """Add the rows ``kept``, or all, which are within bounds, to ``total``."""
        if kept is None:
            total.add(self.sums, len(self.rows))
        elif kept:
            total.add(np.add.reduce(self.rows[kept], axis=0, dtype=self.sums.dtype), len(kept))


class VectorAdder:
    """Measures and adds the vectors of one plan; has scratch memory, so one thread at a time.

    Attributes:
        vector_bytes: The length of a vector in an update, at whose end it stands.
        is_short: Whether vectors are taken many at a time, by `measure`.
        rows: How many.
    """

    def __init__(self, plan: PrivacyPlan, kernel: Kernel = "numpy") -> None:
        """Set up for the plan's type, length and bounds.

        Raises:
            ImportError: ``kernel`` is ``"numba"``, and numba is not installed.
        """
        self._size = plan.coordinate_count
        self._bound = plan.grid_l2_bound**2
        self._dtype = np.dtype(plan.update_dtype)
        self._kernel = find_kernel(kernel, self._dtype)
        self._capacity = _capacity_of(self._kernel, plan.coordinate_limit)
        self.vector_bytes = self._size * self._dtype.itemsize
        self.is_short = self._size <= SHORT
        self.rows = max(1, min(_TOGETHER // self._size, self._capacity))

    def new_sum(self) -> VectorSum:
        """Return a sum of nothing."""
        return VectorSum(self._size, self._kernel, self._capacity)

    def measure(self, updates: NDArray[np.uint8]) -> MeasuredRows:
        """Add up the vectors of up to `rows` updates, and say which are within bounds.

        Args:
            updates: Shape ``(n, width)``; each row ends with an update.
        """
        if self._dtype.itemsize > 1:
            # Where they stand now, they need not be aligned.
            updates = updates[:, -self.vector_bytes :]
        step = updates.shape[1] // self._dtype.itemsize
        coordinates = np.ascontiguousarray(updates).reshape(-1).view(self._dtype)
        sums = np.empty(self._size, self._kernel.sum_dtype)
        squares = self._kernel.add_rows(coordinates, step, sums)
        are_within = (squares >= 0) & (squares <= self._bound)
        return MeasuredRows(rows_of(coordinates, step, self._size), are_within, sums)

    def add_if_within(self, total: VectorSum, updates: Sequence[bytes]) -> list[bool]:
        """Add the vectors of updates that are within bounds; say which they are."""
        are_within: list[bool] = []
        # As many at once as there is room for.
        step = min(len(updates), self._capacity)
        for begin in range(0, len(updates), max(1, step)):
            some = updates[begin : begin + step]
            total.make_room(len(some))
            squares = self._kernel.add_long(some, total.part)
            are_within += ((squares >= 0) & (squares <= self._bound)).tolist()
        for update, is_within in zip(updates, are_within, strict=True):
            if not is_within:
                self.take_back(total, update)
        return are_within

    def take_back(self, total: VectorSum, update: bytes) -> None:
        """Undo `add_if_within`."""
        total.take_back(self._vector_of(update))

    def _vector_of(self, update: bytes) -> NDArray[np.integer]:
        return np.frombuffer(update, self._dtype, -1, len(update) - self.vector_bytes)


def _capacity_of(kernel: VectorKernel, coordinate_limit: int) -> int:
    """Return how many vectors may be added before a coordinate could outgrow the type."""
    # One step more than the limit: what is out of bounds is added before it is taken back.
    return kernel.exact_below // (coordinate_limit + 1)
