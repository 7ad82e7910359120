"""An explicit-state model checker: every reachable state, the shortest way to a bad one.

A model is what `Model` says: initial states, steps, invariants, and what it means to be done.
States are hashable values that never change. The search visits each state once, those that need
fewer faults first and, among them, those that need fewer steps first; so a violation comes with a
trace that no other beats in faults, nor in steps with as many faults.

A fault budget is not part of a state. Whatever can follow a state that was reached with more
faults can also follow it when it was reached with fewer, so the first visit covers the later ones.

Two kinds of promise are checked. *Safety*: an invariant holds in every state. *Completion*: from
every state, steps that are no faults lead to a state that is done, so nothing is stuck or lost
for ever (in temporal logic: AG EF done, faults having ceased).
"""

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

COMPLETION = "completion"
"""The name of the violation that consists in never being done."""


class Label(NamedTuple):
    """What happened between two states.

    Attributes:
        who: Number of the process that did it; -1 for the world around them.
        step: What was done; a process's steps carry the names of `agents.protocol_steps.Step`.
        detail: How it went, where it can go in several ways.
        is_fault: Whether it uses up one of the faults.
    """

    who: int
    step: str
    detail: str = ""
    is_fault: bool = False

    def __str__(self) -> str:
        name = self.step if self.who < 0 else f"process {self.who}: {self.step}"
        return f"{'! ' if self.is_fault else '  '}{name}{self.detail and f' ({self.detail})'}"


class Model(Protocol[S]):
    """What can be checked.

    Attributes:
        invariants: Each by name; True where a state is fine.
        landmarks: States that a search must meet, or it has not tried what it claims to try.
    """

    invariants: Mapping[str, Callable[[S], bool]]
    landmarks: Mapping[str, Callable[[S], bool]]

    def initial(self) -> S:
        """Return the state to begin with."""

    def steps(self, state: S) -> Iterable[tuple[Label, S]]:
        """Yield everything that can happen next."""

    def canonical(self, state: S) -> S:
        """Return the one state that stands for all that differ from ``state`` by names only."""

    def is_done(self, state: S) -> bool:
        """Say whether all that was to be done is done."""


@dataclass(frozen=True, slots=True)
class Violation(Generic[S]):
    """A promise that was broken, and how to get there.

    Attributes:
        promise: Name of the invariant, or `COMPLETION`.
        trace: From the initial state on; the first label is empty.
    """

    promise: str
    trace: tuple[tuple[Label, S], ...]

    @property
    def faults(self) -> int:
        """Return how many faults it takes."""
        return sum(label.is_fault for label, _ in self.trace)

    def __str__(self) -> str:
        lines = [f"{self.promise} is violated, {self.faults} faults, {len(self.trace) - 1} steps:"]
        return "\n".join([*lines, *(str(label) for label, _ in self.trace[1:])])


@dataclass(slots=True)
class Report(Generic[S]):
    """What a search has seen.

    Attributes:
        states: Number of different states.
        transitions: Number of steps between them.
        depth: Steps on the longest of the shortest ways.
        is_exhaustive: Whether every state within the budget of faults was visited.
        taken: How often each (step, detail) was taken.
        landmarks: How many states each landmark was met in.
        violation: The first broken promise; None if all hold.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    is_exhaustive: bool = False
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    landmarks: Counter[str] = field(default_factory=Counter)
    violation: Violation[S] | None = None

    def __str__(self) -> str:
        extent = "exhaustive" if self.is_exhaustive else "stopped"
        found = f"{self.states} states, {self.transitions} transitions, depth {self.depth}"
        return f"{found}, {extent}: {self.violation or 'all promises hold'}"


def check(
    model: Model[S],
    max_faults: int,
    promises: Iterable[str] | None = None,
    *,
    max_states: int = 0,
    observe: Callable[[S, Label, S], None] | None = None,
) -> Report[S]:
    """Search the states of ``model`` that at most ``max_faults`` faults lead to.

    Args:
        model: The model.
        max_faults: The budget.
        promises: Names of the invariants to check, and `COMPLETION`; by default all. The others
            may break on the way.
        max_states: Give up after so many states; 0 for never.
        observe: Told of every transition: the state, what happened, and the state after it, not
            yet canonical.
    """
    wanted = {*model.invariants, COMPLETION} if promises is None else set(promises)
    invariants = {name: holds for name, holds in model.invariants.items() if name in wanted}
    search = _Search(model, max_faults, invariants, observe)
    report = search.run(max_states)
    if report.violation is None and report.is_exhaustive and COMPLETION in wanted:
        stuck = search.first_that_cannot_be_done()
        report.violation = None if stuck is None else search.violation(COMPLETION, stuck)
    return report


class _Search(Generic[S]):
    def __init__(
        self,
        model: Model[S],
        max_faults: int,
        invariants: Mapping[str, Callable[[S], bool]],
        observe: Callable[[S, Label, S], None] | None,
    ) -> None:
        self.model, self.max_faults, self.invariants = model, max_faults, invariants
        self.observe = observe
        self.landmarks = model.landmarks
        self.report: Report[S] = Report()
        self.number: dict[S, int] = {}
        self.order: list[S] = []
        self.parent = array("q")
        self.depth = array("q")
        # What one fault more leads to, and from where.
        self.later: dict[S, int] = {}
        # The edges that are no faults, by number of state.
        self.sources, self.targets = array("q"), array("q")

    def run(self, max_states: int) -> Report[S]:
        self.later = {self.model.canonical(self.model.initial()): -1}
        for faults in range(self.max_faults + 1):
            self._search_layer(is_last=faults == self.max_faults, max_states=max_states)
            if self._is_over(max_states):
                break
        report = self.report
        report.states = len(self.order)
        report.depth = max(self.depth)
        report.is_exhaustive = not self._is_over(max_states)
        return report

    def _is_over(self, max_states: int) -> bool:
        return self.report.violation is not None or 0 < max_states <= len(self.order)

    def _search_layer(self, *, is_last: bool, max_states: int) -> None:
        """Visit all that one fault more leads to, by the number of steps."""
        seeds: dict[int, list[tuple[S, int]]] = {}
        for state, source in self.later.items():
            seeds.setdefault(self._depth_after(source), []).append((state, source))
        self.later = {}
        frontier: list[int] = []
        depth = min(seeds, default=0)
        while (frontier or seeds) and not self._is_over(max_states):
            level, frontier = frontier, []
            for state, source in seeds.pop(depth, ()):
                self._visit(state, source, level)
            for number in level:
                self._expand(number, frontier, is_last=is_last)
            depth += 1

    def _expand(self, source: int, frontier: list[int], *, is_last: bool) -> None:
        model, report = self.model, self.report
        for label, successor in model.steps(self.order[source]):
            if label.is_fault and is_last:
                continue
            report.transitions += 1
            report.taken[label.step, label.detail] += 1
            if self.observe is not None:
                self.observe(self.order[source], label, successor)
            target = model.canonical(successor)
            if label.is_fault:
                # Not visited yet: a way with fewer faults may still lead there.
                self.later.setdefault(target, source)
            else:
                self.sources.append(source)
                self.targets.append(self._visit(target, source, frontier))

    def _depth_after(self, source: int) -> int:
        return 0 if source < 0 else self.depth[source] + 1

    def _visit(self, state: S, parent: int, queue: list[int]) -> int:
        known = self.number.get(state)
        if known is not None:
            return known
        number = self.number[state] = len(self.order)
        self.order.append(state)
        self.parent.append(parent)
        self.depth.append(self._depth_after(parent))
        queue.append(number)
        for name, is_met in self.landmarks.items():
            self.report.landmarks[name] += is_met(state)
        for name, holds in self.invariants.items():
            if self.report.violation is None and not holds(state):
                self.report.violation = self.violation(name, number)
        return number

    def first_that_cannot_be_done(self) -> int | None:
        """Return the first visited state from which nothing leads to one that is done."""
        before: dict[int, list[int]] = {}
        for source, target in zip(self.sources, self.targets, strict=True):
            before.setdefault(target, []).append(source)
        can = bytearray(len(self.order))
        waiting = [n for n, state in enumerate(self.order) if self.model.is_done(state)]
        for number in waiting:
            can[number] = 1
        while waiting:
            for source in before.get(waiting.pop(), ()):
                if not can[source]:
                    can[source] = 1
                    waiting.append(source)
        return next((number for number, is_able in enumerate(can) if not is_able), None)

    def violation(self, promise: str, number: int) -> Violation[S]:
        path = [number]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        canonical = [self.order[each] for each in reversed(path)]
        return Violation(promise, tuple(_replayed(self.model, canonical)))


def _replayed(model: Model[S], path: list[S]) -> Iterator[tuple[Label, S]]:
    """Walk a path of canonical states again, with each process under one name all the way."""
    state = model.initial()
    yield Label(-1, "begin"), state
    for wanted in path[1:]:
        # The fewest faults first: two steps may lead to the same state.
        ways = sorted(model.steps(state), key=lambda way: way[0].is_fault)
        label, state = next(way for way in ways if model.canonical(way[1]) == wanted)
        yield label, state
