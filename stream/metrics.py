"""Prometheus metrics: what the operator may see, and what everyone may.

Two registries a process. *Public* holds only what the plan, the ledger's headers and the releases
say already. *Operator* holds counts and times of what went on inside the privacy boundary, and
must not leave it (PRIVACY notes 1.9). No client is ever a label, and nothing is computed from a
gradient's content.
"""

from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from schemas import LedgerKind, LedgerRecord

from .aggregation.intake import BatchOutcome
from .aggregation.validation import Reason
from .budget_metrics import BudgetMetrics
from .cluster_head import SealedCell
from .privacy.plan import PrivacyPlan

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
ACCEPTED = "accepted"
_OUTCOMES = {
    LedgerKind.RELEASE: "released",
    LedgerKind.THROTTLED: "throttled",
    LedgerKind.EXHAUSTED: "exhausted",
}


class Registries:
    """The two registries of a process, with the plan's own facts in the public one."""

    def __init__(self, plan: PrivacyPlan) -> None:
        """Make both, and publish the plan."""
        self.operator = CollectorRegistry()
        self.public = CollectorRegistry()
        info = Gauge(
            "sdp_plan_info", "The plan in force.", ["plan", "plan_id"], registry=self.public
        )
        info.labels(plan.name, plan.plan_id_hex).set(1)


class HeadMetrics:
    """What a worker of cluster heads counts."""

    def __init__(self, registries: Registries, plan: PrivacyPlan) -> None:
        """Register everything; the clusters appear as they are taken over."""
        self._plan = plan
        operator = registries.operator
        self._updates = Counter(
            "sdp_updates", "Updates read, by outcome.", ["cluster", "outcome"], registry=operator
        )
        self._lost = Counter(
            "sdp_updates_lost",
            "Updates that the broker deleted before they were read.",
            ["cluster"],
            registry=operator,
        )
        self._windows = Counter(
            "sdp_windows_sealed", "Windows sealed.", ["cluster", "outcome"], registry=operator
        )
        self._saturated = Counter(
            "sdp_release_coordinates_saturated",
            "Coordinates released at an end of their type, past which their sums may have been.",
            ["cluster"],
            registry=operator,
        )
        self._stage_seconds = Histogram(
            "sdp_release_stage_seconds",
            "Time of each stage of a release.",
            ["stage"],
            registry=operator,
            buckets=_SECONDS,
        )
        self._seal_lag = Histogram(
            "sdp_window_seal_lag_seconds",
            "From the end of a window to the commit of its charge.",
            registry=operator,
            buckets=_SECONDS,
        )
        self._publish_lag = Histogram(
            "sdp_window_publish_lag_seconds",
            "From the end of a window to its release being public.",
            registry=operator,
            buckets=_SECONDS,
        )
        self._lag = Gauge(
            "sdp_consumer_lag_records",
            "Updates in the log that were not read when it was last asked for its end.",
            ["cluster"],
            registry=operator,
        )
        self._owned = Gauge(
            "sdp_clusters_owned", "Clusters that this worker is head of.", registry=operator
        )
        self._refused = Gauge(
            "sdp_cluster_refused",
            "1 where the cluster's ledger cannot be trusted and nothing is done.",
            ["cluster"],
            registry=operator,
        )
        self._clients_exhausted = Gauge(
            "sdp_clients_exhausted",
            "Clients whose own budget does not pay for another window.",
            ["cluster"],
            registry=operator,
        )
        self._loop_lag = Histogram(
            "sdp_event_loop_lag_seconds",
            "How much later than asked for a sleeping task of the worker's event loop goes on.",
            registry=operator,
            buckets=_SECONDS,
        )
        self._budget = BudgetMetrics(registries.public, plan)

    def observe_opened(
        self, cluster: int, newest: LedgerRecord, now_ms: int, lost_records: int
    ) -> None:
        """A cluster was taken over, at the end of whose ledger ``newest`` stands."""
        self._owned.inc()
        self._refused.labels(cluster).set(0)
        self._lost.labels(cluster).inc(lost_records)
        for outcome in (ACCEPTED, *Reason):
            self._updates.labels(cluster, outcome)
        self._budget.observe_opened(newest, now_ms)

    def observe_refused(self, cluster: int) -> None:
        """A cluster's ledger could not be trusted."""
        self._refused.labels(cluster).set(1)

    def observe_refusal_over(self, cluster: int) -> None:
        """A refused cluster went to another worker, which will say for itself."""
        self._refused.labels(cluster).set(0)

    def observe_closed(self, cluster: int) -> None:
        """A cluster was let go; its gauges belong to its next head."""
        self._owned.dec()
        self._budget.forget(cluster)
        for gauge in (self._lag, self._clients_exhausted):
            # Older releases of prometheus-client raise for a gauge that was never set.
            with suppress(KeyError):
                gauge.remove(str(cluster))

    def observe_batch(self, cluster: int, outcome: BatchOutcome) -> None:
        """Updates were counted or refused."""
        self._updates.labels(cluster, ACCEPTED).inc(outcome.accepted)
        for rejected in outcome.rejected:
            self._updates.labels(cluster, rejected.rejection.reason).inc()

    def observe_lag(self, cluster: int, records: int) -> None:
        """The log's end was asked for."""
        self._lag.labels(cluster).set(records)

    def observe_sealed(self, cell: SealedCell, now_ms: int) -> None:
        """A window's transaction has committed.

        When it does depends on how many updates there were, so a release, and the end of the
        budget, show in the public metrics only when the plan says (PRIVACY 1.9).
        """
        kind = LedgerKind.EXHAUSTED if cell.kind is None else cell.kind
        self._windows.labels(cell.cluster, _OUTCOMES[kind]).inc()
        self._saturated.labels(cell.cluster).inc(cell.saturated)
        self._seal_lag.observe((now_ms - self._plan.window_end_ms(cell.window)) / 1000)
        if cell.clients is not None:
            exhausted = cell.clients.exhausted_count(self._plan.charge_units)
            self._clients_exhausted.labels(cell.cluster).set(exhausted)
        if cell.record is not None and kind is not LedgerKind.THROTTLED:
            self._budget.hold(cell.record)

    def observe_published(self, window: int, now_ms: int) -> None:
        """What is due of a window is public; for all clusters that is at one time."""
        self._budget.observe_published(window)
        self._publish_lag.observe((now_ms - self._plan.window_end_ms(window)) / 1000)

    def observe_stage(self, stage: str, seconds: float) -> None:
        """A stage of a release took ``seconds``: ``seal``, ``transaction`` or ``publish``."""
        self._stage_seconds.labels(stage).observe(seconds)

    def observe_loop_lag(self, seconds: float) -> None:
        """The event loop came round ``seconds`` later than it should have."""
        self._loop_lag.observe(seconds)


class GlobalMetrics:
    """What the global agent counts; all of it follows from releases, so all of it is public."""

    def __init__(self, registries: Registries) -> None:
        """Register everything."""
        public = registries.public
        self._version = Gauge("sdp_model_version", "Newest model's version.", registry=public)
        self._window = Gauge("sdp_model_window", "Newest window in the model.", registry=public)
        self._cells = Counter("sdp_cells_merged", "Cells merged into models.", registry=public)
        self._missing = Counter(
            "sdp_cells_missing",
            "Cells that were not there when their window's model was made.",
            registry=public,
        )
        self._releases = Counter(
            "sdp_releases_read", "Releases read, by outcome.", ["outcome"], registry=public
        )
        self._latency = Histogram(
            "sdp_model_lag_seconds",
            "From the end of a window to the model made from it being public.",
            registry=public,
            buckets=_SECONDS,
        )
        self._noisy_count = Gauge(
            "sdp_noisy_count",
            "Noisy number of updates in the newest merge.",
            registry=public,
        )
        self._update_norm = Gauge(
            "sdp_model_update_norm", "L2 norm of the newest merged gradient.", registry=public
        )

    def observe_release(self, outcome: str) -> None:
        """A release was read."""
        self._releases.labels(outcome).inc()

    def observe_model(self, version: int, window: int) -> None:
        """The model as it stands after a start or a step."""
        self._version.set(version)
        self._window.set(window)

    def observe_step(
        self, cells: int, missing: int, lag_s: float, noisy_count: float, update_norm: float
    ) -> None:
        """A model was published."""
        self._cells.inc(cells)
        self._missing.inc(missing)
        self._latency.observe(lag_s)
        self._noisy_count.set(noisy_count)
        self._update_norm.set(update_norm)


class ClientMetrics:
    """What a gateway or fleet of clients counts, on its own side of the boundary."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything in the client's own registry."""
        self._published = Counter(
            "sdp_client_updates_published", "Updates handed to Kafka.", registry=registry
        )
        self._failures = Counter(
            "sdp_client_delivery_failures",
            "Updates that Kafka did not acknowledge.",
            registry=registry,
        )
        self._version = Gauge(
            "sdp_client_model_version", "Newest model that was received.", registry=registry
        )
        self._skipped = Counter(
            "sdp_client_updates_skipped",
            "Updates not made, since the window was over first.",
            registry=registry,
        )

    def observe_published(self, count: int = 1) -> None:
        """Updates were handed to Kafka."""
        self._published.inc(count)

    def observe_failure(self, count: int = 1) -> None:
        """Kafka did not acknowledge updates."""
        self._failures.inc(count)

    def observe_skipped(self, count: int) -> None:
        """Updates were not made in time."""
        self._skipped.inc(count)

    def observe_model(self, version: int) -> None:
        """A newer model was received."""
        self._version.set(version)
