import dataclasses
import json
import math
import struct
from pathlib import Path

import dp_accounting
import pytest

from agents.plan_curve import PlanCurve, curve_report, curve_text, draw_curve
from agents.plan_report import report
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec

PLAN = PrivacyPlan(
    name="curve",
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


def test_windows_go_from_one_over_the_horizon_to_ten_times_beyond() -> None:
    points = PlanCurve.of(PLAN).privacy
    assert [point.windows for point in points] == [
        *(1, 2, 6, 13, 32, 75, 178, 422, 1000),
        *(2000, 5000, 10_000),
    ]
    assert [point.is_admitted for point in points] == [True] * 9 + [False] * 3


def test_a_short_horizon_has_each_count_once() -> None:
    points = PlanCurve.of(dataclasses.replace(PLAN, horizon_windows=1)).privacy
    assert [point.windows for point in points] == [1, 2, 5, 10]


def test_epsilon_is_that_of_an_independent_conversion() -> None:
    for point in PlanCurve.of(PLAN).privacy:
        sigma = PLAN.noise_multiplier / math.sqrt(point.windows)
        theirs = dp_accounting.get_epsilon_gaussian(sigma, PLAN.delta)
        assert -1e-9 <= point.epsilon - theirs <= 1e-6 + 1e-9


def test_epsilon_at_the_horizon_is_the_budget_and_beyond_it_is_above() -> None:
    epsilons = {point.windows: point.epsilon for point in PlanCurve.of(PLAN).privacy}
    assert epsilons[1000] == pytest.approx(4.0, abs=2e-6)
    assert epsilons[1000] <= 4.0 < epsilons[2000] < epsilons[10_000]


def test_clients_span_a_decade_to_either_side_of_what_the_plan_expects() -> None:
    clients = [point.clients for point in PlanCurve.of(PLAN).noise]
    assert clients == [100, 178, 316, 562, 1000, 1778, 3162, 5623, 10_000]


@pytest.mark.parametrize("expected_clients", [1, 3, 1000])
def test_the_noise_of_each_number_of_clients_is_that_of_a_plan_that_expects_them(
    expected_clients: int,
) -> None:
    points = PlanCurve.of(dataclasses.replace(PLAN, expected_clients=expected_clients)).noise
    assert expected_clients in [point.clients for point in points]
    for point in points:
        other = dataclasses.replace(PLAN, expected_clients=point.clients)
        assert point.noise_to_signal == pytest.approx(report(other)["noise_to_signal"], rel=1e-12)


def test_the_noise_follows_the_stated_formula() -> None:
    sigma = math.sqrt(PLAN.noise_variance)
    for point in PlanCurve.of(PLAN).noise:
        norm = sigma * PLAN.grid_step * math.sqrt(4 * 400) / point.clients
        assert point.noise_to_signal == pytest.approx(norm / 2.0, rel=1e-12)


@pytest.mark.parametrize("expected_clients", [1, 1000])
def test_the_clients_for_equal_noise_are_the_fewest(expected_clients: int) -> None:
    plan = dataclasses.replace(PLAN, expected_clients=expected_clients)
    enough = PlanCurve.of(plan).clients_for_equal_noise
    few, fewer = (
        report(dataclasses.replace(plan, expected_clients=clients))["noise_to_signal"]
        for clients in (enough, enough - 1)
    )
    assert few <= 1 < fewer


def test_the_report_is_json_and_holds_both_curves() -> None:
    found = curve_report(PLAN)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["plan_id"] == PLAN.plan_id_hex
    assert (found["epsilon"], found["delta"], found["windows"]) == (4.0, 1e-6, 1000)
    assert found["noise_multiplier"] == PLAN.noise_multiplier
    assert (found["schedule"], found["filter"]) == ("constant", "gdp")
    assert found["expected_clients"] == 1000
    curve = PlanCurve.of(PLAN)
    assert found["epsilon_by_windows"] == [
        {
            "windows": point.windows,
            "epsilon": point.epsilon,
            "noise_multiplier": point.noise_multiplier,
            "is_admitted": point.is_admitted,
        }
        for point in curve.privacy
    ]
    assert found["noise_to_signal_by_clients"] == [
        {"clients": point.clients, "noise_to_signal": point.noise_to_signal}
        for point in curve.noise
    ]
    assert found["clients_for_equal_noise"] == curve.clients_for_equal_noise


def test_the_text_marks_the_plan_in_both_tables() -> None:
    text = curve_text(PLAN)
    privacy, noise = text.split("\n\n")
    assert any(
        line.split()[0] == "1,000" and line.endswith("all that the budget pays for")
        for line in privacy.splitlines()
    )
    assert privacy.count("the ledger refuses so many") == 3
    assert any(
        line.split()[0] == "1,000" and line.endswith("the plan's") for line in noise.splitlines()
    )
    assert f"{PlanCurve.of(PLAN).clients_for_equal_noise:,} clients" in noise.splitlines()[-1]
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("horizon", [1, 1000])
def test_the_picture_is_a_png(tmp_path: Path, horizon: int) -> None:
    path = tmp_path / "curve.png"
    draw_curve(dataclasses.replace(PLAN, horizon_windows=horizon), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1200, 540)
    assert data.endswith(b"IEND\xaeB`\x82")


def test_a_plan_whose_first_windows_cost_no_epsilon_can_be_drawn(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, epsilon=0.01, delta=0.01, horizon_windows=10_000)
    assert PlanCurve.of(plan).privacy[0].epsilon == 0
    draw_curve(plan, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


# --- Other plans ---------------------------------------------------------------------------


def test_a_schedule_with_an_end_ends_there_and_its_noise_is_that_of_each_window() -> None:
    spec = ScheduleSpec("linear", final_noise_ratio=0.25)
    plan = dataclasses.replace(PLAN, schedule_spec=spec)
    points = PlanCurve.of(plan).privacy
    assert points[-1].windows == 1000
    assert all(point.is_admitted for point in points)
    assert points[-1].epsilon == pytest.approx(4.0, abs=1e-4)
    assert points[-1].epsilon <= 4.0
    multipliers = [point.noise_multiplier for point in points]
    assert multipliers == sorted(multipliers, reverse=True)
    assert multipliers[-1] == pytest.approx(multipliers[0] / 4, rel=1e-6)
    # An independent sum of what the windows cost.
    planned = list(plan.schedule.planned())
    rho = sum(units for _, units in planned[: points[4].windows]) / 2**60
    theirs = dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), plan.delta)
    assert points[4].epsilon == pytest.approx(theirs, abs=2e-6)


def test_a_schedule_without_an_end_is_followed_for_a_while_and_says_so() -> None:
    plan = dataclasses.replace(PLAN, schedule_spec=ScheduleSpec("infinite"))
    points = PlanCurve.of(plan).privacy
    assert points[-1].windows == 10_000
    assert all(point.is_admitted for point in points)
    assert points[-1].epsilon < 4.0
    assert curve_report(plan)["windows"] is None
    assert "followed so far; releases go on" in curve_text(plan)


def test_discrete_noise_is_converted_by_zcdp() -> None:
    plan = dataclasses.replace(PLAN, noise="discrete_gaussian")
    epsilons = {point.windows: point.epsilon for point in PlanCurve.of(plan).privacy}
    assert epsilons[1000] == pytest.approx(4.0, abs=2e-6)
    assert epsilons[2000] == plan.privacy_filter.epsilon(2000 * plan.charge_units, plan.delta)
    assert "by zcdp" in curve_text(plan)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule_spec": ScheduleSpec("infinite", max_noise_multiplier=60.0)},
        {"schedule_spec": ScheduleSpec("paced")},
        {"scope": "client"},
    ],
    ids=str,
)
def test_every_plan_can_be_drawn(tmp_path: Path, changes: dict[str, object]) -> None:
    draw_curve(dataclasses.replace(PLAN, **changes), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
