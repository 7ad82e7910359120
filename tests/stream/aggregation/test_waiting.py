from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schemas import ClipNorm, Release
from stream.aggregation.waiting import CLOCK_SKEW_MS, WAITING_WINDOW_LIMIT, WaitingReleases
from stream.clip_progress import first_clip_norms
from stream.privacy.adaptive_clipping import ClippingSpec
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
ADAPTIVE = replace(
    PLAN,
    clipping=ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=4),
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
    return WaitingReleases(PLAN, (-1, -1, -1), -1, 0, MERGE_DEADLINE_MS)


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
        ("wrong_scale", {"clip_norm": 1.0}),
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


def test_late_cells_alone_end_the_window_that_they_go_with():
    waiting = new()
    give(waiting, (0, 0), (1, 0))
    waiting.forget_through(0)
    give(waiting, (2, 0))
    waiting.forget_through(1)
    assert give(waiting, (0, 1), (1, 1), (2, 1)) == ["accepted"] * 3
    assert waiting.next_window == 2
    assert not waiting.due(DEADLINE_OF_WINDOW_0_MS + 1000)
    give(waiting, (0, 2), (1, 2), (2, 2))
    assert waiting.ready() == 2
    assert waiting.sum_through(2).cell_count == 6


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


# --- Adaptive clipping ----------------------------------------------------------------------


def scaled(cluster: int, window: int, clip_norm: float, following: float = 0.0) -> Release:
    """A release of the plan whose epochs have 4 windows."""
    return replace(
        release(cluster, window),
        plan_id=ADAPTIVE.plan_id,
        vector=np.array([1, 0, 10, 5], np.dtype(ADAPTIVE.release_dtype)),
        clip_norm=clip_norm,
        next_clip_norm=following,
        next_clip_window=(window // 4 + 1) * 4 if following else 0,
    )


def adaptive(merged_through: tuple[int, ...] = (-1, -1, -1)) -> WaitingReleases:
    return WaitingReleases(ADAPTIVE, merged_through, max(merged_through), 0, MERGE_DEADLINE_MS)


def give_all(waiting: WaitingReleases, *releases: Release) -> list[str]:
    return [waiting.offer(waiting.position, r, LONG_AFTER_MS) for r in releases]


@pytest.mark.parametrize(
    ("outcome", "change"),
    [
        ("wrong_scale", {"clip_norm": 0.0}),
        ("wrong_scale", {"next_clip_norm": 1.0, "next_clip_window": 5}),
        ("wrong_dimension", {"vector": np.zeros(3, PLAN.release_dtype)}),
    ],
)
def test_a_release_in_no_scale_of_an_adaptive_plan_is_dropped(outcome, change):
    waiting = adaptive()
    assert give_all(waiting, replace(scaled(0, 0, 1.0), **change)) == [outcome]
    assert waiting.next_window is None


def test_a_repeat_that_announces_another_norm_is_a_conflict():
    waiting = adaptive()
    first = scaled(0, 1, 1.0, 1.5)
    changed = replace(first, next_clip_norm=1.25)
    outcomes = give_all(waiting, first, first, changed, replace(first, clip_norm=2.0))
    assert outcomes == ["accepted", "duplicate", "conflict", "conflict"]


def test_releases_of_one_window_in_two_scales_are_summed_apart():
    waiting = adaptive()
    give_all(waiting, scaled(0, 0, 1.0), scaled(1, 0, 2.0), scaled(2, 0, 1.0))
    total = waiting.sum_through(0)
    assert (total.cell_count, total.norm_count) == (3, 2)


def test_the_newest_merged_release_of_a_cluster_tells_its_norms():
    waiting = adaptive()
    known = first_clip_norms(ADAPTIVE)
    give_all(waiting, scaled(0, 0, 1.0), scaled(0, 1, 1.0, 1.5), scaled(1, 0, 1.0))
    after = waiting.clip_norms_after(0, known)
    assert after == known
    after = waiting.clip_norms_after(1, known)
    assert after == (
        ClipNorm(0, 0, 1.0),
        ClipNorm(0, 4, 1.5),
        ClipNorm(1, 0, 1.0),
        ClipNorm(2, 0, 1.0),
    )
    give_all(waiting, scaled(0, 4, 1.5), scaled(1, 7, 3.0, 2.5))
    assert waiting.clip_norms_after(7, after) == (
        ClipNorm(0, 4, 1.5),
        ClipNorm(1, 4, 3.0),
        ClipNorm(1, 8, 2.5),
        ClipNorm(2, 0, 1.0),
    )


def test_a_late_release_of_one_cluster_leaves_the_norms_of_the_others():
    waiting = adaptive((5, 5, 1))
    known = (ClipNorm(0, 4, 5.0), ClipNorm(0, 8, 6.0), ClipNorm(1, 4, 7.0), ClipNorm(2, 0, 1.0))
    assert give_all(waiting, scaled(0, 5, 9.0), scaled(2, 2, 1.0, 2.0)) == ["duplicate", "accepted"]
    assert waiting.clip_norms_after(6, known) == (*known, ClipNorm(2, 4, 2.0))


def test_late_cells_of_many_scales_are_not_kept_waiting():
    waiting = adaptive((10_000, 10_000, -1))
    most = WAITING_WINDOW_LIMIT + ADAPTIVE.cluster_count
    give_all(waiting, *[scaled(2, n, 1.0 + n) for n in range(most)])
    assert waiting.ready() is None
    give_all(waiting, scaled(2, most, 1.0))
    assert waiting.ready() is None
    give_all(waiting, scaled(2, most + 1, 0.5))
    assert waiting.ready() == 10_001
    waiting.forget_through(10_001)
    assert waiting.next_window is None
