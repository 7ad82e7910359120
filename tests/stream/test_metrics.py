import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from schemas import LedgerKind, encode_ledger_record
from stream.aggregation.intake import BatchOutcome, RejectedUpdate
from stream.aggregation.validation import Reason, Rejection
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead, SealedCell
from stream.ledger_chain import genesis
from stream.metrics import ACCEPTED, ClientMetrics, GlobalMetrics, HeadMetrics, Registries
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import UnsafeNoNoise

PLAN = PrivacyPlan(
    name="metrics",
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
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=2,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
# What the public registry of a head may hold, and with which labels (PRIVACY 1.9).
PUBLIC = {
    "sdp_plan_info": {"plan", "plan_id"},
    "sdp_budget_epsilon": set(),
    "sdp_budget_delta": set(),
    "sdp_budget_epsilon_spent": {"cluster"},
    "sdp_budget_spent_ratio": {"cluster"},
    "sdp_budget_level": {"cluster"},
    "sdp_budget_exhausted": {"cluster"},
    "sdp_releases": {"cluster"},
    "sdp_last_released_window": {"cluster"},
    "sdp_noise_multiplier": {"cluster"},
    "sdp_clip_norm": set(),  # nothing as long as clipping is not adaptive
}


def make_metrics(plan: PrivacyPlan = PLAN) -> tuple[Registries, HeadMetrics]:
    registries = Registries(plan)
    return registries, HeadMetrics(registries, plan)


def sealed(windows: int, plan: PrivacyPlan = PLAN) -> list[SealedCell]:
    """The first cells of a cluster."""
    record = encode_ledger_record(genesis(plan, 0, 0, 0, 0))
    clients = ClientBudgets(plan.cap_units) if plan.scope == "client" else None
    head = ClusterHead(
        plan,
        0,
        UnsafeNoNoise(),
        [record],
        is_complete=True,
        max_open_windows=2,
        clients=clients,
    )
    cells = []
    for window in range(windows):
        head.expect(window, 0)
        cell = head.seal(0)
        head.commit(cell)
        cells.append(cell)
    return cells


def open_cluster(
    head: HeadMetrics, cluster: int, spent: int, *, is_exhausted: bool = False, lost: int = 0
) -> None:
    """Take over a cluster that has spent ``spent`` units, long after its last window."""
    record = dataclasses.replace(
        genesis(PLAN, cluster, 0, 0, 0),
        spent_units=spent,
        kind=LedgerKind.EXHAUSTED if is_exhausted else LedgerKind.GENESIS,
    )
    head.observe_opened(cluster, record, 10**9, lost)


def batch(accepted: int, *reasons: Reason) -> BatchOutcome:
    rejected = [RejectedUpdate(0, 0, "alice", Rejection(reason, "why")) for reason in reasons]
    return BatchOutcome(accepted, rejected)


def families(*registries: CollectorRegistry) -> Iterator[Metric]:
    for registry in registries:
        yield from registry.collect()


def seen_by_all() -> tuple[Registries, CollectorRegistry]:
    """Registries in which everything has been observed once."""
    registries, head = make_metrics()
    open_cluster(head, 0, 0, lost=3)
    head.observe_refused(1)
    head.observe_batch(0, batch(5, *Reason))
    head.observe_lag(0, 7)
    for cell in sealed(4):
        head.observe_sealed(cell, 12_000)
        head.observe_published(cell.window, 12_500)
    for stage in ("seal", "transaction", "publish"):
        head.observe_stage(stage, 0.1)
    head.observe_loop_lag(0.001)
    model = GlobalMetrics(registries)
    model.observe_release("taken")
    model.observe_model(1, 0)
    model.observe_step(2, 0, 0.4, 10.2, 0.5)
    client_registry = CollectorRegistry()
    client = ClientMetrics(client_registry)
    client.observe_published()
    client.observe_failure()
    client.observe_skipped(3)
    client.observe_model(4)
    return registries, client_registry


def public_text(registries: Registries) -> str:
    """All of the public registry but the moments at which counters were made."""
    lines = generate_latest(registries.public).decode().splitlines()
    return "\n".join(line for line in lines if "_created" not in line)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_the_lag_of_the_event_loop_is_for_the_operator_alone():
    registries, head = make_metrics()
    head.observe_loop_lag(0.004)
    head.observe_loop_lag(0.04)
    assert value(registries.operator, "sdp_event_loop_lag_seconds_count") == 2
    assert value(registries.operator, "sdp_event_loop_lag_seconds_bucket", le="0.005") == 1
    assert "event_loop" not in public_text(registries)


# --- Names ---------------------------------------------------------------------------------


def test_names_follow_the_rules_of_prometheus():
    registries, client = seen_by_all()
    for family in families(registries.public, registries.operator, client):
        assert re.fullmatch(r"sdp_[a-z0-9]+(_[a-z0-9]+)*", family.name), family.name
        assert family.documentation.endswith(".")
        # Base units, and no type in the name; the client library adds _total to counters.
        words = set(family.name.split("_")[1:])
        assert not words & {"ms", "millis", "kb", "mb", "percent", "total", "counter", "gauge"}
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_no_client_is_ever_a_label_or_a_label_value():
    registries, client = seen_by_all()
    allowed = {"cluster", "outcome", "stage", "plan", "plan_id", "le"}
    for family in families(registries.public, registries.operator, client):
        for sample in family.samples:
            assert set(sample.labels) <= allowed
            assert "alice" not in sample.labels.values()


def test_a_head_and_a_global_agent_may_share_a_process():
    registries, _ = make_metrics()
    GlobalMetrics(registries)


# --- What may leave the boundary -----------------------------------------------------------


def test_the_public_registry_of_a_head_holds_what_the_plan_and_the_releases_say_and_no_more():
    registries, head = make_metrics()
    open_cluster(head, 0, 0)
    for cell in sealed(3):
        head.observe_sealed(cell, 12_000)
        head.observe_published(cell.window, 12_500)
    found = {
        family.name: {label for sample in family.samples for label in sample.labels}
        for family in families(registries.public)
    }
    assert found == PUBLIC


def test_nothing_that_a_head_counts_shows_in_the_public_registry():
    worlds = []
    for busy in (False, True):
        registries, head = make_metrics()
        open_cluster(head, 0, 0, lost=99 if busy else 0)
        for cell in sealed(4):
            if busy:
                head.observe_batch(0, batch(5, *Reason))
                head.observe_lag(0, 7)
                head.observe_stage("seal", 3.0)
            head.observe_sealed(cell, 14_000 if busy else 12_000)
            head.observe_published(cell.window, 14_500 if busy else 12_500)
        worlds.append(public_text(registries))
    assert worlds[0] == worlds[1]


def test_a_commit_shows_in_the_public_registry_only_when_its_release_is_public():
    # When a window commits depends on how many updates there were; when it is public does not.
    registries, head = make_metrics()
    open_cluster(head, 0, 0)
    cell, *_ = sealed(1)
    before = public_text(registries)
    head.observe_sealed(cell, 11_100)
    assert public_text(registries) == before
    head.observe_published(0, 11_300)
    assert value(registries.public, "sdp_releases_total", cluster="0") == 1
    assert value(registries.public, "sdp_last_released_window", cluster="0") == 0
    assert value(registries.public, "sdp_budget_epsilon_spent", cluster="0") > 0


def test_a_release_that_is_published_again_is_not_counted_again():
    registries, head = make_metrics()
    open_cluster(head, 0, 0)
    cell, *_ = sealed(1)
    head.observe_sealed(cell, 11_100)
    head.observe_published(0, 11_300)
    head.observe_published(0, 11_400)
    assert value(registries.public, "sdp_releases_total", cluster="0") == 1


# --- What is counted -----------------------------------------------------------------------


def test_every_outcome_is_counted_under_its_reason():
    registries, head = make_metrics()
    head.observe_batch(0, batch(5, Reason.LATE, Reason.LATE, Reason.DUPLICATE))
    head.observe_batch(0, batch(2))

    def counted(outcome: str) -> float | None:
        return value(registries.operator, "sdp_updates_total", cluster="0", outcome=outcome)

    assert (counted(ACCEPTED), counted("late"), counted("duplicate")) == (7, 2, 1)


def test_an_outcome_that_never_happened_is_a_zero_from_the_start():
    registries, head = make_metrics()
    open_cluster(head, 1, 0, lost=4)
    for outcome in (ACCEPTED, *Reason):
        labels = {"cluster": "1", "outcome": str(outcome)}
        assert registries.operator.get_sample_value("sdp_updates_total", labels) == 0
    assert value(registries.operator, "sdp_updates_lost_total", cluster="1") == 4


def test_epsilon_goes_from_nothing_to_the_cap():
    registries, head = make_metrics()
    open_cluster(head, 0, 0)

    def gauge(name: str) -> float:
        return value(registries.public, name, cluster="0")

    assert (gauge("sdp_budget_epsilon_spent"), gauge("sdp_budget_spent_ratio")) == (0, 0)
    spent_before = 0.0
    for cell in sealed(2):
        head.observe_sealed(cell, 12_000)
        head.observe_published(cell.window, 12_500)
        assert spent_before < gauge("sdp_budget_epsilon_spent") <= 8.0
        spent_before = gauge("sdp_budget_epsilon_spent")
    assert spent_before == pytest.approx(8.0, abs=1e-5)
    assert gauge("sdp_budget_spent_ratio") == pytest.approx(1.0)
    assert gauge("sdp_budget_exhausted") == 0
    cell = sealed(3)[-1]
    head.observe_sealed(cell, 13_200)
    assert gauge("sdp_budget_exhausted") == 0, "the end shows when a release would have"
    released = value(registries.public, "sdp_releases_total", cluster="0")
    head.observe_published(cell.window, 13_500)
    assert gauge("sdp_budget_exhausted") == 1
    assert gauge("sdp_budget_level") == 3
    assert value(registries.public, "sdp_releases_total", cluster="0") == released
    assert value(registries.public, "sdp_budget_epsilon") == 8.0


def test_what_a_dead_head_committed_shows_when_it_is_due_and_not_at_the_takeover():
    registries, head = make_metrics()
    first, last = sealed(3)[0].record, sealed(3)[2].record
    head.observe_opened(0, first, PLAN.window_end_ms(0) + PLAN.release_delay_ms - 1, 0)
    assert value(registries.public, "sdp_budget_epsilon_spent", cluster="0") == 0
    assert value(registries.public, "sdp_last_released_window", cluster="0") is None
    head.observe_published(0, 0)
    assert value(registries.public, "sdp_budget_epsilon_spent", cluster="0") > 0
    assert value(registries.public, "sdp_last_released_window", cluster="0") == 0

    head.observe_opened(0, last, PLAN.window_end_ms(2) + PLAN.release_delay_ms - 1, 0)
    assert value(registries.public, "sdp_budget_exhausted", cluster="0") == 0
    head.observe_published(2, 0)
    assert value(registries.public, "sdp_budget_exhausted", cluster="0") == 1
    head.observe_opened(0, last, PLAN.window_end_ms(2) + PLAN.release_delay_ms, 0)
    assert value(registries.public, "sdp_budget_exhausted", cluster="0") == 1


def test_a_cluster_that_was_exhausted_before_the_start_says_so():
    registries, head = make_metrics()
    open_cluster(head, 0, PLAN.cap_units, is_exhausted=True, lost=0)
    assert value(registries.public, "sdp_budget_exhausted", cluster="0") == 1


def test_windows_are_counted_by_how_they_ended_and_lags_from_their_end():
    registries, head = make_metrics()
    for cell in sealed(4):
        head.observe_sealed(cell, PLAN.window_end_ms(cell.window) + 250)
    operator = registries.operator
    for outcome, count in (("released", 2), ("exhausted", 2)):
        labels = {"cluster": "0", "outcome": outcome}
        assert operator.get_sample_value("sdp_windows_sealed_total", labels) == count
    assert value(operator, "sdp_window_seal_lag_seconds_count") == 4
    assert value(operator, "sdp_window_seal_lag_seconds_sum") == pytest.approx(1.0)
    head.observe_published(0, PLAN.window_end_ms(0) + 400)
    assert value(operator, "sdp_window_publish_lag_seconds_sum") == pytest.approx(0.4)


def test_a_window_that_a_limit_refused_is_counted_as_throttled_and_spends_nothing():
    plan = dataclasses.replace(PLAN, window_length_ms=1_800_000, hour_epsilon=5.9)
    registries, head = make_metrics(plan)
    open_cluster(head, 0, 0)
    first, second = sealed(2, plan)
    assert second.kind is LedgerKind.THROTTLED
    head.observe_sealed(first, 0)
    head.observe_published(0, 0)
    before = public_text(registries)
    head.observe_sealed(second, 0)
    labels = {"cluster": "0", "outcome": "throttled"}
    assert registries.operator.get_sample_value("sdp_windows_sealed_total", labels) == 1
    assert public_text(registries) == before


def test_coordinates_at_an_end_of_their_type_are_counted_for_the_operator_alone():
    registries, head = make_metrics()
    (cell,) = sealed(1)
    head.observe_sealed(cell, 0)
    name = "sdp_release_coordinates_saturated_total"
    assert value(registries.operator, name, cluster="0") == 0
    head.observe_sealed(dataclasses.replace(cell, saturated=3), 0)
    assert value(registries.operator, name, cluster="0") == 3
    assert "saturated" not in public_text(registries)


def test_clients_at_their_cap_are_counted_for_the_operator_alone():
    plan = dataclasses.replace(PLAN, scope="client")
    registries, head = make_metrics(plan)
    open_cluster(head, 0, 0)
    cell, *_ = sealed(1, plan)
    keys = np.arange(3, dtype=np.uint64)
    clients = ClientBudgets.from_snapshot(
        plan.cap_units, keys, np.array([1, plan.cap_units, plan.cap_units], np.uint64)
    )
    head.observe_sealed(dataclasses.replace(cell, clients=clients), 0)
    assert value(registries.operator, "sdp_clients_exhausted", cluster="0") == 2
    assert "clients" not in public_text(registries)
    head.observe_closed(0)
    assert value(registries.operator, "sdp_clients_exhausted", cluster="0") is None


def test_a_cluster_that_is_let_go_takes_its_gauges_with_it():
    registries, head = make_metrics()
    open_cluster(head, 0, 0)
    head.observe_lag(0, 5)
    for cell in sealed(2):
        head.observe_sealed(cell, 12_000)
        head.observe_published(cell.window, 12_500)
    head.observe_closed(0)
    for family in families(registries.public, registries.operator):
        if family.type == "gauge" and family.name != "sdp_cluster_refused":
            assert all("cluster" not in sample.labels for sample in family.samples), family.name
    assert value(registries.operator, "sdp_clusters_owned") == 0
    # Its next head publishes what this one did not.
    head.observe_published(1, 12_600)
    assert value(registries.public, "sdp_last_released_window", cluster="0") is None


def test_a_cluster_whose_gauges_were_never_set_can_be_let_go():
    registries, head = make_metrics()
    open_cluster(head, 0, 0)
    head.observe_closed(0)
    head.observe_closed(1)
    assert value(registries.operator, "sdp_clusters_owned") == -1


def test_a_refused_cluster_shows_until_it_is_opened():
    registries, head = make_metrics()
    head.observe_refused(0)
    assert value(registries.operator, "sdp_cluster_refused", cluster="0") == 1
    open_cluster(head, 0, 0)
    assert value(registries.operator, "sdp_cluster_refused", cluster="0") == 0


def test_a_refused_cluster_that_goes_to_another_worker_alarms_nobody_here():
    registries, head = make_metrics()
    head.observe_refused(1)
    head.observe_refusal_over(1)
    assert value(registries.operator, "sdp_cluster_refused", cluster="1") == 0


def test_the_global_agent_publishes_what_it_made_of_releases():
    registries = Registries(PLAN)
    metrics = GlobalMetrics(registries)
    metrics.observe_model(0, -1)
    metrics.observe_release("taken")
    metrics.observe_step(3, 1, 0.2, np.float64(9.5), 0.25)
    metrics.observe_model(1, 0)
    public = registries.public
    assert value(public, "sdp_model_version") == 1
    assert value(public, "sdp_model_window") == 0
    assert value(public, "sdp_cells_merged_total") == 3
    assert value(public, "sdp_cells_missing_total") == 1
    assert value(public, "sdp_releases_read_total", outcome="taken") == 1
    assert value(public, "sdp_noisy_count") == 9.5
    assert value(public, "sdp_model_lag_seconds_sum") == pytest.approx(0.2)
    assert not list(registries.operator.collect())


def test_clients_count_on_their_own_side():
    registry = CollectorRegistry()
    client = ClientMetrics(registry)
    client.observe_published()
    client.observe_published(4)
    client.observe_failure(2)
    client.observe_skipped(3)
    client.observe_model(7)
    assert value(registry, "sdp_client_updates_published_total") == 5
    assert value(registry, "sdp_client_delivery_failures_total") == 2
    assert value(registry, "sdp_client_updates_skipped_total") == 3
    assert value(registry, "sdp_client_model_version") == 7
