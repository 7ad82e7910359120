"""What the noise of a plan does to the means that are released."""

import math
from dataclasses import dataclass
from fractions import Fraction

from stream.privacy.plan import PrivacyPlan


@dataclass(frozen=True, slots=True)
class Utility:
    """What the noise does to the mean of one window, over all clusters.

    With sigma the noise's standard deviation in grid steps, s the grid step, K clusters, n clients,
    d coordinates and the clip norm C, the mean's noise has a root mean square L2 norm of
    ``sigma s sqrt(K d) / n``, and ``noise_to_signal`` is that over C. Where clients rotate
    gradients, the noise is rotated back with them, which changes nothing of this. Where clipping
    is adaptive, all of it scales with the clip norm, and the ratio stays.

    Attributes:
        noise_stddev: Of one coordinate of one cluster's sum, in gradient units.
        mean_noise_stddev: Of one coordinate of the mean of all clients, in gradient units.
        noise_to_signal: L2 norm of the mean's noise over the clip norm, which bounds the signal.
        count_stddev: Of the noisy number of clients, summed over the clusters, in clients.
    """

    noise_stddev: float
    mean_noise_stddev: float
    noise_to_signal: float
    count_stddev: float

    @classmethod
    def of(cls, plan: PrivacyPlan, noise_variance: Fraction | None = None) -> "Utility":
        """Return what noise of ``noise_variance`` does, by default that of the first window."""
        grid_stddev = math.sqrt(plan.noise_variance if noise_variance is None else noise_variance)
        noise_stddev = grid_stddev * plan.grid_step
        # The clusters' noises are independent: K of them have sqrt(K) times the deviation of one.
        over_clusters = math.sqrt(plan.cluster_count)
        mean_noise_stddev = noise_stddev * over_clusters / plan.expected_clients
        return cls(
            noise_stddev=noise_stddev,
            mean_noise_stddev=mean_noise_stddev,
            noise_to_signal=mean_noise_stddev * math.sqrt(plan.dimension) / plan.l2_clip_norm,
            count_stddev=grid_stddev * over_clusters / plan.count_weight,
        )
