"""A cluster's clip norm from window to window, as its own releases decide it.

An epoch is ``epoch_windows`` windows, counted from window 0 of the plan, which share one clip
norm. The norm of the next epoch is fixed by the release of the third window before it begins:
that release is public a whole window before the first window of the new norm, so that clients
can learn of it in time. What counts is released at the norm that it corrects: the bits of the
epoch up to that window, and none of the two windows after it.

Where the window that would fix the next norm releases nothing (a rate limit, or a ledger that
begins later), the norm stays: no norm takes force that no release has announced.

Guarantee: everything here is a function of released vectors and of the plan, hence
post-processing; the bit coordinate, which makes it possible, is part of each release's
sensitivity. Every machine computes the same bits: the arithmetic is of integers, of float
operations that IEEE 754 rounds correctly, and of a decimal exponential.

References:
    Andrew, Thakkar, McMahan, Ramaswamy (2021), Differentially private learning with adaptive
    clipping. https://arxiv.org/abs/1905.03871
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal

import numpy as np
from numpy.typing import NDArray

from schemas import ClipNorm, ClipState, Release

from .privacy.plan import PrivacyPlan

# The norm of an epoch is fixed so many windows before it begins.
LEAD_WINDOWS = 3
# A norm stays within this factor of the plan's, so that no noise can lead it out of float range.
_LARGEST_FACTOR = 1e9
# No honest total comes near; one that would not fit the ledger's record stays at its end.
_LARGEST_TOTAL = 2**63 - 1
# The exponential of a decimal context is correctly rounded; that of libm differs by machine.
_FORTY_DIGITS = Context(prec=40, rounding=ROUND_HALF_EVEN)


def first_clip(plan: PrivacyPlan, first_window: int) -> ClipState | None:
    """Return the state before ``first_window``, or None where clipping is not adaptive."""
    if plan.clipping is None:
        return None
    norm = plan.l2_clip_norm
    # Where the window that fixes the next norm has passed already, the norm stays as it is.
    is_fixed = (first_window - 1) % plan.clipping.epoch_windows >= _fixing_place(plan)
    return ClipState(norm, norm if is_fixed else 0.0, 0, 0)


def clip_after(
    plan: PrivacyPlan, clip: ClipState | None, window: int, released: NDArray[np.integer] | None
) -> ClipState | None:
    """Return the state after ``window`` was sealed.

    Args:
        plan: The plan.
        clip: The state before.
        window: The window that is sealed.
        released: Its vector, whose last two coordinates are the count and the clip bits; None
            where nothing was released.
    """
    if plan.clipping is None or clip is None:
        return None
    norm, fixed, bits, counts = clip.norm, clip.next_norm, clip.bit_total, clip.count_total
    place = window % plan.clipping.epoch_windows
    if place == 0:
        norm, fixed = fixed or norm, 0.0
    if released is not None and place <= _fixing_place(plan):
        counts = _within_reach(counts + int(released[-2]))
        bits = _within_reach(bits + int(released[-1]))
    if place == _fixing_place(plan):
        fixed = norm if released is None else _next_norm(plan, norm, bits, counts)
        bits = counts = 0
    return ClipState(norm, fixed, bits, counts)


def clip_norm_of(plan: PrivacyPlan, clip: ClipState, sealed: int, window: int) -> float | None:
    """Return the clip norm of ``window``, or None as long as it is not fixed.

    Args:
        plan: The plan; 0 is returned where its clipping is not adaptive.
        clip: The state after the window ``sealed``.
        sealed: The newest sealed window; before the first one, the one before it.
        window: A later one.
    """
    if plan.clipping is None:
        return 0.0
    length = plan.clipping.epoch_windows
    epochs_ahead = window // length - sealed // length
    if epochs_ahead <= 0:
        return clip.norm
    return (clip.next_norm or None) if epochs_ahead == 1 else None


def next_clip_window(plan: PrivacyPlan, window: int) -> int:
    """Return the first window of the epoch after that of ``window``."""
    length = plan.clipping.epoch_windows if plan.clipping else 1
    return (window // length + 1) * length


def first_unknown_window(plan: PrivacyPlan, clip: ClipState, sealed: int) -> int:
    """Return the first window whose clip norm is not fixed after the window ``sealed``."""
    length = plan.clipping.epoch_windows if plan.clipping else 1
    return (sealed // length + (2 if clip.next_norm else 1)) * length


def first_clip_norms(plan: PrivacyPlan) -> tuple[ClipNorm, ...]:
    """Return the clip norms before the first release: the plan's; none if not adaptive."""
    if plan.clipping is None:
        return ()
    return tuple(ClipNorm(i, 0, plan.l2_clip_norm) for i in range(plan.cluster_count))


def is_in_scale(plan: PrivacyPlan, release: Release) -> bool:
    """Say whether the clip norms that ``release`` names are such as the plan has them."""
    if plan.clipping is None:
        return release.clip_norm == 0 and release.next_clip_norm == 0
    return (
        0 < release.clip_norm < math.inf
        and 0 <= release.next_clip_norm < math.inf
        and release.next_clip_window
        == (next_clip_window(plan, release.window) if release.next_clip_norm else 0)
    )


def announced_clip_norms(plan: PrivacyPlan, release: Release) -> tuple[ClipNorm, ...]:
    """Return the clip norm of the release's epoch, then that of the next one, if it is fixed."""
    if plan.clipping is None:
        return ()
    following = next_clip_window(plan, release.window)
    cluster, start = release.cluster, following - plan.clipping.epoch_windows
    present = ClipNorm(cluster, start, release.clip_norm)
    if not release.next_clip_norm:
        return (present,)
    return present, ClipNorm(cluster, following, release.next_clip_norm)


def clip_norm_in_force(clip_norms: Sequence[ClipNorm], cluster: int, window: int) -> float | None:
    """Return the clip norm of ``window``, as far as ``clip_norms`` tell; None without one.

    Args:
        clip_norms: Of a model, ascending by cluster, then by window.
        cluster: The cluster.
        window: The window. Before the oldest norm that is told, that one is the best guess; so
            is the newest one, for a window whose own norm has not been announced.
    """
    later = bisect_right(clip_norms, (cluster, window), key=_place)
    candidates = clip_norms[max(0, later - 1) : later + 1]
    return next((clip.norm for clip in candidates if clip.cluster == cluster), None)


def _place(clip: ClipNorm) -> tuple[int, int]:
    return clip.cluster, clip.from_window


def _fixing_place(plan: PrivacyPlan) -> int:
    """Return the place within an epoch of the window whose release fixes the next norm."""
    return (plan.clipping.epoch_windows if plan.clipping else LEAD_WINDOWS) - LEAD_WINDOWS


def _next_norm(plan: PrivacyPlan, norm: float, bits: int, counts: int) -> float:
    """Return ``norm * exp(-eta (below - quantile))``, in reach of the plan's norm."""
    spec = plan.clipping
    if spec is None or counts <= 0:
        return norm  # so few clients that the noise has taken all of them away
    clients = counts / plan.count_weight
    # Each client adds kappa_b / 2 or takes it away: the mean of its bits is that plus one half.
    below = min(1.0, max(0.0, bits / (spec.bit_weight * clients) + 0.5))
    exponent = -spec.learning_rate * (below - spec.target_quantile)
    found = norm * float(_FORTY_DIGITS.exp(Decimal(exponent)))
    largest = min(plan.l2_clip_norm * _LARGEST_FACTOR, sys.float_info.max)
    smallest = max(plan.l2_clip_norm / _LARGEST_FACTOR, sys.float_info.min)
    return min(largest, max(smallest, found))


def _within_reach(total: int) -> int:
    return max(-_LARGEST_TOTAL, min(_LARGEST_TOTAL, total))
