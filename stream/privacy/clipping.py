"""Clipping: how far one client's gradient may reach, in gradient units.

Clipping here is a service to honest clients, who want their update accepted. The guarantee rests
on the integer norm check of the cluster head (PRIVACY 1.3), which trusts no client.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Real = TypeVar("_Real", bound=np.float32 | np.float64)

# The widened copy of a chunk (64 KiB) stays in cache, and a dot product this short stays on the
# calling thread: OpenBLAS starts threads above 10,000, which costs more than it gains here.
_CHUNK = 8192
# Sums of squares outside this range may have lost terms to underflow, or overflowed.
_SMALLEST_SAFE, _LARGEST_SAFE = 1e-250, 1e300
# By so much may a clip norm that was split among layers and written in decimals exceed itself.
_SPLIT_SLACK = 1e-6


def l2_norm(gradient: NDArray[np.float32 | np.float64]) -> float:
    """Return the L2 norm of ``gradient``, computed in float64 whatever its dtype.

    Guarantee: neither overflow nor underflow of a square can change the result by more than
    float64 rounding.

    Args:
        gradient: Shape ``(dimension,)``.

    Raises:
        ValueError: ``gradient`` has a NaN or an infinity, or its norm is no float64.
    """
    squared = _sum_of_squares(gradient, exponent=0)
    if _SMALLEST_SAFE < squared < _LARGEST_SAFE:
        return math.sqrt(squared)
    largest = float(np.abs(gradient).max(initial=0))
    if not math.isfinite(largest):
        raise ValueError("gradient has a NaN or an infinity")
    if largest == 0:
        return 0.0
    # A power of two, so that the scaling itself is exact.
    exponent = math.frexp(largest)[1]
    try:
        return math.ldexp(math.sqrt(_sum_of_squares(gradient, exponent)), exponent)
    except OverflowError:
        raise ValueError("the gradient's norm exceeds the largest float64") from None


def clip_l2(gradient: NDArray[_Real], l2_clip_norm: float) -> NDArray[_Real]:
    """Scale ``gradient`` down onto the L2 ball, if it lies outside.

    Guarantee: the result's L2 norm is at most ``l2_clip_norm`` up to rounding in the dtype of
    ``gradient``. A gradient already inside the ball is returned as it is, not copied.

    Args:
        gradient: Shape ``(dimension,)``, in gradient units.
        l2_clip_norm: The bound C > 0, in gradient units.

    Returns:
        A gradient of the same shape and dtype.

    Raises:
        ValueError: ``gradient`` has a NaN or an infinity.

    References:
        Abadi et al. (2016), Algorithm 1. https://arxiv.org/abs/1607.00133
    """
    norm = l2_norm(gradient)
    if norm <= l2_clip_norm:
        return gradient
    # The factor of a huge float32 gradient can be below the smallest float32.
    wide = gradient.astype(np.float64) * (l2_clip_norm / norm)
    return wide.astype(gradient.dtype)


def validate_layer_clip_norms(layer_clip_norms: Sequence[float], l2_clip_norm: float) -> None:
    """Check that layers clipped to ``layer_clip_norms`` make a gradient within the clip norm.

    Guarantee: ``sum C_l^2 <= C^2``, but for a relative 1e-6 in C that rounding is granted.

    Raises:
        ValueError: they do not, there is none, or one is not a finite number above 0; the
            message says what to write instead.
    """
    if not layer_clip_norms or not all(0 < norm < math.inf for norm in layer_clip_norms):
        raise ValueError(
            f"layer_clip_norms is {list(layer_clip_norms)}: write one number above 0 for each layer"
        )
    joint = math.hypot(*layer_clip_norms)
    if joint > l2_clip_norm * (1 + _SPLIT_SLACK):
        raise ValueError(
            f"layer_clip_norms allow a gradient of norm {joint:.7g}, and the clip norm is "
            f"{l2_clip_norm:.7g}: multiply each by {l2_clip_norm / joint:.7g}"
        )


def clip_layers(
    layers: Sequence[NDArray[_Real]], layer_clip_norms: Sequence[float]
) -> list[NDArray[_Real]]:
    """Clip each layer to its own norm.

    Flat clipping (`clip_l2` of the whole gradient) is the default and keeps the direction. This
    bends it, but a layer with large gradients then cannot silence the others.

    Guarantee: `clip_l2`'s, layer by layer. The whole has a norm of at most
    ``sqrt(sum C_l^2)``, which `validate_layer_clip_norms` compares with the clip norm.

    Args:
        layers: Any shapes, in gradient units.
        layer_clip_norms: The bound C_l > 0 of each layer, in gradient units.

    Returns:
        Layers of the same shapes and dtypes.

    Raises:
        ValueError: the numbers of layers and norms differ, or a layer has a NaN or an infinity.

    References:
        McMahan et al. (2018), section 3 (per-layer clipping). https://arxiv.org/abs/1710.06963
    """
    if len(layers) != len(layer_clip_norms):
        raise ValueError(
            f"there are {len(layers)} layers and {len(layer_clip_norms)} layer_clip_norms: "
            "write one for each layer"
        )
    return [
        clip_l2(layer.reshape(-1), norm).reshape(layer.shape)
        for layer, norm in zip(layers, layer_clip_norms, strict=True)
    ]


def flatten(layers: Iterable[ArrayLike]) -> NDArray[np.generic]:
    """Return the layers of a gradient as one vector.

    The order is part of what clients agree on: layers in the order of the list, each in C order
    (last axis fastest), whatever its memory layout. numpy's promotion gives the dtype.

    Raises:
        ValueError: there is no layer.
    """
    vectors = [np.asarray(layer).reshape(-1, order="C") for layer in layers]
    if not vectors:
        raise ValueError("a gradient needs at least one layer")
    return np.concatenate(vectors)


def _sum_of_squares(gradient: NDArray[np.float32 | np.float64], exponent: int) -> float:
    """Sum the squares of ``gradient * 2**-exponent`` in float64, chunk by chunk."""
    total = 0.0
    # An infinity or a NaN in the total is what the caller looks for.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, gradient.size, _CHUNK):
            wide = gradient[start : start + _CHUNK].astype(np.float64)
            if exponent:
                np.ldexp(wide, -exponent, out=wide)
            total += float(wide @ wide)
    return total
