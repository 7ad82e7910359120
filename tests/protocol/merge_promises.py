"""What the global agent promises, as predicates of a state."""

from collections.abc import Callable, Mapping
from itertools import pairwise

from kafka_model import FENCE_RECORD
from merge_state import MODEL, RELEASES, STATE, MergeSetup, MergeState, newest, versions
from writer_steps import REFUSED, WRITING, is_current

from agents.protocol_steps import Step


def versions_count_up(state: MergeState) -> bool:
    """Clients see versions 0, 1, 2, ..., each once, and never more of them than windows."""
    shown = versions(state.logs[MODEL].committed)
    return [each.number for each in shown] == list(range(len(shown))) and all(
        each.number <= each.window + 1 for each in shown
    )


def each_release_is_merged_once(state: MergeState) -> bool:
    """Each version is the one before and more, and holds no cell twice."""
    cells = [each.cells for each in versions(state.logs[MODEL].committed)]
    return all(len(set(each)) == len(each) for each in cells) and all(
        after[: len(before)] == before for before, after in pairwise(cells)
    )


def model_and_state_agree(state: MergeState) -> bool:
    """What is called a version is the same for clients and for the next agent."""
    model, states, _ = state.logs
    known = {each.number: each for each in versions(states.committed)}
    return all(known.get(each.number, each) == each for each in versions(model.committed))


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


def is_complete(state: MergeState, setup: MergeSetup) -> bool:
    """Say whether all is merged, and public or bound to be with the next version."""
    agents = [each for who, each in enumerate(state.processes) if is_current(state, who)]
    in_charge = [each.version for each in agents if each.at == Step.MERGE]
    cells = set(RELEASES[: setup.releases])
    known = [*versions(state.logs[MODEL].committed), *in_charge]
    return any(each is not None and set(each.cells) == cells for each in known)


def _is_overtaken(state: MergeState) -> bool:
    zombies = [each for each in state.processes if each.at in WRITING and each.epoch < state.epoch]
    shown = newest(state.logs[MODEL])
    return any(each.version is not None and each.version.number < shown for each in zombies)


LANDMARKS: Mapping[str, Callable[[MergeState], bool]] = {
    "a zombie is in a step that another agent has made": _is_overtaken,
    "a model is public without its state": lambda state: (
        newest(state.logs[STATE]) < newest(state.logs[MODEL])
    ),
    "a state is durable without its model": lambda state: (
        newest(state.logs[MODEL]) < newest(state.logs[STATE])
    ),
    "a fenced writer is still heard": lambda state: any(
        0 <= log.epoch < state.epoch for log in state.logs
    ),
}
