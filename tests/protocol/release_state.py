"""What a state of the release protocol consists of, and the rules of the protocol by name.

One cluster. Its clients' updates are all in their log and all windows are over from the start:
which window an update belongs to is decided by the broker's clock, and a head must have read to
the mark that it wrote after a window was over, so the moment at which it reads changes nothing.
A window's first update may stand before the last one of the window before (`UPDATES`), so that
reading on from where a window's updates begin meets updates of windows that are sealed.

Each window costs one unit. A noise draw is a number; a fresh one occurs nowhere else.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka_model import Log, Logs
from writer_steps import DOWN, WriterRules

from agents.protocol_steps import Step

LEDGER, OUTBOX, OFFSETS, PARTICIPATION = range(4)
GENESIS, RELEASE, CLOSING = "genesis", "release", "closing"
# The second transaction of a head that commits charge and release one after the other.
SECOND = "second transaction"

# Who sent an update, and in which window it was appended; the index is its offset.
UPDATES = (("a", 0), ("b", 1), ("b", 0), ("a", 0), ("a", 2), ("a", 1), ("b", 3), ("b", 2))


class Release(NamedTuple):
    """The bytes of a release: whoever sees two of one window that differ learns of the noise."""

    window: int
    sequence: int
    spent: int
    draw: int
    updates: tuple[int, ...]


class Record(NamedTuple):
    """A ledger record.

    Attributes:
        kind: What it is.
        sequence: Its number.
        window: The newest sealed window.
        spent: What has been spent, this charge included.
        next_offset: Where to read on.
        release: What it paid for (its digest).
        previous: The draw of the record before, -1 for none (its hash).
    """

    kind: str
    sequence: int
    window: int
    spent: int
    next_offset: int
    release: Release | None = None
    previous: int = -1

    @property
    def draw(self) -> int:
        """Return what tells this record from others of its place."""
        return -1 if self.release is None else self.release.draw

    def follows(self, before: "Record") -> bool:
        """Say whether the chain can go on with this record after ``before``."""
        return (
            self.sequence == before.sequence + 1
            and self.window == before.window + 1
            and self.previous == before.draw
            and before.kind != CLOSING
        )


class Head(NamedTuple):
    """A process, and what it remembers; see `writer_steps`.

    Attributes:
        newest: The ledger record that it goes on from.
        unpublished: What it is to publish before it goes on.
        sealed: Ledger records that count once the running transaction has committed.
    """

    at: str = DOWN
    epoch: int = -1
    is_member: bool = False
    newest: Record | None = None
    unpublished: Release | None = None
    sealed: tuple[Record, ...] = ()
    batch: tuple[tuple[int, Any], ...] = ()
    then: str = ""

    @property
    def offset(self) -> tuple[int, int] | None:
        """Return the offset to commit, with the note that names the ledger record."""
        if self.then not in (Step.PUBLISH, Step.CHARGE, SECOND):
            return None  # what is restored, and a ledger's first record, answer for no input
        return self.sealed[-1].next_offset, self.sealed[-1].sequence

    def moved_on(self) -> "Head":
        """Return the head after its transaction has committed."""
        newest = self.sealed[-1] if self.sealed else self.newest
        if self.then == SECOND and newest is not None:
            second = ((OUTBOX, newest.release),)
            return self._replace(at=Step.BEGIN_TRANSACTION, batch=second, then=Step.PUBLISH)
        unpublished = self.unpublished
        if self.then == Step.PUBLISH and newest is not None:
            unpublished = newest.release
        done = self._replace(newest=newest, unpublished=unpublished, at=self.then)
        return done._replace(sealed=(), batch=(), then="")

    def as_before(self) -> "Head":
        """Return a head that takes its transaction for failed, and seals once more."""
        return self._replace(at=Step.CHARGE, sealed=(), batch=(), then="")

    def doomed(self) -> "Head":
        """Return the head, none of whose records will be taken any more."""
        return self._replace(sealed=(), batch=(), then="")


class State(NamedTuple):
    """Everything; see `writer_steps` for the rest.

    Attributes:
        logs: The private partitions: ledger, outbox, the group's offsets, participation.
        public: The releases on the public topic, each once.
        late: Releases in requests that may still arrive, whatever became of their sender.
        decided: Releases whose transaction was committed, in this order (nobody can see it).
        is_rolled_back: Whether the ledger was replaced by an older copy.
    """

    logs: Logs
    epoch: int = 0
    transaction: frozenset[int] | None = None
    public: tuple[Release, ...] = ()
    late: tuple[Release, ...] = ()
    processes: tuple[Head, ...] = (Head(), Head())
    decided: tuple[Release, ...] = ()
    is_rolled_back: bool = False

    def decided_by(self, who: int) -> "State":
        """Return the state once the transaction of a head is committed."""
        releases = (each.release for each in self.processes[who].sealed)
        new = (each for each in releases if each is not None and each not in self.decided)
        return self._replace(decided=(*self.decided, *new))


@dataclass(frozen=True, slots=True)
class Rules(WriterRules):
    """The protocol, rule by rule; a rule that is False is broken on purpose.

    Attributes:
        reads_committed: An opening reads committed records only.
        waits_for_undecided: It waits where a record is not decided yet.
        restores: Records of committed transactions that a broker lost are written again.
        restores_whole_only: And only if all that the transaction wrote is there.
        restores_when_decided: And not before every private log is decided, or what is open
            there would be committed with them.
        restores_first_record: The ledger's first record, too.
        restores_each_window: What clients paid, for each window that lacks it.
        compares_with_public: A ledger that is older than what is public is refused.
        compares_with_outbox: A ledger that is older than the outbox is refused.
        compares_with_offsets: A ledger that is older than the note on the group's offset, too.
        refuses_when_current: A head that another one has fenced refuses nothing for good.
        republishes: An opening publishes the newest release again.
        republishes_bytes: And does so with the bytes of the outbox, not with fresh noise.
        resumes_from_ledger: Reading goes on at the ledger's offset, not at the group's.
        skips_sealed_windows: Updates of sealed windows do not count.
        reads_to_the_end: A window is sealed when the log was read to its end.
        stops_at_cap: What the budget does not pay for is not released.
        draws_each_time: No noise is used a second time.
        one_transaction: Charge and release are committed together.
        writes_to_private_only: Transactions write to private topics only.
        publishes_after_commit: A release is published when its charge has committed.
        waits_for_public: The next window is sealed when the release before is public.
        keeps_charges: A charge is not given back when publishing fails.
    """

    reads_committed: bool = True
    waits_for_undecided: bool = True
    restores: bool = True
    restores_whole_only: bool = True
    restores_when_decided: bool = True
    restores_first_record: bool = True
    restores_each_window: bool = True
    compares_with_public: bool = True
    compares_with_outbox: bool = True
    compares_with_offsets: bool = True
    refuses_when_current: bool = True
    republishes: bool = True
    republishes_bytes: bool = True
    resumes_from_ledger: bool = True
    skips_sealed_windows: bool = True
    reads_to_the_end: bool = True
    stops_at_cap: bool = True
    draws_each_time: bool = True
    one_transaction: bool = True
    writes_to_private_only: bool = True
    publishes_after_commit: bool = True
    waits_for_public: bool = True
    keeps_charges: bool = True


@dataclass(frozen=True, slots=True)
class Setup:
    """How much there is to do, by which rules, and what may happen.

    Attributes:
        windows: Windows to seal.
        cap: Windows that the budget pays for.
        clients_pay: Whether each client has a budget: participation records are written too.
        may_roll_back: Whether the ledger may be replaced by an older copy of it.
        losable: The logs that may lose the marker of a transaction.
        rules: The protocol.
    """

    windows: int
    cap: int
    clients_pay: bool = False
    may_roll_back: bool = True
    losable: tuple[int, ...] = (LEDGER, OUTBOX)
    rules: Rules = Rules()

    offsets = OFFSETS
    first_read = Step.READ_STATE

    @property
    def private(self) -> tuple[int, ...]:
        """Return the logs that heads write to in transactions, apart from offsets."""
        return (LEDGER, OUTBOX, PARTICIPATION) if self.clients_pay else (LEDGER, OUTBOX)

    def begin(self) -> State:
        """Return the state before the first head starts."""
        return State(logs=(Log(),) * (4 if self.clients_pay else 3))
