"""The global agent as a model: releases in, versions of the model out, each merged once.

Two agents, the same Kafka and the same faults as in `release_model`. The releases are all on
their topic from the start, one of them twice; how far an agent has read when it makes a step is
left open, which stands for every deadline and every late release. What the optimizer computes is
left out: a version is the cells that it was made of, in their order. The agent's steps are those
of `agents.model_opener` and `agents.global_model`, its transactions those of `writer_steps`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from checker import Label
from kafka_model import FENCE_RECORD, Log, Logs
from writer_steps import (
    DOWN,
    REFUSED,
    WRITING,
    Ways,
    WriterRules,
    arrive,
    begin_transaction,
    commit,
    committed,
    faults,
    fence,
    gives_up,
    goes_to,
    group,
    is_current,
    produce,
    refuses,
    send_offsets,
    settle,
    with_process,
    with_small_epochs,
    without_doomed,
)

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
        cells: All that is merged in it, oldest first.
        next_offset: Where to read on.
    """

    number: int
    cells: tuple[Cell, ...]
    next_offset: int

    def merged_through(self, cluster: str) -> int:
        """Return the newest merged window of a cluster."""
        return max((window for name, window in self.cells if name == cluster), default=-1)


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
        is_step = self.then in (Step.MERGE, SECOND) and self.stepped is not None
        return self.stepped.next_offset if is_step and self.stepped else None

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
        """Return the state: who has been told of a commit is remembered nowhere."""
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


def restore(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Bring models and states to the same version: `agents.recovery.restore_model`."""
    model, states = state.logs[MODEL], state.logs[STATE]
    if model.open or states.open:
        yield gives_up(state, who, Step.RESTORE, "waits in vain")
        return
    public, durable = (_newest(log) for log in (model, states))
    missing: list[tuple[int, Version]] = []
    if setup.rules.restores and public < durable:
        first = public + 1 if setup.rules.restores_each_version else durable
        missing = [(MODEL, each) for each in _found(model, range(first, durable + 1))]
    elif setup.rules.restores and durable < public:
        missing = [(STATE, each) for each in _found(states, [public])]
        if not missing and durable >= 0:
            yield refuses(state, who, Step.RESTORE, when_current=True)
            return
    if not missing:
        yield Label(who, Step.RESTORE, "nothing is lost"), goes_to(state, who, Step.READ_STATE)
        return
    writes = {"batch": tuple(missing), "then": Step.READ_STATE}
    again = goes_to(state, who, Step.BEGIN_TRANSACTION, **writes)
    yield Label(who, Step.RESTORE, "writes again"), again


def read_state(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Read the newest state; without one, make sure that there never was any."""
    model, states, offsets = state.logs
    if model.open or states.open:
        yield gives_up(state, who, Step.READ_STATE, "waits in vain")
    elif states.committed:
        yield from _go_on_from(state, who, states.committed[-1])
    elif model.committed or (offsets.committed and not (setup.rules.begins_again and states.all)):
        yield refuses(state, who, Step.READ_STATE, when_current=True)
    else:
        yield Label(who, Step.READ_STATE), goes_to(state, who, Step.GENESIS)


def _go_on_from(state: MergeState, who: int, version: Version) -> Ways:
    """Take a version over; publish it once more where its topic has lost it."""
    after = goes_to(state, who, Step.CONSUME, version=version)
    if _newest(state.logs[MODEL]) < version.number:
        writes = {"batch": ((MODEL, version),), "then": Step.CONSUME}
        after = goes_to(after, who, Step.BEGIN_TRANSACTION, **writes)
    yield Label(who, Step.READ_STATE), after


def begin_model(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Make version 0."""
    yield from _make(state, who, setup, Step.GENESIS, Version(0, (), 0), Step.CONSUME)


def consume(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Go on reading where the state says."""
    version, offsets = state.processes[who].version, state.logs[OFFSETS].committed
    if version and offsets and not setup.rules.reads_on_from_state:
        version = version._replace(next_offset=offsets[-1])
    yield Label(who, Step.CONSUME), goes_to(state, who, Step.MERGE, version=version)


def merge(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Read on as far as you like, and merge what is due."""
    version = state.processes[who].version
    assert version is not None
    steps = dict.fromkeys(next_versions(version, setup))
    for step in steps:
        yield from _make(state, who, setup, Step.MERGE, step, Step.MERGE)
    if not steps and not is_current(state, who):
        # Releases go on after those of the model: the next step's transaction would fail.
        yield gives_up(state, who, Step.MERGE, "fenced, as the next release will show")


def _is_due(agent: Agent, setup: MergeSetup) -> bool:
    return agent.version is not None and any(next_versions(agent.version, setup))


def _make(
    state: MergeState, who: int, setup: MergeSetup, step: Step, version: Version, then: str
) -> Ways:
    batch = ((MODEL, version), (STATE, version))
    agent = state.processes[who]._replace(stepped=version, batch=batch, then=then)
    if step == Step.MERGE and not setup.rules.one_transaction:
        agent = agent._replace(batch=batch[:1], then=SECOND)
    after = with_process(state, who, agent._replace(at=Step.BEGIN_TRANSACTION))
    yield Label(who, step), after


def next_versions(version: Version, setup: MergeSetup) -> Iterator[Version]:
    """Yield the versions that may follow: `stream.aggregation.waiting`, at any deadline."""
    waiting: dict[Cell, int] = {}
    newest = max((window for _, window in version.cells), default=-1)
    for offset in range(version.next_offset, setup.releases):
        cell = RELEASES[offset]
        is_new = cell[1] > version.merged_through(cell[0])
        if cell not in waiting and (is_new or not setup.rules.drops_merged):
            waiting[cell] = offset
        if not waiting:
            continue
        windows = (max(window, newest) for _, window in waiting)
        due = min((window for window in windows if window > newest), default=newest + 1)
        merged = sorted(each for each in waiting if each[1] <= due)
        left = (at for (_, window), at in waiting.items() if window > due)
        next_offset = min(left, default=offset + 1)
        yield Version(version.number + 1, (*version.cells, *merged), next_offset)


def _newest(log: Log) -> int:
    return max((each.number for each in log.committed if each != FENCE_RECORD), default=-1)


def _found(log: Log, numbers: Any) -> list[Version]:
    """Return the newest record of each number, whatever became of its transaction."""
    by_number = {each.number: each for each in log.all if each != FENCE_RECORD}
    return [by_number[number] for number in numbers if number in by_number]


STEPS: Mapping[str, Callable[[MergeState, int, MergeSetup], Ways]] = {
    Step.FENCE: fence,
    Step.SETTLE: settle,
    Step.RESTORE: restore,
    Step.READ_STATE: read_state,
    Step.GENESIS: begin_model,
    Step.CONSUME: consume,
    Step.MERGE: merge,
    Step.BEGIN_TRANSACTION: begin_transaction,
    Step.PRODUCE: produce,
    Step.SEND_OFFSETS: send_offsets,
    Step.COMMIT: commit,
    Step.COMMITTED: committed,
}
# And MERGE, if there is anything to merge.
LOCAL = (Step.GENESIS, Step.CONSUME, Step.BEGIN_TRANSACTION, Step.PRODUCE)


@dataclass(frozen=True)
class MergeModel:
    """The model, to be searched by `checker.check`."""

    setup: MergeSetup

    @property
    def invariants(self) -> Mapping[str, Callable[[MergeState], bool]]:
        """Return the promises, by name."""
        return INVARIANTS

    @property
    def landmarks(self) -> Mapping[str, Callable[[MergeState], bool]]:
        """Return the states that a search must meet."""
        return LANDMARKS

    def initial(self) -> MergeState:
        """Return the state before the first agent starts."""
        return MergeState()

    def canonical(self, state: MergeState) -> MergeState:
        """Return the one state that stands for all that are like ``state``."""
        state = with_small_epochs(without_doomed(_without_garbage(state)))
        first, second = state.processes
        is_other_way = (first.at, repr(first)) < (second.at, repr(second))
        return state._replace(processes=(second, first)) if is_other_way else state

    def is_done(self, state: MergeState) -> bool:
        """Say whether all is merged, and public or bound to be with the next version."""
        agents = (each for who, each in enumerate(state.processes) if is_current(state, who))
        in_charge = [each.version for each in agents if each.at == Step.MERGE and each.version]
        versions = [*state.logs[MODEL].committed, *in_charge]
        cells = set(RELEASES[: self.setup.releases])
        return any(set(each.cells) == cells for each in versions if each != FENCE_RECORD)

    def steps(self, state: MergeState) -> Ways:
        """Yield everything that can happen next."""
        for who, agent in enumerate(state.processes):
            if agent.at in LOCAL or (agent.at == Step.MERGE and _is_due(agent, self.setup)):
                yield from STEPS[agent.at](state, who, self.setup)
                return
        for who, agent in enumerate(state.processes):
            if agent.at not in (DOWN, REFUSED):
                yield from STEPS[agent.at](state, who, self.setup)
                yield from arrive(state, who)
            yield from group(state, who)
        yield from faults(state)


def _without_garbage(state: MergeState) -> MergeState:
    """Drop aborted records that no restoring can find any more, and old offsets."""
    model, states, offsets = state.logs
    if model.aborted or states.aborted:
        coming = {record.number for agent in state.processes for _, record in agent.batch}
        # That there is a state at all tells a log from one that was made anew.
        sign = () if states.committed else states.aborted[:1]
        aborted = _findable(model, states, coming), _findable(states, model, coming) or sign
        model, states = (
            log._replace(aborted=kept) for log, kept in zip((model, states), aborted, strict=True)
        )
    offsets = offsets._replace(committed=offsets.committed[-1:], aborted=())
    return state._replace(logs=(model, states, offsets))


def _findable(log: Log, other: Log, coming: set[int]) -> tuple[Version, ...]:
    """Return the newest aborted record of each number that the other log has, or may have."""
    newest = _newest(log)
    there = coming | {each.number for each in _versions(other.committed + other.open)}
    last = {each.number: each for each in log.aborted}
    return tuple(each for each in last.values() if each.number > newest and each.number in there)


def _versions(records: tuple[Any, ...]) -> list[Version]:
    return [each for each in records if each != FENCE_RECORD]


def versions_count_up(state: MergeState) -> bool:
    """Clients see versions 0, 1, 2, ..., each once."""
    numbers = [each.number for each in state.logs[MODEL].committed if each != FENCE_RECORD]
    return numbers == list(range(len(numbers)))


def each_release_is_merged_once(state: MergeState) -> bool:
    """Each version is the one before and more, and holds no cell twice."""
    cells = [each.cells for each in state.logs[MODEL].committed if each != FENCE_RECORD]
    return all(len(set(each)) == len(each) for each in cells) and all(
        after[: len(before)] == before for before, after in itertools.pairwise(cells)
    )


def model_and_state_agree(state: MergeState) -> bool:
    """What is called a version is the same for clients and for the next agent."""
    model, states, _ = state.logs
    known = {each.number: each for each in states.committed if each != FENCE_RECORD}
    return all(
        known.get(each.number, each) == each for each in model.committed if each != FENCE_RECORD
    )


def nothing_is_refused(state: MergeState) -> bool:
    """Crashes, zombies and brokers never lead to what a person has to look at."""
    return not any(agent.at == REFUSED for agent in state.processes)


def no_fence_is_ever_committed(state: MergeState) -> bool:
    """The record that settles a partition stays aborted."""
    return not any(FENCE_RECORD in log.committed for log in state.logs)


INVARIANTS: Mapping[str, Callable[[MergeState], bool]] = {
    "versions": versions_count_up,
    "merged once": each_release_is_merged_once,
    "agree": model_and_state_agree,
    "refusals": nothing_is_refused,
    "fences": no_fence_is_ever_committed,
}


def _is_overtaken(state: MergeState) -> bool:
    zombies = [each for each in state.processes if each.at in WRITING and each.epoch < state.epoch]
    newest = _newest(state.logs[MODEL])
    return any(each.version is not None and each.version.number < newest for each in zombies)


LANDMARKS: Mapping[str, Callable[[MergeState], bool]] = {
    "a zombie is in a step that another agent has made": _is_overtaken,
    "a model is public without its state": lambda state: (
        _newest(state.logs[STATE]) < _newest(state.logs[MODEL])
    ),
    "a state is durable without its model": lambda state: (
        _newest(state.logs[MODEL]) < _newest(state.logs[STATE])
    ),
    "a fenced writer is still heard": lambda state: any(
        0 <= log.epoch < state.epoch for log in state.logs
    ),
}
