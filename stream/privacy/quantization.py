"""Quantization: from a real gradient to the integer vector that the cluster head can check.

Nothing in this module gives privacy. Rounding is random so that its error averages out over
clients, not to hide anything: privacy rests on the integer bound, which the head enforces, and
on the noise, which the head adds (PRIVACY 1.2).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .clipping import l2_norm

_Real = TypeVar("_Real", np.float32, np.float64)
_Rounding = Callable[[NDArray[np.float32 | np.float64]], NDArray[np.float32 | np.float64]]

# One random rounding leaves the bound with at most this probability (beta of PRIVACY 1.2).
_OVERSHOOT_PROBABILITY = 1e-10
_TRIES = 3
# Two float32 temporaries and the widened result of a chunk stay in cache.
_CHUNK = 8192
# Above this bound a float32 product's rounding could outgrow the gap between c and D.
_LARGEST_FLOAT32_BOUND = 1 << 23


def client_scale(grid_l2_bound: int, dimension: int) -> float:
    """Return c: the norm, in grid steps, that a gradient at the clip norm is scaled to.

    Random rounding lengthens a vector. Scaled to c, it stays within ``grid_l2_bound`` with
    probability at least 1 - 1e-10 (PRIVACY 1.2, inflated norm bound).

    Args:
        grid_l2_bound: The bound D on the rounded vector, in grid steps.
        dimension: Number of coordinates d.

    Raises:
        ValueError: rounding would eat more than half of the bound; the message says which bound
            to use at least.

    References:
        Kairouz, Liu, Steinke (2021), section 4.1. https://arxiv.org/abs/2102.06387
    """
    t = math.sqrt(2 * math.log(1 / _OVERSHOOT_PROBABILITY))
    rounding = dimension / 4 + t * math.sqrt(dimension) / 2
    # c = D/2 solves c^2 + t c + rounding = D^2 here.
    smallest = math.ceil((t + math.sqrt(t * t + 12 * rounding)) / 3)
    if grid_l2_bound < smallest:
        raise ValueError(
            f"{grid_l2_bound} grid steps are too coarse for {dimension} coordinates, since "
            f"rounding alone would use up more than half of them: use at least {smallest}"
        )
    return math.sqrt(t * t / 4 + grid_l2_bound**2 - rounding) - t / 2


def stochastic_round(values: NDArray[_Real], rng: np.random.Generator) -> NDArray[_Real]:
    """Round each value up with probability equal to its fraction, else down.

    Guarantee: whole numbers are kept; the expectation is the value up to 2^-24 (float32) or
    2^-53 (float64), the grain of ``rng``. The fraction is taken before the random number comes
    in, because the rounding of ``value + random`` would push large values upward. This is
    client-side randomness and no privacy mechanism: rounding contributes no privacy.

    Args:
        values: Finite values, in grid steps.
        rng: Source of the rounding.

    Returns:
        Whole numbers, in the dtype of ``values``.
    """
    rounded = np.floor(values)
    fractions = values - rounded
    rounded += rng.random(values.shape, dtype=values.dtype.type) < fractions
    return rounded


def quantize(
    gradient: NDArray[np.float32 | np.float64],
    *,
    l2_clip_norm: float,
    grid_l2_bound: int,
    coordinate_limit: int,
    dtype: str,
    rng: np.random.Generator,
) -> NDArray[np.int8] | NDArray[np.int16]:
    """Clip ``gradient``, scale it to the grid, round it at random, saturate it.

    Guarantee: the exact integer squared norm of the result is at most ``grid_l2_bound**2`` and
    no coordinate exceeds ``coordinate_limit`` in absolute value. A rounding that breaks the
    bound (probability below 1e-10) is drawn again; after three, the vector is truncated toward
    zero, which only shortens it. ``rng`` is client-side randomness and no privacy mechanism:
    rounding contributes no privacy.

    A float32 gradient is worked on in float32: its values carry a relative error of 2^-24
    already, and the product with the scale adds no more. All that must be exact is: fractions
    (a difference of neighbours), whole numbers up to 2^15, and the norm (in float64).

    Args:
        gradient: Shape ``(dimension,)``, in gradient units.
        l2_clip_norm: The bound C > 0, in gradient units.
        grid_l2_bound: The bound D after rounding, in grid steps.
        coordinate_limit: Largest absolute value of a coordinate: 127 or 32767.
        dtype: ``int8`` or ``int16``.
        rng: Source of the rounding.

    Returns:
        Shape ``(dimension,)``, in grid steps.

    Raises:
        ValueError: ``gradient`` has a NaN or an infinity, or the bound is too coarse.
    """
    factor = client_scale(grid_l2_bound, gradient.size) / max(l2_norm(gradient), l2_clip_norm)
    if not math.isfinite(factor):
        raise ValueError(f"l2_clip_norm = {l2_clip_norm} is too small to divide by")
    # Within these limits neither the factor nor a product leaves the normal float32 range.
    if not 1e-30 < factor < 1e30 or grid_l2_bound > _LARGEST_FLOAT32_BOUND:
        gradient = gradient.astype(np.float64)
    grid = np.empty(gradient.size, dtype=dtype)
    for _ in range(_TRIES):
        squared = _fill(
            grid, gradient, factor, coordinate_limit, partial(stochastic_round, rng=rng)
        )
        if squared <= grid_l2_bound**2:
            return grid
    _fill(grid, gradient, factor, coordinate_limit, np.trunc)
    return grid


def _fill(
    grid: NDArray[np.int8] | NDArray[np.int16],
    gradient: NDArray[np.float32 | np.float64],
    factor: float,
    coordinate_limit: int,
    rounding: _Rounding,
) -> int:
    """Write the rounded and saturated ``factor * gradient``; return its exact squared norm."""
    squared = 0
    for start in range(0, gradient.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        rounded = rounding(gradient[part] * gradient.dtype.type(factor))
        np.clip(rounded, -coordinate_limit, coordinate_limit, out=rounded)
        grid[part] = rounded
        # Exact: whole numbers below 2^15, so that a chunk's sum stays below 2^13 * 2^30 < 2^53.
        wide = rounded.astype(np.float64)
        squared += int(wide @ wide)
    return squared
