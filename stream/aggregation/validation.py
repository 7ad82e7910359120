"""What an update must be to enter a window. Each one's fate depends on itself alone.

No check looks at another client's update or at the load, so removing one client leaves every
other one's contribution as it was: that is what makes the sensitivity of a sum one client's
bound (PRIVACY notes 1.3 and 1.6).
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from schemas import Update
from stream.privacy.plan import PrivacyPlan

# A block of squares of int16 sums to less than 2^43, exact in float64 in any order of addition.
_BLOCK = 1 << 13


class Reason(StrEnum):
    """Why an update was refused; also the metric's label and the reject record's reason."""

    MALFORMED = "malformed"
    WRONG_PLAN = "wrong_plan"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_DIMENSION = "wrong_dimension"
    UNKNOWN_CLUSTER = "unknown_cluster"
    FOREIGN_CLUSTER = "foreign_cluster"
    FUTURE_MODEL = "future_model"
    WRONG_SCALE = "wrong_scale"
    FORBIDDEN_VALUE = "forbidden_value"
    NORM_TOO_LARGE = "norm_too_large"
    DUPLICATE = "duplicate"
    LATE = "late"
    NOT_STARTED = "not_started"
    EXHAUSTED = "exhausted"
    CLIENT_EXHAUSTED = "client_exhausted"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one update did not count, in one label and one line without gradient data."""

    reason: Reason
    detail: str


def check_update(
    update: Update, plan: PrivacyPlan, cluster: int, window: int, clip_norm: float
) -> Rejection | None:
    """Return why ``update`` may not enter ``window`` of ``cluster``, or None.

    ``clip_norm`` is the one in force for the window, 0 where clipping is not adaptive.

    Guarantee: an update that passes has the exact integer norm ``sum g_i^2 <= D^2``, whatever
    made it, and every coordinate within the symmetric limit.
    """
    return (
        _check_header(update, plan, cluster, window)
        or _check_scale(update, clip_norm)
        or _check_vector(update.vector, plan)
    )


def squared_norm(vector: NDArray[np.integer]) -> int:
    """Return the exact squared L2 norm of an int8 or int16 vector.

    The input's own type would wrap, and so would int64 for longer vectors of wider types:
    blocks are squared and summed in float64, where every partial sum is an exact integer.
    """
    total = 0
    for start in range(0, vector.size, _BLOCK):
        block = vector[start : start + _BLOCK].astype(np.float64)
        total += int(np.dot(block, block))
    return total


def _check_header(update: Update, plan: PrivacyPlan, cluster: int, window: int) -> Rejection | None:
    if update.plan_id != plan.plan_id:
        return Rejection(Reason.WRONG_PLAN, f"made under plan {update.plan_id.hex()}")
    vector = update.vector
    if vector.dtype.name != plan.update_dtype:
        return Rejection(Reason.WRONG_DTYPE, f"{vector.dtype.name}, not {plan.update_dtype}")
    if vector.size != plan.coordinate_count:
        return Rejection(Reason.WRONG_DIMENSION, f"{vector.size}, not {plan.coordinate_count}")
    home = plan.cluster_of(update.client_id)
    if home is None:
        return Rejection(Reason.UNKNOWN_CLUSTER, "no cluster has this client's prefix")
    if home != cluster:
        return Rejection(Reason.FOREIGN_CLUSTER, f"belongs to cluster {home}, not {cluster}")
    # One model a window at most, so version v cannot exist before window v (counted from 0).
    if update.model_version > window:
        return Rejection(
            Reason.FUTURE_MODEL, f"model {update.model_version} cannot exist in window {window}"
        )
    return None


def _check_scale(update: Update, clip_norm: float) -> Rejection | None:
    # Grid steps of two scales cannot be added; the bound itself holds in any of them.
    if update.clip_norm != clip_norm:
        return Rejection(Reason.WRONG_SCALE, f"clip norm {update.clip_norm}, not {clip_norm}")
    return None


def _check_vector(vector: NDArray[np.integer], plan: PrivacyPlan) -> Rejection | None:
    # abs(-128) is -128 in int8, so the most negative value is compared, never negated.
    if vector.min() < -plan.coordinate_limit:
        return Rejection(Reason.FORBIDDEN_VALUE, f"a coordinate is below {-plan.coordinate_limit}")
    if squared_norm(vector) > plan.grid_l2_bound**2:
        return Rejection(Reason.NORM_TOO_LARGE, f"norm above {plan.grid_l2_bound} grid steps")
    return None
