"""What enters which window of a cluster, and when all of a window has been read.

Which window a record belongs to is decided by the broker's append time alone, so it is the same
on every replay and no client can move another one's update (PRIVACY notes 1.6). The memory is
bounded by a number of windows: after a long outage, records of windows beyond it are left alone,
and read again in a later pass when the windows before them are sealed.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import compress, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas import ClipState
from stream.budget.client_budgets import ClientBudgets
from stream.budget.limits import Forecast
from stream.clip_progress import clip_norm_of, first_unknown_window
from stream.privacy.noise_kernel import Kernel
from stream.privacy.plan import PrivacyPlan

from .open_windows import OpenWindows
from .outcome import BatchOutcome as BatchOutcome
from .outcome import RejectedUpdate as RejectedUpdate
from .outcome import updates_of
from .validation import Reason, Rejection


class Record(NamedTuple):
    """One record of the updates topic, as the broker gave it.

    A client's update has a value. A record without one is the mark of a head.
    """

    offset: int
    timestamp_ms: int
    value: bytes | None


# The same without its names, which cost more than all that is done for a short update.
PlainRecord = tuple[int, int, bytes | None]


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
        clip: ClipState | None = None,
        clients: ClientBudgets | None = None,
        forecast: Forecast | None = None,
        kernel: Kernel = "numpy",
    ) -> None:
        """Begin with ``next_window`` at offset ``position``, nothing counted yet.

        Args:
            plan: The plan.
            cluster: The cluster.
            next_window: The oldest window that is not sealed.
            position: The next offset to offer.
            max_open_windows: How many windows are summed at once.
            clip: The state of adaptive clipping before ``next_window``.
            clients: What each client has spent before ``next_window``, where each has a budget.
            forecast: Which windows from ``next_window`` on are released, where that is needed
                to know what clients will owe.
            kernel: What adds the vectors up.

        Raises:
            ValueError: ``max_open_windows`` is below 2.
        """
        if max_open_windows < 2:
            raise ValueError("max_open_windows must be at least 2: one is sealed, one is filled")
        self.position = position
        self.next_window = next_window
        self.is_draining = False
        self._plan = plan
        self._max_open_windows = max_open_windows
        self._clip = clip
        self._forecast = forecast
        self._open = OpenWindows(plan, cluster, clients, kernel)
        # Windows at or past the limit are left for a later pass over the same records.
        self._limit_window = self._first_window_to_leave()
        self._deferred_offset: int | None = None
        self._furthest = position
        # (newest window that was over, end of the log asked for after that), oldest first.
        self._ends: deque[tuple[int, int]] = deque()
        # The window that is being sealed, and what `resume_offset` was when that began.
        self._sealing: int | None = None
        self._resume_offset = position

    def offer(self, records: Sequence[PlainRecord]) -> BatchOutcome:
        """Take records in offset order; count each one that may be counted.

        Records below `position` have been taken already and are passed over.
        """
        outcome = BatchOutcome()
        if records and records[0][0] < self.position:
            records = [record for record in records if record[0] >= self.position]
        for window, offsets, values in self._by_window(records):
            if self._begin_window(window, outcome):
                self._open.count(offsets, values)
            else:
                for offset, value in zip(offsets, values, strict=True):
                    for _ in updates_of(value):
                        self._leave(offset, window, outcome)
        if records:
            self.position = records[-1][0] + 1
            self._furthest = max(self._furthest, self.position)
        return outcome

    def _by_window(
        self, records: Sequence[PlainRecord]
    ) -> Iterator[tuple[int, Sequence[int], Sequence[bytes]]]:
        """Yield offsets and values of consecutive records that belong to one window."""
        offsets, stamps, values = zip(*records, strict=True) if records else ((), (), ())
        begin = 0
        while begin < len(stamps):
            window = self._plan.window_of(stamps[begin])
            end_ms = self._plan.window_end_ms(window)
            begin_ms, end = end_ms - self._plan.window_length_ms, len(stamps)
            # Mostly all are of one window, and it takes two short looks to know that.
            if begin > 0 or not begin_ms <= min(stamps) <= max(stamps) < end_ms:
                rest = enumerate(islice(stamps, begin, None), begin)
                end = next((i for i, at_ms in rest if not begin_ms <= at_ms < end_ms), end)
            where, what = offsets[begin:end], values[begin:end]
            # Without a value it is a head's mark: it says how far the log goes, and no more.
            if not all(what):
                are_updates = [value is not None for value in what]
                where, what = (
                    tuple(compress(where, are_updates)),
                    tuple(compress(what, are_updates)),
                )
            if what:
                yield window, where, what
            begin = end

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
        """Note where the log ended at least, after every window up to ``window`` was over."""
        self._ends.append((window, end_offset))

    def is_ready(self) -> bool:
        """Say whether all that can belong to the next window has been read."""
        while self._ends and self._ends[0][0] < self.next_window:
            self._ends.popleft()
        return bool(self._ends) and self.position >= self._ends[0][1]

    def begin_seal(self) -> int:
        """Take nothing more into the next window; return where later windows have to read from.

        From here to `close_window` its sum stays what it is, and other windows may be filled
        while it is read in another thread.
        """
        if self._sealing != self.next_window:
            self._sealing, self._resume_offset = self.next_window, self.resume_offset()
        return self._resume_offset

    def exact_sum(self) -> NDArray[np.int64]:
        """Return the next window's sum, shape ``(plan.release_size,)``; sensitive."""
        total = self._open.sums.get(self.next_window)
        return np.zeros(self._plan.release_size, np.int64) if total is None else total.exact_sum

    def client_keys(self) -> NDArray[np.uint64]:
        """Return who is in the next window's sum, sorted, where clients have budgets; secret."""
        total = self._open.sums.get(self.next_window)
        keys = np.fromiter(total.client_keys if total else (), np.uint64)
        keys.sort()
        return keys

    def resume_offset(self) -> int:
        """Return the first offset that a window after the next one may still need."""
        needed = [w.first_offset for key, w in self._open.sums.items() if key != self.next_window]
        if self._deferred_offset is not None:
            needed.append(self._deferred_offset)
        return min(needed, default=self.position)

    def drain(self) -> None:
        """Count nothing from here on: the budget is spent, and no sum is kept."""
        self.is_draining = True
        self._open.sums.clear()
        self._deferred_offset = None

    def close_window(
        self,
        clip: ClipState | None = None,
        clients: ClientBudgets | None = None,
        forecast: Forecast | None = None,
    ) -> int | None:
        """Forget the next window and go on to the one after it, with the state before that one.

        Returns:
            The offset to read from again, where windows were left for another pass, else None.
        """
        self._open.sums.pop(self.next_window, None)
        self.next_window += 1
        self._clip, self._open.clients, self._forecast = clip, clients, forecast
        # Where clients have budgets, the order of counting decides which of a client's windows it
        # pays for. Whether another one's update was left must not change that order, so the limit
        # does not move before it is reached.
        may_move = self._deferred_offset is None and self._open.clients is None
        if self.next_window < self._limit_window and not may_move:
            return None
        self._limit_window = self._first_window_to_leave()
        rewind, self._deferred_offset = self._deferred_offset, None
        if rewind is not None:
            self.position = rewind
        return rewind

    def _first_open_window(self) -> int:
        return self.next_window + (self._sealing == self.next_window)

    def _first_window_to_leave(self) -> int:
        """Return the first window that does not fit in memory or whose scale is not known yet."""
        limit = self.next_window + self._max_open_windows
        if self._clip is None:
            return limit
        known = first_unknown_window(self._plan, self._clip, self.next_window - 1)
        return min(limit, known)

    def _begin_window(self, window: int, outcome: BatchOutcome) -> bool:
        """Say whether updates of a window are counted; if so, let them be."""
        is_open = (
            not self.is_draining
            and self._first_open_window() <= window < self._limit_window
            and self._is_released(window)
        )
        if is_open:
            self._open.begin(window, self._clip_norm(window), outcome)
        return is_open

    def _leave(self, offset: int, window: int, outcome: BatchOutcome) -> None:
        """Refuse an update of a window that is not open, or leave it for a later pass."""
        if self.is_draining:
            rejection = Rejection(Reason.EXHAUSTED, "the budget is spent")
        elif window < 0:
            rejection = Rejection(Reason.NOT_STARTED, "appended before the plan's start")
        elif window < self._first_open_window():
            rejection = Rejection(Reason.LATE, f"window {window} is sealed")
        elif window < self._limit_window:
            rejection = Rejection(Reason.THROTTLED, f"window {window} is held back by a limit")
        else:
            if self._deferred_offset is None:
                self._deferred_offset = offset
            return
        # What an earlier pass has dealt with is not refused a second time.
        if offset >= self._furthest:
            outcome.rejected.append(RejectedUpdate(offset, window, "", rejection))

    def _is_released(self, window: int) -> bool:
        return self._forecast is None or self._forecast.admits(window - self.next_window)

    def _clip_norm(self, window: int) -> float:
        if self._clip is None:
            return 0.0
        return clip_norm_of(self._plan, self._clip, self.next_window - 1, window) or 0.0
