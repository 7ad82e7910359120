from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schemas import Release
from stream.aggregation.waiting import CLOCK_SKEW_MS, WAITING_WINDOW_LIMIT, WaitingReleases
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="waiting",
    dimension=2,
    cluster_count=3,
    assignment="hash",
    assignment_key="public",
    expected_clients=90,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=200,
    l2_clip_norm=1.0,
    grid_l2_bound=1000,
    count_weight=10,
    update_dtype="int16",
    epsilon=8.0,
    delta=1e-6,
    horizon_windows=100,
    optimizer=OptimizerSpec("sgd", 0.5),
    normalizer="expected_clients",
)
# Window 0 ends at 1000, its releases are due at 1200.
MERGE_DEADLINE_MS = 300
DEADLINE_OF_WINDOW_0_MS = 1500
LONG_AFTER_MS = 10**9


def release(cluster: int, window: int, first: int = 1) -> Release:
    return Release(
        plan_id=PLAN.plan_id,
        cluster=cluster,
        window=window,
        sequence=window + 1,
        charge_units=1,
        spent_units=1,
        cap_units=2,
        noise_variance=Fraction(1),
        l2_sensitivity_squared=1,
        vector=np.array([first, 0, 10], np.dtype(PLAN.release_dtype)),
    )


def new() -> WaitingReleases:
    return WaitingReleases(PLAN, (-1, -1, -1), 0, MERGE_DEADLINE_MS)


def give(waiting: WaitingReleases, *cells: tuple[int, int]) -> list[str]:
    return [
        waiting.offer(waiting.position, release(cluster, window), LONG_AFTER_MS)
        for cluster, window in cells
    ]


@pytest.mark.parametrize(
    ("outcome", "change"),
    [
        ("wrong_plan", {"plan_id": bytes(16)}),
        ("unknown_cluster", {"cluster": 3}),
        ("wrong_dimension", {"vector": np.zeros(2, PLAN.release_dtype)}),
        ("wrong_dimension", {"vector": np.zeros((1, 3), PLAN.release_dtype)}),
        ("wrong_dtype", {"vector": np.zeros(3, np.int16)}),
        ("wrong_dtype", {"vector": np.zeros(3, np.dtype(PLAN.release_dtype).newbyteorder(">"))}),
    ],
)
def test_a_release_that_does_not_fit_the_plan_is_dropped_with_its_reason(outcome, change):
    waiting = new()
    assert waiting.offer(0, replace(release(0, 0), **change), LONG_AFTER_MS) == outcome
    assert waiting.position == 1
    assert waiting.next_window is None


def test_a_release_before_the_end_of_its_window_is_from_the_future():
    waiting = new()
    end = PLAN.window_end_ms(7)
    assert waiting.offer(0, release(0, 7), end - CLOCK_SKEW_MS - 1) == "future"
    assert waiting.offer(1, release(0, 2**64 - 1), end) == "future"
    assert waiting.offer(2, release(0, 7), end - CLOCK_SKEW_MS) == "accepted"


def test_a_repeat_is_dropped_while_its_cell_waits_and_after_it_was_merged():
    waiting = new()
    assert give(waiting, (0, 0), (0, 0)) == ["accepted", "duplicate"]
    waiting.forget_through(0)
    assert give(waiting, (0, 0)) == ["duplicate"]
    assert waiting.next_window is None


def test_a_second_content_for_a_waiting_cell_is_a_conflict_and_changes_nothing():
    waiting = new()
    give(waiting, (0, 0))
    assert waiting.offer(1, release(0, 0, first=2), LONG_AFTER_MS) == "conflict"
    renumbered = replace(release(0, 0), sequence=99)
    assert waiting.offer(2, renumbered, LONG_AFTER_MS) == "conflict"
    assert waiting.sum_through(0).cell_count == 1


def test_an_offset_that_was_read_before_is_a_duplicate():
    waiting = new()
    waiting.advance(5)
    assert waiting.offer(4, release(0, 0), LONG_AFTER_MS) == "duplicate"
    waiting.advance(3)
    assert waiting.position == 5


def test_a_window_is_ready_when_the_last_cluster_has_come():
    waiting = new()
    give(waiting, (0, 0), (1, 0))
    assert waiting.ready() is None
    give(waiting, (2, 0))
    assert waiting.ready() == 0
    assert not waiting.due(LONG_AFTER_MS)


def test_a_cluster_that_skipped_a_window_is_not_waited_for():
    waiting = new()
    give(waiting, (0, 0), (1, 0), (2, 1))
    assert waiting.ready() == 0
    assert waiting.cells_through(0) == ((0, 0), (1, 0))


def test_a_deadline_needs_the_clock_and_then_the_logs_end():
    waiting = new()
    give(waiting, (0, 0))
    assert not waiting.due(DEADLINE_OF_WINDOW_0_MS - 1)
    assert waiting.due(DEADLINE_OF_WINDOW_0_MS)
    waiting.expect(DEADLINE_OF_WINDOW_0_MS, 3)
    assert not waiting.due(LONG_AFTER_MS)
    waiting.advance(2)
    assert waiting.ready() is None
    waiting.advance(3)
    assert waiting.ready() == 0


def test_an_end_that_was_asked_for_before_the_deadline_does_not_count():
    waiting = new()
    waiting.expect(DEADLINE_OF_WINDOW_0_MS - 1, 0)
    give(waiting, (0, 0))
    assert waiting.ready() is None
    assert waiting.due(DEADLINE_OF_WINDOW_0_MS)


def test_one_asked_end_serves_every_window_that_was_overdue_then():
    waiting = new()
    give(waiting, (0, 0), (0, 1), (0, 2))
    waiting.expect(DEADLINE_OF_WINDOW_0_MS + 1000, 3)
    for window in (0, 1):
        assert waiting.ready() == window
        waiting.forget_through(window)
    assert waiting.ready() is None


def test_a_late_cell_goes_with_the_next_window():
    waiting = new()
    give(waiting, (0, 0), (1, 0))
    waiting.forget_through(0)
    assert give(waiting, (2, 0), (0, 1), (1, 1), (2, 1)) == ["accepted"] * 4
    assert waiting.ready() == 1
    assert waiting.cells_through(1) == ((0, 1), (1, 1), (2, 0), (2, 1))
    assert waiting.sum_through(1).cell_count == 4


def test_a_late_cell_waits_no_longer_than_the_deadline_of_the_window_it_would_go_with():
    waiting = new()
    give(waiting, (0, 0), (1, 0))
    waiting.forget_through(0)
    give(waiting, (2, 0))
    assert not waiting.due(DEADLINE_OF_WINDOW_0_MS)
    assert waiting.due(DEADLINE_OF_WINDOW_0_MS + 1000)
    waiting.expect(DEADLINE_OF_WINDOW_0_MS + 1000, 3)
    assert waiting.ready() == 1
    assert waiting.merged_through_after(1) == (0, 0, 0)


def test_the_offset_to_restart_from_is_that_of_the_oldest_release_that_stays():
    waiting = new()
    give(waiting, (0, 0), (0, 1), (1, 0), (2, 0))
    assert waiting.next_offset_after(0) == 1
    assert waiting.next_offset_after(1) == 4


def test_too_many_waiting_windows_are_not_waited_for():
    waiting = new()
    give(waiting, *[(0, window) for window in range(WAITING_WINDOW_LIMIT)])
    assert waiting.ready() is None
    give(waiting, (0, WAITING_WINDOW_LIMIT))
    assert waiting.ready() == 0
    waiting.forget_through(0)
    assert waiting.ready() is None


def test_late_cells_share_one_sum_however_many_they_are():
    waiting = new()
    newest = WAITING_WINDOW_LIMIT + 5
    give(waiting, (0, newest), (1, newest))
    waiting.forget_through(newest)
    give(waiting, *[(2, window) for window in range(newest)])
    assert waiting.ready() is None
    assert waiting.sum_through(newest).cell_count == newest
