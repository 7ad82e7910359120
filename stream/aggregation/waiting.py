"""The releases that are not in the model yet, and when to wait for them no longer.

A *cell* is ``(cluster, window)``. Each cluster's releases stand in the log in window order,
byte-identical repeats aside (a head's release is acknowledged before its next window commits),
so the newest merged window per cluster tells what is merged from what is new.

A window is ready when no cluster can bring more to it, or at its deadline: once the clock is past
it *and* the reader has come to a log end that was asked for afterwards. After a restart the clock
is past many deadlines, yet what arrived in time is read before anything is given up. What comes
for a window that is merged already is late, and goes with the next window.
"""

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

import numpy as np

from schemas import ClipNorm, Release
from stream.clip_progress import announced_clip_norms, is_in_scale
from stream.privacy.plan import PrivacyPlan

from .merge import NoisySum

# A waiting window is a vector in memory (where clipping adapts, one for each clip norm of its
# clusters): with more of them than this, the oldest is merged as it is rather than waited for.
# Cells that it lacks become late ones, so nothing is lost. Late cells that need so many vectors
# more than a window are not kept waiting either.
WAITING_WINDOW_LIMIT = 32
# No head releases a window before its end; its clock may disagree with the broker's.
CLOCK_SKEW_MS = 60_000


class ReleaseOutcome(StrEnum):
    """What became of an offered release; also the metric label. All but the first drop it."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    WRONG_PLAN = "wrong_plan"
    UNKNOWN_CLUSTER = "unknown_cluster"
    WRONG_DIMENSION = "wrong_dimension"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_SCALE = "wrong_scale"
    FUTURE = "future"


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Where a waiting release stands in the log, what it announces, and what else tells it."""

    offset: int
    sequence: int
    digest: bytes
    clip_norms: tuple[ClipNorm, ...]

    def repeats(self, other: "_Arrival") -> bool:
        """Say whether both are the same release, wherever they stand."""
        return replace(self, offset=other.offset) == other


class WaitingReleases:
    """Takes releases in log order; holds a sum per waiting window and a few bytes per cell."""

    def __init__(
        self,
        plan: PrivacyPlan,
        merged_through: tuple[int, ...],
        window: int,
        position: int,
        merge_deadline_ms: int,
    ) -> None:
        """Start with nothing waiting.

        Args:
            plan: The plan.
            merged_through: By cluster, the newest window merged, -1 for none.
            window: The newest window that is over for the model, -1 for none; not below those of
                ``merged_through``.
            position: The next offset of the log.
            merge_deadline_ms: How long a window waits for releases that are overdue.
        """
        self._plan = plan
        self._merged_through = merged_through
        self._window = window
        self._heard_through = list(merged_through)
        self._position = position
        self._merge_deadline_ms = merge_deadline_ms
        self._arrival_by_cell: dict[tuple[int, int], _Arrival] = {}
        # Late cells share the sum of the newest window that is over, which has no other use for it.
        self._sum_by_window: dict[int, NoisySum] = {}
        # The log's end as it was at a moment: all that was in time at that moment is before it.
        self._end_asked_ms = -1
        self._end_offset = 0

    @property
    def position(self) -> int:
        """Offset of the next record to be read."""
        return self._position

    @property
    def next_window(self) -> int | None:
        """The oldest window that waits; with late cells only, the one that they will go with."""
        if not self._sum_by_window:
            return None
        # Late cells alone go with a window that has none of its own by its deadline, and then is
        # over: each step ends a window, so versions never outrun windows, and an update that
        # names the newest one can be told from one that names a version that cannot exist.
        return min(
            (window for window in self._sum_by_window if window > self._window),
            default=self._window + 1,
        )

    def offer(self, offset: int, release: Release, appended_ms: int) -> ReleaseOutcome:
        """Take the release at ``offset``, appended at ``appended_ms``, if it fits and is new."""
        if offset < self._position:
            return ReleaseOutcome.DUPLICATE
        self._position = offset + 1
        return self._check(release, appended_ms) or self._take(offset, release)

    def advance(self, offset: int) -> None:
        """Note that the reader is at ``offset``, and that there was nothing to offer before."""
        self._position = max(self._position, offset)

    def due(self, now_ms: int) -> bool:
        """Return whether a window is past its deadline and needs the log's end to be asked."""
        window = self.next_window
        if window is None or self._is_complete(window):
            return False
        return self._end_asked_ms < self._deadline_ms(window) <= now_ms

    def expect(self, asked_ms: int, end_offset: int) -> None:
        """Note the log's end offset, which was asked for at ``asked_ms`` or later."""
        self._end_asked_ms, self._end_offset = asked_ms, end_offset

    def ready(self) -> int | None:
        """Return `next_window` if it should wait no longer, else None."""
        window = self.next_window
        if window is None:
            return None
        is_asked = self._deadline_ms(window) <= self._end_asked_ms
        is_over = is_asked and self._end_offset <= self._position
        return window if is_over or self._is_complete(window) or self._is_full() else None

    def cells_through(self, window: int) -> tuple[tuple[int, int], ...]:
        """Return the waiting cells of ``window`` and before it, sorted."""
        return tuple(sorted(cell for cell in self._arrival_by_cell if cell[1] <= window))

    def sum_through(self, window: int) -> NoisySum:
        """Return the sum over `cells_through`."""
        merged = NoisySum(self._plan.release_size)
        for key, waiting in self._sum_by_window.items():
            if key <= window:
                merged = merged.merged_with(waiting)
        return merged

    def merged_through_after(self, window: int) -> tuple[int, ...]:
        """Return the newest merged window per cluster, once ``window`` is merged."""
        merged_through = list(self._merged_through)
        for cluster, cell_window in self.cells_through(window):
            merged_through[cluster] = max(merged_through[cluster], cell_window)
        return tuple(merged_through)

    def clip_norms_after(
        self, window: int, clip_norms: tuple[ClipNorm, ...]
    ) -> tuple[ClipNorm, ...]:
        """Return ``clip_norms`` as they stand once ``window`` is merged.

        Of each cluster, the newest release that is merged tells all that is known: the norm of
        its epoch, and the next one.
        """
        # Sorted, so that the newest window of a cluster comes last.
        told = {
            cell[0]: self._arrival_by_cell[cell].clip_norms for cell in self.cells_through(window)
        }
        kept = [clip for clip in clip_norms if clip.cluster not in told]
        known = chain(kept, *told.values())
        return tuple(sorted(known, key=lambda clip: (clip.cluster, clip.from_window)))

    def next_offset_after(self, window: int) -> int:
        """Return where a restart must read on, once ``window`` is merged."""
        arrivals = self._arrival_by_cell.items()
        left = (arrival.offset for cell, arrival in arrivals if cell[1] > window)
        return min(left, default=self._position)

    def forget_through(self, window: int) -> None:
        """Note that ``window`` has been merged, and drop what went with it."""
        self._window = window
        self._merged_through = self.merged_through_after(window)
        for cell in self.cells_through(window):
            del self._arrival_by_cell[cell]
        for key in [key for key in self._sum_by_window if key <= window]:
            del self._sum_by_window[key]

    def _check(self, release: Release, appended_ms: int) -> ReleaseOutcome | None:
        plan = self._plan
        if release.plan_id != plan.plan_id:
            return ReleaseOutcome.WRONG_PLAN
        if not 0 <= release.cluster < plan.cluster_count:
            return ReleaseOutcome.UNKNOWN_CLUSTER
        if release.vector.shape != (plan.release_size,):
            return ReleaseOutcome.WRONG_DIMENSION
        if release.vector.dtype != np.dtype(plan.release_dtype).newbyteorder("<"):
            return ReleaseOutcome.WRONG_DTYPE
        if not is_in_scale(plan, release):
            return ReleaseOutcome.WRONG_SCALE
        if plan.window_end_ms(release.window) > appended_ms + CLOCK_SKEW_MS:
            return ReleaseOutcome.FUTURE
        return None

    def _take(self, offset: int, release: Release) -> ReleaseOutcome:
        cluster, window = cell = (release.cluster, release.window)
        if window <= self._merged_through[cluster]:
            return ReleaseOutcome.DUPLICATE
        arrival = _Arrival(
            offset,
            release.sequence,
            hashlib.sha256(release.vector.data).digest(),
            announced_clip_norms(self._plan, release),
        )
        if known := self._arrival_by_cell.get(cell):
            is_repeat = arrival.repeats(known)
            return ReleaseOutcome.DUPLICATE if is_repeat else ReleaseOutcome.CONFLICT
        self._arrival_by_cell[cell] = arrival
        self._heard_through[cluster] = max(self._heard_through[cluster], window)
        key = max(window, self._window)
        total = self._sum_by_window.setdefault(key, NoisySum(self._plan.release_size))
        total.add(release.vector, release.clip_norm)
        return ReleaseOutcome.ACCEPTED

    def _is_full(self) -> bool:
        most_norms = max(total.norm_count for total in self._sum_by_window.values())
        return (
            len(self._sum_by_window) > WAITING_WINDOW_LIMIT
            or most_norms > WAITING_WINDOW_LIMIT + self._plan.cluster_count
        )

    def _is_complete(self, window: int) -> bool:
        # Releases come in window order: a cluster heard of later has none for this window.
        return min(self._heard_through) >= window

    def _deadline_ms(self, window: int) -> int:
        return self._plan.release_due_ms(window) + self._merge_deadline_ms
