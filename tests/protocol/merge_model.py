"""The global agent as a model: releases in, versions of the model out, each merged once.

Two agents, the same Kafka and the same faults as in `release_model`. The agent's steps are those
of `agents.model_opener` and `agents.global_model`, its transactions those of `writer_steps`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from checker import Label
from kafka_model import Log
from merge_promises import INVARIANTS, LANDMARKS, is_complete
from merge_state import (
    FIRST,
    MODEL,
    OFFSETS,
    SECOND,
    STATE,
    Agent,
    MergeSetup,
    MergeState,
    Version,
    newest,
    next_versions,
    versions,
)
from writer_steps import (
    DOWN,
    REFUSED,
    Ways,
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


def restore(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Bring models and states to the same version: `agents.recovery.restore_model`."""
    model, states = state.logs[MODEL], state.logs[STATE]
    if model.open or states.open:
        yield gives_up(state, who, Step.RESTORE, "waits in vain")
        return
    public, durable, rules = newest(model), newest(states), setup.rules
    missing: list[tuple[int, Version]] = []
    if public < durable and rules.restores:
        first = public + 1 if rules.restores_each_version else durable
        missing = [(MODEL, each) for each in _found(model, range(first, durable + 1))]
    elif durable < public and rules.restores:
        missing = [(STATE, each) for each in _found(states, [public])]
    if durable < public and not missing and durable >= 0:
        yield refuses(state, who, Step.RESTORE, when_current=True)
    elif missing:
        writes = {"batch": tuple(missing), "then": Step.READ_STATE}
        after = goes_to(state, who, Step.BEGIN_TRANSACTION, **writes)
        yield Label(who, Step.RESTORE, "writes again"), after
    else:
        yield Label(who, Step.RESTORE, "nothing is lost"), goes_to(state, who, Step.READ_STATE)


def read_state(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Read the newest state; without one, make sure that there never was any."""
    model, states, offsets = state.logs
    if model.open or states.open:
        yield gives_up(state, who, Step.READ_STATE, "waits in vain")
    elif states.committed:
        yield _takes_over(state, who, versions(states.committed)[-1])
    elif model.committed or (offsets.committed and not (setup.rules.begins_again and states.all)):
        yield refuses(state, who, Step.READ_STATE, when_current=True)
    else:
        yield Label(who, Step.READ_STATE), goes_to(state, who, Step.GENESIS)


def _takes_over(state: MergeState, who: int, version: Version) -> tuple[Label, MergeState]:
    """Go on from a version; publish it once more where its topic has lost it."""
    after = goes_to(state, who, Step.CONSUME, version=version)
    if newest(state.logs[MODEL]) < version.number:
        writes = {"batch": ((MODEL, version),), "then": Step.CONSUME}
        after = goes_to(after, who, Step.BEGIN_TRANSACTION, **writes)
    return Label(who, Step.READ_STATE), after


def begin_model(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Make version 0."""
    agent = state.processes[who]._replace(stepped=FIRST, then=Step.CONSUME)
    yield Label(who, Step.GENESIS), _writing(state, who, agent, (MODEL, STATE))


def consume(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Go on reading where the state says."""
    version, offsets = state.processes[who].version, state.logs[OFFSETS].committed
    if version and offsets and not setup.rules.reads_on_from_state:
        version = version._replace(next_offset=offsets[-1])
    yield Label(who, Step.CONSUME), goes_to(state, who, Step.MERGE, version=version)


def merge(state: MergeState, who: int, setup: MergeSetup) -> Ways:
    """Read on as far as you like, and merge what is due."""
    agent = state.processes[who]
    if not is_due(agent, setup):
        if not is_current(state, who):
            # Releases go on after those of the model: the next step's transaction would fail.
            yield gives_up(state, who, Step.MERGE, "fenced, as the next release will show")
        return
    assert agent.version is not None
    for version in dict.fromkeys(next_versions(agent.version, setup)):
        made = agent._replace(stepped=version, then=Step.MERGE)
        if setup.rules.one_transaction:
            after = _writing(state, who, made, (MODEL, STATE))
        else:
            after = _writing(state, who, made._replace(then=SECOND), (MODEL,))
        yield Label(who, Step.MERGE), after


def is_due(agent: Agent, setup: MergeSetup) -> bool:
    """Say whether there is anything to merge."""
    return agent.version is not None and any(next_versions(agent.version, setup))


def _writing(state: MergeState, who: int, agent: Agent, logs: Iterable[int]) -> MergeState:
    batch = tuple((log, agent.stepped) for log in logs)
    return with_process(state, who, agent._replace(at=Step.BEGIN_TRANSACTION, batch=batch))


def _found(log: Log, numbers: Iterable[int]) -> list[Version]:
    """Return the newest record of each number, whatever became of its transaction."""
    by_number = {each.number: each for each in versions(log.all)}
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
# Taken at once, as in `release_model`; and MERGE, if there is anything to merge.
LOCAL = (Step.GENESIS, Step.CONSUME, Step.BEGIN_TRANSACTION, Step.PRODUCE)


@dataclass(frozen=True)
class MergeModel:
    """The model, to be searched by `checker.check`."""

    setup: MergeSetup

    invariants = INVARIANTS
    landmarks = LANDMARKS

    def initial(self) -> MergeState:
        """Return the state before the first agent starts."""
        return MergeState()

    def canonical(self, state: MergeState) -> MergeState:
        """Return the one state that stands for all that are like ``state``."""
        state = with_small_epochs(_without_garbage(without_doomed(state)))
        first, second = state.processes
        is_other_way = (first.at, repr(first)) < (second.at, repr(second))
        return state._replace(processes=(second, first)) if is_other_way else state

    def is_done(self, state: MergeState) -> bool:
        """Say whether all is merged, and public or bound to be with the next version."""
        return is_complete(state, self.setup)

    def steps(self, state: MergeState) -> Ways:
        """Yield everything that can happen next."""
        for who, agent in enumerate(state.processes):
            if agent.at in LOCAL or (agent.at == Step.MERGE and is_due(agent, self.setup)):
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
        kept = _findable(states, model, coming) or sign
        model = model._replace(aborted=_findable(model, states, coming))
        states = states._replace(aborted=kept)
    offsets = offsets._replace(committed=offsets.committed[-1:], aborted=())
    return state._replace(logs=(model, states, offsets))


def _findable(log: Log, other: Log, coming: set[int]) -> tuple[Version, ...]:
    """Return the newest aborted record of each number that the other log has, or may have."""
    there = coming | {each.number for each in versions(other.committed + other.open)}
    last = {each.number: each for each in log.aborted}
    shown = newest(log)
    return tuple(each for each in last.values() if each.number > shown and each.number in there)
