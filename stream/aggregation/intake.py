"""What enters which window of a cluster, and when all of a window has been read.

Which window a record belongs to is decided by the broker's append time alone, so it is the same
on every replay and no client can move another one's update (PRIVACY notes 1.6). The memory is
bounded by a number of windows: after a long outage, records of windows beyond it are left alone,
and read again in a later pass when the windows before them are sealed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas import MalformedMessageError, Update, decode_update
from stream.privacy.plan import PrivacyPlan

from .validation import Reason, Rejection, check_update
from .window import WindowSum


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the updates topic, as the broker gave it."""

    offset: int
    timestamp_ms: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RejectedUpdate:
    """One record that did not count, and why; holds nothing of the gradient."""

    offset: int
    window: int
    client_id: str
    rejection: Rejection


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch: how many updates counted, and each one that did not."""

    accepted: int = 0
    rejected: list[RejectedUpdate] = field(default_factory=list)


class WindowIntake:
    """The open windows of one cluster, and how far its log has been read.

    Attributes:
        position: The next offset to offer.
        next_window: The oldest window that is not sealed.
        is_draining: Whether records are refused and counted only, the budget being spent.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        cluster: int,
        *,
        next_window: int,
        position: int,
        max_open_windows: int,
    ) -> None:
        """Begin with ``next_window`` at offset ``position``, nothing counted yet.

        Raises:
            ValueError: ``max_open_windows`` is below 2.
        """
        if max_open_windows < 2:
            raise ValueError("max_open_windows must be at least 2: one is sealed, one is filled")
        self.position = position
        self.next_window = next_window
        self.is_draining = False
        self._plan = plan
        self._cluster = cluster
        self._max_open_windows = max_open_windows
        self._open: dict[int, WindowSum] = {}
        # Windows at or past the limit are left for a later pass over the same records.
        self._limit_window = next_window + max_open_windows
        self._deferred_offset: int | None = None
        self._furthest = position
        # (newest window that was over, end of the log asked for after that), oldest first.
        self._ends: deque[tuple[int, int]] = deque()

    def offer(self, records: Sequence[Record]) -> BatchOutcome:
        """Take records in offset order; count each one that may be counted.

        Records below `position` have been taken already and are passed over.
        """
        outcome = BatchOutcome()
        for record in records:
            if record.offset >= self.position:
                self.position = record.offset + 1
                self._take(record, outcome)
        self._furthest = max(self._furthest, self.position)
        return outcome

    def advance(self, offset: int) -> None:
        """Note that the log holds nothing that was not offered below ``offset``."""
        self.position = max(self.position, offset)
        self._furthest = max(self._furthest, self.position)

    def needs_end_offset(self, now_ms: int) -> int | None:
        """Return the newest window that is over and whose end of log is unknown, or None."""
        over = self._plan.window_of(now_ms - self._plan.grace_ms) - 1
        known = self._ends[-1][0] if self._ends else self.next_window - 1
        return over if over > known else None

    def expect(self, window: int, end_offset: int) -> None:
        """Note the log's end, asked for after every window up to ``window`` was over."""
        self._ends.append((window, end_offset))

    def is_ready(self) -> bool:
        """Say whether all that can belong to the next window has been read."""
        while self._ends and self._ends[0][0] < self.next_window:
            self._ends.popleft()
        return bool(self._ends) and self.position >= self._ends[0][1]

    def exact_sum(self) -> NDArray[np.int64]:
        """Return the next window's sum, shape ``(dimension + 1,)``; sensitive."""
        total = self._open.get(self.next_window)
        return np.zeros(self._plan.dimension + 1, np.int64) if total is None else total.exact_sum

    def resume_offset(self) -> int:
        """Return the first offset that a window after the next one may still need."""
        needed = [w.first_offset for key, w in self._open.items() if key != self.next_window]
        if self._deferred_offset is not None:
            needed.append(self._deferred_offset)
        return min(needed, default=self.position)

    def drain(self) -> None:
        """Count nothing from here on: the budget is spent, and no sum is kept."""
        self.is_draining = True
        self._open.clear()
        self._deferred_offset = None

    def close_window(self) -> int | None:
        """Forget the next window and go on to the one after it.

        Returns:
            The offset to read from again, where windows were left for another pass, else None.
        """
        self._open.pop(self.next_window, None)
        self.next_window += 1
        if self._deferred_offset is None:
            self._limit_window = self.next_window + self._max_open_windows
            return None
        if self.next_window < self._limit_window:
            return None
        self.position, self._deferred_offset = self._deferred_offset, None
        self._limit_window = self.next_window + self._max_open_windows
        return self.position

    def _take(self, record: Record, outcome: BatchOutcome) -> None:
        window = self._plan.window_of(record.timestamp_ms)
        if self.is_draining:
            rejection = Rejection(Reason.EXHAUSTED, "the budget is spent")
        elif window < 0:
            rejection = Rejection(Reason.NOT_STARTED, "appended before the plan's start")
        elif window < self.next_window:
            rejection = Rejection(Reason.LATE, f"window {window} is sealed")
        elif window < self._limit_window:
            self._count(record, window, outcome)
            return
        else:
            if self._deferred_offset is None:
                self._deferred_offset = record.offset
            return
        # What an earlier pass has dealt with is not refused a second time.
        if record.offset >= self._furthest:
            outcome.rejected.append(RejectedUpdate(record.offset, window, "", rejection))

    def _count(self, record: Record, window: int, outcome: BatchOutcome) -> None:
        client_id = ""
        try:
            update = decode_update(record.value)
        except MalformedMessageError as error:
            rejection: Rejection | None = Rejection(Reason.MALFORMED, str(error))
        else:
            client_id = update.client_id
            rejection = check_update(update, self._plan, self._cluster, window)
            if rejection is None:
                rejection = self._add(update, window, record.offset)
        if rejection is None:
            outcome.accepted += 1
        else:
            outcome.rejected.append(RejectedUpdate(record.offset, window, client_id, rejection))

    def _add(self, update: Update, window: int, offset: int) -> Rejection | None:
        total = self._open.get(window)
        if total is None:
            total = self._open[window] = WindowSum(self._plan, offset)
        elif total.has(update.client_id):
            return Rejection(Reason.DUPLICATE, f"already counted in window {window}")
        total.add(update.client_id, update.vector)
        return None
