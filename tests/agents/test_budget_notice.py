"""What is said of a budget, and when nothing is."""

import dataclasses

import pytest

from agents.budget_notice import budget_notice
from schemas import LedgerKind
from stream.cluster_head import SealedCell
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec

PLAN = PrivacyPlan(
    name="notice",
    dimension=4,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=100,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


def cell(kind):
    return SealedCell(0, 7, kind, None, None, None, 0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0, 79, ""),
        (79, 80, "80.0 % of the budget is spent: warning"),
        (80, 81, ""),
        (89, 90, "90.0 % of the budget is spent: critical"),
        (90, 91, ""),
    ],
)
def test_a_level_is_told_when_it_is_reached_and_once(before, after, said):
    # Rounded up, so that no rounding leaves a level unreached.
    units = [-(-PLAN.cap_units * percent // 100) for percent in (before, after)]
    assert budget_notice(PLAN, cell(LedgerKind.RELEASE), *units) == said


def test_the_end_and_a_window_that_is_held_back_are_told():
    assert "budget is spent" in budget_notice(PLAN, cell(LedgerKind.EXHAUSTED), 0, 0)
    assert "holds window 7 back" in budget_notice(PLAN, cell(LedgerKind.THROTTLED), 0, 0)


def test_what_clients_spend_of_their_own_is_never_told():
    plan = dataclasses.replace(PLAN, scope="client")
    assert budget_notice(plan, cell(LedgerKind.RELEASE), 0, plan.cap_units) == ""
