"""Which updates belong in a window's sum, worked out once more for the auditor.

This is on purpose not the head's code (`stream.aggregation`): an auditor that shared it would
share its mistakes. It is written to be plain, not to be fast.
"""

from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from schemas import Update
from stream.privacy.plan import PrivacyPlan


def refusal(
    plan: PrivacyPlan, cluster: int, window: int, clip_norm: float, update: Update
) -> str | None:
    """Return why an update may not be counted, whoever else is, or None.

    Args:
        plan: The plan.
        cluster: Where the update lies.
        window: The window of its append time.
        clip_norm: What the ledger says of the window; 0 where clipping is not adaptive.
        update: The update.
    """
    vector = update.vector
    header_rules = (
        (update.plan_id == plan.plan_id, "wrong_plan"),
        (vector.dtype.name == plan.update_dtype, "wrong_dtype"),
        (vector.size == plan.coordinate_count, "wrong_dimension"),
        (plan.cluster_of(update.client_id) is not None, "unknown_cluster"),
        (plan.cluster_of(update.client_id) == cluster, "foreign_cluster"),
        (update.model_version <= window, "future_model"),
        (update.clip_norm == clip_norm, "wrong_scale"),
    )
    for is_kept, reason in header_rules:
        if not is_kept:
            return reason
    # In 64 bits no coordinate's square wraps, nor do 2^31 of them.
    wide = vector.astype(np.int64)
    if int(wide.min()) < -plan.coordinate_limit:
        return "forbidden_value"
    return None if int(np.dot(wide, wide)) <= plan.grid_l2_bound**2 else "norm_too_large"


class WindowTotal:
    """The sum of one window's updates so far, and of those that were reported late.

    All of it is secret. 8 bytes a coordinate, twice that where an update was reported late.

    Attributes:
        counted: How many updates are in `exact_sum`.
        late: How many more were reported late.
        keys: Whose updates are counted, where each client has a budget.
    """

    def __init__(self, plan: PrivacyPlan) -> None:
        """Begin with nobody."""
        self._plan = plan
        self._sum: NDArray[np.int64] | None = None
        self._late_sum: NDArray[np.int64] | None = None
        self._clients: set[str] = set()
        self.counted = 0
        self.late = 0
        self.keys: set[int] = set()

    def has(self, client_id: str) -> bool:
        """Say whether the client's first update is here."""
        return client_id in self._clients

    def add(self, update: Update, *, is_late: bool) -> None:
        """Take a client's first valid update of the window."""
        self._clients.add(update.client_id)
        if is_late:
            self.late += 1
            self._late_sum = self._added(self._late_sum, update)
        else:
            self.counted += 1
            self._sum = self._added(self._sum, update)

    def candidates(self) -> list[NDArray[np.int64]]:
        """Return what the sum may be: without the updates that were reported late, or with them.

        A head that starts again reads a part of the log twice, and reports an update of a window
        that was sealed before as late, also where that window's sum has it.
        """
        total = np.zeros(self._plan.release_size, np.int64) if self._sum is None else self._sum
        return [total] if self._late_sum is None else [total, total + self._late_sum]

    def absent(self, keys: AbstractSet[int]) -> int:
        """Return how many of ``keys`` are counted nowhere here."""
        return len(keys - self.keys)

    def _added(self, total: NDArray[np.int64] | None, update: Update) -> NDArray[np.int64]:
        plan, size = self._plan, self._plan.coordinate_count
        if total is None:
            total = np.zeros(plan.release_size, np.int64)
        total[:size] += update.vector
        total[size] += plan.count_weight
        if plan.clipping is not None:
            half = plan.clipping.bit_weight // 2
            total[size + 1] += half if update.is_below_clip else -half
        return total
