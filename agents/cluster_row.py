"""How one cluster's ledger stands: in numbers, and in words."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from schemas import LedgerKind, LedgerRecord
from stream.privacy.accounting import UNITS_PER_RHO
from stream.privacy.plan import PrivacyPlan

from .client_spending import ClientSpending

_LEVELS = {
    "normal": "normal, below 80 %",
    "warning": "warning, 80 % or more",
    "critical": "critical, 90 % or more",
    "saving": "saving, 90 % or more: no window gets more than its part of what is left",
    "exhausted": "exhausted: nothing is released any more",
}


class LedgerState(StrEnum):
    """How a cluster's ledger stands."""

    NOT_BEGUN = "not begun"
    OPEN = "open"
    EXHAUSTED = "exhausted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class LimitSpending:
    """What the newest windows have spent of a sliding limit.

    Attributes:
        name: ``hour`` or ``day``.
        windows: How many consecutive windows the limit looks at.
        spent_units: What the newest so many windows have cost, in units of 2^-60 zCDP.
        cap_units: What any so many may cost.
    """

    name: str
    windows: int
    spent_units: int
    cap_units: int


@dataclass(frozen=True, slots=True)
class Spending:
    """What was read of a ledger besides its newest record.

    Attributes:
        spent_units: What its releases cost, in units of 2^-60 zCDP.
        releases: How many there were; None where only the newest records were read.
        throttled: How many windows a sliding limit left without a release.
        throttled_of: Among how many; 0 where the plan has no such limit.
        limits: What was spent of each sliding limit.
        clients: What clients have spent, where each has a budget of its own.
    """

    spent_units: int = 0
    releases: int | None = 0
    throttled: int = 0
    throttled_of: int = 0
    limits: tuple[LimitSpending, ...] = ()
    clients: ClientSpending | None = None


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster's ledger in numbers.

    Attributes:
        cluster: The cluster.
        state: How its ledger stands; a refused one cannot be trusted.
        reason: Why it is refused; else empty.
        sequence: Number of the newest record; None without one.
        window: The newest sealed window; None without a record, -1 before the first.
        spending: What was spent.
        cap_units: What the cluster may spend; with scope ``client``, each client.
        epsilon: What is spent, as epsilon at the plan's delta; with scope ``client``, what the
            client that spent most has spent.
        epsilon_cap: What may be spent, as epsilon at the plan's delta.
        level: ``normal``, ``warning``, ``critical``, ``saving`` or ``exhausted``; empty without
            a record, and where clients' budgets end nothing but their own part.
        next_units: What is planned for the next window, 0 for nothing.
        next_noise_multiplier: Of its noise; None without a plan.
    """

    cluster: int
    state: LedgerState
    reason: str
    sequence: int | None
    window: int | None
    spending: Spending
    cap_units: int
    epsilon: float
    epsilon_cap: float
    level: str
    next_units: int
    next_noise_multiplier: float | None

    @classmethod
    def of(
        cls,
        plan: PrivacyPlan,
        cluster: int,
        newest: LedgerRecord | None,
        spending: Spending,
        refused: str = "",
    ) -> "ClusterRow":
        """Return the row of a ledger that ends with ``newest``.

        Args:
            plan: The plan.
            cluster: The cluster.
            newest: Its newest record, None if there is none that can be read.
            spending: What was spent.
            refused: Why the ledger cannot be trusted; empty if it can.
        """
        units = _counted_units(spending)
        next_units = newest.next_units if newest else 0
        return cls(
            cluster=cluster,
            state=_state(newest, refused),
            reason=refused,
            sequence=newest.sequence if newest else None,
            window=newest.window if newest else None,
            spending=spending,
            cap_units=plan.cap_units,
            epsilon=plan.privacy_filter.epsilon(units, plan.delta) if units else 0.0,
            epsilon_cap=plan.privacy_filter.epsilon(plan.cap_units, plan.delta),
            level=_level(plan, newest, spending.spent_units),
            next_units=next_units,
            next_noise_multiplier=_noise_multiplier(plan, next_units) if next_units else None,
        )

    @property
    def counted_units(self) -> int:
        """What `epsilon` is of: what the cluster has spent, or the client that spent most."""
        return _counted_units(self.spending)

    def as_json(self) -> dict[str, object]:
        """Return the row as plain data, with shares and rho beside the exact integers."""
        # A script's JSON reader may know no integer above 2^53: rho is there for it.
        plain = asdict(self)
        spending = plain.pop("spending")
        return {
            **plain,
            **spending,
            "limits": list(spending["limits"]),
            "spent_rho": self.spending.spent_units / UNITS_PER_RHO,
            "cap_rho": self.cap_units / UNITS_PER_RHO,
            "next_rho": self.next_units / UNITS_PER_RHO,
        }

    def in_words(self) -> list[str]:
        """Return what the numbers mean, a sentence a line."""
        if self.reason:
            return [f"cluster {self.cluster}: {self.reason}"]
        if self.sequence is None:
            return []
        spending = self.spending
        lines = self._of_clients(spending.clients) if spending.clients else self._of_cluster()
        lines += [
            f"{limit.name}: the newest {limit.windows:,} windows have spent "
            f"{_percent(limit.spent_units, limit.cap_units)} of what any {limit.windows:,} may"
            for limit in spending.limits
        ]
        if spending.throttled_of:
            lines.append(
                f"{spending.throttled:,} of {spending.throttled_of:,} windows were throttled: "
                "sealed without a release, since a limit was reached"
            )
        return [f"cluster {self.cluster}: {lines[0]}", *(f"  {line}" for line in lines[1:])]

    def _of_cluster(self) -> list[str]:
        spent = _percent(self.spending.spent_units, self.cap_units)
        lines = [f"{spent} of the budget is spent; {_LEVELS.get(self.level, 'open')}"]
        return [*lines, self._planned()] if self.next_units else lines

    def _of_clients(self, clients: ClientSpending) -> list[str]:
        return [
            f"{clients.clients:,} clients have spent some of their own budgets: half of them at "
            f"most {_percent(clients.median_units, self.cap_units)}, the most "
            f"{_percent(clients.largest_units, self.cap_units)}",
            f"{clients.at_cap:,} of them cannot pay for another window and are refused; releases "
            "go on",
            self._planned(),
        ]

    def _planned(self) -> str:
        return (
            f"the next window is planned to cost {self.next_units / UNITS_PER_RHO:.6g} rho: "
            f"noise multiplier {self.next_noise_multiplier or 0.0:.4g}"
        )


def limits_spent(plan: PrivacyPlan, totals: Sequence[int]) -> tuple[LimitSpending, ...]:
    """Return what the newest windows have spent of the plan's sliding limits.

    Args:
        plan: The plan.
        totals: What windows up to each one have cost, oldest first, beginning with 0: of all
            windows, or of as many as the limits look at.
    """
    return tuple(
        LimitSpending(name, windows, newest_cost(totals, windows), cap)
        for name, windows, cap in plan.sliding_caps
    )


def newest_cost(totals: Sequence[int], windows: int) -> int:
    """Return what the newest ``windows`` windows have cost, of running totals that begin with 0."""
    return totals[-1] - totals[max(0, len(totals) - 1 - windows)]


def _state(newest: LedgerRecord | None, refused: str) -> LedgerState:
    if refused:
        return LedgerState.REFUSED
    if newest is None:
        return LedgerState.NOT_BEGUN
    return LedgerState.EXHAUSTED if newest.kind is LedgerKind.EXHAUSTED else LedgerState.OPEN


def _level(plan: PrivacyPlan, newest: LedgerRecord | None, spent_units: int) -> str:
    if newest is None or plan.scope == "client":
        return ""
    if newest.kind is LedgerKind.EXHAUSTED:
        return "exhausted"
    return plan.schedule.level(spent_units).value


def _counted_units(spending: Spending) -> int:
    clients = spending.clients
    return spending.spent_units if clients is None else clients.largest_units


def _noise_multiplier(plan: PrivacyPlan, units: int) -> float:
    variance = plan.schedule.noise_variance(units)
    return math.sqrt(variance / plan.l2_sensitivity_squared)


def _percent(units: int, cap_units: int) -> str:
    return f"{100 * units / cap_units:.2f} %"
