"""One window of one cluster while it is open: the exact sum and who is in it."""

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan


class WindowSum:
    """The exact integer sum of a window, with the weighted count as its last coordinate.

    All of it is sensitive: it is never logged, exported or stored.

    Attributes:
        first_offset: Offset of the first record of the window, where a replay must begin.
        exact_sum: Shape ``(dimension + 1,)``, in grid steps. int64: each update adds at most
            2^15 to a coordinate and the count weight below 2^31 to the last one, so 2^32
            updates fit.
    """

    __slots__ = ("_client_ids", "_count_weight", "exact_sum", "first_offset")

    def __init__(self, plan: PrivacyPlan, first_offset: int) -> None:
        """Open a window whose first record is at ``first_offset``."""
        self.first_offset = first_offset
        self.exact_sum: NDArray[np.int64] = np.zeros(plan.dimension + 1, np.int64)
        self._count_weight = plan.count_weight
        self._client_ids: set[str] = set()

    def has(self, client_id: str) -> bool:
        """Say whether ``client_id`` has been counted already."""
        return client_id in self._client_ids

    def add(self, client_id: str, vector: NDArray[np.integer]) -> None:
        """Count a client's checked vector, shape ``(dimension,)``, in grid steps."""
        self._client_ids.add(client_id)
        body = self.exact_sum[:-1]
        np.add(body, vector, out=body)
        self.exact_sum[-1] += self._count_weight
