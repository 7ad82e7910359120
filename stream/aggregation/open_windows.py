"""The windows of a cluster that are being filled: who is in them, and the sums.

Updates whose headers are familiar are counted many at a time, all others one by one; what becomes
of each of them is the same either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas import MalformedMessageError, decode_update, decode_update_batch
from stream.budget.client_budgets import ClientBudgets, client_key
from stream.privacy.plan import PrivacyPlan

from .familiar import FamiliarUpdate, FamiliarUpdates
from .validation import Reason, Rejection, check_update
from .vector_sum import VectorAdder
from .window import WindowSum


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


def updates_of(value: bytes) -> Sequence[bytes]:
    """Return each update of a message; of a malformed batch itself, to be refused as an update."""
    try:
        return decode_update_batch(value)
    except MalformedMessageError:
        return (value,)


class OpenWindows:
    """Counts updates into windows. One thread at a time.

    Attributes:
        sums: What is open, by window.
        clients: What each client has spent before the oldest window, where each has a budget.
    """

    def __init__(self, plan: PrivacyPlan, cluster: int, clients: ClientBudgets | None) -> None:
        """Begin with no window."""
        self.sums: dict[int, WindowSum] = {}
        self.clients = clients
        self._plan = plan
        self._cluster = cluster
        self._adder = VectorAdder(plan)
        self._familiar = FamiliarUpdates(plan, cluster)
        self._window = -1
        self._clip_norm = 0.0
        self._outcome = BatchOutcome()
        self._together: list[FamiliarUpdate] = []

    def begin(self, window: int, clip_norm: float, outcome: BatchOutcome) -> None:
        """Count what comes into ``window``, where clients clip to ``clip_norm``.

        ``outcome``: Where it is told what became of them.
        """
        self._window, self._clip_norm, self._outcome = window, clip_norm, outcome
        self._familiar.begin_window(window)

    def count(self, offset: int, value: bytes) -> None:
        """Count an update, or each one of a batch, perhaps not before `finish`."""
        update = self._familiar.find(offset, value)
        if update is not None:
            self._wait(update)
            return
        # A batch begins with another byte than an update, and so is never familiar.
        for each in updates_of(value):
            update = None if each is value else self._familiar.find(offset, each)
            if update is not None:
                self._wait(update)
            else:
                # In order: what is counted first makes the other a duplicate.
                self.finish()
                self._count_parsed(offset, each)

    def _wait(self, update: FamiliarUpdate) -> None:
        self._together.append(update)
        if len(self._together) == self._adder.rows:
            self.finish()

    def finish(self) -> None:
        """Count what has waited for others."""
        updates = self._together
        if updates and self._adder.is_short:
            self._count_short(updates)
        else:
            for update in updates:
                self._count_long(update)
        updates.clear()

    def _count_short(self, updates: list[FamiliarUpdate]) -> None:
        rows, are_within = self._adder.measure([each.value[each.start :] for each in updates])
        counted = []
        for row, (update, is_within) in enumerate(zip(updates, are_within, strict=True)):
            if not is_within:
                self._count_parsed(update.offset, update.value)
            elif self._is_admitted(update):
                counted.append(row)
        if counted:
            is_all = len(counted) == len(rows)
            self.sums[self._window].vectors.add_rows(rows if is_all else rows[counted])

    def _count_long(self, update: FamiliarUpdate) -> None:
        total = self.sums.get(self._window)
        is_added = total is not None and self._adder.add_if_within(
            total.vectors, update.value, update.start
        )
        if total is None or not is_added:
            self._count_parsed(update.offset, update.value)
        elif not self._is_admitted(update):
            self._adder.take_back(total.vectors, update.value, update.start)

    def _is_admitted(self, update: FamiliarUpdate) -> bool:
        rejection = self._admit(update.client, update.offset, is_below_clip=update.is_below_clip)
        if rejection is not None:
            self._reject(update.offset, update.client.decode(), rejection)
        return rejection is None

    def _count_parsed(self, offset: int, value: bytes) -> None:
        """Parse an update and check all of it; add it, or say what is wrong."""
        try:
            update = decode_update(value)
        except MalformedMessageError as error:
            self._reject(offset, "", Rejection(Reason.MALFORMED, str(error)))
            return
        rejection = check_update(update, self._plan, self._cluster, self._window, self._clip_norm)
        if rejection is None:
            self._familiar.learn(value, is_below_clip=update.is_below_clip)
            client = update.client_id.encode()
            rejection = self._admit(client, offset, is_below_clip=update.is_below_clip)
        if rejection is None:
            self.sums[self._window].vectors.add(update.vector)
        else:
            self._reject(offset, update.client_id, rejection)

    def _admit(self, client: bytes, offset: int, *, is_below_clip: bool) -> Rejection | None:
        """Count a client whose update is sound, or say why it may not be in the window."""
        total = self.sums.get(self._window)
        if total is None:
            total = self.sums[self._window] = WindowSum(self._plan, self._adder, offset)
        elif total.has(client):
            return Rejection(Reason.DUPLICATE, f"already counted in window {self._window}")
        if self.clients is not None:
            key = client_key(self._plan.plan_id, client.decode())
            if not self._can_pay(self.clients, key):
                return Rejection(Reason.CLIENT_EXHAUSTED, "the client's budget is spent")
            total.client_keys.add(key)
        total.count(client, is_below_clip=is_below_clip)
        self._outcome.accepted += 1
        return None

    def _can_pay(self, clients: ClientBudgets, key: int) -> bool:
        # Windows that are summed but not sealed are as good as paid: all of them are released.
        others = (total for window, total in self.sums.items() if window != self._window)
        owed = sum(key in total.client_keys for total in others)
        return clients.may_pay(key, (owed + 1) * self._plan.charge_units)

    def _reject(self, offset: int, client_id: str, rejection: Rejection) -> None:
        self._outcome.rejected.append(RejectedUpdate(offset, self._window, client_id, rejection))
