"""Of epsilon, windows and noise, any one from the other two, as a ledger would admit them.

Every window is charged alike, in the ledger's own exact integers: the windows that epsilon pays
for are ``cap_units // charge_units``. What has to be rounded is rounded to the side that keeps
the promise: epsilon up to 1e-6, the noise multiplier up in its ninth digit.

Guarantee: for what the ``solve_`` functions return, the windows' charges fit the cap of epsilon.
That is (epsilon, delta)-DP for everything a cluster releases, as in a `PrivacyPlan`: under
`PrivacyFilter.GDP` with rounded Gaussian noise, under `PrivacyFilter.ZCDP` with discrete Gaussian
noise too (`stream.privacy` says why).

References:
    Balle, Wang (2018), Improving the Gaussian mechanism, Theorem 8 (the GDP formula).
    Canonne, Kamath, Steinke (2020), The discrete Gaussian, Corollary 13 (zCDP).
    Smith, Thakurta (2022), Fully adaptive composition for Gaussian differential privacy.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from fractions import Fraction

from .accounting import (
    UNITS_PER_RHO,
    epsilon_from_units,
    gaussian_charge_units,
    gdp_cap_units,
    zcdp_epsilon,
)

_STEPS = 10**6  # epsilon is given in steps of 1e-6
# Beyond these nobody plans, and the exact arithmetic would leave what float64 can express.
_LARGEST_EPSILON = 1e6
_LARGEST_WINDOWS = 10**30
_SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-4, 1e9
_NINE_DIGITS_UP = Context(prec=9, rounding=ROUND_CEILING)


class PrivacyFilter(StrEnum):
    """How a ledger turns the sum of its charges into epsilon; the charges are the same."""

    GDP = "gdp"
    """Exact conversion; holds for rounded Gaussian noise alone."""

    ZCDP = "zcdp"
    """Best known conversion of zCDP; holds for discrete Gaussian noise as well."""

    def epsilon(self, units: int, delta: float) -> float:
        """Return epsilon for charges of ``units`` in total, rounded up to 1e-6.

        Raises:
            ValueError: ``units`` is not positive, or ``delta`` not in [1e-300, 1).
        """
        if self is PrivacyFilter.GDP:
            return epsilon_from_units(units, delta)
        epsilon = zcdp_epsilon(units / UNITS_PER_RHO, delta)
        # The formula is good to some ulp of its terms, which 1e-12 is far above.
        return math.ceil((epsilon * (1 + 1e-12) + 1e-12) * _STEPS) / _STEPS

    def cap_units(self, epsilon: float, delta: float) -> int:
        """Return the largest total of charges, in units, that ``epsilon`` allows.

        Raises:
            ValueError: ``epsilon`` is not in (0, 1e6], ``delta`` not in [1e-300, 1), or the two
                are so small that nothing can be granted.
        """
        if not 0 < epsilon <= _LARGEST_EPSILON:
            raise ValueError(
                f"epsilon must be above 0 and at most {_LARGEST_EPSILON:g}, not {epsilon}"
            )
        if self is PrivacyFilter.GDP:
            return gdp_cap_units(epsilon, delta)
        allowed, refused = 0, 1
        while self.epsilon(refused, delta) <= epsilon:
            allowed, refused = refused, 2 * refused
        while refused - allowed > 1:
            middle = (allowed + refused) // 2
            if self.epsilon(middle, delta) <= epsilon:
                allowed = middle
            else:
                refused = middle
        if allowed < 1:
            raise ValueError(
                f"epsilon={epsilon}, delta={delta} are too small: nothing can be granted"
            )
        return allowed


@dataclass(frozen=True, slots=True)
class Calibration:
    """A budget, a number of windows and a noise; `fits` says whether they go together.

    Attributes:
        epsilon: The budget's epsilon.
        delta: The budget's delta.
        windows: Number of releases of a cluster.
        noise_multiplier: Standard deviation of the noise over the sensitivity (dimensionless).
        privacy_filter: What the ledger converts with.
    """

    epsilon: float
    delta: float
    windows: int
    noise_multiplier: float
    privacy_filter: PrivacyFilter = PrivacyFilter.GDP

    def __post_init__(self) -> None:
        """Refuse numbers that are no budget, no count or no noise."""
        _ = self.cap_units, self.spent_units

    @property
    def cap_units(self) -> int:
        """The most that epsilon allows, in units of 2^-60 zCDP."""
        return self.privacy_filter.cap_units(self.epsilon, self.delta)

    @property
    def spent_units(self) -> int:
        """What all windows cost together, in units of 2^-60 zCDP."""
        return _spent_units(self.windows, self.noise_multiplier)

    @property
    def rho(self) -> float:
        """What all windows cost together, in zCDP."""
        return self.spent_units / UNITS_PER_RHO

    @property
    def spent_epsilon(self) -> float:
        """What all windows cost together, as epsilon, rounded up to 1e-6."""
        return self.privacy_filter.epsilon(self.spent_units, self.delta)

    @property
    def fits(self) -> bool:
        """Whether the ledger admits all windows."""
        return self.spent_units <= self.cap_units


def solve_windows(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    privacy_filter: PrivacyFilter = PrivacyFilter.GDP,
) -> Calibration:
    """Return how many windows of this noise the ledger admits: ``cap_units // charge_units``.

    Guarantee: the ledger admits exactly so many, and refuses the next one.

    Raises:
        ValueError: an argument is out of range, or the budget does not pay for one window.
    """
    charge = _charge_units(noise_multiplier)
    windows = privacy_filter.cap_units(epsilon, delta) // charge
    if windows < 1:
        alone = privacy_filter.epsilon(charge, delta)
        raise ValueError(
            f"the budget does not pay for one window: noise multiplier {noise_multiplier:.15g} "
            f"costs epsilon {alone:.15g} at delta {delta:g}, more than {epsilon:.15g}; raise "
            "epsilon or the noise"
        )
    return Calibration(epsilon, delta, windows, noise_multiplier, privacy_filter)


def solve_epsilon(
    *,
    delta: float,
    windows: int,
    noise_multiplier: float,
    privacy_filter: PrivacyFilter = PrivacyFilter.GDP,
) -> Calibration:
    """Return what the windows cost together, rounded up to 1e-6; at least 1e-6.

    Guarantee: a ledger with the cap of this epsilon admits all windows.

    Raises:
        ValueError: an argument is out of range, or the answer is above 1e6.
    """
    spent = _spent_units(windows, noise_multiplier)
    # So little may be spent that epsilon is 0, which nobody can ask a ledger for.
    epsilon = max(privacy_filter.epsilon(spent, delta), 1 / _STEPS)
    if epsilon > _LARGEST_EPSILON:
        raise ValueError(
            f"this costs epsilon {epsilon:.3g}, which promises nothing: raise the noise multiplier "
            "or lower windows"
        )
    return Calibration(epsilon, delta, windows, noise_multiplier, privacy_filter)


def solve_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    windows: int,
    privacy_filter: PrivacyFilter = PrivacyFilter.GDP,
) -> Calibration:
    """Return the least noise at which the budget pays for ``windows``, rounded up to 9 digits.

    A `PrivacyPlan` of this budget and horizon has the same noise, but for that rounding.

    Guarantee: the ledger admits at least so many windows of the noise returned.

    Raises:
        ValueError: an argument is out of range, or so many windows share the budget that
            nothing is left for each.
    """
    _require_windows(windows)
    affordable = privacy_filter.cap_units(epsilon, delta) // windows
    if affordable < 1:
        raise ValueError(
            f"epsilon={epsilon:.15g}, delta={delta:g} cannot be spread over {windows} windows: "
            "lower windows or raise epsilon"
        )
    exact = math.sqrt(UNITS_PER_RHO / (2 * affordable))
    multiplier = _NINE_DIGITS_UP.create_decimal_from_float(exact)
    # The square root is of float64, and so is what the decimal digits will be read as.
    while _charge_units(float(multiplier)) > affordable:
        multiplier = multiplier.next_plus(_NINE_DIGITS_UP)
    return Calibration(epsilon, delta, windows, float(multiplier), privacy_filter)


def calibrate(
    *,
    epsilon: float | None,
    delta: float,
    windows: int | None,
    noise_multiplier: float | None,
    privacy_filter: PrivacyFilter = PrivacyFilter.GDP,
) -> Calibration:
    """Return the two numbers that are given with the third solved for, or all three as they are.

    Raises:
        ValueError: fewer than two are given, or the ``solve_`` function refuses.
    """
    if windows is None and epsilon is not None and noise_multiplier is not None:
        return solve_windows(
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            privacy_filter=privacy_filter,
        )
    if epsilon is None and windows is not None and noise_multiplier is not None:
        return solve_epsilon(
            delta=delta,
            windows=windows,
            noise_multiplier=noise_multiplier,
            privacy_filter=privacy_filter,
        )
    if noise_multiplier is None and epsilon is not None and windows is not None:
        return solve_noise_multiplier(
            epsilon=epsilon, delta=delta, windows=windows, privacy_filter=privacy_filter
        )
    if epsilon is None or windows is None or noise_multiplier is None:
        raise ValueError("give two or three of epsilon, windows and noise multiplier")
    return Calibration(epsilon, delta, windows, noise_multiplier, privacy_filter)


def _charge_units(noise_multiplier: float) -> int:
    if not _SMALLEST_MULTIPLIER <= noise_multiplier <= _LARGEST_MULTIPLIER:
        raise ValueError(
            f"the noise multiplier must be from {_SMALLEST_MULTIPLIER:g} to "
            f"{_LARGEST_MULTIPLIER:g}, not {noise_multiplier}"
        )
    return gaussian_charge_units(1, Fraction(noise_multiplier) ** 2)


def _spent_units(windows: int, noise_multiplier: float) -> int:
    _require_windows(windows)
    return windows * _charge_units(noise_multiplier)


def _require_windows(windows: int) -> None:
    if not 1 <= windows <= _LARGEST_WINDOWS:
        raise ValueError(
            f"windows must be a whole number from 1 to {_LARGEST_WINDOWS:g}, not {windows}"
        )
