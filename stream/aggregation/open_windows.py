"""The windows of a cluster that are being filled: who is in them, and the sums.

Updates are counted many at a time; what becomes of each of them is what would have become of it
alone, in the order of the log.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_

from schemas import MalformedMessageError, decode_update, decode_update_batch
from stream.budget.client_budgets import ClientBudgets, client_key
from stream.privacy.noise_kernel import Kernel
from stream.privacy.plan import PrivacyPlan

from .familiar import FamiliarGroup, FamiliarUpdates
from .validation import Reason, Rejection, check_update
from .vector_sum import VectorAdder
from .window import WindowSum

# How many updates are looked at together: enough for what it costs to look at all.
_TOGETHER = 512


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


class _Together:
    """Some updates of one window, in the order of the log, and what is known of them so far.

    Attributes:
        values: Their bytes.
        clients: By place, who sent them; only of those that may be counted.
        below_clip: The places of those that are below the clip norm, and perhaps of others.
        refused: By place, who sent it and why it does not count.
    """

    def __init__(self, values: Sequence[bytes]) -> None:
        self.values = values
        self.clients: dict[int, bytes] = {}
        self.below_clip: set[int] = set()
        self.refused: dict[int, tuple[str, Rejection]] = {}

    def unknown(self) -> list[int]:
        """Return the places of those of which nothing is known yet."""
        if len(self.clients) == len(self.values):
            return []
        return [place for place in range(len(self.values)) if place not in self.clients]

    def take(self, places: Sequence[int], group: FamiliarGroup) -> None:
        """Note who sent the updates of a group, which stand at ``places``."""
        self.clients.update(zip(places, group.clients, strict=True))
        if group.is_below_clip:
            self.below_clip.update(places)

    def refuse(self, place: int, client_id: str, rejection: Rejection) -> None:
        """Note why an update does not count."""
        self.clients.pop(place, None)
        self.refused[place] = client_id, rejection


class OpenWindows:
    """Counts updates into windows. One thread at a time.

    Attributes:
        sums: What is open, by window.
        clients: What each client has spent before the oldest window, where each has a budget.
    """

    def __init__(
        self, plan: PrivacyPlan, cluster: int, clients: ClientBudgets | None, kernel: Kernel
    ) -> None:
        """Begin with no window."""
        self.sums: dict[int, WindowSum] = {}
        self.clients = clients
        self._plan = plan
        self._cluster = cluster
        self._adder = VectorAdder(plan, kernel)
        self._familiar = FamiliarUpdates(plan, cluster)
        self._window = -1
        self._clip_norm = 0.0
        self._outcome = BatchOutcome()

    def begin(self, window: int, clip_norm: float, outcome: BatchOutcome) -> None:
        """Count what comes into ``window``, where clients clip to ``clip_norm``.

        ``outcome``: Where it is told what became of them.
        """
        self._window, self._clip_norm, self._outcome = window, clip_norm, outcome
        self._familiar.begin_window(window)

    def count(self, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        """Count updates, and each one of a batch, where the log has them at ``offsets``."""
        for begin in range(0, len(values), _TOGETHER):
            piece = slice(begin, begin + _TOGETHER)
            self._count_messages(offsets[piece], values[piece])

    def _count_messages(self, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        together = self._recognised(values)
        if not any(updates_of(values[place]) != [values[place]] for place in together.unknown()):
            self._settle(offsets, together)
            return
        flat = [
            (offset, update)
            for offset, value in zip(offsets, values, strict=True)
            for update in updates_of(value)
        ]
        for begin in range(0, len(flat), _TOGETHER):
            where, updates = zip(*flat[begin : begin + _TOGETHER], strict=True)
            self._settle(where, self._recognised(updates))

    def _recognised(self, values: Sequence[bytes]) -> _Together:
        together = _Together(values)
        for group in self._familiar.find(values):
            together.take(group.places, group)
        return together

    def _settle(self, offsets: Sequence[int], together: _Together) -> None:
        """Count what may be counted of some updates of the window, and say why others may not."""
        waiting = together.unknown()
        while waiting:
            if self._parse(together, waiting.pop()):
                # What it has taught may be all that the others need.
                for group in self._familiar.find([together.values[place] for place in waiting]):
                    together.take([waiting[place] for place in group.places], group)
                waiting = [place for place in waiting if place not in together.clients]
        total = self.sums.get(self._window) or WindowSum(self._plan, self._adder, -1)
        if self._adder.is_short:
            admitted = self._add_short(together, total)
        else:
            admitted = self._add_long(together, total)
        if admitted:
            if total.first_offset < 0:
                total.first_offset = offsets[min(admitted)]
            self.sums[self._window] = total
            self._outcome.accepted += len(admitted)
        self._outcome.rejected += [
            RejectedUpdate(offsets[place], self._window, *why)
            for place, why in sorted(together.refused.items())
        ]

    def _add_short(self, together: _Together, total: WindowSum) -> Collection[int]:
        places = list(together.clients)
        blocks = []
        for begin in range(0, len(places), self._adder.rows):
            block = places[begin : begin + self._adder.rows]
            measured = self._adder.measure([together.values[place] for place in block])
            blocks.append((block, measured))
            for place in compress(block, map(not_, measured.are_within)):
                self._refuse_vector(together, place)
        admitted = self._admit(together, total)
        are_all = len(admitted) == len(places)
        for block, measured in blocks:
            measured.add_to(
                total.vectors,
                None if are_all else [row for row, each in enumerate(block) if each in admitted],
            )
        return admitted

    def _add_long(self, together: _Together, total: WindowSum) -> Collection[int]:
        values = together.values
        for place in list(together.clients):
            if not self._adder.add_if_within(total.vectors, values[place]):
                self._refuse_vector(together, place)
        added = list(together.clients)
        admitted = self._admit(together, total)
        for place in added:
            if place not in admitted:
                self._adder.take_back(total.vectors, values[place])
        return admitted

    def _parse(self, together: _Together, place: int) -> bool:
        """Parse an update and check all of it; say whether others may be recognised now."""
        value = together.values[place]
        try:
            update = decode_update(value)
        except MalformedMessageError as error:
            together.refuse(place, "", Rejection(Reason.MALFORMED, str(error)))
            return False
        rejection = check_update(update, self._plan, self._cluster, self._window, self._clip_norm)
        if rejection is not None:
            together.refuse(place, update.client_id, rejection)
            return False
        together.clients[place] = update.client_id.encode()
        if update.is_below_clip:
            together.below_clip.add(place)
        return self._familiar.learn(value, is_below_clip=update.is_below_clip)

    def _refuse_vector(self, together: _Together, place: int) -> None:
        """Say what is wrong with a vector that was found to be out of bounds."""
        self._parse(together, place)
        if place not in together.refused:
            raise RuntimeError("a vector was measured in two ways, and they differ")

    def _admit(self, together: _Together, total: WindowSum) -> Collection[int]:
        """Count the clients whose updates are sound, once each; return their places."""
        clients = together.clients
        different = set(clients.values())
        if self.clients is None and len(different) == len(clients) and not total.has_any(different):
            total.count(different, len(together.below_clip & clients.keys()))
            return clients.keys()
        return {place for place in sorted(clients) if self._is_admitted(together, place, total)}

    def _is_admitted(self, together: _Together, place: int, total: WindowSum) -> bool:
        client = together.clients[place]
        client_id = client.decode()
        if total.has(client):
            why = Rejection(Reason.DUPLICATE, f"already counted in window {self._window}")
            together.refuse(place, client_id, why)
            return False
        if self.clients is not None:
            key = client_key(self._plan.plan_id, client_id)
            if not self._can_pay(self.clients, key):
                why = Rejection(Reason.CLIENT_EXHAUSTED, "the client's budget is spent")
                together.refuse(place, client_id, why)
                return False
            total.client_keys.add(key)
        total.count((client,), place in together.below_clip)
        return True

    def _can_pay(self, clients: ClientBudgets, key: int) -> bool:
        # Windows that are summed but not sealed are as good as paid: all of them are released.
        others = (total for window, total in self.sums.items() if window != self._window)
        owed = sum(key in total.client_keys for total in others)
        return clients.may_pay(key, (owed + 1) * self._plan.charge_units)
