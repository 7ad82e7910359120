"""What the watcher makes of releases, models and counters."""

import numpy as np
import pytest

from agents.demo.data import DIMENSION, Images
from agents.demo.plan import demo_plan
from agents.demo.state import DemoState
from schemas import ModelSnapshot, Release, encode_release

PLAN = demo_plan(start_ms=1_000_000, clients=20, windows=2, window_ms=3000, topic_prefix="demo")
TEST = Images(np.ones((4, 785), dtype=np.float32), np.array([0, 0, 0, 1]))


@pytest.fixture
def state() -> DemoState:
    return DemoState(PLAN, TEST)


def release_of(cluster: int, window: int, noise: int = 0) -> Release:
    return Release(
        plan_id=PLAN.plan_id,
        cluster=cluster,
        window=window,
        sequence=window + 1,
        charge_units=PLAN.charge_units,
        spent_units=(window + 1) * PLAN.charge_units,
        cap_units=PLAN.cap_units,
        noise_variance=PLAN.noise_variance,
        l2_sensitivity_squared=PLAN.l2_sensitivity_squared,
        vector=np.full(DIMENSION + 1, noise, dtype=np.int32),
    )


def model_of(window: int) -> ModelSnapshot:
    weights = np.zeros(DIMENSION, dtype=np.float32)
    return ModelSnapshot(PLAN.plan_id, window + 1, window, 0, weights)


def observe(state: DemoState, release: Release, delay_ms: int = 400) -> None:
    received_ms = PLAN.window_end_ms(release.window) + delay_ms
    state.observe_release(release, encode_release(release), received_ms)


def observe_all(state: DemoState) -> None:
    for window in range(2):
        for cluster in range(4):
            observe(state, release_of(cluster, window))
        state.observe_model(model_of(window), PLAN.window_end_ms(window) + 700)


def test_a_run_is_complete_when_each_cell_and_the_last_model_were_seen(state: DemoState) -> None:
    assert not state.is_complete
    observe_all(state)
    assert state.is_complete
    assert len(state.digest_by_cell) == state.cell_count == 8


def test_a_missing_cell_leaves_a_run_incomplete(state: DemoState) -> None:
    observe_all(state)
    del state.digest_by_cell[(3, 1)]
    assert not state.is_complete


def test_a_missing_last_model_leaves_a_run_incomplete(state: DemoState) -> None:
    observe_all(state)
    del state.accuracy_by_window[1]
    assert not state.is_complete


def test_the_whole_budget_is_spent_after_the_last_window(state: DemoState) -> None:
    observe_all(state)
    assert state.epsilon == pytest.approx(8.0, abs=1e-5)
    assert state.epsilon <= 8.0
    assert 0 < state.epsilon_by_window[0] < state.epsilon_by_window[1]
    assert len(state.epsilon_by_cluster) == 4


def test_latencies_count_from_the_end_of_the_window(state: DemoState) -> None:
    observe_all(state)
    assert state.release_latency_s == [0.4] * 8
    assert state.model_latency_s == [0.7] * 2


def test_an_identical_copy_is_no_second_release(state: DemoState) -> None:
    observe_all(state)
    observe(state, release_of(0, 0), delay_ms=9000)
    assert state.conflicting_cells == set()
    assert state.repeated_releases == 1
    assert len(state.release_latency_s) == 8


def test_other_bytes_for_the_same_cell_are_a_second_release(state: DemoState) -> None:
    observe_all(state)
    observe(state, release_of(0, 0, noise=1))
    assert state.conflicting_cells == {(0, 0)}
    assert state.repeated_releases == 0


def test_the_initial_model_has_no_window_and_no_latency(state: DemoState) -> None:
    state.observe_model(model_of(-1), 0)
    assert state.newest_accuracy is None
    assert state.newest_window == -1
    assert state.model_latency_s == []


def test_accuracy_is_measured_on_the_test_images(state: DemoState) -> None:
    state.observe_model(model_of(0), PLAN.window_end_ms(0))
    assert state.newest_accuracy == 0.75
    says_one = model_of(1)
    says_one.vector[1] = 1.0
    state.observe_model(says_one, PLAN.window_end_ms(1))
    assert state.newest_accuracy == 0.25


def test_updates_are_split_into_accepted_and_reasons(state: DemoState) -> None:
    state.observe_updates({"accepted": 7, "late": 2, "duplicate": 0})
    assert state.accepted == 7
    assert state.rejected == {"late": 2}
