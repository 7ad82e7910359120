"""What a state of the global agent's protocol consists of, and the rules by name.

The releases are all on their topic from the start, one of them twice; how far an agent has read
when it makes a step is left open, which stands for every deadline and every late release. What
the optimizer computes is left out: a version is the cells that it was made of, in their order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka_model import FENCE_RECORD, Log, Logs
from writer_steps import DOWN, WriterRules

from agents.protocol_steps import Step

MODEL, STATE, OFFSETS = range(3)
# The second transaction of an agent that commits model and state one after the other.
SECOND = "second transaction"

Cell = tuple[str, int]
# By offset: cluster and window.
RELEASES: tuple[Cell, ...] = (("a", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 0), ("b", 1))


class Version(NamedTuple):
    """A version of the model, and of the state that is written with it.

    Attributes:
        number: Its number.
        window: The newest window that is over for it.
        cells: All that is merged in it, oldest first.
        next_offset: Where to read on.
    """

    number: int
    window: int
    cells: tuple[Cell, ...]
    next_offset: int

    def merged_through(self, cluster: str) -> int:
        """Return the newest merged window of a cluster."""
        return max((window for name, window in self.cells if name == cluster), default=-1)


FIRST = Version(0, -1, (), 0)


class Agent(NamedTuple):
    """A process, and what it remembers; see `writer_steps`.

    Attributes:
        version: The version that it goes on from.
        stepped: The one that its running transaction makes.
    """

    at: str = DOWN
    epoch: int = -1
    is_member: bool = False
    version: Version | None = None
    stepped: Version | None = None
    batch: tuple[tuple[int, Any], ...] = ()
    then: str = ""

    @property
    def offset(self) -> int | None:
        """Return the offset to commit: only a step answers for releases."""
        if self.stepped is None or self.then not in (Step.MERGE, SECOND):
            return None
        return self.stepped.next_offset

    def moved_on(self) -> "Agent":
        """Return the agent after its transaction has committed."""
        version = self.stepped or self.version
        if self.then == SECOND:
            second = ((STATE, version),)
            return self._replace(at=Step.BEGIN_TRANSACTION, batch=second, then=Step.MERGE)
        return self._replace(at=self.then, version=version, stepped=None, batch=(), then="")

    def as_before(self) -> "Agent":
        """Return an agent that takes its transaction for failed, and merges once more."""
        return self._replace(at=Step.MERGE, stepped=None, batch=(), then="")

    def doomed(self) -> "Agent":
        """Return the agent, none of whose records will be taken any more."""
        return self._replace(stepped=None, batch=(), then="")


class MergeState(NamedTuple):
    """Everything; see `writer_steps`. The logs: models, states, the group's offsets."""

    logs: Logs = (Log(),) * 3
    epoch: int = 0
    transaction: frozenset[int] | None = None
    processes: tuple[Agent, ...] = (Agent(), Agent())

    def decided_by(self, who: int) -> "MergeState":
        """Return the state itself: that a transaction was committed is remembered nowhere."""
        return self


@dataclass(frozen=True, slots=True)
class MergeRules(WriterRules):
    """The protocol, rule by rule; a rule that is False is broken on purpose.

    Attributes:
        one_transaction: Model and state are committed together.
        restores: What a broker lost of a version that is public or durable is written again.
        restores_each_version: Each version that clients have missed, not only the newest.
        begins_again: A model that nobody saw is begun again, whatever the group's offset says,
            if the log of states shows that it is the one that was read.
        drops_merged: A release that is in the model already is dropped.
        reads_on_from_state: Reading goes on at the state's offset, not at the group's.
    """

    one_transaction: bool = True
    restores: bool = True
    restores_each_version: bool = True
    begins_again: bool = True
    drops_merged: bool = True
    reads_on_from_state: bool = True


@dataclass(frozen=True, slots=True)
class MergeSetup:
    """How much there is to do, by which rules.

    Attributes:
        releases: How many of `RELEASES` there are.
        losable: The logs that may lose the marker of a transaction.
        rules: The protocol.
    """

    releases: int
    losable: tuple[int, ...] = (MODEL, STATE, OFFSETS)
    rules: MergeRules = MergeRules()

    private = (MODEL, STATE)
    offsets = OFFSETS
    first_read = Step.RESTORE


def next_versions(version: Version, setup: MergeSetup) -> Iterator[Version]:
    """Yield the versions that may follow: `stream.aggregation.waiting`, at any deadline."""
    waiting: dict[Cell, int] = {}
    for offset in range(version.next_offset, setup.releases):
        cell = RELEASES[offset]
        is_new = cell[1] > version.merged_through(cell[0])
        if cell not in waiting and (is_new or not setup.rules.drops_merged):
            waiting[cell] = offset
        if waiting:
            yield _merged(version, waiting, offset + 1)


def _merged(version: Version, waiting: dict[Cell, int], position: int) -> Version:
    """Return the version with the oldest waiting window in it, and with all that is late."""
    open_windows = (window for _, window in waiting if window > version.window)
    due = min(open_windows, default=version.window + 1)
    merged = sorted(each for each in waiting if each[1] <= due)
    left = (offset for (_, window), offset in waiting.items() if window > due)
    cells = (*version.cells, *merged)
    return Version(version.number + 1, due, cells, min(left, default=position))


def versions(records: tuple[Any, ...]) -> list[Version]:
    """Return the records that are versions; the others are those of fences."""
    return [each for each in records if each != FENCE_RECORD]


def newest(log: Log) -> int:
    """Return the newest committed version of a log, -1 for none."""
    return max((each.number for each in versions(log.committed)), default=-1)
