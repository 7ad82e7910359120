"""The participation topic: clients' budgets as records, and back from what compaction left.

Every window that a cluster seals, with a release or throttled, writes in its transaction one
delta (who took part, what each of them pays), and every `SNAPSHOT_INTERVAL`-th one also a
snapshot of what everybody has spent. Their keys repeat, so that the compacted topic is bounded:
a delta replaces the one of `SNAPSHOT_INTERVAL` windows ago, a snapshot the one before it, part by
part; clients are never forgotten, so it has at least as many parts. What is surely left when all
that the newest record of each key replaced is gone: the newest snapshot, the delta of its window,
and all deltas since. Any part of what is older may be there as well.

The ledger record names a digest of what its window wrote. It is a chain: a delta's digest covers
the one before it, up to the snapshot, whose digest covers its delta and its parts and begins
anew. So the newest ledger record alone vouches for each byte that a restart rebuilds from, the
snapshot too, and the digest needs nothing that compaction may have taken.
"""

from collections.abc import Iterable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from schemas import (
    DELTA_KEYS,
    MalformedMessageError,
    Participation,
    ParticipationKind,
    decode_participation,
    encode_participation,
    participation_key,
)

from .budget.client_budgets import ClientBudgets
from .errors import LedgerError

SNAPSHOT_INTERVAL = DELTA_KEYS
"""How many records apart snapshots are: with as many keys, no delta since one is replaced."""
PART_CLIENTS = 32_768
"""How many clients one snapshot record holds, at most: 512 KiB."""

_REMEDY = (
    "Nothing is released until this is solved: read the ledger and the participation topic once "
    "more, in case one grew in between; if it stays, restore both from the same backup (sdp "
    "ledger import), or start a new plan on new topics."
)


def records_for(
    plan_id: bytes,
    cluster: int,
    sequence: int,
    window: int,
    budgets_after: ClientBudgets,
    keys: NDArray[np.uint64],
    units: int,
) -> list[tuple[bytes, bytes]]:
    """Return the keys and values to write with the ledger record that seals a window.

    Args:
        plan_id: The plan.
        cluster: The cluster.
        sequence: The ledger record's number, at least 1.
        window: The window.
        budgets_after: The clients' budgets with the window's charge in them.
        keys: Who took part, sorted and unique; nobody where the window is throttled.
        units: What each of them pays.
    """
    delta = Participation(
        plan_id, cluster, sequence, window, ParticipationKind.DELTA, units, 0, 1, keys, None
    )
    written = [delta]
    if sequence % SNAPSHOT_INTERVAL == 0:
        clients, spent = budgets_after.snapshot()
        kind, parts = ParticipationKind.SNAPSHOT, max(1, -(-clients.size // PART_CLIENTS))
        for part in range(parts):
            cut = slice(part * PART_CLIENTS, (part + 1) * PART_CLIENTS)
            columns = clients[cut], spent[cut]
            written.append(
                Participation(plan_id, cluster, sequence, window, kind, 0, part, parts, *columns)
            )
    return [(participation_key(record), encode_participation(record)) for record in written]


def digest_of(previous_digest: bytes, values: Iterable[bytes]) -> bytes:
    """Return the ledger record's participation digest, 32 bytes.

    Args:
        previous_digest: That of the ledger record before; empty after genesis.
        values: What the window wrote: its delta, or its delta and its snapshot's parts in order.
    """
    return _chain(previous_digest, [sha256(value).digest() for value in values])


def rebuild(
    cap_units: int,
    records: Iterable[bytes],
    plan_id: bytes,
    cluster: int,
    up_to_sequence: int,
    digest: bytes,
) -> ClientBudgets:
    """Return the clients' budgets as they stood when a ledger record was written.

    Reads each record once, in memory of a few times the budgets.

    Args:
        cap_units: What each client may spend.
        records: The values of the cluster's committed participation records, in offset order,
            compacted or not.
        plan_id: The plan that they must belong to.
        cluster: The cluster that they must belong to.
        up_to_sequence: The number of the newest ledger record; 0 for genesis, which wrote none.
            A closing record (EXHAUSTED) wrote none either: then that of the one before it.
        digest: That ledger record's participation digest; empty for genesis.

    Raises:
        LedgerError: a record is malformed or foreign, does not add up, or is missing; or the
            topic goes on after ``up_to_sequence``: then the ledger has lost records, and to go
            on without the charges of their windows would forget what clients have spent.
    """
    replay = _Replay(cap_units, cluster)
    for data in records:
        record = _decode(data, plan_id, cluster)
        if record.sequence > up_to_sequence:
            raise _error(
                cluster,
                f"goes on to record {record.sequence}, and the ledger ends with {up_to_sequence}",
            )
        replay.take(record, sha256(data).digest())
    if replay.sequence != up_to_sequence:
        raise _error(cluster, f"has lost what record {replay.sequence + 1} or a later one wrote")
    if replay.digest != digest:
        raise _error(cluster, f"is not what ledger record {up_to_sequence} names the digest of")
    return replay.budgets


class _Replay:
    """The budgets up to a record, moved on by records in offset order.

    A delta that does not follow is passed over: it is older than what is known, or something in
    between was compacted away, and then only a snapshot can lead across the gap.
    """

    def __init__(self, cap_units: int, cluster: int) -> None:
        self.budgets = ClientBudgets(cap_units)
        self.sequence = 0
        self.digest = b""
        self._cluster = cluster
        # The newest delta of a snapshot's window, which counts once the snapshot is complete.
        self._delta: Participation | None = None
        self._hashes: list[bytes] = []
        self._parts: list[Participation] = []

    def take(self, record: Participation, value_hash: bytes) -> None:
        """Move on by ``record``, if it leads on from here."""
        if record.sequence <= self.sequence:
            return
        if record.kind is ParticipationKind.SNAPSHOT:
            self._take_part(record, value_hash)
        elif record.sequence % SNAPSHOT_INTERVAL == 0:
            self._delta, self._hashes, self._parts = record, [value_hash], []
        elif record.sequence == self.sequence + 1:
            self._move_to(record, self._charged(record), _chain(self.digest, [value_hash]))

    def _take_part(self, part: Participation, value_hash: bytes) -> None:
        delta = self._delta
        # A part of another window, or one after a gap, is what compaction left of a snapshot.
        is_next = part.part == len(self._parts)
        if delta is None or part.sequence != delta.sequence or not is_next:
            return
        self._parts.append(part)
        self._hashes.append(value_hash)
        if len(self._parts) == part.parts:
            self._adopt_snapshot(delta)

    def _adopt_snapshot(self, delta: Participation) -> None:
        keys = np.concatenate([part.clients for part in self._parts])
        spent = np.concatenate([part.spent for part in self._parts if part.spent is not None])
        try:
            budgets = ClientBudgets.from_snapshot(self.budgets.cap_units, keys, spent)
        except LedgerError as error:
            raise self._disagrees(delta, str(error)) from error
        if delta.sequence == self.sequence + 1:
            counted = self._charged(delta).snapshot()
            if not all(map(np.array_equal, counted, budgets.snapshot())):
                raise self._disagrees(delta, "its snapshot is not the sum of the charges")
        self._move_to(delta, budgets, _chain(b"", self._hashes))
        self._delta, self._hashes, self._parts = None, [], []

    def _charged(self, delta: Participation) -> ClientBudgets:
        try:
            return self.budgets.after(delta.clients, delta.charge_units)
        except LedgerError as error:
            raise self._disagrees(delta, str(error)) from error

    def _move_to(self, delta: Participation, budgets: ClientBudgets, digest: bytes) -> None:
        self.sequence, self.budgets, self.digest = delta.sequence, budgets, digest

    def _disagrees(self, delta: Participation, fact: str) -> LedgerError:
        return _error(self._cluster, f"does not add up at record {delta.sequence}: {fact}")


def _chain(previous_digest: bytes, value_hashes: list[bytes]) -> bytes:
    begins_anew = len(value_hashes) > 1
    return sha256(b"".join([b"" if begins_anew else previous_digest, *value_hashes])).digest()


def _decode(data: bytes, plan_id: bytes, cluster: int) -> Participation:
    try:
        record = decode_participation(data)
    except MalformedMessageError as error:
        raise _error(cluster, f"holds a record that cannot be read: {error}") from error
    if (record.plan_id, record.cluster) != (plan_id, cluster):
        raise _error(
            cluster,
            f"holds a record of cluster {record.cluster} under plan {record.plan_id.hex()}",
        )
    return record


def _error(cluster: int, fact: str) -> LedgerError:
    return LedgerError(f"the participation topic of cluster {cluster} {fact}. {_REMEDY}")
