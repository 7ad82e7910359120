"""Who took part in each window, from the participation topic, read forward once.

Only where each client has a budget of its own. The topic is compacted: of windows before the
newest snapshot anything may be missing, and is then said to be unknown.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas import MalformedMessageError, Participation, ParticipationKind, decode_participation


class Totals:
    """What clients have spent, unchanging; 16 bytes each. Secret."""

    __slots__ = ("_keys", "_spent")

    def __init__(self, keys: NDArray[np.uint64], spent: NDArray[np.uint64]) -> None:
        """Take sorted, unique keys and what each has spent."""
        self._keys = keys
        self._spent = spent

    def of(self, key: int) -> int:
        """Return what a client has spent."""
        view = self._keys.data
        index = bisect_left(view, key)
        is_there = index < len(view) and view[index] == key
        return int(self._spent[index]) if is_there else 0

    def after(self, keys: NDArray[np.uint64], units: int) -> "Totals":
        """Return the totals after each of ``keys`` has paid ``units``."""
        owed = np.full(keys.size, units, np.uint64)
        merged, place = np.unique(np.concatenate((self._keys, keys)), return_inverse=True)
        spent = np.zeros(merged.size, np.uint64)
        np.add.at(spent, place, np.concatenate((self._spent, owed)))
        return Totals(merged, spent)


@dataclass(frozen=True, slots=True)
class Participants:
    """Who took part in a window.

    Attributes:
        keys: Their numbers.
        before: What everybody had spent before the window; None where that is not on record.
    """

    keys: frozenset[int]
    before: Totals | None


class ParticipationReader:
    """Walks through a cluster's participation records as its windows are asked for."""

    def __init__(self, plan_id: bytes, cluster: int, values: Iterable[bytes]) -> None:
        """Begin before the first window.

        Args:
            plan_id: The plan; records of others are passed over.
            cluster: The cluster; likewise.
            values: The topic's records of the cluster, in order.
        """
        self._plan_id = plan_id
        self._cluster = cluster
        self._records = self._ours(values)
        self._next = next(self._records, None)
        nobody = np.empty(0, np.uint64)
        self._totals: Totals | None = Totals(nobody, nobody)
        self._known_through = 0
        self._parts: list[Participation] = []

    def of(self, sequence: int) -> Participants | None:
        """Return who took part in a ledger record's window, None if that is not on record.

        Args:
            sequence: The record's number, above all that were asked for before.
        """
        found = None
        while self._next is not None and self._next.sequence <= sequence:
            record, self._next = self._next, next(self._records, None)
            if record.kind is ParticipationKind.SNAPSHOT:
                self._take_part(record)
                continue
            before = self._totals if self._known_through == record.sequence - 1 else None
            if record.sequence == sequence:
                found = Participants(frozenset(record.clients.tolist()), before)
            if before is not None:
                self._totals = before.after(record.clients, record.charge_units)
                self._known_through = record.sequence
        return found

    def _take_part(self, record: Participation) -> None:
        if record.part == 0:
            self._parts = []
        is_next = record.part == len(self._parts)
        if not is_next or any(part.sequence != record.sequence for part in self._parts):
            return
        self._parts.append(record)
        if len(self._parts) == record.parts:
            keys = np.concatenate([part.clients for part in self._parts])
            spent = np.concatenate([part.spent for part in self._parts if part.spent is not None])
            self._totals, self._known_through = Totals(keys, spent), record.sequence
            self._parts = []

    def _ours(self, values: Iterable[bytes]) -> Iterator[Participation]:
        for data in values:
            try:
                record = decode_participation(data)
            except MalformedMessageError:
                continue  # the audit of the budgets says so
            if (record.plan_id, record.cluster) == (self._plan_id, self._cluster):
                yield record
