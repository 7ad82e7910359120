"""What a release says about its signal: exact arithmetic on released numbers alone."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_DIGIT_BITS = 16
# Products of two digits are below 2^32, so a sum of 2^16 is below 2^48: int64 is exact.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """What the newest release says, as far as a schedule may look at it.

    Attributes:
        vector: The noisy gradient coordinates, without the count or any other coordinate.
        noise_variance: Variance of the noise on each of them.
    """

    vector: NDArray[np.int32 | np.int64]
    noise_variance: Fraction


def signal_energy(released: Released) -> Fraction:
    """Return an estimate of the squared norm of the sum below the noise; it can be negative.

    With m coordinates and noise variance v, the expectation of a release's squared norm is that
    of the sum plus m v (for the rounded Gaussian m/12 more, which is nothing beside noise that
    hides anything). The count coordinate is left out: it would drown the gradient.
    """
    noise_energy = len(released.vector) * released.noise_variance
    return _squared_norm(released.vector) - noise_energy


def _squared_norm(vector: NDArray[np.int32 | np.int64]) -> int:
    """Return the exact squared L2 norm, by way of digits whose products int64 can add."""
    total = 0
    for start in range(0, len(vector), _CHUNK):
        # The magnitude of -2^63 wraps to itself, which as uint64 is 2^63.
        magnitude = np.abs(vector[start : start + _CHUNK].astype(np.int64)).view(np.uint64)
        digits = []
        while magnitude.any():
            digits.append((magnitude & np.uint64((1 << _DIGIT_BITS) - 1)).astype(np.int64))
            magnitude = magnitude >> np.uint64(_DIGIT_BITS)
        for i, low in enumerate(digits):
            for j, high in enumerate(digits):
                total += int(low @ high) << _DIGIT_BITS * (i + j)
    return total
