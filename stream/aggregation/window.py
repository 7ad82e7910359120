"""One window of one cluster while it is open: the exact sum and who is in it."""

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan

from .client_numbers import with_room
from .vector_sum import VectorAdder


class WindowSum:
    """The exact integer sum of a window, with the weighted count after its coordinates.

    All of it is sensitive: it is never logged, exported or stored.

    Attributes:
        first_offset: Offset of the first record of the window, where a replay must begin; negative
            before there is one.
        vectors: The sum of the clients' vectors.
        client_keys: Who is in the sum, under the numbers of the clients' budgets; empty where
            clients have none.
    """

    __slots__ = (
        "_bit_step",
        "_bits",
        "_count",
        "_count_weight",
        "_members",
        "_size",
        "client_keys",
        "first_offset",
        "vectors",
    )

    def __init__(self, plan: PrivacyPlan, adder: VectorAdder, first_offset: int) -> None:
        """Open a window whose first record is at ``first_offset``."""
        self.first_offset = first_offset
        self.vectors = adder.new_sum()
        # By a client's number, whether it is in the sum.
        self._members = with_room(np.empty(0, np.bool_), 1)
        self.client_keys: set[int] = set()
        self._size = plan.release_size
        self._count_weight = plan.count_weight
        self._bit_step = 0 if plan.clipping is None else plan.clipping.bit_weight // 2
        self._bits = self._count = 0

    def has(self, number: int) -> bool:
        """Say whether the client of a number has been counted already."""
        return number < self._members.size and bool(self._members[number])

    def are_new(self, numbers: NDArray[np.int32]) -> bool:
        """Say whether clients are all different and none has been counted; at least one."""
        ordered = np.sort(numbers)
        self._members = with_room(self._members, int(ordered[-1]) + 1)
        return not ((ordered[1:] == ordered[:-1]).any() or self._members[numbers].any())

    def count(self, numbers: NDArray[np.int32], below_clip: int) -> None:
        """Count clients, which are new and whose vectors are in the sum.

        Args:
            numbers: Their numbers, shape ``(n,)``.
            below_clip: How many of them say that they are below the clip norm.
        """
        self._members = with_room(self._members, int(numbers.max(initial=0)) + 1)
        self._members[numbers] = True
        self._count += self._count_weight * numbers.size
        # kappa_b (b - 1/2): a client moves the sum by kappa_b / 2 either way.
        self._bits += self._bit_step * (2 * below_clip - numbers.size)

    def members(self, clients: int) -> NDArray[np.bool_]:
        """Return by number who of the first ``clients`` has been counted; a view."""
        self._members = with_room(self._members, clients)
        return self._members[:clients]

    def keep(self, are_kept: NDArray[np.bool_]) -> None:
        """Take the numbers that `ClientNumbers.keep` gives; nobody is forgotten who is counted."""
        self._members = with_room(self.members(are_kept.size)[are_kept], 1)

    @property
    def exact_sum(self) -> NDArray[np.int64]:
        """Return the sum, shape ``(plan.release_size,)``, in grid steps.

        The coordinates, the count and, where clipping is adaptive, the clip bits: each update
        adds at most 2^15 to a coordinate and below 2^31 to the others, so 2^32 updates fit.
        """
        total = np.zeros(self._size, np.int64)
        vector = self.vectors.total()
        total[: vector.size] = vector
        total[vector.size] = self._count
        if self._bit_step:
            total[-1] = self._bits
        return total
