"""What a run amounts to: the JSON report, the summary table, the picture, the verdict."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from .state import DemoState


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in seconds; None where nothing was measured."""

    p50: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Return the percentiles of ``seconds``."""
        if not seconds:
            return cls(None, None, None)
        return cls(percentile(seconds, 50), percentile(seconds, 99), max(seconds))

    def __str__(self) -> str:
        if self.p50 is None:
            return "none"
        return f"p50 {self.p50:.2f} s, p99 {self.p99:.2f} s, max {self.max:.2f} s"


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The facts of a run, as scripts read them with ``--json``.

    Attributes:
        broker: ``env``, ``container``, ``native`` or ``mock``.
        plan_id: Identity of the run's plan, in hexadecimal.
        clients: Number of clients.
        windows: Number of windows of the plan.
        clusters: Number of clusters.
        cells_expected: Clusters times windows.
        cells_released: Cells of which a release was seen.
        cells_released_twice: Cells of which two different releases were seen.
        releases_repeated: Identical copies of a release; readers drop them.
        ledger_verified: Whether the ledger of every cluster verifies.
        ledger_problems: What is wrong with the ledgers.
        test_accuracy: Of the last model; None if there was none.
        test_accuracy_without_privacy: Of the same training without privacy.
        epsilon: Spent by the cluster that spent the most, by our own accounting.
        epsilon_independent: The same by an independent library.
        delta: The guarantee's delta.
        updates_accepted: Updates that the heads counted.
        updates_rejected: Updates that the heads refused, by reason.
        release_latency_s: From the end of a window to each of its releases being read.
        model_latency_s: From the end of a window to the model being read.
        seconds: Wall time of the whole command up to this report.
        accuracy_by_window: Test accuracy after each window; None where no model was seen.
        epsilon_by_window: Epsilon spent after each window; None where no release was seen.
    """

    broker: str
    plan_id: str
    clients: int
    windows: int
    clusters: int
    cells_expected: int
    cells_released: int
    cells_released_twice: int
    releases_repeated: int
    ledger_verified: bool
    ledger_problems: tuple[str, ...]
    test_accuracy: float | None
    test_accuracy_without_privacy: float
    epsilon: float
    epsilon_independent: float
    delta: float
    updates_accepted: int
    updates_rejected: dict[str, int]
    release_latency_s: Latency
    model_latency_s: Latency
    seconds: float
    accuracy_by_window: tuple[float | None, ...]
    epsilon_by_window: tuple[float | None, ...]

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(asdict(self), indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class LedgerFindings:
    """What reading all ledgers from their beginning has shown."""

    is_verified: bool
    problems: tuple[str, ...]
    epsilon: float
    epsilon_independent: float


def make_report(
    state: DemoState, findings: LedgerFindings, *, broker: str, baseline: float, seconds: float
) -> DemoReport:
    """Return the report of a finished run."""
    plan = state.plan
    return DemoReport(
        broker=broker,
        plan_id=plan.plan_id_hex,
        clients=plan.expected_clients,
        windows=plan.horizon_windows,
        clusters=plan.cluster_count,
        cells_expected=state.cell_count,
        cells_released=len(state.digest_by_cell),
        cells_released_twice=len(state.conflicting_cells),
        releases_repeated=state.repeated_releases,
        ledger_verified=findings.is_verified,
        ledger_problems=findings.problems,
        test_accuracy=state.newest_accuracy,
        test_accuracy_without_privacy=baseline,
        epsilon=findings.epsilon,
        epsilon_independent=findings.epsilon_independent,
        delta=plan.delta,
        updates_accepted=state.accepted,
        updates_rejected=dict(state.rejected),
        release_latency_s=Latency.of(state.release_latency_s),
        model_latency_s=Latency.of(state.model_latency_s),
        seconds=round(seconds, 3),
        accuracy_by_window=_series(state.accuracy_by_window, plan.horizon_windows),
        epsilon_by_window=_series(state.epsilon_by_window, plan.horizon_windows),
    )


def failures(report: DemoReport, minimum_accuracy: float, epsilon_cap: float) -> list[str]:
    """Return what the run failed at, one sentence each; nothing if it passed."""
    found = []
    if report.cells_released != report.cells_expected:
        found.append(f"{report.cells_released} of {report.cells_expected} cells were released")
    if report.cells_released_twice:
        found.append(f"{report.cells_released_twice} cells were released twice")
    if not report.ledger_verified:
        problems = "; ".join(report.ledger_problems) or "no reason given"
        found.append(f"the ledger does not verify: {problems}")
    if not 0 < report.epsilon <= epsilon_cap:
        found.append(f"epsilon {report.epsilon:g} is not above 0 and within {epsilon_cap:g}")
    if report.test_accuracy is None:
        found.append("no model was trained")
    elif report.test_accuracy < minimum_accuracy:
        found.append(f"test accuracy {report.test_accuracy:.3f} is below {minimum_accuracy:g}")
    return found


def summary_table(report: DemoReport) -> Table:
    """Return the run in a dozen lines."""
    accuracy = "none" if report.test_accuracy is None else f"{report.test_accuracy:.3f}"
    rejected = ", ".join(f"{reason} {n:,}" for reason, n in report.updates_rejected.items())
    offered = report.clients * report.windows
    rows = {
        "clients, clusters, windows": f"{report.clients:,}, {report.clusters}, {report.windows}",
        "cells released": f"{report.cells_released} of {report.cells_expected}",
        "cells released twice": f"{report.cells_released_twice}",
        "ledgers": "verified" if report.ledger_verified else "NOT VERIFIED",
        "epsilon spent": f"{report.epsilon:.4f} at delta {report.delta:g}",
        "epsilon, independent path": f"{report.epsilon_independent:.4f}",
        "test accuracy": accuracy,
        "the same without privacy": f"{report.test_accuracy_without_privacy:.3f}",
        "updates accepted": f"{report.updates_accepted:,} of at most {offered:,}",
        "updates rejected": rejected or "none",
        "window end to release": str(report.release_latency_s),
        "window end to model": str(report.model_latency_s),
        "wall time": f"{report.seconds:.0f} s on a {report.broker} broker",
    }
    if report.broker == "mock":
        rows["not shown on a mock"] = "transaction isolation, broker timestamps, durability"
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def draw_png(path: Path, report: DemoReport, baseline: Sequence[float]) -> None:
    """Write the picture: accuracy with and without privacy, and epsilon, over the windows."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    windows = range(1, report.windows + 1)
    without, private = _gaps(baseline), _gaps(report.accuracy_by_window)
    upper.plot(windows, without, "--", color="tab:gray", label="without privacy")
    label = f"private, over Kafka (epsilon {report.epsilon:.3g}, delta {report.delta:g})"
    upper.plot(windows, private, color="tab:blue", marker=".", label=label)
    upper.set_ylabel("test accuracy")
    upper.set_ylim(0, 1)
    upper.legend(loc="lower right")
    lower.plot(windows, _gaps(report.epsilon_by_window), color="tab:red", marker=".")
    lower.set_ylabel("epsilon spent")
    lower.set_ylim(bottom=0)
    lower.set_xlabel("window")
    upper.set_title(f"{report.clients:,} clients in {report.clusters} clusters")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, format="png")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the least value with ``percent`` at or below it.

    Raises:
        ValueError: there are no values, or ``percent`` is outside (0, 100].
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(values)} values")
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def _series(by_window: Mapping[int, float], windows: int) -> tuple[float | None, ...]:
    return tuple(by_window.get(window) for window in range(windows))


def _gaps(values: Sequence[float | None]) -> list[float]:
    """Return the values as matplotlib draws them: NaN leaves a gap."""
    return [math.nan if value is None else value for value in values]
