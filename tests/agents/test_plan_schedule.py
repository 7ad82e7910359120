import dataclasses
import json

import pytest

from agents.plan_schedule import limits_report, schedule_report, schedule_rows
from agents.plan_utility import Utility
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec


def make_plan(**changes: object) -> PrivacyPlan:
    plan = PrivacyPlan(
        name="schedule",
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
        horizon_windows=1000,
        optimizer=OptimizerSpec("sgd", learning_rate=0.1),
        normalizer="expected_clients",
    )
    return dataclasses.replace(plan, **changes)


def test_a_constant_schedule_has_the_plans_own_numbers_first_and_last() -> None:
    plan = make_plan()
    found = schedule_report(plan)
    assert found["kind"] == "constant"
    assert found["windows_planned"] == 1000
    assert found["is_whole"] is True
    assert found["first"] == found["last"]
    assert found["first"] == {
        "rho": plan.charge_units / 2**60,
        "noise_multiplier": plan.noise_multiplier,
        "noise_stddev_grid_steps": pytest.approx(float(plan.noise_variance) ** 0.5),
        "noise_to_signal": Utility.of(plan).noise_to_signal,
    }


def test_a_schedule_is_told_with_its_parameters_its_ends_and_its_total() -> None:
    spec = ScheduleSpec("step", milestones=(100,), noise_ratios=(4.0, 1.0), saving_windows=50)
    plan = make_plan(schedule_spec=spec)
    found = schedule_report(plan)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["milestones"] == [100]
    assert found["noise_ratios"] == [4.0, 1.0]
    assert found["saving_windows"] == 50
    assert "noise_decay" not in found
    assert found["first"]["noise_multiplier"] == plan.noise_multiplier
    assert 0.9 < found["rho_planned"] / (plan.cap_units / 2**60) <= 1
    rows = dict(schedule_rows(plan))
    assert rows["schedule"].startswith("step, milestones [100], noise_ratios [4.0, 1.0]")
    assert "noise multiplier" in rows["charge of the first window"]
    assert any("% of the budget" in text for text in rows.values())


def test_a_schedule_that_goes_on_is_marked_as_followed_so_far() -> None:
    plan = make_plan(schedule_spec=ScheduleSpec("infinite"))
    assert schedule_report(plan)["is_whole"] is False
    rows = dict(schedule_rows(plan))
    assert "charge of the 10,000th window" in rows
    assert rows["planned so far"].startswith("10,000 windows for ")


def test_noise_falls_from_the_first_to_the_last_window_as_the_plan_says() -> None:
    plan = make_plan(schedule_spec=ScheduleSpec("cosine", final_noise_ratio=0.25))
    found = schedule_report(plan)
    assert found["last"]["noise_multiplier"] == pytest.approx(
        found["first"]["noise_multiplier"] / 4, rel=1e-6
    )
    assert found["last"]["noise_to_signal"] == pytest.approx(
        found["first"]["noise_to_signal"] / 4, rel=1e-6
    )


def test_limits_are_told_with_the_windows_that_they_pay_for() -> None:
    plan = make_plan(hour_epsilon=0.5, day_epsilon=2.0)
    hour, day = limits_report(plan)
    assert (hour["name"], hour["windows"], hour["epsilon"]) == ("hour", 61, 0.5)
    assert (day["name"], day["windows"], day["epsilon"]) == ("day", 1441, 2.0)
    assert hour["windows_paid"] == plan.sliding_caps[0][2] // plan.charge_units
    rows = dict(schedule_rows(plan))
    assert f"pays for {hour['windows_paid']:,} of them" in rows["limit of 61 windows"]
    assert "others are throttled" in rows["limit of 61 windows"]
    assert limits_report(make_plan()) == []
    ample = dict(schedule_rows(make_plan(hour_epsilon=3.9)))
    assert ample["limit of 61 windows"].endswith(
        "pays for all of them at the first window's charge"
    )
