"""The windows of a cluster that are being filled: who is in them, and the sums.

Updates are counted many at a time; what becomes of each of them is what would have become of it
alone, in the order of the log.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from schemas import (
    LONGEST_HEAD,
    EqualUpdates,
    MalformedMessageError,
    decode_update,
    equal_updates,
)
from stream.budget.client_budgets import ClientBudgets
from stream.privacy.noise_kernel import Kernel
from stream.privacy.plan import PrivacyPlan

from .admission import Admission
from .client_numbers import ClientNumbers
from .familiar import FamiliarGroup, FamiliarUpdates
from .outcome import BatchOutcome, RejectedUpdate, updates_of
from .together import Together
from .update_blocks import UpdateBlock, blocks_of
from .validation import Reason, Rejection, check_update
from .vector_sum import VectorAdder
from .window import WindowSum

# How many updates are looked at together, and bytes of them: enough for what it costs to look at
# all, and few enough to stay in the processor's cache until they are added.
_TOGETHER = 512
_TOGETHER_BYTES = 1 << 19
_FEWEST = 16


class OpenWindows:
    """Counts updates into windows. One thread at a time.

    Attributes:
        sums: What is open, by window.
    """

    def __init__(
        self, plan: PrivacyPlan, cluster: int, clients: ClientBudgets | None, kernel: Kernel
    ) -> None:
        """Begin with no window."""
        self.sums: dict[int, WindowSum] = {}
        self._plan = plan
        self._cluster = cluster
        self._adder = VectorAdder(plan, kernel)
        self._numbers = ClientNumbers()
        self._admission = Admission(plan, self.sums, self._numbers, clients)
        self._familiar = FamiliarUpdates(plan, cluster, self._numbers)
        self._window = -1
        self._clip_norm = 0.0
        self._outcome = BatchOutcome()

    @property
    def clients(self) -> ClientBudgets | None:
        """What each client has spent before the oldest window, where each has a budget."""
        return self._admission.clients

    @clients.setter
    def clients(self, clients: ClientBudgets | None) -> None:
        self._admission.clients = clients

    def begin(self, window: int, clip_norm: float, outcome: BatchOutcome) -> None:
        """Count what comes into ``window``, where clients clip to ``clip_norm``.

        ``outcome``: Where it is told what became of them.
        """
        self._window, self._clip_norm, self._outcome = window, clip_norm, outcome
        self._familiar.begin_window(window)
        self._admission.forget_clients()

    def count(self, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        """Count updates, and each one of a batch, where the log has them at ``offsets``."""
        begin = 0
        while begin < len(values):
            # Long ones are not copied, so it does not matter how many bytes they are.
            is_short = self._adder.is_short
            end = begin + (_how_many(len(values[begin])) if is_short else _TOGETHER)
            self._count_messages(offsets[begin:end], values[begin:end])
            begin = end

    def _count_messages(self, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        equal = equal_updates(values) if self._adder.is_short else None
        if equal is not None:
            self._count_equal(offsets, equal)
            return
        together = self._looked_at(offsets, values)
        if together is None:
            return
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
            together = self._looked_at(where, updates)
            if together is not None:
                self._settle(where, together)

    def _count_equal(self, offsets: Sequence[int], equal: EqualUpdates) -> None:
        """Count the updates of batches, which need not be cut to be looked at."""
        where = list(chain.from_iterable(map(repeat, offsets, equal.counts)))
        skip = equal.rows.shape[1] - equal.length
        most = _how_many(equal.length)
        for begin in range(0, len(where), most):
            piece = slice(begin, begin + most)
            rows = equal.rows[piece]
            block = UpdateBlock(range(len(rows)), equal.length, rows, skip)
            groups = list(self._familiar.find(block))
            if not self._count_alike(where[piece], block, groups):
                together = Together(len(rows), [block], partial(_update_at, rows[:, skip:]))
                together.take_all(groups)
                self._settle(where[piece], together)

    def _looked_at(self, offsets: Sequence[int], values: Sequence[bytes]) -> Together | None:
        """Find out what needs no parser; None where all is counted already."""
        blocks = self._blocks_of(values)
        groups = [group for block in blocks for group in self._familiar.find(block)]
        if len(blocks) == 1 and self._count_alike(offsets, blocks[0], groups):
            return None
        together = Together(len(values), blocks, values.__getitem__)
        together.take_all(groups)
        return together

    def _blocks_of(self, values: Sequence[bytes]) -> list[UpdateBlock]:
        return blocks_of(values, None if self._adder.is_short else LONGEST_HEAD)

    def _count_alike(
        self, offsets: Sequence[int], block: UpdateBlock, groups: Sequence[FamiliarGroup]
    ) -> bool:
        """Count a block whose updates are all of one kind and all sound; say whether they were.

        It is what nearly all of them are, and then nothing has to be known of each by itself.
        """
        if len(groups) != 1 or self.clients is not None or not self._adder.is_short:
            return False
        numbers, count = groups[0].numbers, len(block.places)
        if numbers.size < count or count > self._adder.rows:
            return False
        total = self._sum_of_window()
        if not total.are_new(numbers):
            return False
        found = self._adder.measure(block.rows)
        if not found.are_within.all():
            return False
        found.add_to(total.vectors)
        total.count(numbers, count if groups[0].is_below_clip else 0)
        self._keep(total, offsets[0], count)
        return True

    def _sum_of_window(self) -> WindowSum:
        return self.sums.get(self._window) or WindowSum(self._plan, self._adder, -1)

    def _keep(self, total: WindowSum, first_offset: int, accepted: int) -> None:
        if total.first_offset < 0:
            total.first_offset = first_offset
        self.sums[self._window] = total
        self._outcome.accepted += accepted

    def _settle(self, offsets: Sequence[int], together: Together) -> None:
        """Count what may be counted of some updates of the window, and say why others may not."""
        waiting = together.unknown()
        while waiting:
            if self._parse(together, waiting.pop()):
                # What it has taught may be all that the others need.
                for block in self._blocks_of([together.value_of(place) for place in waiting]):
                    for group in self._familiar.find(block):
                        together.take([waiting[each] for each in group.places], group)
                waiting = [place for place in waiting if place not in together.clients]
        together.number_parsed(self._numbers)
        total = self._sum_of_window()
        if self._adder.is_short:
            admitted = self._add_short(together, total)
        else:
            admitted = self._add_long(together, total)
        if admitted:
            self._keep(total, offsets[min(admitted)], len(admitted))
        self._outcome.rejected += [
            RejectedUpdate(offsets[place], self._window, *why)
            for place, why in sorted(together.refused.items())
        ]

    def _add_short(self, together: Together, total: WindowSum) -> Collection[int]:
        measured = []
        for places, rows in self._sound_rows(together):
            found = self._adder.measure(rows)
            measured.append((places, found))
            for row in np.flatnonzero(~found.are_within).tolist():
                self._refuse_vector(together, places[row])
        admitted = self._admission.admit(together, total, self._window)
        are_all = len(admitted) == sum(len(places) for places, _ in measured)
        for places, found in measured:
            found.add_to(
                total.vectors,
                None if are_all else [row for row, each in enumerate(places) if each in admitted],
            )
        return admitted

    def _sound_rows(self, together: Together) -> Iterator[tuple[Sequence[int], NDArray[np.uint8]]]:
        """Yield the places and rows of updates whose headers are sound, as many as are measured."""
        for block in together.blocks:
            places, rows = block.places, block.rows
            if len(together.clients) < together.size:
                kept = [row for row, place in enumerate(places) if place in together.clients]
                places, rows = [places[row] for row in kept], rows[kept]
            for begin in range(0, len(places), self._adder.rows):
                piece = slice(begin, begin + self._adder.rows)
                yield places[piece], rows[piece]

    def _add_long(self, together: Together, total: WindowSum) -> Collection[int]:
        places = list(together.clients)
        updates = [together.value_of(place) for place in places]
        are_within = self._adder.add_if_within(total.vectors, updates)
        for place, is_within in zip(places, are_within, strict=True):
            if not is_within:
                self._refuse_vector(together, place)
        added = list(together.clients)
        admitted = self._admission.admit(together, total, self._window)
        for place in added:
            if place not in admitted:
                self._adder.take_back(total.vectors, together.value_of(place))
        return admitted

    def _parse(self, together: Together, place: int) -> bool:
        """Parse an update and check all of it; say whether others may be recognised now."""
        value = together.value_of(place)
        try:
            update = decode_update(value)
        except MalformedMessageError as error:
            together.refuse(place, "", Rejection(Reason.MALFORMED, str(error)))
            return False
        rejection = check_update(update, self._plan, self._cluster, self._window, self._clip_norm)
        if rejection is not None:
            together.refuse(place, update.client_id, rejection)
            return False
        client = update.client_id.encode()
        together.take_parsed(place, client, is_below_clip=update.is_below_clip)
        return self._familiar.learn(value, is_below_clip=update.is_below_clip)

    def _refuse_vector(self, together: Together, place: int) -> None:
        """Say what is wrong with a vector that was found to be out of bounds."""
        self._parse(together, place)
        if place not in together.refused:
            raise RuntimeError("a vector was measured in two ways, and they differ")


def _update_at(rows: NDArray[np.uint8], place: int) -> bytes:
    value: bytes = rows[place].tobytes()
    return value


def _how_many(length: int) -> int:
    """Return how many messages of so many bytes are looked at together."""
    return max(_FEWEST, min(_TOGETHER, _TOGETHER_BYTES // max(1, length)))
