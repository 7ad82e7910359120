"""Clusters' releases into one mean gradient. Post-processing: every number here is public.

Releases are summed as integers, so the result does not depend on the order in which they come,
nor on how they are grouped: a restart that reads them again gets the same bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan

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
    """Exact running sum of releases' noisy vectors, in memory of one vector.

    Guarantee: the sum never wraps. ``_reach`` bounds every coordinate of it, and of every sum
    on the way to it: the largest absolute coordinates of the terms, added up. While it fits
    int64, so do they; from then on (no honest release gets there) the coordinates are Python
    integers, which are slower and have no end.
    """

    def __init__(self, dimension: int) -> None:
        self._total: NDArray[np.int64] | NDArray[np.object_] = np.zeros(dimension + 1, np.int64)
        self._reach = 0
        self._cell_count = 0

    @property
    def cell_count(self) -> int:
        """Number of releases in the sum."""
        return self._cell_count

    def add(self, noisy_vector: NDArray[np.int32 | np.int64]) -> None:
        """Add one release's vector, of shape ``(dimension + 1,)``, count coordinate last."""
        reach = max(int(noisy_vector.max()), -int(noisy_vector.min()))
        self._accumulate(noisy_vector, reach, 1)

    def merged_with(self, other: "NoisySum") -> "NoisySum":
        """Return the sum of both; neither is changed. Associative and commutative."""
        merged = NoisySum(self._total.size - 1)
        for part in (self, other):
            merged._accumulate(part._total, part._reach, part._cell_count)
        return merged

    def mean_gradient(self, plan: PrivacyPlan) -> MeanGradient:
        """Return the mean over clients, dequantized, under the plan's public normalizer.

        The noisy count is never below its public floor as a divisor; the expected count is that
        of the cells that are in the sum, so a late cluster's cell weighs what it would have.

        Raises:
            ValueError: no release is in the sum.
        """
        if not self._cell_count:
            raise ValueError("the mean of no release is not defined")
        noisy_count = int(self._total[-1]) / plan.count_weight
        if plan.normalizer == "noisy_count":
            divisor = max(noisy_count, float(plan.minimum_count))
        else:
            divisor = plan.expected_clients * self._cell_count / plan.cluster_count
        with np.errstate(over="ignore"):
            gradient = self._total[:-1].astype(np.float64) * plan.grid_step / divisor
        return MeanGradient(gradient, noisy_count)

    def _accumulate(
        self,
        total: NDArray[np.int32 | np.int64] | NDArray[np.object_],
        reach: int,
        cell_count: int,
    ) -> None:
        # Broadcasting would spread a short vector over all coordinates.
        if total.shape != self._total.shape:
            raise ValueError(f"a vector of shape {total.shape} in a sum of {self._total.shape}")
        self._reach += reach
        self._cell_count += cell_count
        if self._reach > _INT64_MAX and self._total.dtype != np.object_:
            self._total = self._total.astype(np.object_)
        self._total += total
