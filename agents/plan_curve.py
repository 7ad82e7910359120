"""How epsilon grows with the windows of a plan, and how the noise shrinks with its clients."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from stream.privacy.plan import PrivacyPlan

from .plan_utility import Utility
from .plan_windows import PlannedWindows
from .text_table import aligned

_POINTS_TO_HORIZON = 9
_BEYOND_HORIZON = (2, 5, 10)
_POINTS_PER_DECADE = 4  # of clients, a decade to either side of what the plan expects


@dataclass(frozen=True, slots=True)
class PrivacyPoint:
    """What a client has lost to its cluster after so many releases of the plan's schedule.

    Attributes:
        windows: Number of windows released; with scope ``client``, that used its update.
        epsilon: At the plan's delta, rounded up to 1e-6.
        noise_multiplier: Of the last one of them.
        is_admitted: Whether the ledger admits so many.
    """

    windows: int
    epsilon: float
    noise_multiplier: float
    is_admitted: bool


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """What the noise does to the mean of one window of so many clients.

    Attributes:
        clients: Clients that take part in the window, over all clusters.
        noise_to_signal: L2 norm of the mean's noise over the clip norm, which bounds the signal.
    """

    clients: int
    noise_to_signal: float


@dataclass(frozen=True, slots=True)
class PlanCurve:
    """Both curves of a plan.

    Attributes:
        privacy: Windows, log-spaced to the last one that is planned (or, of a schedule without
            an end, followed), increasing; of a constant one, up to ten times beyond.
        noise: Clients, log-spaced over a decade to either side of the expected, increasing.
        clients_for_equal_noise: Fewest clients whose mean has no more noise than the clip norm.
    """

    privacy: tuple[PrivacyPoint, ...]
    noise: tuple[NoisePoint, ...]
    clients_for_equal_noise: int

    @classmethod
    def of(cls, plan: PrivacyPlan) -> "PlanCurve":
        """Return the curves of ``plan``.

        After k releases epsilon is what the plan's filter makes of their charges. The mean of n
        clients has, in the first window,
        ``noise_to_signal = sigma s sqrt(K d) / (n C)``, where sigma is the noise in
        grid steps, s the grid step, K the clusters, d the dimension and C the clip norm
        (`Utility`). The noise does not depend on n, so that n clients see the plan's own ratio
        times ``expected_clients / n``.
        """
        # The noise-to-signal that a single client would have.
        alone = Utility.of(plan).noise_to_signal * plan.expected_clients
        return cls(
            privacy=tuple(_privacy_points(plan)),
            noise=tuple(NoisePoint(clients, alone / clients) for clients in _client_counts(plan)),
            clients_for_equal_noise=max(1, math.ceil(alone)),
        )


def curve_report(plan: PrivacyPlan) -> dict[str, object]:
    """Return the curves of ``plan`` as plain data."""
    curve = PlanCurve.of(plan)
    return {
        "plan_id": plan.plan_id_hex,
        "name": plan.name,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "windows": plan.windows_allowed,
        "schedule": plan.schedule_spec.kind,
        "filter": plan.privacy_filter.value,
        "noise_multiplier": plan.noise_multiplier,
        "expected_clients": plan.expected_clients,
        "epsilon_by_windows": [asdict(point) for point in curve.privacy],
        "noise_to_signal_by_clients": [asdict(point) for point in curve.noise],
        "clients_for_equal_noise": curve.clients_for_equal_noise,
    }


def curve_text(plan: PrivacyPlan) -> str:
    """Return the curves of ``plan`` as two tables."""
    curve = PlanCurve.of(plan)
    planned = PlannedWindows.of(plan)
    privacy = [("windows", "epsilon", "noise multiplier", "")]
    for point in curve.privacy:
        note = "" if point.is_admitted else "the ledger refuses so many"
        if point.windows == planned.windows:
            whole = "all that the budget pays for"
            note = whole if planned.is_whole else "followed so far; releases go on"
        numbers = f"{point.epsilon:.15g}", f"{point.noise_multiplier:.4g}"
        privacy.append((f"{point.windows:,}", *numbers, note))
    noise = [("clients", "noise / clip norm", "")]
    for step in curve.noise:
        note = "the plan's" if step.clients == plan.expected_clients else ""
        noise.append((f"{step.clients:,}", f"{step.noise_to_signal:.4g}", note))
    is_certain = plan.schedule.is_deterministic
    assumed = "" if is_certain else ", if every release asks for what the first one had"
    return "\n".join(
        [
            f"Privacy lost after so many windows, at delta {plan.delta:g}, schedule "
            f"{plan.schedule_spec.kind}{assumed}, by {plan.privacy_filter.value}:",
            *aligned(privacy, indent="  "),
            "",
            "Noise of the first window's mean, as a vector, over the clip norm (which bounds it):",
            *aligned(noise, indent="  "),
            f"The noise is as large as the clip norm at {curve.clients_for_equal_noise:,} clients.",
        ]
    )


def draw_curve(plan: PrivacyPlan, path: Path) -> None:
    """Write both curves as a PNG picture.

    Raises:
        ModuleNotFoundError: matplotlib is not there; the extra ``demo`` brings it.
        OSError: the file cannot be written.
    """
    # The table and the JSON need no matplotlib, which is large and is in an extra.
    from matplotlib.figure import Figure

    curve = PlanCurve.of(plan)
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(
        [point.windows for point in curve.privacy],
        [point.epsilon for point in curve.privacy],
        marker=".",
    )
    if plan.windows_allowed is not None:
        left.axvline(
            plan.windows_allowed, color="tab:red", linestyle="--", label="the ledger stops"
        )
        left.legend()
    left.set_xlabel("windows released")
    left.set_ylabel(f"epsilon at delta {plan.delta:g}")
    right.loglog(
        [point.clients for point in curve.noise],
        [point.noise_to_signal for point in curve.noise],
        marker=".",
    )
    right.axhline(1.0, color="tab:red", linestyle="--", label="noise = clip norm")
    right.legend()
    right.set_xlabel("clients per window")
    right.set_ylabel("noise of the mean / clip norm")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{plan.name}: {plan.schedule_spec.kind}, {plan.noise}")
    figure.savefig(path, dpi=120, format="png")


def _privacy_points(plan: PrivacyPlan) -> Iterator[PrivacyPoint]:
    planned = PlannedWindows.of(plan)
    is_constant = len(planned.runs) == 1 and planned.is_whole
    for windows in _window_counts(planned.windows, goes_beyond=is_constant):
        # Beyond its end nothing is planned, unless all windows are alike.
        spent = planned.spent_after(windows)
        spent += max(0, windows - planned.windows) * planned.runs[-1].charge_units
        variance = planned.run_of(min(windows, planned.windows) - 1).noise_variance
        yield PrivacyPoint(
            windows=windows,
            epsilon=plan.privacy_filter.epsilon(spent, plan.delta),
            noise_multiplier=math.sqrt(variance / plan.l2_sensitivity_squared),
            is_admitted=windows <= planned.windows,
        )


def _window_counts(horizon: int, *, goes_beyond: bool) -> list[int]:
    last = _POINTS_TO_HORIZON - 1
    to_horizon = [horizon ** (point / last) for point in range(last)]
    beyond = [horizon * times for times in _BEYOND_HORIZON] if goes_beyond else []
    return _increasing([*to_horizon, horizon, *beyond])


def _client_counts(plan: PrivacyPlan) -> list[int]:
    exponents = range(-_POINTS_PER_DECADE, _POINTS_PER_DECADE + 1)
    scales = (10 ** (exponent / _POINTS_PER_DECADE) for exponent in exponents)
    return _increasing(plan.expected_clients * scale for scale in scales)


def _increasing(counts: Iterable[float]) -> list[int]:
    """Return whole counts of at least 1, each once: rounding may make small ones equal."""
    return sorted({max(1, round(count)) for count in counts})
