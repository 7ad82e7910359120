"""Exact Gaussian noise by rejection from a table: the core that both Gaussian laws share.

Algorithm (see `noise_tables` for the symbols). One 64-bit word proposes a slot (16 bits) and hence
a block, an integer offset in the block, and the first 24 bits of a uniform U. The position is
``y = w (B + V)``: for the discrete law the integer ``B w + offset``; for the rounded law V is a
uniform real whose bits are drawn as needed, the offset being its first ones. The proposal
``x = y - shift`` is accepted if and only if ``U < a(x)``; the result is then ``floor(y)``.

Claim: given uniform bits, the results are independent and exactly distributed.

(a) *The law.* Where block B is proposed, x has mass (density) ``m_B 2^-16 / w``; in the g-th tail
segment ``m_tail 2^-16 2^-(g+1) / W``. Times ``a(x)`` both are ``2^-16 (c/w) rho(x)``, the same
multiple of rho at every integer (real) x, and ``a(x) <= 1``: in the blocks and where the tails
start `check_bounds` verifies it; from one tail segment to the next a factor 2 meets a factor
``rho(x + W) / rho(x) <= exp(-tail_start W / variance) <= 1/2``, verified as well. So an accepted
x is N_Z(0, variance), or N(0, variance). A rejected position starts again with fresh words.

(b) *Each decision is the one that infinitely many bits would give.*

1. The 24 bits are below ``accept_below <= 2^24 min a`` (accept, about 97 % of the words), or at
   least ``reject_from >= 2^24 max a`` (reject): integer bounds over the whole block.
2. Else 53 bits of U (and, rounded law, of V) and a float64 estimate of a(x) with relative error
   below 2^-44 = 512 u, where u = 2^-53: accept if ``U + 2^-53 <= estimate (1 - 2^-44)``, reject
   if ``U >= estimate (1 + 2^-44)``. The estimate is ``peak P(z)``, with
   ``z = r (2 nearest + r) / (2 variance) <= 0.15`` and r the distance from the point of the
   block's interval nearest to 0. Its errors: r and ``nearest`` are exact, z has four roundings, and
   cutting V moves it by less than 0.16 u (together < 0.8 u); Horner's rule of degree 10
   < 20.1 u e^0.15 absolute = 27.2 u relative to e^-0.15; coefficients < 0.1 u; the cut series
   0.15^11 / 11! < 0.3 u; ``peak`` < 1.1 u; two products 2 u. Sum < 32 u. ``U + 2^-53`` is
   exact. Only +, -, * and conversions of integers are used, no libm. The discrete law has fewer
   of these errors, as V is not cut; r and ``nearest`` are integers below 2^34.
3. Else (a probability of about 2^-43, and all tails) integer enclosures of a(x) whose
   precision grows with the bits of U and V, until U is on one side. The first 53 bits of V
   already fix the integer: block and segment ends are multiples of 2^-10, widths at most 2^30.

References:
    Karney (2016), Sampling exactly from the normal distribution, is the exact idea.
"""

from fractions import Fraction
from math import ceil, factorial, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .keystream import BATCH_WORDS, Entropy, Keystream
from .noise_kernel import Propose
from .noise_tables import COIN_BITS, Law, NoiseTables, exp_bounds, noise_tables

# Bounds the memory of a call: about 3 % of a part is pending at a time.
_PART_SIZE = 1 << 20
_TOLERANCE = 2.0**-44
_FINE_BITS = 53
_ULP = 2.0**-_FINE_BITS
_COEFFICIENTS = [float(Fraction((-1) ** i, factorial(i))) for i in range(11)]


class _Proposals(NamedTuple):
    """Proposals that 24 bits could not decide; ``target`` says where their values are."""

    target: NDArray[np.int64]
    block: NDArray[np.int64]
    offset: NDArray[np.int64]
    coin: NDArray[np.int64]


def draw_exactly(
    law: Law, variance: Fraction, size: int, entropy: Entropy, propose: Propose
) -> NDArray[np.int64]:
    """Return ``size`` exact draws, made from one fresh key.

    An int64 does not overflow: beyond 2^62 the probability is below exp(-2^63) for the largest
    variance.

    Raises:
        ValueError: ``variance`` lies outside 1/64 .. 2^60, or ``size`` is negative.
        EntropyError: no random bits; nothing was sampled.
    """
    if size < 0:
        raise ValueError(f"cannot draw {size} samples")
    tables = noise_tables(law, variance)
    keystream = Keystream(entropy)
    result = np.empty(size, np.int64)
    for start in range(0, size, _PART_SIZE):
        fill_exactly(result[start : start + _PART_SIZE], tables, keystream, propose)
    return result


def fill_exactly(
    result: NDArray[np.int64],
    tables: NoiseTables,
    keystream: Keystream,
    propose: Propose,
    tolerance: float = _TOLERANCE,
) -> None:
    """Fill ``result`` with draws; the law is exact for any ``tolerance`` >= 2^-44.

    ``tolerance`` is the relative error that is allowed for in the float64 estimate; tests
    raise it to send many proposals to the exact decision.
    """
    pending = _first_look(result, tables, keystream, propose)
    while pending.target.size:
        accepted = _second_look(result, pending, tables, keystream, tolerance)
        again = pending.target[~accepted]
        fresh = np.empty(again.size, np.int64)
        pending = _first_look(fresh, tables, keystream, propose)
        result[again] = fresh
        pending = pending._replace(target=again[pending.target])


def _first_look(
    result: NDArray[np.int64], tables: NoiseTables, keystream: Keystream, propose: Propose
) -> _Proposals:
    """Write a proposal everywhere; return those that are not yet known to be accepted."""
    offset_mask, width_log2 = (1 << tables.layout.offset_bits) - 1, tables.layout.width_log2
    scratch = np.empty((4, min(BATCH_WORDS, result.size)), np.int64)
    unsure = [np.empty((4, 0), np.int64)]
    for start in range(0, result.size, BATCH_WORDS):
        values = result[start : start + BATCH_WORDS]
        words = keystream.borrow(values.size)
        count = propose(words, tables.entries, offset_mask, width_log2, values, scratch)
        scratch[0, :count] += start
        unsure.append(scratch[:, :count].copy())
    return _Proposals(*np.concatenate(unsure, axis=1))


def _second_look(
    result: NDArray[np.int64],
    pending: _Proposals,
    tables: NoiseTables,
    keystream: Keystream,
    tolerance: float,
) -> NDArray[np.bool_]:
    """Decide ``pending`` with 53 bits, or exactly; return which proposals are accepted."""
    row = pending.block - (tables.layout.first - 1)
    live = np.flatnonzero(pending.coin < tables.reject_from[row])
    coin, position = _more_bits(pending.coin[live], pending.offset[live], tables, keystream)
    estimate = _estimate(tables, row[live], position)
    uniform = coin * _ULP
    surely = uniform + _ULP <= estimate * (1 - tolerance)
    # Not "<": a tail's estimate is NaN, which must come out undecided.
    never = uniform >= estimate * (1 + tolerance)
    accepted = np.zeros(pending.target.size, np.bool_)
    accepted[live] = surely
    for i in np.flatnonzero(~(surely | never)):
        k = live[i]
        value = _decide_exactly(
            int(pending.block[k]), int(coin[i]), int(position[i]), tables, keystream
        )
        if value is not None:
            result[pending.target[k]] = value
            accepted[k] = True
    return accepted


def _more_bits(
    coin: NDArray[np.int64],
    offset: NDArray[np.int64],
    tables: NoiseTables,
    keystream: Keystream,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return 53 bits of U and of V; the first bits of V are the offset."""
    free_bits = _FINE_BITS - tables.layout.offset_bits
    if tables.layout.law is Law.DISCRETE_GAUSSIAN:
        words = keystream.words(coin.size)
        return _append_bits(coin, words, _FINE_BITS - COIN_BITS), offset << free_bits
    words = keystream.words(2 * coin.size)
    return (
        _append_bits(coin, words[: coin.size], _FINE_BITS - COIN_BITS),
        _append_bits(offset, words[coin.size :], free_bits),
    )


def _append_bits(
    prefix: NDArray[np.int64], words: NDArray[np.uint64], count: int
) -> NDArray[np.int64]:
    """Return ``prefix`` followed by the ``count`` high bits of ``words``."""
    return prefix << count | (words >> np.uint64(64 - count)).astype(np.int64)


def _estimate(
    tables: NoiseTables, row: NDArray[np.int64], position: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return a(x) in float64, with a relative error below 2^-44; NaN in a tail."""
    span, direction = float(tables.layout.span), tables.direction[row]
    along = position * (_ULP * float(tables.layout.width))
    distance = np.where(direction < 0, span - along, np.where(direction > 0, along, along - 0.5))
    np.abs(distance, out=distance)
    variance = tables.layout.variance
    inverse = variance.denominator / (2 * variance.numerator)
    z = distance * (2 * tables.nearest[row] + distance) * inverse
    series = np.full_like(z, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        series *= z
        series += coefficient
    return tables.peak[row] * series


def _decide_exactly(
    block: int, coin: int, position: int, tables: NoiseTables, keystream: Keystream
) -> int | None:
    """Return the integer that a proposal stands for, or None if it is rejected.

    Args:
        block: The block, or ``first - 1`` or ``last`` for a tail.
        coin: The first 53 bits of U.
        position: The first 53 bits of V; a tail draws its own.
        tables: The tables.
        keystream: Gives further bits of U and V.
    """
    layout, bits = tables.layout, _FINE_BITS
    height = tables.scale / tables.slots[block - (layout.first - 1)]
    start, width = block * layout.width, layout.width
    if not layout.first <= block < layout.last:
        segment, position = _geometric(keystream), keystream.word() >> (64 - bits)
        width = layout.tail_width
        height *= width / layout.width * 2 ** (segment + 1)
        if block >= layout.last:
            start = layout.last * layout.width + segment * width
        else:
            start = layout.first * layout.width - (segment + 1) * width
    while True:
        low_y = start + width * Fraction(position, 1 << bits)
        high_y = low_y + width / (1 << bits)
        if layout.law is Law.DISCRETE_GAUSSIAN:
            low_y = high_y = Fraction(floor(low_y))
        low_x, high_x = low_y - layout.law.shift, high_y - layout.law.shift
        least, most = _acceptance_bounds(low_x, high_x, height, layout.variance, bits + 32)
        if coin << 32 >= most:
            return None
        if (coin + 1) << 32 <= least:
            return floor(low_y)
        coin = coin << 64 | keystream.word()
        position = position << 64 | keystream.word()
        bits += 64


def _geometric(keystream: Keystream) -> int:
    """Return g with probability 2^-(g+1)."""
    zeros = 0
    while not (word := keystream.word()):
        zeros += 64
    return zeros + (word & -word).bit_length() - 1


def _acceptance_bounds(
    low_x: Fraction, high_x: Fraction, height: Fraction, variance: Fraction, bits: int
) -> tuple[int, int]:
    """Enclose ``2^bits height rho(x)`` for all x in ``[low_x, high_x]``."""
    farthest = max(-low_x, high_x)
    nearest = max(low_x, -high_x, Fraction(0))
    least = exp_bounds(farthest**2 / (2 * variance), bits)[0]
    most = exp_bounds(nearest**2 / (2 * variance), bits)[1]
    return floor(height * least), ceil(height * most)
