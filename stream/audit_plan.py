"""The plan of an audit's games, what its canary clients send, and what must become of that."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from schemas import Update, encode_update

from .privacy.plan import PrivacyPlan
from .privacy.schedule_spec import ScheduleSpec

_PREFIX = "audit"
_CONSTANT = ScheduleSpec()
_ENDLESS_EPOCH = 2**31 - 1  # the clip norm stays as the plan has it


def audit_plan(
    plan: PrivacyPlan, dimension: int, bound: int, weight: int, horizon: int, expected_clients: int
) -> PrivacyPlan:
    """Return ``plan`` in the shape of a game: budget, noise and scope stay, all else is small.

    How the budget is spread over windows, and what hours and days admit, is exact arithmetic that
    the ledger's audit checks; games spread it evenly.

    Args:
        plan: The plan under audit.
        dimension: Coordinates of a vector.
        bound: The bound D on its norm, in grid steps.
        weight: What a client's presence adds to the count, and what its clip bit adds.
        horizon: Windows that the budget is spent in.
        expected_clients: Decides whether releases are int32 or int64.
    """
    clipping = plan.clipping
    if clipping is not None:
        clipping = replace(clipping, bit_weight=2 * weight, epoch_windows=_ENDLESS_EPOCH)
    return replace(
        plan,
        dimension=dimension,
        cluster_count=1,
        assignment="prefix",
        assignment_key="",
        prefixes=(_PREFIX,),
        expected_clients=expected_clients,
        grid_l2_bound=bound,
        count_weight=weight,
        horizon_windows=horizon,
        normalizer="expected_clients",
        minimum_count=0,
        schedule_spec=_CONSTANT,
        hour_epsilon=0.0,
        day_epsilon=0.0,
        rotation="none",
        clipping=clipping,
    )


def canary_updates(
    plan: PrivacyPlan, vector: NDArray[np.int64], clients: int, canary: int
) -> list[bytes]:
    """Return the update of each of the ``clients`` that act as one canary."""
    is_adaptive = plan.clipping is not None
    grid = vector.astype(plan.update_dtype)
    return [
        encode_update(
            Update(
                plan_id=plan.plan_id,
                client_id=f"{_PREFIX}/{canary}-{member}",
                model_version=0,
                vector=grid,
                clip_norm=plan.l2_clip_norm if is_adaptive else 0.0,
                is_below_clip=is_adaptive,
            )
        )
        for member in range(clients)
    ]


def canary_sum(plan: PrivacyPlan, vector: NDArray[np.int64], canaries: int) -> NDArray[np.int64]:
    """Return what ``canaries`` of one client each add to a window, shape ``(release_size,)``.

    Args:
        plan: The plan of the game.
        vector: The sum of their vectors.
        canaries: How many take part.
    """
    weights = [canaries * plan.count_weight]
    if plan.clipping is not None:
        weights.append(canaries * plan.clipping.bit_weight // 2)
    return np.append(vector, weights)
