"""Tables for the exact Gaussians: proposal slots and rigorous acceptance bounds.

Everything here is computed once per law and variance, in integers and fractions; the last step
rounds to float64. `noise_rejection` holds the sampler and its proof; here are the facts it needs:

* ``rho(x) = exp(-x^2 / (2 variance))``, enclosed between integers by `exp_bounds`.
* x is real (rounded Gaussian, ``y = x + 1/2``) or an integer (discrete Gaussian, ``y = x``).
* The line is cut by y. Block B is ``y in [B w, (B+1) w)`` with ``w = 2^k``, ``sigma / w`` in
  (64, 128] or less where w is the least allowed: 2^-10, for integers 1. ``first <= B < last``.
  Beyond the blocks lie two tails.
* Of the 2^16 slots, block B owns ``m_B``, each tail ``m_tail``.
* A proposal x in block B is accepted with probability ``a(x) = c rho(x) / m_B``; in the g-th
  segment (of width W) of a tail with ``a(x) = c rho(x) (W/w) 2^(g+1) / m_tail``.
"""

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil, isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_VARIANCE = Fraction(1, 64)
MAX_VARIANCE = Fraction(1 << 60)

SLOT_BITS = 16
COIN_BITS = 24
ENTRY_BITS = COIN_BITS + 1

_RATIO_LOG2 = 7  # sigma <= 2^7 w
_RHO_BITS = 128
_SCALE_BITS = 8  # c is a multiple of 2^-8
_TAIL_MULTIPLE = Fraction(17, 2)
_LN_2 = Fraction(693148, 10**6)  # rounded up
_MAX_EXPONENT = Fraction(3, 20)  # the polynomial of the sampler is proven for [0, 0.15]


class Law(Enum):
    """What is sampled; X is normal with mean 0."""

    ROUNDED_GAUSSIAN = "floor(X + 1/2)"
    DISCRETE_GAUSSIAN = "X, given that X is an integer"

    @property
    def shift(self) -> Fraction:
        """The difference of y and x."""
        return Fraction(0) if self is Law.DISCRETE_GAUSSIAN else Fraction(1, 2)


def exp_bounds(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Return integers ``low <= 2^bits exp(-exponent) <= high``, for ``exponent`` >= 0.

    Proof: with y = exponent / 2^k < 2^-8 the loop sums the alternating series of exp(-y) in
    units of 2^-q. Term i is too small by at most 2 units (one for the truncated y, the rest
    for the two floors), the series is cut below one unit, so i terms are off by less than
    2i + 4 units. Squaring k times with outward rounding keeps both bounds on their side.
    """
    if exponent == 0:
        return 1 << bits, 1 << bits
    numerator, denominator = exponent.numerator, exponent.denominator
    k = (numerator // denominator).bit_length() + 8
    q = bits + k + 16
    y = (numerator << q) // (denominator << k)
    total = term = 1 << q
    i = 0
    while term:
        i += 1
        term = ((term * y) >> q) // i
        total += -term if i % 2 else term
    low, high = total - (2 * i + 4), total + (2 * i + 4)
    for _ in range(k):
        low = (low * low) >> q
        high = ((high * high) >> q) + 1
    return low >> (q - bits), (high >> (q - bits)) + 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How the line is cut for one law and variance; every length is exact."""

    law: Law
    variance: Fraction
    width_log2: int
    first: int
    last: int
    tail_width: Fraction

    @property
    def width(self) -> Fraction:
        """The width w of a block."""
        return Fraction(2) ** self.width_log2

    @property
    def offset_bits(self) -> int:
        """Bits of a block that are integer positions."""
        return max(self.width_log2, 0)

    @property
    def span(self) -> Fraction:
        """The length of the interval of x over which the bounds of a block hold."""
        is_point = self.law is Law.DISCRETE_GAUSSIAN and self.width == 1
        return Fraction(0) if is_point else self.width

    @property
    def tail_start(self) -> Fraction:
        """A lower bound of abs(x) in both tails: y >= last w, or floor(y) <= first w - 1."""
        shift = self.law.shift
        return min(self.last * self.width - shift, 1 - shift - self.first * self.width)


class _Block(NamedTuple):
    """Enclosures of rho at the points of a block nearest to and farthest from 0."""

    nearest: Fraction
    direction: int  # +1: abs(x) grows with x, -1: it falls, 0: the block straddles x = 0
    peak: tuple[int, int]
    trough: tuple[int, int]


class _Envelope(NamedTuple):
    """c = scale / 2^8, and the slots of each block and of one tail."""

    scale: int
    slots: list[int]
    tail_slots: int
    tail_height: Fraction  # c rho(tail_start) 2 W/w, an upper bound


@dataclass(frozen=True, slots=True, eq=False)
class NoiseTables:
    """What the sampler looks up; arrays are read-only.

    ``entries`` has one element per slot, ``block << ENTRY_BITS | accept_below``. The other
    arrays are indexed by ``block - first + 1``, so that index 0 is the left tail and the
    last index the right one. ``accept_below`` and ``reject_from`` bound ``2^24 a(x)`` over
    the block. ``peak`` is the largest a(x) of a block and NaN for a tail: every comparison
    with NaN is false, which sends tails to the exact decision.
    """

    layout: Layout
    scale: Fraction
    slots: tuple[int, ...]
    entries: NDArray[np.int64]
    accept_below: NDArray[np.int64]
    reject_from: NDArray[np.int64]
    peak: NDArray[np.float64]
    nearest: NDArray[np.float64]
    direction: NDArray[np.int8]


@lru_cache(maxsize=8)
def noise_tables(law: Law, variance: Fraction) -> NoiseTables:
    """Return the tables for ``variance``, built once and kept for the eight used last.

    Raises:
        ValueError: ``variance`` lies outside 1/64 .. 2^60.
    """
    return build_tables(law, variance)


def build_tables(
    law: Law, variance: Fraction, tail_multiple: Fraction = _TAIL_MULTIPLE
) -> NoiseTables:
    """Build the tables; ``tail_multiple`` is where the tails start, in standard deviations.

    The law of the samples does not depend on ``tail_multiple``, only their speed: tests lower
    it to exercise the tails.

    Raises:
        ValueError: ``variance`` lies outside 1/64 .. 2^60.
        ArithmeticError: a bound that the proof of the sampler needs does not hold.
    """
    if not MIN_VARIANCE <= variance <= MAX_VARIANCE:
        raise ValueError(f"noise variance {variance} is outside 1/64 .. 2^60")
    layout = _cut(law, variance, tail_multiple)
    blocks = _blocks(layout)
    envelope = _envelope(layout, blocks)
    check_bounds(layout, blocks, envelope)
    return _tabulate(layout, blocks, envelope)


def _cut(law: Law, variance: Fraction, tail_multiple: Fraction) -> Layout:
    is_integer = law is Law.DISCRETE_GAUSSIAN
    width_log2 = 0 if is_integer else -10
    while variance > Fraction(4) ** (_RATIO_LOG2 + width_log2):
        width_log2 += 1
    width = Fraction(2) ** width_log2
    stddev = Fraction(isqrt(int(variance * 2**40)) + 1, 2**20)  # rounded up
    tail_width = Fraction(1) if is_integer else Fraction(1, 8)
    while tail_width < stddev:
        tail_width *= 2
    # Both ends are cut at the same abs(x), see `Layout.tail_start`: not symmetric in y.
    reach, shift = tail_multiple * stddev, law.shift
    first, last = -ceil((reach + shift - 1) / width), ceil((reach + shift) / width)
    return Layout(law, variance, width_log2, first, last, tail_width)


def _rho_bounds(x: Fraction, variance: Fraction) -> tuple[int, int]:
    return exp_bounds(x * x / (2 * variance), _RHO_BITS)


def _blocks(layout: Layout) -> list[_Block]:
    @cache  # neighbours share an end
    def rho(distance: Fraction) -> tuple[int, int]:
        return _rho_bounds(distance, layout.variance)

    width, shift, span = layout.width, layout.law.shift, layout.span
    blocks = []
    for index in range(layout.first, layout.last):
        left = index * width - shift
        right = left + span
        if left >= 0:
            blocks.append(_Block(left, 1, rho(left), rho(right)))
        elif right <= 0:
            blocks.append(_Block(-right, -1, rho(-right), rho(-left)))
        else:
            one = (1 << _RHO_BITS, 1 << _RHO_BITS)
            blocks.append(_Block(Fraction(0), 0, one, min(rho(-left), rho(right))))
    return blocks


def _envelope(layout: Layout, blocks: list[_Block]) -> _Envelope:
    """Choose the largest c for which the slots suffice; a spare slot goes to the widest block."""
    tail = Fraction(_rho_bounds(layout.tail_start, layout.variance)[1], 1 << _RHO_BITS)
    tail *= 2 * layout.tail_width / layout.width

    def share(scale: int) -> tuple[list[int], int]:
        slots = [-((-scale * block.peak[1]) >> (_RHO_BITS + _SCALE_BITS)) for block in blocks]
        return slots, ceil(tail * scale / (1 << _SCALE_BITS))

    def total(scale: int) -> int:
        slots, tail_slots = share(scale)
        return sum(slots) + 2 * tail_slots

    budget = 1 << SLOT_BITS
    scale = bisect_right(range(budget << _SCALE_BITS), budget, key=total) - 1
    slots, tail_slots = share(scale)
    # Any m_B >= c max rho is valid, so the rest can go anywhere.
    slots[slots.index(max(slots))] += budget - sum(slots) - 2 * tail_slots
    return _Envelope(scale, slots, tail_slots, tail * scale / (1 << _SCALE_BITS))


def check_bounds(layout: Layout, blocks: list[_Block], envelope: _Envelope) -> None:
    """Verify, in exact arithmetic, each inequality that the proof of the sampler uses.

    Raises:
        ArithmeticError: one of them does not hold.
    """
    span, variance, start = layout.span, layout.variance, layout.tail_start
    outermost = max(block.nearest for block in blocks)
    claims = {
        "the scale is positive": envelope.scale > 0,
        "all slots are used": sum(envelope.slots) + 2 * envelope.tail_slots == 1 << SLOT_BITS,
        "a(x) <= 1 in the blocks": all(
            envelope.scale * block.peak[1] <= slots << (_RHO_BITS + _SCALE_BITS)
            for block, slots in zip(blocks, envelope.slots, strict=True)
        ),
        "a(x) <= 1 where a tail starts": envelope.tail_height <= envelope.tail_slots,
        "rho halves from one tail segment to the next": start * layout.tail_width
        >= _LN_2 * variance,
        "rho is known to 60 bits": all(
            (high - low) << 60 <= low for low, high in (block.peak for block in blocks)
        ),
        "the polynomial is used where it is proven": span * (2 * outermost + span)
        < _MAX_EXPONENT * 2 * variance,
    }
    for claim, holds in claims.items():
        if not holds:
            raise ArithmeticError(f"cannot sample variance {variance} exactly: not true: {claim}")


def _tabulate(layout: Layout, blocks: list[_Block], envelope: _Envelope) -> NoiseTables:
    scale, slots, tail_slots, tail_height = envelope
    units = [m << (_RHO_BITS + _SCALE_BITS) for m in slots]
    accept, reject, peak = [0], [ceil(tail_height / tail_slots * (1 << COIN_BITS))], [np.nan]
    for block, unit in zip(blocks, units, strict=True):
        accept.append((scale * block.trough[0] << COIN_BITS) // unit)
        reject.append(-((-scale * block.peak[1] << COIN_BITS) // unit))
        peak.append(scale * sum(block.peak) / (2 * unit))
    accept_below = np.array([*accept, 0], np.int64)
    owners = np.arange(layout.first - 1, layout.last + 1, dtype=np.int64)
    slot_owner = np.repeat(owners, [tail_slots, *slots, tail_slots])
    arrays = {
        "entries": slot_owner << ENTRY_BITS | accept_below[slot_owner - owners[0]],
        "accept_below": accept_below,
        "reject_from": np.array([*reject, reject[0]], np.int64),
        "peak": np.array([*peak, np.nan]),
        "nearest": np.array([0.0, *(float(block.nearest) for block in blocks), 0.0]),
        "direction": np.array([0, *(block.direction for block in blocks), 0], np.int8),
    }
    for array in arrays.values():
        array.setflags(write=False)
    shares = (tail_slots, *slots, tail_slots)
    return NoiseTables(layout, Fraction(scale, 1 << _SCALE_BITS), shares, **arrays)
