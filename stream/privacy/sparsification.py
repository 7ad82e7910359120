"""Sparsification: send a random part of the coordinates, scaled up so that the mean is kept.

This is the client's own pre-processing. It gives no privacy and no amplification of any: which
coordinates were drawn is not claimed to be secret, the cluster head checks the norm of what was
sent, and its noise goes on all coordinates, whether anyone sent them or not (PRIVACY 4).
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Real = TypeVar("_Real", bound=np.float32 | np.float64)


def kept_count(keep_fraction: float, dimension: int) -> int:
    """Return how many of ``dimension`` coordinates are kept.

    Raises:
        ValueError: ``keep_fraction`` is not in (0, 1], or keeps no coordinate.
    """
    if not 0 < keep_fraction <= 1:
        raise ValueError(f"keep_fraction is {keep_fraction}: use a number above 0 and at most 1")
    count = round(keep_fraction * dimension)
    if count == 0:
        raise ValueError(
            f"keep_fraction = {keep_fraction} keeps none of {dimension} coordinates: "
            f"use at least {1 / dimension:.6g}"
        )
    return count


def sparsify(
    gradient: NDArray[_Real], keep_fraction: float, rng: np.random.Generator
) -> NDArray[_Real]:
    """Keep a uniformly random part of the coordinates, scaled up; the others become zero.

    Guarantee: exactly ``kept_count(keep_fraction, dimension)`` = k coordinates are kept, every
    subset of k with the same probability, and each is multiplied by ``dimension / k``, so that
    the expectation is ``gradient``. No privacy follows from the choice, and no amplification.

    To be called before clipping, which then bounds what is really sent. The mean square of the
    norm grows by ``dimension / k``, so a clip norm that is to bite as rarely as before must grow
    by the square root of it.

    Args:
        gradient: Shape ``(dimension,)``, in gradient units; left alone.
        keep_fraction: Share of the coordinates to keep, in (0, 1].
        rng: Source of the choice; no privacy rests on it.

    Returns:
        Shape and dtype of ``gradient``.

    Raises:
        ValueError: ``gradient`` has a NaN or an infinity (be it in a coordinate that would be
            dropped), a scaled coordinate is too large for its dtype, or ``keep_fraction`` is bad.
    """
    count = kept_count(keep_fraction, gradient.size)
    if not np.isfinite(gradient).all():
        raise ValueError("gradient has a NaN or an infinity")
    chosen = rng.choice(gradient.size, count, replace=False, shuffle=False)
    sparse = np.zeros_like(gradient)
    sparse[chosen] = gradient.size / count
    # What overflows is refused below.
    with np.errstate(over="ignore"):
        sparse *= gradient
    if not np.isfinite(sparse).all():
        raise ValueError(f"a coordinate over keep_fraction exceeds the largest {gradient.dtype}")
    return sparse
