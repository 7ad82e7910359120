"""The discrete Laplace: ``P[k] = (1-q)/(1+q) q^abs(k)`` with ``q = exp(-1/scale)``, exactly.

Added to an integer of sensitivity s it is ``s / scale``-differentially private: the noise of
single counters, where Gaussian noise needs a delta.

Algorithm. A draw is G - G', two geometric draws with ``P[G = k] = (1-q) q^k``. One geometric draw
is ``2^n H + sum_(i<n) b_i 2^i``, all parts independent: digit b_i is 1 with probability
``q^(2^i) / (1 + q^(2^i))``, and H is geometric with ratio ``q^(2^n)``, the number of successes of
that probability before the first failure. n is least such that ``2^n >= 45 scale``, so that
``q^(2^n) < 2^-64``: H is 0 in practice, and at most 2^26 but for a probability below 2^-(2^32),
so that with ``2^n < 2^37`` an int64 does not overflow.

Claim: given uniform bits, the results are independent and exactly distributed.

(a) *The digits.* ``q^(sum b_i 2^i) = prod q^(2^i b_i)`` and ``prod_(i<n) (1 + q^(2^i)) =
(1 - q^(2^n)) / (1 - q)``, so the digits spell k < 2^n with probability
``(1-q) q^k / (1 - q^(2^n))``. Times ``P[H = h] = (1 - q^(2^n)) q^(2^n h)`` this is
``(1-q) q^(2^n h + k)``.
(b) *The difference.* ``P[G - G' = k] = sum_j (1-q)^2 q^(2j + abs(k)) = (1-q)^2 q^abs(k) /
(1 - q^2)``.
(c) *Each coin is exact.* A coin of probability p shows heads if U < p. 64 bits of U say v, that
is U in ``[v, v+1) 2^-64``: heads if ``v + 1 <= floor(2^64 p_low)``, tails if
``v >= ceil(2^64 p_high)``, where ``p_low <= p <= p_high`` follow from `exp_bounds` (``e / (1+e)``
grows with e). Else (at most 2 values of v in 2^64) more bits of U are drawn and compared with
closer bounds, until they decide.

Every draw takes the same words whatever its value, but for events of probability 2^-62: run time
tells nothing of it.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from .keystream import Entropy, Keystream
from .noise_tables import exp_bounds

MIN_SCALE = Fraction(1, 64)
MAX_SCALE = Fraction(1 << 30)

_COIN_BITS = 64
_GUARD_BITS = 32
_PART_SIZE = 1 << 18  # bounds the memory of a call

Bounds = Callable[[int], tuple[int, int]]
"""Given a number of bits, integers ``low <= 2^bits p <= high`` about a probability p."""


class DiscreteLaplace:
    """Two-sided geometric noise.

    Guarantee:
        ``sample`` returns independent draws of the discrete Laplace law, exactly, given ideal
        bits; the bits are AES-256-CTR under a key drawn from ``entropy`` for this call alone.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def sample(self, scale: Fraction, size: int) -> NDArray[np.int64]:
        """Return ``size`` exact draws.

        Raises:
            ValueError: ``scale`` lies outside 1/64 .. 2^30, or ``size`` is negative.
            EntropyError: no random bits; nothing was sampled.
        """
        if not MIN_SCALE <= scale <= MAX_SCALE:
            raise ValueError(f"noise scale {scale} is outside 1/64 .. 2^30")
        if size < 0:
            raise ValueError(f"cannot draw {size} samples")
        keystream = Keystream(self._entropy)
        result = np.empty(size, np.int64)
        for start in range(0, size, _PART_SIZE):
            part = result[start : start + _PART_SIZE]
            part[:] = draw_geometric(scale, part.size, keystream)
            part -= draw_geometric(scale, part.size, keystream)
        return result


def draw_geometric(
    scale: Fraction, size: int, keystream: Keystream, coin_bits: int = _COIN_BITS
) -> NDArray[np.int64]:
    """Return ``size`` draws with ``P[k] = (1-q) q^k``; the law is the same for any ``coin_bits``.

    ``coin_bits`` is how many bits decide most coins; tests lower it to exercise the others.
    """
    digits = (ceil(45 * scale) - 1).bit_length()
    result = np.zeros(size, np.int64)
    for i in range(digits):
        heads = _flip(digit_bounds((1 << i) / scale), size, keystream, coin_bits)
        result |= heads.astype(np.int64) << i
    alive = np.arange(size)
    while alive.size:
        heads = _flip(power_bounds((1 << digits) / scale), alive.size, keystream, coin_bits)
        alive = alive[heads]
        result[alive] += 1 << digits
    return result


def power_bounds(exponent: Fraction) -> Bounds:
    """Return the bounds about ``exp(-exponent)``."""
    return lambda bits: exp_bounds(exponent, bits)


def digit_bounds(exponent: Fraction) -> Bounds:
    """Return the bounds about ``e / (1 + e)``, ``e = exp(-exponent)``."""

    def bounds(bits: int) -> tuple[int, int]:
        one = 1 << (bits + _GUARD_BITS)
        low, high = exp_bounds(exponent, bits + _GUARD_BITS)
        return (low << bits) // (one + low), -(-(high << bits) // (one + high))

    return bounds


def _flip(bounds: Bounds, size: int, keystream: Keystream, coin_bits: int) -> NDArray[np.bool_]:
    """Return ``size`` coins, each true with exactly the probability that ``bounds`` enclose."""
    low, high = bounds(coin_bits)
    coins = keystream.words(size) >> np.uint64(_COIN_BITS - coin_bits)
    heads = coins < low
    for i in np.flatnonzero(~heads & (coins < high)):
        heads[i] = _flip_exactly(bounds, int(coins[i]), coin_bits, keystream)
    return heads


def _flip_exactly(bounds: Bounds, coin: int, bits: int, keystream: Keystream) -> bool:
    """Return whether U < p, ``coin`` being the first ``bits`` bits of U, which leave it open."""
    while True:
        coin = coin << 64 | keystream.word()
        bits += 64
        low, high = bounds(bits)
        if coin < low:
            return True
        if coin >= high:
            return False
