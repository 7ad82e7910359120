"""The checker itself, on small models whose answers are plain."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripts import importing_from

with importing_from(Path(__file__).parent) as _load:
    checker = _load("checker")

Label = checker.Label


@dataclass
class Graph:
    """A model made of edges: (from, to, whether it is a fault)."""

    edges: list
    done: set = field(default_factory=set)
    bad: set = field(default_factory=set)

    @property
    def invariants(self):
        return {"good": lambda state: state not in self.bad}

    @property
    def landmarks(self):
        return {"even": lambda state: state % 2 == 0}

    def initial(self):
        return 0

    def canonical(self, state):
        return state

    def is_done(self, state):
        return state in self.done

    def steps(self, state):
        for before, after, is_fault in self.edges:
            if before == state:
                yield Label(-1, f"to {after}", "", is_fault), after


def steps_of(violation):
    return [label.step for label, _ in violation.trace[1:]]


def test_every_state_is_visited_once_and_the_figures_say_so():
    graph = Graph([(0, 1, False), (0, 2, False), (1, 3, False), (2, 3, False)], done={3})
    report = checker.check(graph, 0)
    assert (report.states, report.transitions, report.depth) == (4, 4, 2)
    assert report.is_exhaustive
    assert report.violation is None
    assert report.landmarks == {"even": 2}
    assert str(report) == ("4 states, 4 transitions, depth 2, exhaustive: all promises hold")


def test_the_trace_has_the_fewest_steps():
    graph = Graph([(0, 1, False), (1, 9, False), (0, 2, False), (2, 3, False), (3, 9, False)])
    graph.bad = {9}
    violation = checker.check(graph, 0).violation
    assert violation.promise == "good"
    assert steps_of(violation) == ["to 1", "to 9"]
    assert str(violation).splitlines() == [
        "good is violated, 0 faults, 2 steps:",
        "  to 1",
        "  to 9",
    ]


def test_few_faults_come_before_few_steps():
    graph = Graph([(0, 9, True), (0, 1, False), (1, 2, False), (2, 9, False)], bad={9})
    assert steps_of(checker.check(graph, 1).violation) == ["to 1", "to 2", "to 9"]


def test_a_state_that_a_fault_reaches_first_keeps_its_faults_for_later():
    # 1 is one faulty step away, and two others; from it, the bad state takes one more fault.
    graph = Graph([(0, 1, True), (0, 2, False), (2, 1, False), (1, 9, True)], bad={9})
    assert steps_of(checker.check(graph, 1).violation) == ["to 2", "to 1", "to 9"]


def test_no_more_faults_happen_than_the_budget_has():
    graph = Graph([(0, 1, True), (1, 9, True)], done={0, 1}, bad={9})
    assert checker.check(graph, 1).violation is None
    assert checker.check(graph, 2).violation.faults == 2


def test_a_state_that_only_a_fault_leads_out_of_is_stuck():
    graph = Graph([(0, 1, False), (0, 2, False), (1, 2, True)], done={2})
    violation = checker.check(graph, 1).violation
    assert violation.promise == checker.COMPLETION
    assert steps_of(violation) == ["to 1"]


def test_going_round_in_circles_is_being_stuck_and_a_way_out_is_enough():
    circle = [(0, 1, False), (1, 0, False)]
    assert checker.check(Graph(circle, done={2}), 0).violation.promise == checker.COMPLETION
    assert checker.check(Graph([*circle, (1, 2, False)], done={2}), 0).violation is None


def test_only_the_promises_that_are_asked_for_count():
    graph = Graph([(0, 9, False)], done={9}, bad={9})
    assert checker.check(graph, 0, [checker.COMPLETION]).violation is None


def test_a_search_that_is_cut_off_says_so():
    graph = Graph([(number, number + 1, False) for number in range(100)], done={100})
    report = checker.check(graph, 0, max_states=10)
    assert not report.is_exhaustive
    assert "stopped" in str(report)


def test_an_observer_is_told_of_every_transition():
    seen = []
    graph = Graph([(0, 1, False), (1, 2, True)], done={0, 1, 2})
    checker.check(graph, 1, observe=lambda *transition: seen.append(transition))
    assert [(before, label.step, after) for before, label, after in seen] == [
        (0, "to 1", 1),
        (1, "to 2", 2),
    ]


class Lock:
    """Two processes and a lock that may be broken; which of them is which does not matter."""

    landmarks = {}  # noqa: RUF012 - never changed

    def __init__(self, *, is_broken):
        self._is_broken = is_broken

    @property
    def invariants(self):
        return {"exclusion": lambda state: state != ("inside", "inside")}

    def initial(self):
        return ("outside", "outside")

    def canonical(self, state):
        return tuple(sorted(state))

    def is_done(self, state):
        return state == ("outside", "outside")

    def steps(self, state):
        for who, at in enumerate(state):
            if at == "inside":
                yield Label(who, "leaves"), self._with(state, who, "outside")
            elif "inside" not in state or self._is_broken:
                yield Label(who, "enters"), self._with(state, who, "inside")

    def _with(self, state, who, at):
        return tuple(at if number == who else each for number, each in enumerate(state))


def test_a_lock_excludes():
    report = checker.check(Lock(is_broken=False), 0)
    assert report.violation is None
    assert report.states == 2  # one of them inside is one state, whoever it is


def test_a_trace_calls_each_process_by_one_name():
    violation = checker.check(Lock(is_broken=True), 0).violation
    assert sorted(str(label) for label, _ in violation.trace[1:]) == [
        "  process 0: enters",
        "  process 1: enters",
    ]
    assert violation.trace[-1][1] == ("inside", "inside")


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (Label(-1, "rain"), "  rain"),
        (Label(-1, "rain", "heavy", True), "! rain (heavy)"),
        (Label(1, "commit"), "  process 1: commit"),
    ],
)
def test_a_fault_is_marked(label, text):
    assert str(label) == text
