from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from written_cluster import PLAN, WrittenCluster

from agents.deep_report import ModelFindings
from agents.ledger_checks import Problems
from agents.model_audit import ModelAudit
from schemas import (
    ModelSnapshot,
    ModelState,
    decode_model_snapshot,
    decode_release,
    encode_model_snapshot,
)
from stream.global_model import GlobalModel, Stepped

DAY_MS = 86_400_000
LAG_MS = 7 * DAY_MS
WINDOWS = 5


@pytest.fixture(scope="module")
def steps() -> list[Stepped]:
    """Version 0, and one of each window, made by a real global model."""
    cluster = WrittenCluster()
    model = GlobalModel.start(PLAN, np.zeros(6), merge_deadline_ms=0)
    made = [model.initial(0)]
    for window in range(WINDOWS):
        cluster.send(window, window)
        cluster.seal()
        due_ms = PLAN.release_due_ms(window)
        model.offer(window, decode_release(cluster.releases[window]), due_ms)
        made.append(model.step(due_ms + 5))
        model.commit(made[-1])
    return made


class Topics:
    """What the model's topics hold, with the broker's times; versions may be changed."""

    def __init__(self, steps: list[Stepped]) -> None:
        self.models = [
            (encode_model_snapshot(step.snapshot), step.snapshot.published_at_ms + 5)
            for step in steps
        ]
        self.state: ModelState | None = steps[-1].state
        self.least_version = WINDOWS
        self.releases_end = WINDOWS
        self.released_through = [WINDOWS - 1]
        self.now_ms = 10_000

    def snapshot(self, number: int) -> ModelSnapshot:
        return decode_model_snapshot(self.models[number][0])

    def change(self, number: int, **changes: object) -> None:
        snapshot = replace(self.snapshot(number), **changes)
        self.models[number] = encode_model_snapshot(snapshot), self.models[number][1]

    def age(self, days: float, *, first: int = 0) -> None:
        """Let time pass before the versions from ``first`` on, and now."""
        shift = int(days * DAY_MS)
        for number in range(first, len(self.models)):
            data, appended_ms = self.models[number]
            snapshot = decode_model_snapshot(data)
            moved = replace(snapshot, published_at_ms=snapshot.published_at_ms + shift)
            self.models[number] = encode_model_snapshot(moved), appended_ms + shift
        self.now_ms += shift

    def audit(self) -> tuple[ModelFindings, list[str]]:
        problems = Problems()
        audit = ModelAudit(PLAN, problems, now_ms=self.now_ms, compaction_lag_ms=LAG_MS)
        audit.take_state(self.state, least_version=self.least_version)
        for data, appended_ms in self.models:
            audit.take_model(data, appended_ms)
        audit.take_limits(self.releases_end, self.released_through)
        return audit.finish(), problems.lines()


@pytest.fixture
def topics(steps: list[Stepped]) -> Topics:
    return Topics(steps)


def test_what_a_real_agent_publishes_fits(topics: Topics) -> None:
    found, problems = topics.audit()
    assert problems == []
    assert found == ModelFindings(
        versions_read=WINDOWS + 1,
        first_version=0,
        newest_version=WINDOWS,
        newest_window=WINDOWS - 1,
        compacted=(),
        state_version=WINDOWS,
        malformed=0,
        foreign=0,
    )


def test_a_model_that_nobody_began_fits() -> None:
    problems = Problems()
    audit = ModelAudit(PLAN, problems, now_ms=0, compaction_lag_ms=LAG_MS)
    audit.take_state(None, least_version=-1)
    audit.take_limits(0, [-1])
    found = audit.finish()
    assert problems.lines() == []
    assert found.newest_version is found.state_version is None


def test_a_state_that_is_older_than_what_was_published_meanwhile_fits(
    topics: Topics, steps: list[Stepped]
) -> None:
    topics.state, topics.least_version = steps[3].state, 3
    assert topics.audit()[1] == []


def test_each_step_ends_a_window(topics: Topics) -> None:
    topics.change(4, window=2)
    (problem,) = topics.audit()[1]
    assert "version 4 has window 2, after version 3 had 2" in problem


def repeat(topics: Topics) -> None:
    topics.models.insert(4, topics.models[3])


def repeat_otherwise(topics: Topics) -> None:
    topics.models.insert(4, topics.models[3])
    topics.change(4, published_at_ms=1)


def go_back(topics: Topics) -> None:
    topics.models.insert(5, topics.models[2])


def leave_gap(topics: Topics) -> None:
    del topics.models[2:4]


def lose_first(topics: Topics) -> None:
    del topics.models[0:2]


def change_state(**changes: object) -> Callable[[Topics], None]:
    def change(topics: Topics) -> None:
        if topics.state is not None:
            topics.state = replace(topics.state, **changes)

    return change


def change_weights(topics: Topics) -> None:
    if topics.state is not None:
        vectors = topics.state.vectors.copy()
        vectors[0, 3] += 1e-3
        topics.state = replace(topics.state, vectors=vectors)


PLANTED: dict[str, tuple[Callable[[Topics], object], str]] = {
    "a version twice": (repeat, "version 3 is published once more, with the same content"),
    "a version with two contents": (
        repeat_otherwise,
        "version 3 is published with another content",
    ),
    "an older version": (go_back, "version 2 is published after version 4"),
    "a gap": (leave_gap, "versions 2 to 3 are missing, and too young to be compacted"),
    "a missing version": (
        lambda topics: topics.models.pop(2),
        "version 2 is missing, and too young to be compacted",
    ),
    "a lost start": (lose_first, "versions 0 to 1 are missing, and too young to be compacted"),
    "a window that goes back": (
        lambda topics: topics.change(4, window=1),
        "version 4 has window 1, after version 3 had 2",
    ),
    "a window from the future": (
        lambda topics: topics.change(5, window=99),
        "version 5 has window 99, published before its end",
    ),
    "a time from the future": (
        lambda topics: topics.change(5, published_at_ms=70_000),
        "version 5 is published before it says that it was made",
    ),
    "a state behind the model": (
        lambda topics: setattr(topics, "least_version", 6),
        "its state is behind, at version 5, while version 6 is public",
    ),
    "a state ahead of the model": (
        lambda topics: topics.models.pop(),
        "its state is at version 5, which is not published",
    ),
    "a state that is gone": (
        lambda topics: setattr(topics, "state", None),
        "version 5 is public, but there is no state of it",
    ),
    "a state of another plan": (
        change_state(plan_id=bytes(16)),
        f"its state belongs to plan {bytes(16).hex()}",
    ),
    "other weights": (change_weights, "its state at version 5 has other weights than the model"),
    "another window in the state": (
        change_state(window=3),
        "its state says window 3, and has merged window 4",
    ),
    "too many clusters": (change_state(merged_through=(4, 4)), "its state has 2 clusters"),
    "releases that do not exist": (
        lambda topics: setattr(topics, "releases_end", 3),
        "its state has read releases up to offset 5, but they end at 3",
    ),
    "windows that nobody has released": (
        lambda topics: setattr(topics, "released_through", [3]),
        "its state has merged window 4 of cluster 0, which the ledger has not released",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str, topics: Topics) -> None:
    plant, sentence = PLANTED[name]
    plant(topics)
    assert f"model: {sentence}" in topics.audit()[1]


def test_versions_that_are_old_enough_may_be_compacted_away(topics: Topics) -> None:
    topics.age(8, first=3)
    del topics.models[1:3]
    found, problems = topics.audit()
    assert problems == []
    assert found.compacted == ((1, 2),)
    del topics.models[0]
    found, problems = topics.audit()
    assert problems == []
    assert found.compacted == ((0, 2),)
    assert found.first_version == 3


def test_a_version_that_is_too_young_to_be_compacted_is_missed(topics: Topics) -> None:
    topics.age(8, first=1)
    del topics.models[2:4]
    assert topics.audit()[1] == [
        "model: versions 2 to 3 are missing, and too young to be compacted"
    ]


def test_strange_records_are_counted(topics: Topics) -> None:
    topics.models.insert(2, (b"garbage", 0))
    topics.models.insert(3, topics.models[1])
    topics.change(3, plan_id=bytes(16))
    found, problems = topics.audit()
    assert problems == []
    assert (found.malformed, found.foreign) == (1, 1)
