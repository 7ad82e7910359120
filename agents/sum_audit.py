"""Recomputes the sums of one cluster's windows from its raw updates, and compares them.

Pure: updates are offered in the order of the log, and the released vectors are asked for, window
by window in their order. The sums of a few windows are kept at a time, and a few numbers of each
window that was compared.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from schemas import (
    LedgerKind,
    MalformedMessageError,
    Release,
    Update,
    decode_update,
    decode_update_batch,
)
from stream.budget.client_budgets import client_key
from stream.privacy.plan import PrivacyPlan

from .counted_updates import WindowTotal, refusal
from .late_reports import LateReports
from .participants import ParticipationReader
from .sealed_windows import SealedWindow, SealedWindows, SealingPoints
from .sum_comparison import Checked, OpenWindow, compare_exactly, compare_nearly

# Append times of one partition ascend, but for a broker's clock that is set back.
_WINDOWS_APART = 2

DELETED = "its updates, or some of them, are deleted by now"
UNREAD = "it was sealed when its updates were past their retention: the heads were down for long"
NOT_PUBLIC = "its release is not public yet, or is not what the ledger names"
OUT_OF_ORDER = "updates of it stand far behind later ones: the broker's clock was set back"
NOT_ON_RECORD = "who took part in it, or had spent what before, is not on record any more"

_OTHER_KINDS = {LedgerKind.THROTTLED: "throttled", LedgerKind.EXHAUSTED: "exhausted"}


@dataclass(slots=True)
class UpdateCounts:
    """What became of the updates that were read; ``read`` is the sum of the others. Secret.

    Attributes:
        read: How many were read.
        counted: How many are in a sum that was compared.
        refused: How many must not be in any, by reason.
        excused: How many are in no sum although they were in time by the broker's clock, since
            the head had sealed their window by its own, and has reported them late.
        waiting: How many belong to windows that are not sealed, or were not read by a head yet.
        unchecked: How many belong to windows that could not be checked.
    """

    read: int = 0
    counted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    excused: int = 0
    waiting: int = 0
    unchecked: int = 0


class SumAudit:
    """One cluster's sums in progress.

    Attributes:
        checked: What was compared, by window.
        unchecked: Why a released window could not be, by window.
        counts: What became of the updates.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        cluster: int,
        sealed: SealedWindows,
        *,
        begin_offset: int,
        retention_ms: int,
        late: LateReports,
        release_of: Callable[[SealedWindow], Release | None],
        participation: ParticipationReader | None = None,
        is_noise_free: bool = False,
    ) -> None:
        """Begin before the first update.

        Args:
            plan: The plan.
            cluster: The cluster.
            sealed: What its ledger says.
            begin_offset: The first offset of its updates that the broker still has.
            retention_ms: How long the broker keeps an update at least.
            late: Which updates heads have reported late.
            release_of: Returns the release of a window, None if it is not to be had; asked in
                the order of the windows.
            participation: Who took part, where each client has a budget of its own.
            is_noise_free: Whether releases must be exact sums. For tests.
        """
        self.checked: dict[int, Checked] = {}
        self.unchecked: dict[int, str] = {}
        self.counts = UpdateCounts()
        self._plan = plan
        self._cluster = cluster
        self._sealed = sealed
        self._points = SealingPoints(sealed)
        self._retention_ms = retention_ms
        self._late = late
        self._release_of = release_of
        self._participation = participation
        self._is_noise_free = is_noise_free
        self._released = sealed.released()
        self._begun = self._compared = 0
        self._open: dict[int, OpenWindow] = {}
        # Updates that are in no sum, were in time, and of which no head has said anything.
        self._unreported: Counter[int] = Counter()
        self.note_deleted(begin_offset)

    def note_deleted(self, begin_offset: int) -> None:
        """Note that the broker has deleted what lies below an offset."""
        for sealed in self._released:
            if sealed.begin_offset < begin_offset:
                over_ms = sealed.sealed_at_ms - self._plan.window_end_ms(sealed.window)
                self._give_up(sealed.window, UNREAD if over_ms > self._retention_ms else DELETED)

    def offer(self, offset: int, timestamp_ms: int, value: bytes | None) -> None:
        """Take the next record of the log."""
        window = self._plan.window_of(timestamp_ms)
        self._points.read(offset, window)
        if value is None:
            return  # a head's mark
        try:
            updates = decode_update_batch(value)
        except MalformedMessageError:
            updates = [value]  # one that is refused
        for update in updates:
            self._offer_update(offset, timestamp_ms, window, update)

    def _offer_update(self, offset: int, timestamp_ms: int, window: int, value: bytes) -> None:
        self.counts.read += 1
        outside = self._outside(window)
        if outside == "waiting":
            self.counts.waiting += 1
        elif outside:
            self.counts.refused[outside] += 1
        elif window in self.unchecked:
            self.counts.unchecked += 1
        else:
            self._judge(self._sealed.by_window[window], offset, timestamp_ms, value)

    def finish(self) -> None:
        """Compare what is left, the log having been read to its end."""
        if self._released:
            self._compare_through(self._released[-1].window)
        for window in self.unchecked:
            if (checked := self.checked.pop(window, None)) is not None:
                self.counts.unchecked += checked.counted + checked.excused
        for window, checked in self.checked.items():
            self.counts.counted += checked.counted
            self.counts.excused += checked.excused
            if count := self._unreported[window]:
                fault = (
                    f"{count} valid updates came in time by the broker's clock, are not counted, "
                    "and no head has reported them late"
                )
                self.checked[window] = replace(checked, faults=(*checked.faults, fault))

    def _outside(self, window: int) -> str:
        """Return what becomes of an update whatever it holds, empty for its window's sum."""
        genesis, newest = self._sealed.genesis, self._sealed.newest
        if genesis is None or newest is None or window > newest.window:
            return "exhausted" if self._sealed.is_closed else "waiting"
        if window < 0:
            return "not_started"
        if window <= genesis.window:
            return "late"
        sealed = self._sealed.by_window.get(window)
        # A ledger with a gap is found fault with elsewhere.
        return "waiting" if sealed is None else _OTHER_KINDS.get(sealed.kind, "")

    def _judge(
        self, sealed: SealedWindow, offset: int, timestamp_ms: int, value: bytes | None
    ) -> None:
        """Take an update of a released window."""
        try:
            update = decode_update(value)
        except MalformedMessageError:
            self.counts.refused["malformed"] += 1
            return
        window = sealed.window
        reason = refusal(self._plan, self._cluster, window, sealed.clip_norm, update)
        opened = self._open.get(window)
        if reason is None and opened is not None and opened.total.has(update.client_id):
            reason = "duplicate"
        if reason is not None:
            self.counts.refused[reason] += 1
        elif self._points.was_sealed(window):
            self._take_late(window, offset, timestamp_ms)
        elif window in self.checked:
            self._take_stray(window, offset)
        else:
            self._count(sealed, offset, update)

    def _count(self, sealed: SealedWindow, offset: int, update: Update) -> None:
        """Take a client's first valid update of a window that is not compared yet."""
        if sealed.window not in self._open:
            self._compare_through(sealed.window - _WINDOWS_APART)
            self._begin_through(sealed.window)
        opened = self._open.get(sealed.window)
        if opened is None:
            self.counts.unchecked += 1
            return
        is_late = self._late.names(offset)
        if opened.participants is None:
            opened.total.add(update, is_late=is_late)
            return
        key = client_key(self._plan.plan_id, update.client_id)
        if key in opened.participants.keys:
            opened.total.keys.add(key)
            opened.total.add(update, is_late=False)
        elif is_late:
            self.counts.excused += 1
        else:
            opened.leave_out(key, self._plan.cap_units)
            self.counts.refused["client_exhausted"] += 1

    def _take_late(self, window: int, offset: int, timestamp_ms: int) -> None:
        """Take a valid update that the head read after it had sealed the window."""
        newest = self._sealed.newest
        if self._late.names(offset) or self._late.may_lack(window, timestamp_ms):
            self.counts.excused += 1
        elif newest is not None and offset >= newest.next_offset:
            self.counts.waiting += 1  # as far as the ledger says, it was not read yet
        else:
            self.counts.unchecked += 1
            self._unreported[window] += 1

    def _take_stray(self, window: int, offset: int) -> None:
        """Take a valid update of a window that has been compared already."""
        if self._late.names(offset) and not self.checked[window].faults:
            self.counts.excused += 1
        else:
            self.counts.unchecked += 1
            self._give_up(window, OUT_OF_ORDER)

    def _begin_through(self, window: int) -> None:
        """Begin the sums of all windows up to one; who took part is read in their order."""
        while self._begun < len(self._released):
            sealed = self._released[self._begun]
            if sealed.window > window:
                return
            self._begun += 1
            participants = None
            if self._participation is not None:
                participants = self._participation.of(sealed.sequence)
                if participants is None:
                    self._give_up(sealed.window, NOT_ON_RECORD)
            if sealed.window not in self.unchecked:
                opened = OpenWindow(sealed, WindowTotal(self._plan), participants)
                self._open[sealed.window] = opened

    def _compare_through(self, window: int) -> None:
        """Compare all windows up to one."""
        while self._compared < len(self._released):
            sealed = self._released[self._compared]
            if sealed.window > window:
                return
            self._compared += 1
            self._begin_through(sealed.window)
            opened = self._open.pop(sealed.window, None)
            if opened is not None:
                self._compare(opened)

    def _compare(self, opened: OpenWindow) -> None:
        sealed, total = opened.sealed, opened.total
        release = None if opened.is_unknown else self._release_of(sealed)
        if release is None or release.vector.size != self._plan.release_size:
            self._give_up(sealed.window, NOT_ON_RECORD if opened.is_unknown else NOT_PUBLIC)
            self.counts.unchecked += total.counted + total.late
            return
        if self._is_noise_free:
            checked = compare_exactly(self._plan, total, release)
        else:
            checked = compare_nearly(total, release, sealed)
        faults = (*checked.faults, *opened.participation_faults(self._plan.cap_units))
        self.checked[sealed.window] = replace(checked, faults=faults)

    def _give_up(self, window: int, reason: str) -> None:
        self.unchecked.setdefault(window, reason)
