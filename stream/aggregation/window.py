"""One window of one cluster while it is open: the exact sum and who is in it."""

import numpy as np
from numpy.typing import NDArray

from schemas import Update
from stream.privacy.plan import PrivacyPlan


class WindowSum:
    """The exact integer sum of a window, with the weighted count after its coordinates.

    All of it is sensitive: it is never logged, exported or stored.

    Attributes:
        first_offset: Offset of the first record of the window, where a replay must begin.
        exact_sum: Shape ``(plan.release_size,)``, in grid steps: the coordinates, the count and,
            where clipping is adaptive, the clip bits. int64: each update adds at most 2^15 to a
            coordinate and below 2^31 to the others, so 2^32 updates fit.
        client_keys: Who is in the sum, under the numbers of the clients' budgets; empty where
            clients have none.
    """

    __slots__ = (
        "_bit_step",
        "_client_ids",
        "_count_weight",
        "_size",
        "client_keys",
        "exact_sum",
        "first_offset",
    )

    def __init__(self, plan: PrivacyPlan, first_offset: int) -> None:
        """Open a window whose first record is at ``first_offset``."""
        self.first_offset = first_offset
        self.exact_sum: NDArray[np.int64] = np.zeros(plan.release_size, np.int64)
        self.client_keys: set[int] = set()
        self._size = plan.coordinate_count
        self._count_weight = plan.count_weight
        self._bit_step = 0 if plan.clipping is None else plan.clipping.bit_weight // 2
        self._client_ids: set[str] = set()

    def has(self, client_id: str) -> bool:
        """Say whether ``client_id`` has been counted already."""
        return client_id in self._client_ids

    def add(self, update: Update) -> None:
        """Count a client's checked update."""
        self._client_ids.add(update.client_id)
        total = self.exact_sum
        body = total[: self._size]
        np.add(body, update.vector, out=body)
        total[self._size] += self._count_weight
        if self._bit_step:
            # kappa_b (b - 1/2): a client moves the sum by kappa_b / 2 either way.
            total[-1] += self._bit_step if update.is_below_clip else -self._bit_step
