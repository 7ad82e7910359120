import dataclasses
from itertools import islice

import pytest

from agents.plan_windows import PlannedWindows
from stream.privacy.accounting import gaussian_charge_units
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec

PLAN = PrivacyPlan(
    name="windows",
    dimension=400,
    cluster_count=4,
    assignment="hash",
    assignment_key="public",
    expected_clients=1000,
    start_ms=0,
    window_length_ms=60_000,
    grace_ms=1000,
    release_delay_ms=5000,
    l2_clip_norm=2.0,
    grid_l2_bound=500,
    count_weight=50,
    update_dtype="int8",
    epsilon=4.0,
    delta=1e-6,
    horizon_windows=90,
    optimizer=OptimizerSpec("sgd", learning_rate=0.1),
    normalizer="expected_clients",
)
SPECS = (
    ScheduleSpec(),
    ScheduleSpec(saving_windows=20, max_noise_multiplier=60.0),
    ScheduleSpec("exponential", noise_decay=0.98),
    ScheduleSpec("linear", final_noise_ratio=0.25),
    ScheduleSpec("step", milestones=(30, 60), noise_ratios=(4.0, 2.0, 4.0)),
    ScheduleSpec("paced"),
    ScheduleSpec("infinite", max_noise_multiplier=60.0),
)


def ids(spec: ScheduleSpec) -> str:
    return spec.kind


@pytest.mark.parametrize("spec", SPECS, ids=ids)
def test_they_are_the_windows_of_the_schedule_and_their_charges_fit_the_budget(
    spec: ScheduleSpec,
) -> None:
    plan = dataclasses.replace(PLAN, schedule_spec=spec)
    found = PlannedWindows.of(plan)
    planned = list(islice(plan.schedule.planned(), 10_000))
    charges = [
        gaussian_charge_units(plan.l2_sensitivity_squared, plan.schedule.noise_variance(units))
        for _, units in planned
    ]
    assert found.is_whole
    assert found.windows == len(planned)
    assert found.total_units == sum(charges) <= plan.cap_units
    for windows in (0, 1, 31, len(planned), len(planned) + 5):
        assert found.spent_after(windows) == sum(charges[:windows])
    for window in (0, 29, 30, len(planned) - 1):
        assert found.run_of(window).charge_units == charges[window]
    assert sum(count for _, count in found.charges) == len(planned)
    assert sum(charge * count for charge, count in found.charges) == sum(charges)


def test_windows_that_are_alike_are_one_run_and_charges_that_come_back_are_one() -> None:
    assert len(PlannedWindows.of(PLAN).runs) == 1
    steps = PlannedWindows.of(dataclasses.replace(PLAN, schedule_spec=SPECS[4]))
    assert [run.windows for run in steps.runs] == [30, 30, 30]
    assert [count for _, count in steps.charges] == [60, 30]


def test_a_schedule_without_an_end_is_followed_for_as_long_as_is_asked() -> None:
    plan = dataclasses.replace(PLAN, schedule_spec=ScheduleSpec("infinite"))
    found = PlannedWindows.of(plan, 50)
    assert (found.windows, found.is_whole) == (50, False)
    assert PlannedWindows.of(PLAN, 50).windows == 90  # all alike: nothing to follow


def test_a_schedule_that_ends_just_there_is_whole() -> None:
    plan = dataclasses.replace(PLAN, schedule_spec=ScheduleSpec("paced"))
    assert PlannedWindows.of(plan, 90).is_whole
    assert not PlannedWindows.of(plan, 89).is_whole
