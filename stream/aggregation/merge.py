"""Clusters' releases into one mean gradient. Post-processing: every number here is public.

Releases are summed as integers, those of each clip norm for themselves, so the result does not
depend on the order in which they come, nor on how they are grouped: a restart that reads them
again gets the same bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan
from stream.privacy.rotation import unrotate

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class MeanGradient:
    """What the optimizer is given.

    Attributes:
        gradient: Shape ``(dimension,)``, in gradient units per client.
        noisy_count: Estimate of the number of updates behind it; may be below zero.
    """

    gradient: NDArray[np.float64]
    noisy_count: float


class NoisySum:
    """Exact running sum of releases' noisy vectors, in memory of one vector a clip norm.

    Grid steps of two clip norms cannot be added. Where clipping adapts, there is a sum for each
    norm, and only their mean is a float.
    """

    def __init__(self, size: int) -> None:
        """Begin with nothing; ``size`` is the length of a release's vector."""
        self._size = size
        self._sum_by_norm: dict[float, _ScaleSum] = {}

    @property
    def cell_count(self) -> int:
        """Number of releases in the sum."""
        return sum(part.cell_count for part in self._sum_by_norm.values())

    @property
    def norm_count(self) -> int:
        """Number of different clip norms in the sum."""
        return len(self._sum_by_norm)

    def add(self, noisy_vector: NDArray[np.int32 | np.int64], clip_norm: float = 0.0) -> None:
        """Add one release's vector, of shape ``(size,)``.

        Args:
            noisy_vector: The coordinates, the count, and the clip bits where clipping adapts.
            clip_norm: The release's clip norm; 0 where clipping is not adaptive.
        """
        reach = max(int(noisy_vector.max()), -int(noisy_vector.min()))
        self._part(clip_norm).accumulate(noisy_vector, reach, 1)

    def merged_with(self, other: "NoisySum") -> "NoisySum":
        """Return the sum of both; neither is changed. Associative and commutative."""
        merged = NoisySum(self._size)
        for whole in (self, other):
            for clip_norm, part in whole._sum_by_norm.items():
                merged._part(clip_norm).accumulate(part.total, part.reach, part.cell_count)
        return merged

    def mean_gradient(self, plan: PrivacyPlan) -> MeanGradient:
        """Return the mean over clients, dequantized, under the plan's public normalizer.

        The noisy count is never below its public floor as a divisor; the expected count is that
        of the cells that are in the sum, so a late cluster's cell weighs what it would have.

        Raises:
            ValueError: no release is in the sum.
        """
        if not self._sum_by_norm:
            raise ValueError("the mean of no release is not defined")
        size = plan.coordinate_count
        # In one order of norms, whichever came first: float addition is not associative.
        parts = sorted(self._sum_by_norm.items())
        noisy_count = sum(int(part.total[size]) for _, part in parts) / plan.count_weight
        if plan.normalizer == "noisy_count":
            divisor = max(noisy_count, float(plan.minimum_count))
        else:
            divisor = plan.expected_clients * self.cell_count / plan.cluster_count
        gradient = np.zeros(size)
        # What becomes infinite is the optimizer's caller to refuse.
        with np.errstate(over="ignore", invalid="ignore"):
            for clip_norm, part in parts:
                grid_step = (clip_norm or plan.l2_clip_norm) / plan.client_scale
                gradient += part.total[:size].astype(np.float64) * grid_step
            gradient /= divisor
            if plan.rotation == "hadamard":
                gradient = unrotate(gradient, plan.dimension, plan.plan_id)
        return MeanGradient(gradient, noisy_count)

    def _part(self, clip_norm: float) -> "_ScaleSum":
        if clip_norm not in self._sum_by_norm:
            self._sum_by_norm[clip_norm] = _ScaleSum(self._size)
        return self._sum_by_norm[clip_norm]


class _ScaleSum:
    """Exact sum of the vectors of one clip norm.

    Guarantee: the sum never wraps. ``reach`` bounds every coordinate of it, and of every sum
    on the way to it: the largest absolute coordinates of the terms, added up. While it fits
    int64, so do they; from then on (no honest release gets there) the coordinates are Python
    integers, which are slower and have no end.
    """

    __slots__ = ("cell_count", "reach", "total")

    def __init__(self, size: int) -> None:
        self.total: NDArray[np.int64] | NDArray[np.object_] = np.zeros(size, np.int64)
        self.reach = 0
        self.cell_count = 0

    def accumulate(
        self,
        total: NDArray[np.int32 | np.int64] | NDArray[np.object_],
        reach: int,
        cell_count: int,
    ) -> None:
        # Broadcasting would spread a short vector over all coordinates.
        if total.shape != self.total.shape:
            raise ValueError(f"a vector of shape {total.shape} in a sum of {self.total.shape}")
        self.reach += reach
        self.cell_count += cell_count
        if self.reach > _INT64_MAX and self.total.dtype != np.object_:
            self.total = self.total.astype(np.object_)
        self.total += total
