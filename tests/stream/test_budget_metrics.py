import dataclasses
import math
from fractions import Fraction

import pytest
from prometheus_client import CollectorRegistry

from schemas import ClipState, LedgerKind, LedgerRecord
from stream.budget_metrics import BudgetMetrics
from stream.ledger_chain import genesis
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_spec import ScheduleSpec

PLAN = PrivacyPlan(
    name="budget",
    dimension=4,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=4.0,
    delta=1e-5,
    horizon_windows=10,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


class Watched:
    """The gauges of one plan and their values."""

    def __init__(self, plan: PrivacyPlan = PLAN) -> None:
        self.registry = CollectorRegistry()
        self.metrics = BudgetMetrics(self.registry, plan)

    def __call__(self, name: str, cluster: int = 0) -> float | None:
        return self.registry.get_sample_value(name, {"cluster": str(cluster)})


def release(plan: PrivacyPlan, window: int, **changes: object) -> LedgerRecord:
    changes = {"noise_variance": plan.noise_variance, "spent_units": 7, **changes}
    first = genesis(plan, 0, 0, 0, 0)
    return dataclasses.replace(first, kind=LedgerKind.RELEASE, window=window, **changes)


@pytest.mark.parametrize(
    ("plan", "level"),
    [(PLAN, 2), (dataclasses.replace(PLAN, schedule_spec=ScheduleSpec(saving_windows=5)), 2)],
    ids=["critical", "saving"],
)
def test_the_level_rises_at_80_and_90_percent_and_when_nothing_is_released(plan, level):
    watched = Watched(plan)
    found = []
    for percent in (0, 79, 80, 89, 90, 100):
        units = -(-plan.cap_units * percent // 100)
        watched.metrics.observe_budget(0, units, is_exhausted=False)
        found.append(watched("sdp_budget_level"))
    assert found == [0, 0, 1, 1, level, level]
    watched.metrics.observe_budget(0, plan.cap_units // 2, is_exhausted=True)
    assert watched("sdp_budget_level") == 3
    assert watched("sdp_budget_exhausted") == 1


def test_clients_own_budgets_never_raise_the_level():
    plan = dataclasses.replace(PLAN, scope="client")
    watched = Watched(plan)
    watched.metrics.observe_budget(0, plan.cap_units, is_exhausted=False)
    assert watched("sdp_budget_level") == 0
    assert watched("sdp_budget_epsilon_spent") == pytest.approx(4.0, abs=1e-5)


@pytest.mark.parametrize("noise", ["rounded_gaussian", "discrete_gaussian"])
def test_epsilon_is_by_the_filter_of_the_plans_noise(noise):
    plan = dataclasses.replace(PLAN, noise=noise)
    watched = Watched(plan)
    watched.metrics.observe_budget(0, plan.cap_units // 3, is_exhausted=False)
    expected = plan.privacy_filter.epsilon(plan.cap_units // 3, plan.delta)
    assert watched("sdp_budget_epsilon_spent") == expected
    assert watched("sdp_budget_spent_ratio") == pytest.approx(1 / 3)
    assert watched.registry.get_sample_value("sdp_budget_epsilon") == 4.0


def test_the_noise_is_that_of_the_newest_public_release_and_changes_at_its_publication_only():
    watched = Watched()
    assert watched("sdp_noise_multiplier") is None
    watched.metrics.hold(release(PLAN, 0))
    assert watched("sdp_noise_multiplier") is None
    watched.metrics.observe_published(0)
    assert watched("sdp_noise_multiplier") == pytest.approx(PLAN.noise_multiplier)
    larger = Fraction(4 * PLAN.l2_sensitivity_squared)
    watched.metrics.hold(release(PLAN, 1, noise_variance=larger))
    assert watched("sdp_noise_multiplier") == pytest.approx(PLAN.noise_multiplier)
    watched.metrics.observe_published(1)
    assert watched("sdp_noise_multiplier") == 2.0
    assert watched("sdp_releases_total") == 2
    assert watched("sdp_last_released_window") == 1


def test_the_clip_norm_is_that_of_the_newest_public_release():
    watched = Watched()
    clip = ClipState(0.75, 0.0, 5, 50)
    watched.metrics.hold(release(PLAN, 0, clip=clip))
    assert watched("sdp_clip_norm") is None
    watched.metrics.observe_published(0)
    assert watched("sdp_clip_norm") == 0.75


def test_without_adaptive_clipping_no_clip_norm_is_told():
    watched = Watched()
    watched.metrics.hold(release(PLAN, 0))
    watched.metrics.observe_published(0)
    assert watched("sdp_clip_norm") is None


def test_a_release_that_is_not_due_yet_stays_held():
    watched = Watched()
    watched.metrics.hold(release(PLAN, 3))
    watched.metrics.observe_published(2)
    assert watched("sdp_releases_total") is None
    watched.metrics.observe_published(3)
    assert watched("sdp_releases_total") == 1
    watched.metrics.observe_published(3)
    assert watched("sdp_releases_total") == 1


def test_a_cluster_that_is_let_go_takes_its_gauges_and_what_was_held_with_it():
    watched = Watched()
    watched.metrics.observe_budget(0, 5, is_exhausted=False)
    watched.metrics.observe_budget(1, 5, is_exhausted=False)
    watched.metrics.hold(release(PLAN, 0))
    watched.metrics.forget(0)
    watched.metrics.forget(0)
    watched.metrics.observe_published(0)
    names = ("level", "epsilon_spent", "spent_ratio", "exhausted")
    assert all(watched(f"sdp_budget_{name}") is None for name in names)
    assert all(watched(f"sdp_budget_{name}", 1) is not None for name in names)
    assert watched("sdp_last_released_window") is None
    assert math.isclose(watched.registry.get_sample_value("sdp_budget_delta") or 0, 1e-5)
