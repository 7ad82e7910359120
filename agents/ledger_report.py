"""What the ledgers say, as JSON and as text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from .cluster_row import ClusterRow
from .deep_report import DeepFindings
from .text_table import aligned

_ODOMETER = (
    "The guarantee is that of the cap. What is spent so far is one only at a time that was chosen "
    "without looking at releases."
)
_INSIDE_ONLY = (
    "How many clients there are and what they have spent is inside the privacy boundary: do not "
    "pass it on."
)
_UPDATES_INSIDE_ONLY = (
    "How many updates there were, and which were refused, is inside the privacy boundary: do not "
    "pass it on."
)
_SECOND_ACCOUNTANT = {
    "gdp": "the sigmas by dp-accounting",
    "zcdp": "the sigmas by the zCDP bound's best order",
}


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """What every cluster of a plan has spent.

    Attributes:
        plan_id: The plan's identity, in hexadecimal.
        delta: The plan's delta.
        scope: Whose budget it is: ``cluster`` or ``client``.
        clusters: One row a cluster.
    """

    plan_id: str
    delta: float
    scope: str
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
            "scope": self.scope,
            "clusters": [row.as_json() for row in self.clusters],
        }

    def as_text(self) -> str:
        """Return the report as lines for a terminal."""
        return "\n".join(
            [f"plan {self.plan_id}", *_table(self.clusters), *_last_words(self.clusters)]
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """What reading the ledgers and the releases from their beginning has shown.

    Attributes:
        plan_id: The plan's identity, in hexadecimal.
        delta: The plan's delta.
        scope: Whose budget it is: ``cluster`` or ``client``.
        filter: How charges become epsilon: ``gdp`` or ``zcdp``.
        problems: What does not fit, one sentence each; a long list is cut short.
        epsilon: What is spent, by our own conversion of the charges; the most of any cluster or,
            where each client has a budget, of any client.
        epsilon_independent: The same from the sigmas of the records, by another accountant.
        cells_released: Number of (cluster, window) on the topic of releases.
        cells_released_twice: Number of these that have two different contents.
        repeats: Releases that repeat an earlier one byte by byte; harmless.
        unpublished: Newest releases that are paid for and may still be published.
        malformed_releases: Records on the topic of releases that are none.
        foreign_releases: Releases on it that belong to another plan.
        clusters: One row a cluster.
        deep: What a deep verification has shown besides; secret. None after another one.
    """

    plan_id: str
    delta: float
    scope: str
    filter: str
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
    deep: DeepFindings | None = None

    @property
    def verified(self) -> bool:
        """Whether everything fits."""
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """Return the findings as plain data."""
        plain = {
            "verified": self.verified,
            **asdict(replace(self, deep=None)),
            "clusters": [row.as_json() for row in self.clusters],
        }
        del plain["deep"]
        return plain if self.deep is None else {**plain, "deep": self.deep.as_json()}

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
                f"{_SECOND_ACCOUNTANT[self.filter]}, at delta {self.delta:g}",
                *(self.deep.as_text() if self.deep else []),
                *_last_words(self.clusters, is_secret=self.deep is not None),
                *self._verdict(),
            ]
        )

    def _verdict(self) -> list[str]:
        if self.verified:
            return ["VERIFIED: every record, every charge and every release fits."]
        return ["NOT VERIFIED:", *(f"- {problem}" for problem in self.problems)]


def _table(rows: Sequence[ClusterRow]) -> list[str]:
    head = ("cluster", "state", "record", "window", "releases", "spent", "epsilon", "of")
    cells = [
        (
            str(row.cluster),
            row.state.value,
            "-" if row.sequence is None else str(row.sequence),
            "-" if row.window is None or row.window < 0 else str(row.window),
            "-" if row.spending.releases is None else str(row.spending.releases),
            f"{100 * row.counted_units / row.cap_units:.2f} %",
            f"{row.epsilon:.6f}",
            f"{row.epsilon_cap:.6f}",
        )
        for row in rows
    ]
    words = [line for row in rows for line in row.in_words()]
    return [*aligned([head, *cells]), *words]


def _last_words(rows: Sequence[ClusterRow], *, is_secret: bool = False) -> list[str]:
    words = [_INSIDE_ONLY] if any(row.spending.clients is not None for row in rows) else []
    if is_secret:
        words.append(_UPDATES_INSIDE_ONLY)
    return [*words, _ODOMETER]
