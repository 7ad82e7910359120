"""What everyone may see of a head: budgets, noise and releases, as ledger headers tell them.

A window's commit comes sooner or later with the number of its updates, its publication comes at
the time that the plan says. So what a release changes is kept here until the release is public
(PRIVACY notes 1.9), and nothing that was not released ever shows.
"""

import math
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from schemas import LedgerKind, LedgerRecord

from .privacy.plan import PrivacyPlan
from .privacy.schedule import BudgetLevel

_LEVELS = {
    BudgetLevel.NORMAL: 0,
    BudgetLevel.WARNING: 1,
    BudgetLevel.CRITICAL: 2,
    BudgetLevel.SAVING: 2,
}
_EXHAUSTED_LEVEL = 3


@dataclass(frozen=True, slots=True)
class _Released:
    """A release, or the end of all, that has committed, as its ledger record tells it."""

    window: int
    spent_units: int
    noise_multiplier: float
    clip_norm: float | None
    is_exhausted: bool


class BudgetMetrics:
    """Public gauges of the clusters of one worker."""

    def __init__(self, registry: CollectorRegistry, plan: PrivacyPlan) -> None:
        """Register everything; the clusters appear as they are taken over."""
        self._plan = plan
        self._unpublished: dict[int, _Released] = {}
        cap = Gauge("sdp_budget_epsilon", "Epsilon of the lifetime cap.", registry=registry)
        delta = Gauge("sdp_budget_delta", "Delta of the guarantee.", registry=registry)
        self._registry = registry
        self._spent = self._gauge(
            "sdp_budget_epsilon_spent",
            "Epsilon of what the cluster has spent; with scope client, of what a client has spent "
            "that took part in every window.",
        )
        self._spent_ratio = self._gauge(
            "sdp_budget_spent_ratio", "Part of the zCDP cap that this is."
        )
        self._level = self._gauge(
            "sdp_budget_level",
            "0 below 80 % of the budget, 1 from there, 2 from 90 %, 3 when nothing more is "
            "released; always 0 with scope client.",
        )
        self._exhausted = self._gauge(
            "sdp_budget_exhausted", "1 where the budget does not pay for another release."
        )
        self._last_window = self._gauge(
            "sdp_last_released_window", "Newest window that was released."
        )
        self._noise = self._gauge(
            "sdp_noise_multiplier",
            "Noise standard deviation over sensitivity, of the newest release.",
        )
        self._clip_norm = self._gauge(
            "sdp_clip_norm", "Clip norm of the newest release, where clipping is adaptive."
        )
        self._releases = Counter(
            "sdp_releases", "Releases published by this worker.", ["cluster"], registry=registry
        )
        cap.set(plan.epsilon)
        delta.set(plan.delta)

    def observe_opened(self, newest: LedgerRecord, now_ms: int) -> None:
        """A cluster was taken over; what its newest record says shows when it is due."""
        is_due = now_ms >= self._plan.release_due_ms(newest.window)
        self.observe_budget(
            newest.cluster,
            newest.spent_units if is_due else max(0, newest.spent_units - newest.charge_units),
            is_exhausted=is_due and newest.kind is LedgerKind.EXHAUSTED,
        )
        if newest.kind in (LedgerKind.RELEASE, LedgerKind.EXHAUSTED):
            self.hold(newest)

    def observe_budget(self, cluster: int, spent_units: int, *, is_exhausted: bool) -> None:
        """A cluster's budget stands so."""
        plan = self._plan
        spent = plan.privacy_filter.epsilon(spent_units, plan.delta) if spent_units else 0.0
        self._spent.labels(cluster).set(spent)
        self._spent_ratio.labels(cluster).set(spent_units / plan.cap_units)
        self._exhausted.labels(cluster).set(int(is_exhausted))
        self._level.labels(cluster).set(self._level_of(spent_units, is_exhausted))

    def hold(self, record: LedgerRecord) -> None:
        """Keep what the record of a release, or of the budget's end, tells until it is due."""
        variance = record.noise_variance / record.l2_sensitivity_squared
        self._unpublished[record.cluster] = _Released(
            window=record.window,
            spent_units=record.spent_units,
            noise_multiplier=math.sqrt(variance),
            clip_norm=None if record.clip is None else record.clip.norm,
            is_exhausted=record.kind is LedgerKind.EXHAUSTED,
        )

    def observe_published(self, window: int) -> None:
        """The releases of a window are public: those of all clusters are due at one time."""
        for cluster, released in list(self._unpublished.items()):
            if released.window > window:
                continue
            del self._unpublished[cluster]
            self.observe_budget(cluster, released.spent_units, is_exhausted=released.is_exhausted)
            if released.is_exhausted:
                continue
            self._releases.labels(cluster).inc()
            self._last_window.labels(cluster).set(released.window)
            self._noise.labels(cluster).set(released.noise_multiplier)
            if released.clip_norm is not None:
                self._clip_norm.labels(cluster).set(released.clip_norm)

    def forget(self, cluster: int) -> None:
        """A cluster was let go; its gauges belong to its next head."""
        self._unpublished.pop(cluster, None)
        for gauge in (
            self._spent,
            self._spent_ratio,
            self._level,
            self._exhausted,
            self._last_window,
            self._noise,
            self._clip_norm,
        ):
            # Older releases of prometheus-client raise for a gauge that was never set.
            with suppress(KeyError):
                gauge.remove(str(cluster))

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, ["cluster"], registry=self._registry)

    def _level_of(self, spent_units: int, is_exhausted: bool) -> int:
        if is_exhausted:
            return _EXHAUSTED_LEVEL
        # A client that has spent its own budget ends its own part, and nothing else.
        if self._plan.scope == "client":
            return 0
        return _LEVELS[self._plan.schedule.level(spent_units)]
