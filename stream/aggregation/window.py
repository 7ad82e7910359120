"""One window of one cluster while it is open: the exact sum and who is in it."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan

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
        "_client_ids",
        "_count",
        "_count_weight",
        "_size",
        "client_keys",
        "first_offset",
        "vectors",
    )

    def __init__(self, plan: PrivacyPlan, adder: VectorAdder, first_offset: int) -> None:
        """Open a window whose first record is at ``first_offset``."""
        self.first_offset = first_offset
        self.vectors = adder.new_sum()
        self._client_ids: set[bytes] = set()
        self.client_keys: set[int] = set()
        self._size = plan.release_size
        self._count_weight = plan.count_weight
        self._bit_step = 0 if plan.clipping is None else plan.clipping.bit_weight // 2
        self._bits = self._count = 0

    def has(self, client_id: bytes) -> bool:
        """Say whether a client has been counted already; in the bytes that updates have."""
        return client_id in self._client_ids

    def has_any(self, client_ids: set[bytes]) -> bool:
        """Say whether any of the clients has been counted already."""
        return not self._client_ids.isdisjoint(client_ids)

    def count(self, client_ids: Collection[bytes], below_clip: int) -> None:
        """Count clients, whose vectors are in the sum, and so many of them below the clip norm."""
        self._client_ids.update(client_ids)
        self._count += self._count_weight * len(client_ids)
        # kappa_b (b - 1/2): a client moves the sum by kappa_b / 2 either way.
        self._bits += self._bit_step * (2 * below_clip - len(client_ids))

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
