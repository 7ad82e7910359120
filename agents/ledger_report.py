"""What the ledgers say, as values, as JSON and as text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from schemas import LedgerKind, LedgerRecord
from stream.privacy.accounting import UNITS_PER_RHO, epsilon_from_units
from stream.privacy.plan import PrivacyPlan

from .text_table import aligned

_ODOMETER = (
    "The guarantee is that of the cap. What is spent so far is one only at a time that was chosen "
    "without looking at releases."
)


class LedgerState(StrEnum):
    """How a cluster's ledger stands."""

    NOT_BEGUN = "not begun"
    OPEN = "open"
    EXHAUSTED = "exhausted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster's ledger in numbers.

    Attributes:
        cluster: The cluster.
        state: How its ledger stands; a refused one cannot be trusted.
        reason: Why it is refused; else empty.
        sequence: Number of the newest record; None without one.
        window: The newest sealed window; None without a record, -1 before the first.
        releases: Number of releases that were paid for.
        spent_units: What they cost, in units of 2^-60 zCDP.
        cap_units: What the cluster may spend.
        epsilon: What is spent, as epsilon at the plan's delta.
        epsilon_cap: What may be spent, as epsilon at the plan's delta.
    """

    cluster: int
    state: LedgerState
    reason: str
    sequence: int | None
    window: int | None
    releases: int
    spent_units: int
    cap_units: int
    epsilon: float
    epsilon_cap: float

    @classmethod
    def of(
        cls,
        plan: PrivacyPlan,
        cluster: int,
        newest: LedgerRecord | None,
        *,
        releases: int,
        spent_units: int,
        refused: str = "",
    ) -> "ClusterRow":
        """Return the row of a ledger that ends with ``newest``.

        Args:
            plan: The plan.
            cluster: The cluster.
            newest: Its newest record, None if there is none that can be read.
            releases: Number of releases that were paid for.
            spent_units: What they cost.
            refused: Why the ledger cannot be trusted; empty if it can.
        """
        return cls(
            cluster=cluster,
            state=_state(newest, refused),
            reason=refused,
            sequence=newest.sequence if newest else None,
            window=newest.window if newest else None,
            releases=releases,
            spent_units=spent_units,
            cap_units=plan.cap_units,
            epsilon=epsilon_from_units(spent_units, plan.delta),
            epsilon_cap=epsilon_from_units(plan.cap_units, plan.delta),
        )


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """What every cluster of a plan has spent.

    Attributes:
        plan_id: The plan's identity, in hexadecimal.
        delta: The plan's delta.
        clusters: One row a cluster.
    """

    plan_id: str
    delta: float
    clusters: tuple[ClusterRow, ...]

    @property
    def epsilon(self) -> float:
        """The most that a cluster has spent: a client belongs to one cluster (PRIVACY 1.5)."""
        return max(row.epsilon for row in self.clusters)

    def as_json(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {
            "plan_id": self.plan_id,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "clusters": [_row_json(row) for row in self.clusters],
        }

    def as_text(self) -> str:
        """Return the report as lines for a terminal."""
        return "\n".join([f"plan {self.plan_id}", *_table(self.clusters), _ODOMETER])


@dataclass(frozen=True, slots=True)
class Verification:
    """What reading the ledgers and the releases from their beginning has shown.

    Attributes:
        plan_id: The plan's identity, in hexadecimal.
        delta: The plan's delta.
        problems: What does not fit, one sentence each; a long list is cut short.
        epsilon: What is spent, by our own conversion of the charges; the most of any cluster.
        epsilon_independent: The same from the sigmas of the records, by dp-accounting.
        cells_released: Number of (cluster, window) on the topic of releases.
        cells_released_twice: Number of these that have two different contents.
        repeats: Releases that repeat an earlier one byte by byte; harmless.
        unpublished: Newest releases that are paid for and may still be published.
        malformed_releases: Records on the topic of releases that are none.
        foreign_releases: Releases on it that belong to another plan.
        clusters: One row a cluster.
    """

    plan_id: str
    delta: float
    problems: list[str]
    epsilon: float
    epsilon_independent: float
    cells_released: int
    cells_released_twice: int
    repeats: int
    unpublished: int
    malformed_releases: int
    foreign_releases: int
    clusters: tuple[ClusterRow, ...]

    @property
    def verified(self) -> bool:
        """Whether everything fits."""
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """Return the findings as plain data."""
        return {
            "verified": self.verified,
            **asdict(self),
            "clusters": [_row_json(row) for row in self.clusters],
        }

    def as_text(self) -> str:
        """Return the findings as lines for a terminal."""
        counts = [
            ("cells released", self.cells_released),
            ("released twice", self.cells_released_twice),
            ("harmless repeats", self.repeats),
            ("paid for, not public yet", self.unpublished),
            ("not readable", self.malformed_releases),
            ("of other plans", self.foreign_releases),
        ]
        return "\n".join(
            [
                f"plan {self.plan_id}",
                *_table(self.clusters),
                *aligned([(name, str(count)) for name, count in counts]),
                f"epsilon {self.epsilon:.6f} from the charges, {self.epsilon_independent:.6f} from "
                f"the sigmas by dp-accounting, at delta {self.delta:g}",
                _ODOMETER,
                *self._verdict(),
            ]
        )

    def _verdict(self) -> list[str]:
        if self.verified:
            return ["VERIFIED: every record, every charge and every release fits."]
        return ["NOT VERIFIED:", *(f"- {problem}" for problem in self.problems)]


def _state(newest: LedgerRecord | None, refused: str) -> LedgerState:
    if refused:
        return LedgerState.REFUSED
    if newest is None:
        return LedgerState.NOT_BEGUN
    return LedgerState.EXHAUSTED if newest.kind is LedgerKind.EXHAUSTED else LedgerState.OPEN


def _row_json(row: ClusterRow) -> dict[str, object]:
    # A script's JSON reader may know no integer above 2^53: rho is there for it.
    return {
        **asdict(row),
        "spent_rho": row.spent_units / UNITS_PER_RHO,
        "cap_rho": row.cap_units / UNITS_PER_RHO,
    }


def _table(rows: Sequence[ClusterRow]) -> list[str]:
    head = ("cluster", "state", "record", "window", "releases", "spent", "epsilon", "of")
    cells = [
        (
            str(row.cluster),
            row.state.value,
            "-" if row.sequence is None else str(row.sequence),
            "-" if row.window is None or row.window < 0 else str(row.window),
            str(row.releases),
            f"{100 * row.spent_units / row.cap_units:.2f} %",
            f"{row.epsilon:.6f}",
            f"{row.epsilon_cap:.6f}",
        )
        for row in rows
    ]
    reasons = [f"cluster {row.cluster}: {row.reason}" for row in rows if row.reason]
    return [*aligned([head, *cells]), *reasons]
