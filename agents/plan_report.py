"""What a plan promises, what it costs, and what an operator should think twice about."""

import math
import textwrap
from dataclasses import dataclass

from schemas import TopicNames
from stream.privacy.accounting import UNITS_PER_RHO, zcdp_epsilon
from stream.privacy.plan import PrivacyPlan

from .text_table import aligned
from .topics import topics_of

_TEXT_WIDTH = 100
_ITEMSIZES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
# A vector at the bound whose coordinates are alike has them at bound / sqrt(dimension). Of that
# many such, 127 steps hold more than four (PRIVACY 1.2): few coordinates are cut off.
_INT8_ROOT_MEAN_SQUARE = 30
_MOST_NOISE_TO_SIGNAL = 10.0
_MOST_SCALE_LOSS = 0.05
_MOST_COUNT_COST = 0.1
_MOST_COUNT_ERROR = 0.25
_MOST_EPSILON = 10.0


@dataclass(frozen=True, slots=True)
class Utility:
    """What the noise does to the mean of one window, over all clusters.

    With sigma the noise's standard deviation in grid steps, s the grid step, K clusters, n clients,
    d coordinates and the clip norm C, the mean's noise has a root mean square L2 norm of
    ``sigma s sqrt(K d) / n``, and ``noise_to_signal`` is that over C.

    Attributes:
        noise_stddev: Of one coordinate of one cluster's sum, in gradient units.
        mean_noise_stddev: Of one coordinate of the mean of all clients, in gradient units.
        noise_to_signal: L2 norm of the mean's noise over the clip norm, which bounds the signal.
        count_stddev: Of the noisy number of clients, summed over the clusters, in clients.
    """

    noise_stddev: float
    mean_noise_stddev: float
    noise_to_signal: float
    count_stddev: float

    @classmethod
    def of(cls, plan: PrivacyPlan) -> "Utility":
        """Return what the noise of ``plan`` does."""
        grid_stddev = math.sqrt(plan.noise_variance)
        noise_stddev = grid_stddev * plan.grid_step
        # The clusters' noises are independent: K of them have sqrt(K) times the deviation of one.
        over_clusters = math.sqrt(plan.cluster_count)
        mean_noise_stddev = noise_stddev * over_clusters / plan.expected_clients
        return cls(
            noise_stddev=noise_stddev,
            mean_noise_stddev=mean_noise_stddev,
            noise_to_signal=mean_noise_stddev * math.sqrt(plan.dimension) / plan.l2_clip_norm,
            count_stddev=grid_stddev * over_clusters / plan.count_weight,
        )


def report(plan: PrivacyPlan) -> dict[str, object]:
    """Return all that follows from ``plan``, as plain data; the unit is in the name."""
    utility = Utility.of(plan)
    names = TopicNames(plan.topic_prefix)
    rho_cap = plan.cap_units / UNITS_PER_RHO
    return {
        "plan_id": plan.plan_id_hex,
        "name": plan.name,
        "guarantee": plan.guarantee,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "epsilon_by_zcdp": zcdp_epsilon(rho_cap, plan.delta),
        "rho_cap": rho_cap,
        "rho_per_window": plan.charge_units / UNITS_PER_RHO,
        "cap_units": plan.cap_units,
        "charge_units": plan.charge_units,
        "windows": plan.windows_allowed,
        "window_length_s": plan.window_length_ms / 1000,
        "budget_lasts_s": plan.windows_allowed * plan.window_length_ms / 1000,
        "noise_multiplier": plan.noise_multiplier,
        "noise_stddev_grid_steps": math.sqrt(plan.noise_variance),
        "noise_stddev": utility.noise_stddev,
        "mean_noise_stddev": utility.mean_noise_stddev,
        "noise_to_signal": utility.noise_to_signal,
        "noisy_count_stddev_clients": utility.count_stddev,
        "grid_step": plan.grid_step,
        "client_scale": plan.client_scale,
        "client_scale_loss": _scale_loss(plan),
        "clusters": plan.cluster_count,
        "expected_clients": plan.expected_clients,
        "dimension": plan.dimension,
        "update_dtype": plan.update_dtype,
        "release_dtype": plan.release_dtype,
        "update_vector_bytes": _update_bytes(plan),
        "release_vector_bytes": _release_bytes(plan),
        "updates_bytes_per_window": plan.expected_clients * _update_bytes(plan),
        "topics": [
            names.updates,
            names.ledger,
            names.outbox,
            names.rejects,
            names.releases,
            names.model,
            names.model_state,
        ],
        "cautions": cautions(plan),
    }


def describe(plan: PrivacyPlan) -> str:
    """Return what `report` says, for people: the guarantee, a table, then the cautions."""
    lines = textwrap.wrap(plan.guarantee, _TEXT_WIDTH, break_on_hyphens=False)
    lines += ["", *aligned(_table(plan))]
    for caution in cautions(plan):
        lines += textwrap.wrap(
            f"caution: {caution}", _TEXT_WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
    return "\n".join(lines)


def cautions(plan: PrivacyPlan) -> list[str]:
    """Return what is legal in ``plan`` and yet likely a mistake, each with what to do."""
    return [*_privacy_cautions(plan), *_grid_cautions(plan), *_utility_cautions(plan)]


def _privacy_cautions(plan: PrivacyPlan) -> list[str]:
    found = []
    largest_delta = 1 / (10 * plan.expected_clients)
    if plan.delta > largest_delta:
        found.append(
            f"delta = {plan.delta:g} allows a failure for one client in {1 / plan.delta:,.0f}: "
            f"use at most {largest_delta:.1g}, a tenth of 1 / expected_clients"
        )
    if plan.epsilon > _MOST_EPSILON:
        found.append(
            f"epsilon = {plan.epsilon:g} promises little: an attacker's odds may change by a "
            f"factor of e^{plan.epsilon:g}; plans above {_MOST_EPSILON:g} are hard to defend"
        )
    return found


def _grid_cautions(plan: PrivacyPlan) -> list[str]:
    found = []
    root_mean_square = plan.grid_l2_bound / math.sqrt(plan.dimension)
    most = _INT8_ROOT_MEAN_SQUARE / 127 * plan.coordinate_limit
    if root_mean_square > most:
        wider = 'dtype = "int16", or ' if plan.update_dtype == "int8" else ""
        found.append(
            f"grid_l2_bound = {plan.grid_l2_bound} puts coordinates at {root_mean_square:.0f} grid "
            f"steps on average, and {plan.update_dtype} ends at {plan.coordinate_limit}: large "
            f"ones are cut off. Use {wider}grid_l2_bound of at most "
            f"{math.floor(most * math.sqrt(plan.dimension))}"
        )
    if _scale_loss(plan) > _MOST_SCALE_LOSS:
        found.append(
            f"rounding takes {100 * _scale_loss(plan):.0f} % of the bound, so that gradients are "
            "sent that much smaller under the same noise: raise grid_l2_bound"
        )
    count_cost = plan.count_weight**2 / plan.l2_sensitivity_squared
    if count_cost > _MOST_COUNT_COST:
        found.append(
            f"counting the clients takes {100 * count_cost:.0f} % of every charge: lower "
            "count_weight, to a tenth of grid_l2_bound for instance"
        )
    return found


def _utility_cautions(plan: PrivacyPlan) -> list[str]:
    found = []
    utility = Utility.of(plan)
    if utility.noise_to_signal > _MOST_NOISE_TO_SIGNAL:
        found.append(
            f"the noise of a window's mean is {utility.noise_to_signal:.0f} times the largest "
            "gradient that clipping lets through: use more clients, fewer windows, fewer "
            "coordinates, or expect to average over many windows"
        )
    count_error = utility.count_stddev / plan.expected_clients
    if plan.normalizer == "noisy_count" and count_error > _MOST_COUNT_ERROR:
        found.append(
            f"the noisy count is off by {100 * count_error:.0f} % of the expected clients: raise "
            'count_weight, or use normalizer = "expected_clients"'
        )
    try:
        topics_of(plan)
    except ValueError as error:
        found.append(f"no topics can be made for this plan: {error}")
    return found


def _table(plan: PrivacyPlan) -> list[tuple[str, str]]:
    utility = Utility.of(plan)
    rho_cap = plan.cap_units / UNITS_PER_RHO
    lasts_s = plan.windows_allowed * plan.window_length_ms / 1000
    return [
        ("plan", f"{plan.name}, {plan.plan_id_hex}"),
        (
            "budget of a cluster",
            f"epsilon {plan.epsilon:g} at delta {plan.delta:g} = {rho_cap:.6g} rho "
            f"(zCDP alone would say epsilon {zcdp_epsilon(rho_cap, plan.delta):.4g})",
        ),
        (
            "pays for",
            f"{plan.windows_allowed:,} windows of {plan.window_length_ms / 1000:g} s: "
            f"{_duration(lasts_s)}",
        ),
        ("charge of a window", f"{plan.charge_units / UNITS_PER_RHO:.6g} rho"),
        (
            "noise of a cluster's sum",
            f"{plan.noise_multiplier:.4g} times the sensitivity = "
            f"{math.sqrt(plan.noise_variance):,.1f} grid steps = {utility.noise_stddev:.4g} "
            "gradient units",
        ),
        (
            f"noise of the mean of {plan.expected_clients:,}",
            f"{utility.mean_noise_stddev:.4g} gradient units a coordinate; as a vector "
            f"{utility.noise_to_signal:.3g} times the clip norm",
        ),
        ("noise of the count", f"{utility.count_stddev:,.1f} clients"),
        ("lost to rounding", f"{100 * _scale_loss(plan):.2g} % of the bound"),
        ("update", f"{plan.dimension:,} x {plan.update_dtype} = {_update_bytes(plan):,} bytes"),
        (
            "release",
            f"{plan.dimension + 1:,} x {plan.release_dtype} = {_release_bytes(plan):,} bytes",
        ),
        (
            "clusters",
            f"{plan.cluster_count}, on topics {plan.topic_prefix}.*",
        ),
    ]


def _scale_loss(plan: PrivacyPlan) -> float:
    return 1 - plan.client_scale / plan.grid_l2_bound


def _update_bytes(plan: PrivacyPlan) -> int:
    return plan.dimension * _ITEMSIZES[plan.update_dtype]


def _release_bytes(plan: PrivacyPlan) -> int:
    return (plan.dimension + 1) * _ITEMSIZES[plan.release_dtype]


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} seconds"
