"""The discrete Gaussian: P[k] proportional to ``exp(-k^2 / (2 variance))``, k any integer, exactly.

Added to integer sums of L2 sensitivity s it is ``s^2 / (2 variance)``-zCDP in any dimension, as the
continuous Gaussian is; unlike the rounded Gaussian it is not (s / sigma)-GDP, so its budget is
converted by the zCDP formula.

`noise_rejection` holds the algorithm, its proof and the code, which the rounded Gaussian shares.
What is particular to integers, in the symbols of `noise_tables`:

* A proposal is one integer x of mass ``m_B 2^-16 / w`` in block B (w a power of two, at least 1)
  and ``m_tail 2^-16 2^-(g+1) / W`` in a tail. The offset fixes x, so that no bits are drawn but
  those of U, and a(x) in an exact decision is the enclosure of one value of exp.
* Up to sigma = 128 a block is one integer: ``accept_below`` and ``reject_from`` are the floor and
  the ceiling of ``2^24 a(x)``, and a second look is needed once in 2^24 words that are not
  rejected. Above, the bounds hold over the real interval ``[B w, (B+1) w]``, which contains the
  integers of the block.
* The right tail goes up from ``last w``, the left one down from ``first w - 1``; `tail_start` is
  the smaller of the two distances from 0, and `check_bounds` is about it. x and -x may be
  proposed differently; once accepted both have the same multiple of rho.

References:
    Canonne, Kamath, Steinke (2020), the discrete Gaussian for differential privacy.
    https://arxiv.org/abs/2004.00010
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .keystream import Entropy
from .noise_kernel import Kernel, find_propose
from .noise_rejection import draw_exactly
from .noise_tables import Law


class DiscreteGaussian:
    """Noise whose guarantee is zero-concentrated differential privacy.

    Guarantee:
        ``sample`` returns independent draws of N_Z(0, variance), exactly, given ideal bits; the
        bits are AES-256-CTR under a key drawn from ``entropy`` for this call alone. Run time
        depends on variance and size and, through the 3 % of proposals that need a second look,
        on the draws; never on what the noise is added to.

    Raises:
        ValueError: there is no such kernel.
        ImportError: ``kernel`` is ``"numba"``, and numba is not installed.
    """

    def __init__(self, entropy: Entropy, kernel: Kernel = "numpy") -> None:
        self._entropy = entropy
        self._propose = find_propose(kernel)

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        """Return ``size`` exact draws.

        Args:
            variance: The parameter of the law; its true variance is a little smaller (by less
                than 1e-6 from 1 on).
            size: How many.

        Raises:
            ValueError: ``variance`` lies outside 1/64 .. 2^60, or ``size`` is negative.
            EntropyError: no random bits; nothing was sampled.
        """
        return draw_exactly(Law.DISCRETE_GAUSSIAN, variance, size, self._entropy, self._propose)
