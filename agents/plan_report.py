"""What a plan promises, what it costs, and what an operator should think twice about."""

import math
import textwrap
from dataclasses import asdict

from schemas import TopicNames
from stream.privacy.accounting import UNITS_PER_RHO, zcdp_epsilon
from stream.privacy.plan import PrivacyPlan

from .plan_comparison import comparison, comparison_lines
from .plan_schedule import limits_report, schedule_report, schedule_rows
from .plan_utility import Utility
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
_MOST_QUANTILE_ERROR = 0.25
_MOST_EPSILON = 10.0


def report(plan: PrivacyPlan) -> dict[str, object]:
    """Return all that follows from ``plan``, as plain data; the unit is in the name."""
    utility = Utility.of(plan)
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
        "budget_lasts_s": _lasts_s(plan),
        "scope": plan.scope,
        "noise": plan.noise,
        "filter": plan.privacy_filter.value,
        "schedule": schedule_report(plan),
        "limits": limits_report(plan),
        "rotation": plan.rotation,
        "clipping": None if plan.clipping is None else asdict(plan.clipping),
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
        "topics": _topics(plan),
        "comparison": comparison(plan),
        "cautions": cautions(plan),
    }


def describe(plan: PrivacyPlan) -> str:
    """Return what `report` says, for people: the guarantee, two tables, then the cautions."""
    lines = textwrap.wrap(plan.guarantee, _TEXT_WIDTH, break_on_hyphens=False)
    lines += ["", *aligned(_table(plan)), "", *comparison_lines(plan)]
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
    root_mean_square = plan.grid_l2_bound / math.sqrt(plan.coordinate_count)
    most = _INT8_ROOT_MEAN_SQUARE / 127 * plan.coordinate_limit
    if root_mean_square > most:
        wider = 'dtype = "int16", or ' if plan.update_dtype == "int8" else ""
        found.append(
            f"grid_l2_bound = {plan.grid_l2_bound} puts coordinates at {root_mean_square:.0f} grid "
            f"steps on average, and {plan.update_dtype} ends at {plan.coordinate_limit}: large "
            f"ones are cut off. Use {wider}grid_l2_bound of at most "
            f"{math.floor(most * math.sqrt(plan.coordinate_count))}"
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
    bit_reach = plan.clipping.bit_weight / 2 if plan.clipping else 0
    bit_cost = bit_reach**2 / plan.l2_sensitivity_squared
    if bit_cost > _MOST_COUNT_COST:
        found.append(
            f"adapting the clip norm takes {100 * bit_cost:.0f} % of every charge: lower "
            "[clipping] bit_weight, to a fifth of grid_l2_bound for instance"
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
    if _quantile_stddev(plan) > _MOST_QUANTILE_ERROR:
        found.append(
            f"an epoch tells the clients within the clip norm to {100 * _quantile_stddev(plan):.0f}"
            " % only: raise [clipping] bit_weight or epoch_windows, or the norm will wander"
        )
    try:
        topics_of(plan)
    except ValueError as error:
        found.append(f"no topics can be made for this plan: {error}")
    return found


def _table(plan: PrivacyPlan) -> list[tuple[str, str]]:
    utility = Utility.of(plan)
    return [
        ("plan", f"{plan.name}, {plan.plan_id_hex}"),
        *_budget_rows(plan),
        *schedule_rows(plan),
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
        *_clipping_rows(plan),
        ("lost to rounding", f"{100 * _scale_loss(plan):.2g} % of the bound"),
        (
            "update",
            f"{plan.coordinate_count:,} x {plan.update_dtype} = {_update_bytes(plan):,} bytes, "
            f"rotation {plan.rotation}",
        ),
        (
            "release",
            f"{plan.release_size:,} x {plan.release_dtype} = {_release_bytes(plan):,} bytes",
        ),
        (
            "clusters",
            f"{plan.cluster_count}, on topics {plan.topic_prefix}.*",
        ),
    ]


def _budget_rows(plan: PrivacyPlan) -> list[tuple[str, str]]:
    rho_cap = plan.cap_units / UNITS_PER_RHO
    budget = f"epsilon {plan.epsilon:g} at delta {plan.delta:g} = {rho_cap:.6g} rho"
    lasts_s = _lasts_s(plan)
    if lasts_s is None:
        pays_for = "no fixed number of windows: releases end by their noise"
    else:
        each = f"windows of {plan.window_length_ms / 1000:g} s: {_duration(lasts_s)}"
        pays_for = f"{plan.windows_allowed:,} {each}"
    if plan.scope == "client":
        pays_for += " in which a client takes part; releases go on for ever"
    return [(f"budget of a {plan.scope}", budget), ("pays for", pays_for)]


def _clipping_rows(plan: PrivacyPlan) -> list[tuple[str, str]]:
    if plan.clipping is None:
        return []
    return [
        (
            "adaptive clipping",
            f"so that {100 * plan.clipping.target_quantile:g} % of the clients lie within it; "
            f"{plan.clipping.epoch_windows:,} windows share a clip norm, and tell that share to "
            f"{100 * _quantile_stddev(plan):.2g} % of the clients",
        )
    ]


def _quantile_stddev(plan: PrivacyPlan) -> float:
    """Return the noise of the part of a cluster's clients that an epoch finds within the norm."""
    if plan.clipping is None:
        return 0.0
    reports = plan.clipping.epoch_windows * plan.expected_clients / plan.cluster_count
    noise_stddev = math.sqrt(plan.noise_variance * plan.clipping.epoch_windows)
    return noise_stddev / (plan.clipping.bit_weight * reports)


def _lasts_s(plan: PrivacyPlan) -> float | None:
    windows = plan.windows_allowed
    return None if windows is None else windows * plan.window_length_ms / 1000


def _topics(plan: PrivacyPlan) -> list[str]:
    # Not topics_of: a plan whose topics cannot be made is reported all the same.
    names = TopicNames(plan.topic_prefix)
    listed = [
        names.updates,
        names.ledger,
        names.outbox,
        names.rejects,
        names.releases,
        names.model,
        names.model_state,
    ]
    return [*listed, names.participation] if plan.scope == "client" else listed


def _scale_loss(plan: PrivacyPlan) -> float:
    return 1 - plan.client_scale / plan.grid_l2_bound


def _update_bytes(plan: PrivacyPlan) -> int:
    return plan.coordinate_count * _ITEMSIZES[plan.update_dtype]


def _release_bytes(plan: PrivacyPlan) -> int:
    return plan.release_size * _ITEMSIZES[plan.release_dtype]


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} seconds"
