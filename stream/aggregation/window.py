"""One window of one cluster while it is open: the exact sum and who is in it."""

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan

from .vector_sum import VectorAdder


class WindowSum:
    """The exact integer sum of a window, with the weighted count after its coordinates.

    All of it is sensitive: it is never logged, exported or stored.

    Attributes:
        first_offset: Offset of the first record of the window, where a replay must begin.
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

    def count(self, client_id: bytes, *, is_below_clip: bool) -> None:
        """Count a client, whose vector is in the sum."""
        self._client_ids.add(client_id)
        self._count += self._count_weight
        # kappa_b (b - 1/2): a client moves the sum by kappa_b / 2 either way.
        self._bits += self._bit_step if is_below_clip else -self._bit_step

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
