"""What noise costs: zCDP charges as exact integers, and their conversion to (epsilon, delta).

Charges add up in whole units of 2^-60 zCDP and are rounded up; epsilon is computed once, from
the total. Rounded Gaussian releases whose charges sum to R zCDP are sqrt(2 R)-GDP, adaptively
chosen or not (PRIVACY notes 1.5), so `epsilon_from_units` uses the exact GDP conversion. The
zCDP conversions are for comparison with other accountants.

References:
    Balle, Wang (2018), Improving the Gaussian mechanism, Theorem 8 (the GDP formula).
    Dong, Roth, Su (2019), Gaussian differential privacy.
    Canonne, Kamath, Steinke (2020), The discrete Gaussian, Corollary 13 (zCDP).
"""

import math
from collections.abc import Callable
from fractions import Fraction

from scipy.special import erfcx, ndtr  # type: ignore[import-untyped]  # scipy ships no types

UNITS_PER_RHO = 1 << 60

_EPSILON_STEPS = 10**6  # epsilon is reported in steps of 1e-6
_MIN_DELTA = 1e-300  # below, float64 runs out of exponent
_ROUNDING = 2.0**-47  # 64 ulp


def gaussian_charge_units(l2_sensitivity_squared: int, noise_variance: Fraction) -> int:
    """Return the zCDP cost of Gaussian noise in units of 2^-60, rounded up; at least 1.

    Args:
        l2_sensitivity_squared: Squared L2 distance of neighbouring sums, in grid steps.
        noise_variance: Variance of the noise on each coordinate, in squared grid steps.

    Raises:
        ValueError: an argument is not positive.
    """
    if not l2_sensitivity_squared > 0:
        raise ValueError(f"squared sensitivity must be positive, not {l2_sensitivity_squared}")
    if not noise_variance > 0:
        raise ValueError(f"noise variance must be positive, not {noise_variance}")
    return math.ceil(Fraction(l2_sensitivity_squared * UNITS_PER_RHO) / (2 * noise_variance))


def gdp_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    In float64 and not rounded up: `gdp_epsilon` and `gdp_cap_units` allow for its error.

    Raises:
        ValueError: ``epsilon`` is negative or not finite, or ``mu`` is not finite and positive.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, not {epsilon}")
    _require_positive("mu", mu)
    first, second, _ = _gdp_terms(epsilon, mu)
    return max(first - second, 0.0)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon for which mu-GDP implies (epsilon, delta)-DP, rounded up to 1e-6.

    Guarantee: the result is never below the true epsilon; float64 errors are allowed for.

    Raises:
        ValueError: ``mu`` is not finite and positive, or ``delta`` not in [1e-300, 1).
    """
    _require_positive("mu", mu)
    _require_delta(delta)
    steps = _least(lambda k: _surely_private(k / _EPSILON_STEPS, mu, delta))
    return steps / _EPSILON_STEPS


def gdp_cap_units(epsilon: float, delta: float) -> int:
    """Return the largest total of charges, in units, that is provably (epsilon, delta)-DP.

    ``epsilon`` counts in whole steps of 1e-6, so that ``epsilon_from_units`` of the result,
    which rounds up to such a step, never exceeds what was asked for.

    Raises:
        ValueError: ``epsilon`` is not finite and positive, ``delta`` not in [1e-300, 1), or
            the two are so small that nothing can be granted.
    """
    _require_positive("epsilon", epsilon)
    _require_delta(delta)
    steps = math.floor(Fraction(epsilon) * _EPSILON_STEPS)
    if (steps + 1) / _EPSILON_STEPS <= epsilon:  # 0.3 is a step, though its float is below 3/10
        steps += 1
    granted = steps / _EPSILON_STEPS
    cap = _least(lambda units: not _surely_private(granted, _mu(units), delta), start=1) - 1
    if cap < 1:
        raise ValueError(f"epsilon={epsilon}, delta={delta} are too small: nothing can be granted")
    return cap


def epsilon_from_units(units: int, delta: float) -> float:
    """Return epsilon for charges of ``units`` in total, rounded up to 1e-6; 0 for none.

    Raises:
        ValueError: ``units`` is negative, or ``delta`` not in [1e-300, 1).
    """
    if units < 0:
        raise ValueError(f"units must not be negative, not {units}")
    _require_delta(delta)
    return gdp_epsilon(_mu(units), delta) if units > 0 else 0.0


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the best known epsilon for which rho-zCDP implies (epsilon, delta)-DP.

    The bound is ``min over a > 1 of a rho + ln(1 - 1/a) + (ln(1/delta) - ln a) / (a - 1)``; its
    derivative vanishes where ``rho (a - 1)^2 + ln a = ln(1/delta)``, whose left side increases.
    Every a gives a valid bound, so an inexact minimum is safe. Not rounded up.

    Raises:
        ValueError: ``rho`` is not finite and positive, or ``delta`` not in [1e-300, 1).
    """
    _require_positive("rho", rho)
    _require_delta(delta)
    target = -math.log(delta)
    low, high = 0.0, math.sqrt(target / rho)
    while low < (s := (low + high) / 2) < high:  # s is a - 1; ends at adjacent floats
        if rho * s * s + math.log1p(s) < target:
            low = s
        else:
            high = s
    s = high
    epsilon = (1 + s) * rho - math.log1p(1 / s) + (target - math.log1p(s)) / s
    return max(epsilon, 0.0)


def zcdp_epsilon_simple(rho: float, delta: float) -> float:
    """Return ``rho + 2 sqrt(rho ln(1/delta))``, the textbook bound; never below `zcdp_epsilon`.

    Raises:
        ValueError: ``rho`` is not finite and positive, or ``delta`` not in [1e-300, 1).
    """
    _require_positive("rho", rho)
    _require_delta(delta)
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def _mu(units: int) -> float:
    return math.sqrt(2 * units / UNITS_PER_RHO)


def _gdp_terms(epsilon: float, mu: float) -> tuple[float, float, float]:
    """Return Phi(a), e^epsilon Phi(b) and a bound on their relative errors.

    With a = mu/2 - epsilon/mu and b = a - mu, ``b^2 = a^2 + 2 epsilon``; so the second term is
    ``exp(-a^2/2) erfcx(-b/sqrt 2) / 2``, where e^epsilon can neither overflow nor cancel. The
    special functions are good to some ulp; the error of a, some ulp of its two parts, is
    magnified by the slope |a| + 1 of the logarithms of both terms.
    """
    half, ratio = mu / 2, epsilon / mu
    a = half - ratio
    first = float(ndtr(a))
    second = math.exp(-a * a / 2) * float(erfcx((half + ratio) / math.sqrt(2))) / 2
    return first, second, _ROUNDING * (1 + (abs(a) + 1) * (half + ratio))


def _surely_private(epsilon: float, mu: float, delta: float) -> bool:
    first, second, error = _gdp_terms(epsilon, mu)
    return first - second + error * (first + second) <= delta


def _least(holds: Callable[[int], bool], start: int = 0) -> int:
    """Return the least integer >= ``start`` at which the monotone ``holds`` begins to hold."""
    if holds(start):
        return start
    low, high = start, max(2 * start, 1)
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and positive, not {value}")


def _require_delta(delta: float) -> None:
    if not _MIN_DELTA <= delta < 1:
        raise ValueError(f"delta must be at least {_MIN_DELTA} and below 1, not {delta}")
