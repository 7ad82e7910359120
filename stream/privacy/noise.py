"""The noise of releases: the rounded Gaussian, ``floor(X + 1/2)`` with X ~ N(0, variance), exactly.

For an integer sum s, ``s + floor(X + 1/2) = floor((s + X) + 1/2)``: the noisy sum is a
post-processing of the continuous Gaussian mechanism, and inherits its guarantee in any dimension.
`noise_rejection` holds the algorithm and its proof; `discrete_gaussian` is the other law.

References:
    Dong, Roth, Su (2019), Gaussian differential privacy. https://arxiv.org/abs/1905.02383
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .discrete_gaussian import DiscreteGaussian
from .keystream import Entropy
from .noise_kernel import Kernel, find_propose
from .noise_rejection import draw_exactly
from .noise_tables import Law


class NoiseSource(Protocol):
    """Gives the noise of a release."""

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent integers, fresh at each call, for the caller to keep."""
        ...


class RoundedGaussian:
    """The noise of production.

    Guarantee:
        ``sample`` returns independent draws of ``floor(X + 1/2)``, X ~ N(0, variance), exactly,
        given ideal bits; the bits are AES-256-CTR under a key drawn from ``entropy`` for this
        call alone. Run time depends on variance and size and, through the 3 % of proposals that
        need a second look, on the draws; never on what the noise is added to.

    Raises:
        ValueError: there is no such kernel.
        ImportError: ``kernel`` is ``"numba"``, and numba is not installed.
    """

    def __init__(self, entropy: Entropy, kernel: Kernel = "numpy") -> None:
        self._entropy = entropy
        self._propose = find_propose(kernel)

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        """Return ``size`` exact draws.

        Raises:
            ValueError: ``variance`` lies outside 1/64 .. 2^60, or ``size`` is negative.
            EntropyError: no random bits; nothing was sampled.
        """
        return draw_exactly(Law.ROUNDED_GAUSSIAN, variance, size, self._entropy, self._propose)


NOISE_SOURCES: Mapping[str, Callable[[Entropy, Kernel], NoiseSource]] = MappingProxyType(
    {"rounded_gaussian": RoundedGaussian, "discrete_gaussian": DiscreteGaussian}
)
"""The noises that a plan can name."""


def noise_source(kind: str, entropy: Entropy, kernel: Kernel = "numpy") -> NoiseSource:
    """Return the source of the noise that a plan calls ``kind``.

    Raises:
        ValueError: there is no such kind or kernel.
        ImportError: ``kernel`` is ``"numba"``, and numba is not installed.
    """
    if kind not in NOISE_SOURCES:
        raise ValueError(f"no noise is named {kind!r}: write one of {', '.join(NOISE_SOURCES)}")
    return NOISE_SOURCES[kind](entropy, kernel)
