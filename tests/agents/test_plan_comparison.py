import dataclasses
import json
import time

from agents.plan_comparison import comparison, comparison_lines
from stream.privacy.accounting import UNITS_PER_RHO, epsilon_from_units, zcdp_epsilon
from stream.privacy.composition import Accounting
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec

PLAN = PrivacyPlan(
    name="comparison",
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


def test_it_is_of_all_windows_that_the_plan_pays_for() -> None:
    units = PLAN.windows_allowed * PLAN.charge_units
    found = comparison(PLAN)
    assert found["gdp"] == epsilon_from_units(units, 1e-6)
    assert 3.99 < found["gdp"] <= PLAN.epsilon
    assert found["zcdp_optimal"] == zcdp_epsilon(units / UNITS_PER_RHO, 1e-6)


def test_each_accounting_is_there_under_the_name_that_scripts_are_promised() -> None:
    found = comparison(PLAN)
    assert list(found) == [
        "gdp",
        "zcdp_optimal",
        "zcdp_simple",
        "advanced_composition",
        "basic_composition",
    ]
    assert list(found.values()) == sorted(found.values())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_text_has_a_short_line_for_each_accounting_and_says_which_is_ours() -> None:
    head, *rows = comparison_lines(PLAN)
    assert "same 1,000 windows" in head
    assert "delta 1e-06" in head
    assert len(rows) == len(Accounting)
    assert [row for row in rows if "this product" in row] == rows[:1]
    assert any("RDP, not shipped" in row for row in rows)
    printed = [float(row.split()[-1]) for row in rows]
    assert printed == [float(f"{epsilon:.5g}") for epsilon in comparison(PLAN).values()]
    assert all(len(line) <= 100 for line in (head, *rows))


def test_of_discrete_noise_only_zcdp_is_said_and_it_is_ours() -> None:
    plan = dataclasses.replace(PLAN, noise="discrete_gaussian")
    found = comparison(plan)
    assert list(found) == ["zcdp_optimal", "zcdp_simple"]
    assert 3.99 < found["zcdp_optimal"] <= 4.0 < found["zcdp_simple"]
    _, ours, simple = comparison_lines(plan)
    assert "this product" in ours
    assert "this product" not in simple


def test_a_schedule_is_compared_by_the_charges_that_it_plans() -> None:
    spec = ScheduleSpec("step", milestones=(100, 400), noise_ratios=(4.0, 2.0, 1.0))
    plan = dataclasses.replace(PLAN, schedule_spec=spec)
    found = comparison(plan)
    assert 3.99 < found["gdp"] <= 4.0
    # Advanced composition is the farther from it, the fewer the windows that cost anything.
    assert found["advanced_composition"] > found["zcdp_simple"]
    assert "same 1,000 windows" in comparison_lines(plan)[0]


def test_of_a_schedule_without_an_end_the_first_windows_are_compared_in_bearable_time() -> None:
    plan = dataclasses.replace(PLAN, schedule_spec=ScheduleSpec("infinite"))
    begin = time.perf_counter()
    head = comparison_lines(plan)[0]
    assert "first 2,000 windows" in head
    assert time.perf_counter() - begin < 10
    assert comparison(plan)["gdp"] < 4.0
