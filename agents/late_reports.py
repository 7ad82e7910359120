"""Which updates the heads have reported late, and whether all such reports are still there."""

from collections import Counter

from schemas import MalformedMessageError, decode_reject_record
from stream.privacy.plan import PrivacyPlan

_LATE = "late"


class LateReports:
    """The reports of one cluster, from the topic of rejects. A number a report."""

    def __init__(
        self, plan: PrivacyPlan, cluster: int, *, most_per_window: int, is_whole: bool = True
    ) -> None:
        """Begin with none.

        Args:
            plan: The plan; reports of others are passed over.
            cluster: The cluster; likewise.
            most_per_window: After how many reports in a window a head writes no more.
            is_whole: Whether the broker still has every report that was ever written.
        """
        self._plan_id = plan.plan_id
        self._cluster = cluster
        self._most_per_window = most_per_window
        self._offsets: set[int] = set()
        self._by_window: Counter[int] = Counter()
        # Reports written since then are there; None where no report was ever deleted.
        self._kept_since_ms: float | None = None if is_whole else float("inf")

    def take(self, data: bytes | None, written_ms: int) -> None:
        """Take the next record of the topic."""
        if self._kept_since_ms is not None:
            self._kept_since_ms = min(self._kept_since_ms, written_ms)
        try:
            report = decode_reject_record(data)
        except MalformedMessageError:
            return
        is_ours = (report.plan_id, report.cluster) == (self._plan_id, self._cluster)
        if is_ours and report.reason == _LATE:
            self._offsets.add(report.offset)
            self._by_window[report.window] += 1

    def names(self, offset: int) -> bool:
        """Say whether the update at an offset was reported late."""
        return offset in self._offsets

    def may_lack(self, window: int, appended_ms: int) -> bool:
        """Say whether an update may have been reported and there is no report of it any more.

        A flood of late updates is reported in part, and reports are kept for hours only.
        """
        is_deleted = self._kept_since_ms is not None and appended_ms < self._kept_since_ms
        # What is late for one window counts with what is late for its neighbours.
        near = sum(self._by_window[window + shift] for shift in range(-2, 3))
        return is_deleted or near >= self._most_per_window
