"""What a client does to a gradient before it sends it. Arithmetic only: no IO, no clock.

Nothing of it gives privacy or costs any. It makes honest gradients such that the cluster head,
which trusts nobody, accepts them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import GradientError
from .privacy.clipping import clip_l2, clip_layers, flatten, l2_norm, validate_layer_clip_norms
from .privacy.plan import PrivacyPlan
from .privacy.quantization import quantize
from .privacy.rotation import rotate
from .privacy.sparsification import kept_count, sparsify

_Vector = NDArray[np.float32 | np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GridGradient:
    """A gradient that is ready to be sent.

    Attributes:
        vector: Shape ``(plan.coordinate_count,)``, in grid steps.
        is_below_clip: Whether the norm was at most the window's clip norm, before clipping and
            after sparsifying; False where clipping is not adaptive and nobody asks.
    """

    vector: NDArray[np.int8] | NDArray[np.int16]
    is_below_clip: bool


class GradientPreparation:
    """The way of one client's gradients onto the grid; `stream.client` explains the options."""

    def __init__(
        self,
        plan: PrivacyPlan,
        rng: np.random.Generator,
        *,
        clip_norm: float | None,
        layer_clip_norms: Sequence[float] | None,
        keep_fraction: float,
    ) -> None:
        """Refuse, by ValueError, options that the plan cannot hold."""
        self._plan = plan
        self._rng = rng
        self._own_clip_norm = _own_clip_norm(clip_norm, plan)
        self._layer_clip_norms = None if layer_clip_norms is None else tuple(layer_clip_norms)
        if self._layer_clip_norms is not None:
            validate_layer_clip_norms(self._layer_clip_norms, self._limit(plan.l2_clip_norm))
        self._keep_fraction = keep_fraction
        kept_count(keep_fraction, plan.dimension)  # raises where it keeps nothing

    def prepare(self, gradient: ArrayLike, clip_norm: float) -> GridGradient:
        """Flatten, sparsify, clip, rotate, scale and round ``gradient``.

        Args:
            gradient: See `GradientClient.publish`.
            clip_norm: What the grid of this window holds, in gradient units, above 0.

        Raises:
            GradientError: the gradient has a NaN, an infinity, another shape, other layers than
                ``layer_clip_norms`` or no real numbers.
        """
        vector = _as_vector(gradient, self._plan.dimension)
        ends = self._layer_ends(gradient)
        try:
            vector = self._sparsified(vector)
            is_below_clip = self._plan.clipping is not None and l2_norm(vector) <= clip_norm
            grid = self._quantized(self._clipped(vector, ends, clip_norm), clip_norm)
        except ValueError as error:
            raise GradientError(
                f"{error}; nothing was sent: skip this step, and look for the loss that diverged"
            ) from error
        return GridGradient(grid, is_below_clip)

    def _limit(self, clip_norm: float) -> float:
        """Return what this client clips to, where the plan's clip norm is ``clip_norm``."""
        return min(self._own_clip_norm, clip_norm)

    def _layer_ends(self, gradient: ArrayLike) -> NDArray[np.int64]:
        """Return where each layer that is clipped on its own ends in the flat vector."""
        norms = self._layer_clip_norms
        if norms is None:
            return np.empty(0, np.int64)
        if not isinstance(gradient, list | tuple) or len(gradient) != len(norms):
            raise GradientError(
                f"layer_clip_norms are for {len(norms)} layers: pass a list of as many layers"
            )
        return np.cumsum([np.asarray(layer).size for layer in gradient], dtype=np.int64)

    def _sparsified(self, vector: _Vector) -> _Vector:
        if self._keep_fraction == 1:
            return vector
        return sparsify(vector, self._keep_fraction, self._rng)

    def _clipped(self, vector: _Vector, layer_ends: NDArray[np.int64], clip_norm: float) -> _Vector:
        plan, limit = self._plan, self._limit(clip_norm)
        if self._layer_clip_norms is not None:
            # They were given for the norm that adaptive clipping begins with; else this is 1.
            growth = limit / self._limit(plan.l2_clip_norm)
            norms = [growth * norm for norm in self._layer_clip_norms]
            return np.concatenate(clip_layers(np.split(vector, layer_ends[:-1]), norms))
        if limit == clip_norm and plan.rotation == "none":
            return vector  # `quantize` clips to this norm while it scales
        return clip_l2(vector, limit)

    def _quantized(self, vector: _Vector, clip_norm: float) -> NDArray[np.int8] | NDArray[np.int16]:
        plan = self._plan
        if plan.rotation == "hadamard":
            vector = rotate(vector, plan.plan_id)
        return quantize(
            vector,
            l2_clip_norm=clip_norm,
            grid_l2_bound=plan.grid_l2_bound,
            coordinate_limit=plan.coordinate_limit,
            dtype=plan.update_dtype,
            rng=self._rng,
        )


def _own_clip_norm(clip_norm: float | None, plan: PrivacyPlan) -> float:
    """Return the norm that a client never exceeds, or raise ValueError."""
    if clip_norm is None:
        return math.inf
    if not 0 < clip_norm < math.inf:
        raise ValueError(f"clip_norm is {clip_norm}: use a number above 0, or leave it out")
    if plan.clipping is None and clip_norm > plan.l2_clip_norm:
        raise ValueError(
            f"clip_norm = {clip_norm} exceeds the plan's l2_clip_norm = {plan.l2_clip_norm}, which "
            "the grid cannot hold: lower it, or leave it out"
        )
    return clip_norm


def _as_vector(gradient: ArrayLike, dimension: int) -> _Vector:
    """Return ``gradient`` as real numbers of shape ``(dimension,)``, or raise GradientError."""
    try:
        vector = flatten(gradient) if isinstance(gradient, list | tuple) else np.asarray(gradient)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GradientError(
            f"the gradient is no array ({error}); pass a numpy array, anything with __array__ "
            "(torch: gradient.detach().cpu().float()) or a list of layers"
        ) from error
    if vector.dtype.kind not in "fiu":
        raise GradientError(
            f"the gradient has dtype {vector.dtype}, not real numbers; cast it to float32"
        )
    if vector.shape != (dimension,):
        raise GradientError(
            f"the gradient has shape {vector.shape}, the plan wants ({dimension},); pass a list "
            "of layers to have them flattened"
        )
    if vector.dtype == np.float32 or vector.dtype.itemsize <= 2:
        return vector.astype(np.float32, copy=False)
    # What float64 cannot hold becomes infinite and is refused as such.
    with np.errstate(over="ignore"):
        return vector.astype(np.float64, copy=False)
