"""The Gaussian mechanism on integers: the one place where noise meets a sum."""

import numpy as np
from numpy.typing import NDArray

from .event import Receipt
from .noise import NoiseSource

# 2^30 updates stay below 2^61 (each adds less than 2^31 to a coordinate); noise passes 2^62 with a
# probability below exp(-2^63) at the largest variance of a plan, so their int64 sum cannot wrap.
_LARGEST_EXACT = 1 << 61


def privatize(
    exact_sum: NDArray[np.int64],
    receipt: Receipt,
    noise: NoiseSource,
    dtype: type[np.int32 | np.int64],
) -> NDArray[np.int32 | np.int64]:
    """Return ``exact_sum`` plus fresh noise, paid for by ``receipt``.

    Guarantee: for neighbouring sums that differ by at most the receipt's sensitivity, the result
    is (sensitivity / standard deviation)-GDP with rounded Gaussian noise: ``round(N(0, variance))``
    added to an integer is the rounding of the continuous Gaussian mechanism, hence post-processing
    of it. With discrete Gaussian noise it is (sensitivity^2 / (2 variance))-zCDP. Clamping to
    ``dtype`` comes after the noise and is post-processing too. The noise is drawn here, once, and
    kept nowhere.

    Args:
        exact_sum: Shape ``(release_size,)``, in grid steps; sensitive.
        receipt: What `Ledger.charge` returned for this release and no other.
        noise: Source of the noise, of the kind that the plan's cap was computed for.
        dtype: Integer type of the release.

    Raises:
        ValueError: a sum so large that adding the noise could wrap.

    References:
        PRIVACY notes 1.5; Dong, Roth, Su (2019), Gaussian differential privacy; Canonne, Kamath,
        Steinke (2020), The discrete Gaussian, Theorem 4.
    """
    if exact_sum.size and (exact_sum.max() > _LARGEST_EXACT or exact_sum.min() < -_LARGEST_EXACT):
        raise ValueError("an exact sum beyond 2^61 grid steps cannot be released")
    noisy = noise.sample(receipt.event.noise_variance, exact_sum.size)
    noisy += exact_sum
    limits = np.iinfo(dtype)
    np.clip(noisy, limits.min, limits.max, out=noisy)
    return noisy.astype(dtype)
