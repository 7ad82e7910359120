"""Public weights of windows: what part of a budget each of them gets.

Everything here is integers, fractions, or decimals whose operations are correctly rounded by
their standard: every machine computes the same weights, to the last bit. No libm, no floats.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from .schedule_spec import ScheduleSpec

# A curve is followed in at most so many levels: their sum is exact and quick for any horizon,
# and a level of noise is one set of sampler tables.
CURVE_LEVELS = 1024

_BITS = 128
_ONE = 1 << _BITS
_PI = 0x3_243F6A88_85A308D3_13198A2E_03707344  # floor(pi 2^128)
# exp and ln of a decimal context are correctly rounded; its power is not always.
_FORTY_DIGITS = Context(prec=40, rounding=ROUND_HALF_EVEN)


class Shares(Protocol):
    """What part of a budget each of the planned windows gets."""

    @property
    def total(self) -> int:
        """At least the sum of the weights of all planned windows."""

    @property
    def extreme_steps(self) -> tuple[int, int]:
        """A window of the smallest weight, and one of the largest."""

    def weight(self, step: int) -> int:
        """Return the weight of window ``step``, from 0 to the horizon less 1."""


@dataclass(frozen=True, slots=True)
class LevelShares:
    """Weights that change at given windows.

    Attributes:
        starts: The first window of each level, in order, the first one 0.
        weights: The weight of each window of a level.
        horizon: Number of windows.
    """

    starts: tuple[int, ...]
    weights: tuple[int, ...]
    horizon: int

    @property
    def total(self) -> int:
        """The sum of the weights of all windows, exactly."""
        ends = [*self.starts[1:], self.horizon]
        lengths = [end - start for start, end in zip(self.starts, ends, strict=True)]
        return sum(map(int.__mul__, lengths, self.weights))

    @property
    def extreme_steps(self) -> tuple[int, int]:
        """A window of the smallest weight, and one of the largest."""
        by_weight = sorted(zip(self.weights, self.starts, strict=True))
        return by_weight[0][1], by_weight[-1][1]

    def weight(self, step: int) -> int:
        """Return the weight of window ``step``, from 0 to the horizon less 1."""
        return self.weights[bisect_right(self.starts, step) - 1]


@dataclass(frozen=True, slots=True)
class GeometricShares:
    """Weights that grow by one factor from window to window, up to 2^128 in the last one.

    Rounding is always down in ``weight`` and up in ``total``, so that ``total`` is at least the
    sum of the weights: ``sum of 2^128 r^k for k < H is 2^128 (1 - r^H) / (1 - r)``.

    Attributes:
        ratio: The weight of a window over that of the next, above 0 and below 1.
        horizon: Number of windows H.
    """

    ratio: Fraction
    horizon: int

    @property
    def total(self) -> int:
        """The closed form of the sum, rounded up; exceeds it by about 2^-97 of it."""
        beyond = _power_rounded_down(self.ratio, self.horizon)
        return math.ceil((_ONE - beyond) / (1 - self.ratio))

    @property
    def extreme_steps(self) -> tuple[int, int]:
        """The first window, and the last."""
        return 0, self.horizon - 1

    def weight(self, step: int) -> int:
        """Return the weight of window ``step``, from 0 to the horizon less 1."""
        return _power_rounded_down(self.ratio, self.horizon - 1 - step)


@lru_cache(maxsize=64)
def planned_shares(spec: ScheduleSpec, horizon: int) -> Shares:
    """Return the weights that ``spec`` fixes beforehand: equal ones, where it fixes none."""
    match spec.kind:
        case "exponential":
            # Variances fall by the square of what the noise multiplier falls by.
            return GeometricShares(_fraction(spec.noise_decay) ** 2, horizon)
        case "linear" | "cosine":
            final_ratio = _fraction(spec.final_noise_ratio)
            shape = spec.kind
            return _curve_shares(horizon, lambda x: 1 / _curve(shape, final_ratio, x) ** 2)
        case "step":
            weights = (_rounded_down(1 / _fraction(ratio) ** 2) for ratio in spec.noise_ratios)
            return LevelShares((0, *spec.milestones), tuple(weights), horizon)
        case "learning_rate":
            return _curve_shares(horizon, lambda x: _learning_rate(spec, x))
        case _:
            return LevelShares((0,), (1,), horizon)


def learning_rate_factor(spec: ScheduleSpec, horizon: int, step: int) -> Fraction:
    """Return the server's learning rate at ``step`` over that at the start; 1 at step 0.

    1 at every step with a kind other than ``learning_rate``. Beyond the horizon the factor stays
    at its last value. Long ways down are in `CURVE_LEVELS` levels, the same ones that the
    charges have.

    Args:
        spec: The schedule.
        horizon: Number of planned windows.
        step: Index of the window, from 0.
    """
    if spec.kind != "learning_rate":
        return Fraction(1)
    return _learning_rate(spec, _position(horizon, min(step, horizon - 1)))


def _learning_rate(spec: ScheduleSpec, position: Fraction) -> Fraction:
    return _curve(spec.learning_rate_decay, _fraction(spec.final_learning_rate_ratio), position)


def _curve_shares(horizon: int, weight: Callable[[Fraction], Fraction]) -> LevelShares:
    levels = min(horizon, CURVE_LEVELS)
    # The first windows for which step * levels // horizon is 0, 1, 2, ...
    starts = tuple(-(-level * horizon // levels) for level in range(levels))
    weights = tuple(_rounded_down(weight(_position(horizon, start))) for start in starts)
    return LevelShares(starts, weights, horizon)


def _position(horizon: int, step: int) -> Fraction:
    """Return how far along the curve ``step`` is, from 0 at the first window to 1 at the last."""
    levels = min(horizon, CURVE_LEVELS)
    return Fraction(step * levels // horizon, max(levels - 1, 1))


def _curve(shape: str, final: Fraction, position: Fraction) -> Fraction:
    """Return the height of a curve from 1 at position 0 to ``final`` at position 1."""
    if shape == "exponential":
        exponent = _FORTY_DIGITS.multiply(_ln(final), _decimal(position))
        return Fraction(_FORTY_DIGITS.exp(exponent))
    left = 1 - position if shape == "linear" else _half_cosine(position)
    return final + (1 - final) * left


@lru_cache(maxsize=16)
def _ln(value: Fraction) -> Decimal:
    return _FORTY_DIGITS.ln(_decimal(value))


def _half_cosine(position: Fraction) -> Fraction:
    """Return (1 + cos(pi position)) / 2, which is the square of cos(pi position / 2).

    Taylor's series in whole multiples of 2^-128, each term rounded down: within 2^-120.
    """
    angle = _PI * position.numerator // (2 * position.denominator)
    square = angle * angle >> _BITS
    cosine, term, order = 0, _ONE, 0
    while term:
        cosine += term if order % 4 == 0 else -term
        order += 2
        term = (term * square >> _BITS) // (order * (order - 1))
    return Fraction(cosine, _ONE) ** 2


def _power_rounded_down(base: Fraction, exponent: int) -> int:
    """Return at most 2^128 base^exponent, for a base in [0, 1]; short of it by about 2^-97."""
    factor, power = _rounded_down(base), _ONE
    while exponent:
        if exponent & 1:
            power = power * factor >> _BITS
        factor = factor * factor >> _BITS
        exponent >>= 1
    return power


def _rounded_down(value: Fraction) -> int:
    return value.numerator * _ONE // value.denominator


def _fraction(value: float) -> Fraction:
    # As the plan writes it: 0.995 is 199/200, not the float next to it.
    return Fraction(str(value))


def _decimal(value: Fraction) -> Decimal:
    return _FORTY_DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
