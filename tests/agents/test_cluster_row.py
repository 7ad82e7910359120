import dataclasses
import json

import pytest

from agents.client_spending import ClientSpending
from agents.cluster_row import (
    ClusterRow,
    LedgerState,
    LimitSpending,
    Spending,
    limits_spent,
    newest_cost,
)
from agents.ledger_report import LedgerReport
from schemas import LedgerKind, LedgerRecord
from stream.ledger_chain import genesis
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec


def make_plan(**changes: object) -> PrivacyPlan:
    plan = PrivacyPlan(
        name="row",
        dimension=5,
        cluster_count=1,
        assignment="hash",
        assignment_key="public",
        expected_clients=10,
        start_ms=0,
        window_length_ms=600_000,
        grace_ms=100,
        release_delay_ms=300,
        l2_clip_norm=1.0,
        grid_l2_bound=100,
        count_weight=10,
        update_dtype="int8",
        epsilon=3.0,
        delta=1e-3,
        horizon_windows=10,
        optimizer=OptimizerSpec("sgd", learning_rate=0.1),
        normalizer="expected_clients",
    )
    return dataclasses.replace(plan, **changes)


def newest(plan: PrivacyPlan, **changes: object) -> LedgerRecord:
    changes = {"sequence": 4, "window": 3, "kind": LedgerKind.RELEASE, **changes}
    return dataclasses.replace(genesis(plan, 0, 0, 0, 0), **changes)


def row(plan: PrivacyPlan, spending: Spending, **changes: object) -> ClusterRow:
    return ClusterRow.of(plan, 0, newest(plan, **changes), spending)


def words(found: ClusterRow) -> str:
    return " ".join("\n".join(found.in_words()).split())


@pytest.mark.parametrize(
    ("percent", "saving_windows", "level"),
    [
        (0, 0, "normal"),
        (79, 0, "normal"),
        (80, 0, "warning"),
        (90, 0, "critical"),
        (90, 9, "saving"),
    ],
)
def test_the_level_is_that_of_the_schedule(percent: int, saving_windows: int, level: str) -> None:
    plan = make_plan(schedule_spec=ScheduleSpec(saving_windows=saving_windows))
    found = row(plan, Spending(spent_units=-(-plan.cap_units * percent // 100)))
    assert found.level == level
    assert f"{percent}.00 % of the budget is spent; {level}" in words(found)


def test_a_closed_ledger_is_exhausted_whatever_is_left() -> None:
    plan = make_plan()
    found = row(plan, Spending(spent_units=1), kind=LedgerKind.EXHAUSTED, next_units=0)
    assert (found.level, found.state) == ("exhausted", LedgerState.EXHAUSTED)
    assert "nothing is released any more" in words(found)
    assert "planned" not in words(found)
    assert found.next_noise_multiplier is None


def test_what_is_planned_next_is_said_with_its_noise() -> None:
    plan = make_plan()
    found = row(plan, Spending())
    assert found.next_units == plan.schedule.first_units()
    assert found.next_noise_multiplier == pytest.approx(plan.noise_multiplier)
    assert f"noise multiplier {plan.noise_multiplier:.4g}" in words(found)


def test_epsilon_is_by_the_filter_of_the_plans_noise() -> None:
    for plan in (make_plan(), make_plan(noise="discrete_gaussian")):
        found = row(plan, Spending(spent_units=plan.cap_units // 2))
        assert found.epsilon == plan.privacy_filter.epsilon(plan.cap_units // 2, plan.delta)
        assert found.epsilon_cap == pytest.approx(3.0, abs=2e-6)


def test_the_sums_of_the_newest_windows_are_of_running_totals() -> None:
    totals = [0, 1, 3, 3, 10]
    assert [newest_cost(totals, windows) for windows in (0, 1, 2, 3, 4, 99)] == [0, 7, 7, 9, 10, 10]
    plan = make_plan(hour_epsilon=2.0)
    assert limits_spent(plan, totals) == (LimitSpending("hour", 7, 10, plan.sliding_caps[0][2]),)
    assert limits_spent(make_plan(), totals) == ()


def test_limits_and_throttled_windows_are_told() -> None:
    plan = make_plan(hour_epsilon=2.0, day_epsilon=2.5)
    limits = limits_spent(plan, [0, plan.charge_units])
    text = words(row(plan, Spending(throttled=2, throttled_of=40, limits=limits)))
    share = 100 * plan.charge_units / plan.sliding_caps[0][2]
    assert f"hour: the newest 7 windows have spent {share:.2f} % of what any 7 may" in text
    assert "day: the newest 145 windows have spent" in text
    assert "2 of 40 windows were throttled" in text


def test_clients_budgets_are_told_as_a_distribution_that_stays_inside() -> None:
    plan = make_plan(scope="client")
    clients = ClientSpending(1204, plan.cap_units, plan.cap_units // 4, 17)
    found = row(plan, Spending(spent_units=plan.cap_units, clients=clients))
    assert found.level == ""
    text = words(found)
    assert "1,204 clients have spent some of their own budgets" in text
    assert "half of them at most 25.00 %, the most 100.00 %" in text
    assert "17 of them cannot pay for another window and are refused; releases go on" in text
    report = LedgerReport("00", 1e-3, "client", (found,))
    assert "inside the privacy boundary: do not pass it on" in report.as_text()
    assert report.epsilon == pytest.approx(3.0, abs=2e-6)


def test_a_refused_or_empty_ledger_has_only_its_reason() -> None:
    plan = make_plan()
    empty = ClusterRow.of(plan, 0, None, Spending())
    assert (empty.state, empty.level, empty.in_words()) == (LedgerState.NOT_BEGUN, "", [])
    refused = ClusterRow.of(plan, 0, None, Spending(), "its chain is broken")
    assert refused.state is LedgerState.REFUSED
    assert refused.in_words() == ["cluster 0: its chain is broken"]


def test_the_row_is_json_with_rho_beside_the_exact_units() -> None:
    plan = make_plan(scope="client")
    clients = ClientSpending(2, 5, 4, 0)
    found = row(plan, Spending(spent_units=1 << 59, releases=3, clients=clients)).as_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["spent_rho"] == 0.5
    assert found["releases"] == 3
    assert found["clients"] == {
        "clients": 2,
        "largest_units": 5,
        "median_units": 4,
        "at_cap": 0,
    }
