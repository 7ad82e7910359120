"""What both models take Kafka for: logs, one transactional identity, and who owns a partition.

A *log* is a partition that only the holders of one transactional id write to. Its records are
committed, aborted or *open*: written in a transaction whose end has not reached the log.
``read_committed`` waits for open records; the rest of the log can be read as well, whatever
became of it.

What is left out, and why nothing is lost by it:

* Control markers, offsets, batches, retries: nobody's next step depends on them. Within the
  committed and within the aborted records, order is kept; nothing compares one with the other.
* The time between a transaction's decision by its coordinator and its markers: whoever asks
  meanwhile is made to wait (a reader at an open record, a fence by CONCURRENT_TRANSACTIONS), so
  the markers may as well come at once. The fault that they never come is modelled.
* How large epochs are: only their order matters. The coordinator knows the newest, so a fence
  shuts out every earlier writer there. A partition learns of an epoch by its records and markers
  only: one that a lost marker has left open still takes records of an epoch that the coordinator
  has fenced, if it has not heard of a newer one.
* Generation numbers of the consumer group, likewise: a *member* holds the newest one.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

FENCE_RECORD = "fence"
"""The record that `agents.transactions` writes to settle a partition; it must stay aborted."""

LOST_MARKER = "markers of it are lost"


class Log(NamedTuple):
    """A partition.

    Attributes:
        committed: Records that every reader sees, oldest first.
        aborted: Records that only a reader of everything sees, oldest first.
        open: Records that no marker has decided yet.
        epoch: The newest epoch that an open log has heard of; -1 for a log that is not open,
            whose leader asks the coordinator before it takes a record.
    """

    committed: tuple[Any, ...] = ()
    aborted: tuple[Any, ...] = ()
    open: tuple[Any, ...] = ()
    epoch: int = -1

    @property
    def all(self) -> tuple[Any, ...]:
        """Return every record, whatever became of its transaction."""
        undecided_or_aborted = self.aborted + self.open
        return self.committed + undecided_or_aborted if undecided_or_aborted else self.committed

    def takes(self, epoch: int, newest: int) -> bool:
        """Say whether a record of a writer of ``epoch`` is taken, ``newest`` being the newest."""
        return epoch == newest or epoch >= self.epoch >= 0

    def with_record(self, record: Hashable, epoch: int) -> "Log":
        """Return the log after a record in a transaction."""
        return self._replace(open=(*self.open, record), epoch=epoch)

    def decided(self, *, commit: bool) -> "Log":
        """Return the log after a marker, which decides every open record."""
        if commit:
            return Log(self.committed + self.open, self.aborted)
        kept = tuple(record for record in self.open if record != FENCE_RECORD)
        return Log(self.committed, self.aborted + kept)


Logs = tuple[Log, ...]


def replaced(logs: Logs, index: int, log: Log) -> Logs:
    """Return ``logs`` with one of them exchanged."""
    return (*logs[:index], log, *logs[index + 1 :])


def ended(
    logs: Logs, touched: frozenset[int], *, commit: bool, may_lose: Sequence[int]
) -> Iterator[tuple[Logs, bool]]:
    """Yield the logs after a transaction over ``touched`` has ended, and whether by a fault.

    The fault is that of a broker that is killed and comes back: the coordinator takes partitions
    without a leader for deleted, drops their markers and calls the transaction complete (the top
    of `agents.recovery`).

    Args:
        logs: The logs before.
        touched: Numbers of those that the transaction wrote to.
        commit: Whether it was committed.
        may_lose: Numbers of the logs that may lose their marker.
    """
    for lost in _subsets(touched.intersection(may_lose)):
        yield (
            tuple(
                log.decided(commit=commit) if number in touched and number not in lost else log
                for number, log in enumerate(logs)
            ),
            bool(lost),
        )


def settled(logs: Logs, numbers: Iterable[int], lost: Iterable[int], epoch: int) -> Logs:
    """Return the logs after an aborted record in each of ``numbers``.

    In those of ``lost`` the record arrived, and the marker that aborts it did not.
    """
    new = list(logs)
    for number in numbers:
        written = logs[number].with_record(FENCE_RECORD, epoch)
        new[number] = written if number in lost else written.decided(commit=False)
    return tuple(new)


def losses(numbers: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to lose markers of some of ``numbers``: none first."""
    return _subsets(numbers)


def _subsets(numbers: Iterable[int]) -> Iterator[tuple[int, ...]]:
    pool = sorted(numbers)
    for size in range(len(pool) + 1):
        yield from combinations(pool, size)
