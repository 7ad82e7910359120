"""How epsilon grows with the windows of a plan, and how the noise shrinks with its clients."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from stream.privacy.accounting import epsilon_from_units
from stream.privacy.plan import PrivacyPlan

from .plan_report import Utility
from .text_table import aligned

_POINTS_TO_HORIZON = 9
_BEYOND_HORIZON = (2, 5, 10)
_POINTS_PER_DECADE = 4  # of clients, a decade to either side of what the plan expects


@dataclass(frozen=True, slots=True)
class PrivacyPoint:
    """What a client has lost to its cluster after so many releases of the plan's noise.

    Attributes:
        windows: Number of windows released.
        epsilon: At the plan's delta, rounded up to 1e-6.
        is_admitted: Whether the ledger lets a cluster release so many.
    """

    windows: int
    epsilon: float
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
        privacy: Windows, log-spaced to the horizon and up to ten times beyond, increasing.
        noise: Clients, log-spaced over a decade to either side of the expected, increasing.
        clients_for_equal_noise: Fewest clients whose mean has no more noise than the clip norm.
    """

    privacy: tuple[PrivacyPoint, ...]
    noise: tuple[NoisePoint, ...]
    clients_for_equal_noise: int

    @classmethod
    def of(cls, plan: PrivacyPlan) -> "PlanCurve":
        """Return the curves of ``plan``.

        After k releases epsilon is the GDP conversion of k charges (`accounting`). The mean of n
        clients has ``noise_to_signal = sigma s sqrt(K d) / (n C)``, where sigma is the noise in
        grid steps, s the grid step, K the clusters, d the dimension and C the clip norm
        (`Utility`). The noise does not depend on n, so that n clients see the plan's own ratio
        times ``expected_clients / n``.
        """
        # The noise-to-signal that a single client would have.
        alone = Utility.of(plan).noise_to_signal * plan.expected_clients
        return cls(
            privacy=tuple(_privacy_point(plan, windows) for windows in _window_counts(plan)),
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
        "noise_multiplier": plan.noise_multiplier,
        "expected_clients": plan.expected_clients,
        "epsilon_by_windows": [asdict(point) for point in curve.privacy],
        "noise_to_signal_by_clients": [asdict(point) for point in curve.noise],
        "clients_for_equal_noise": curve.clients_for_equal_noise,
    }


def curve_text(plan: PrivacyPlan) -> str:
    """Return the curves of ``plan`` as two tables."""
    curve = PlanCurve.of(plan)
    privacy = [("windows", "epsilon", "")]
    for point in curve.privacy:
        if point.windows == plan.windows_allowed:
            note = "all that the budget pays for"
        else:
            note = "" if point.is_admitted else "the ledger refuses so many"
        privacy.append((f"{point.windows:,}", f"{point.epsilon:.15g}", note))
    noise = [("clients", "noise / clip norm", "")]
    for step in curve.noise:
        note = "the plan's" if step.clients == plan.expected_clients else ""
        noise.append((f"{step.clients:,}", f"{step.noise_to_signal:.4g}", note))
    return "\n".join(
        [
            f"Privacy lost after so many windows, at delta {plan.delta:g} and noise multiplier "
            f"{plan.noise_multiplier:.4g}:",
            *aligned(privacy, indent="  "),
            "",
            "Noise of one window's mean, as a vector, over the clip norm (which bounds the mean):",
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
    left.axvline(plan.windows_allowed, color="tab:red", linestyle="--", label="the ledger stops")
    left.set_xlabel("windows released")
    left.set_ylabel(f"epsilon at delta {plan.delta:g}")
    right.loglog(
        [point.clients for point in curve.noise],
        [point.noise_to_signal for point in curve.noise],
        marker=".",
    )
    right.axhline(1.0, color="tab:red", linestyle="--", label="noise = clip norm")
    right.set_xlabel("clients per window")
    right.set_ylabel("noise of the mean / clip norm")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{plan.name}: noise multiplier {plan.noise_multiplier:.4g}")
    figure.savefig(path, dpi=120, format="png")


def _privacy_point(plan: PrivacyPlan, windows: int) -> PrivacyPoint:
    epsilon = epsilon_from_units(windows * plan.charge_units, plan.delta)
    return PrivacyPoint(windows, epsilon, is_admitted=windows <= plan.windows_allowed)


def _window_counts(plan: PrivacyPlan) -> list[int]:
    horizon = plan.windows_allowed
    last = _POINTS_TO_HORIZON - 1
    to_horizon = [horizon ** (point / last) for point in range(last)]
    return _increasing([*to_horizon, horizon, *(horizon * times for times in _BEYOND_HORIZON)])


def _client_counts(plan: PrivacyPlan) -> list[int]:
    exponents = range(-_POINTS_PER_DECADE, _POINTS_PER_DECADE + 1)
    scales = (10 ** (exponent / _POINTS_PER_DECADE) for exponent in exponents)
    return _increasing(plan.expected_clients * scale for scale in scales)


def _increasing(counts: Iterable[float]) -> list[int]:
    """Return whole counts of at least 1, each once: rounding may make small ones equal."""
    return sorted({max(1, round(count)) for count in counts})
