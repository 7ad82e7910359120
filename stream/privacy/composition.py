"""How others account for the same releases: for comparison only, never a ledger.

A `stream.budget.Ledger` adds integer charges and converts their total once. What stands here adds
epsilons, or turns one guarantee into another: to check published numbers, to show what the
ledger saves, and to be the place where the textbook's mistakes are refused. Nothing is rounded
up, and none of it may decide whether a release is made: composition of epsilons fixed beforehand
says nothing about releases that are chosen as one goes.

RDP is not here. That of Gaussian noise is that of zCDP at every order, and the best conversion of
either is `accounting.zcdp_epsilon`.

References:
    Dwork, Rothblum, Vadhan (2010), Boosting and differential privacy, Theorem III.3.
    Kairouz, Oh, Viswanath (2015), The composition theorem for differential privacy.
    https://arxiv.org/abs/1311.0776
    Dwork, Roth (2014), The algorithmic foundations of differential privacy, Theorem A.1.
    Balle, Wang (2018), Improving the Gaussian mechanism. https://arxiv.org/abs/1805.06530
    Bun, Steinke (2016), Concentrated differential privacy, Proposition 1.4 (pure DP to zCDP).
    https://arxiv.org/abs/1605.02065
    Dong, Roth, Su (2019), Gaussian differential privacy. https://arxiv.org/abs/1905.02383
"""

import math
from collections.abc import Collection
from enum import StrEnum

from scipy.special import log_expit, ndtri_exp  # type: ignore[import-untyped]  # no types

from .accounting import (
    UNITS_PER_RHO,
    epsilon_from_units,
    gdp_delta,
    zcdp_epsilon,
    zcdp_epsilon_simple,
)

# Phi(-40) is 0 in float64, so that no delta is below the one there.
_FARTHEST_DEVIATION = 40
_ADJACENT = 2.0**-52


class Accounting(StrEnum):
    """A way to find epsilon for a sequence of Gaussian releases."""

    GDP = "gdp"
    """The ledger's: the charges' sum as GDP, converted exactly, rounded up to 1e-6."""

    ZCDP_OPTIMAL = "zcdp_optimal"
    """The charges' sum as zCDP, by the best known conversion."""

    ZCDP_SIMPLE = "zcdp_simple"
    """The charges' sum as zCDP, by the textbook's conversion."""

    ADVANCED = "advanced_composition"
    """Advanced composition of each release's own epsilon at half of delta over their number."""

    BASIC = "basic_composition"
    """The sum of each release's own epsilon at delta over their number."""


def compare_accountings(
    charges: Collection[tuple[int, int]], delta: float
) -> dict[Accounting, float]:
    """Return the epsilon of the same rounded Gaussian releases by every accounting.

    A release of noise multiplier z is charged ``gaussian_charge_units(1, Fraction(z) ** 2)``, and a
    charge of u units is (2 u / 2^60)^(1/2)-GDP. A release's own epsilon is that of the analytic
    Gaussian mechanism. Advanced composition spends the other half of delta on its slack.

    Args:
        charges: A release's charge, in units of 2^-60 zCDP, and the number of such releases.
        delta: Of all releases together.

    Raises:
        ValueError: there are no releases, a charge or a number of releases is not positive, or
            ``delta`` is not in [1e-300, 1).
    """
    if not charges or min(min(pair) for pair in charges) < 1:
        raise ValueError("comparing needs releases: charges and their numbers must be positive")
    units = sum(charge * count for charge, count in charges)
    releases = sum(count for _, count in charges)
    by_gdp = epsilon_from_units(units, delta)  # refuses a bad delta
    rho = units / UNITS_PER_RHO
    return {
        Accounting.GDP: by_gdp,
        Accounting.ZCDP_OPTIMAL: zcdp_epsilon(rho, delta),
        Accounting.ZCDP_SIMPLE: zcdp_epsilon_simple(rho, delta),
        Accounting.ADVANCED: advanced_epsilon(
            _epsilons(charges, delta / 2 / releases), slack=delta / 2
        ),
        Accounting.BASIC: basic_epsilon(_epsilons(charges, delta / releases)),
    }


def basic_epsilon(epsilons: Collection[tuple[float, int]]) -> float:
    """Return the sum, of which all mechanisms together are (sum of epsilon, sum of delta)-DP.

    Args:
        epsilons: A mechanism's epsilon, and the number of such mechanisms.

    Raises:
        ValueError: an epsilon is negative or not finite, or a number is negative.
    """
    _require_epsilons(epsilons)
    return sum(count * epsilon for epsilon, count in epsilons)


def drv_epsilon(epsilons: Collection[tuple[float, int]], *, slack: float) -> float:
    """Return the epsilon of advanced composition as published first; infinite if too large.

    ``sqrt(2 ln(1/slack) sum e^2) + sum e (exp(e) - 1)``, at a delta of ``slack`` more than the
    mechanisms' sum; never below `advanced_epsilon`. For epsilons that are fixed beforehand.

    Args:
        epsilons: A mechanism's epsilon, and the number of such mechanisms.
        slack: What delta grows by.

    Raises:
        ValueError: an epsilon is negative or not finite, a number is negative, or ``slack`` is
            not in (0, 1).
    """
    deviation = _deviation(epsilons, slack)
    try:
        return deviation + sum(count * e * math.expm1(e) for e, count in epsilons)
    except OverflowError:
        return math.inf


def advanced_epsilon(epsilons: Collection[tuple[float, int]], *, slack: float) -> float:
    """Return the epsilon of advanced composition in its sharper form.

    ``sqrt(2 ln(1/slack) sum e^2) + sum e (exp(e) - 1) / (exp(e) + 1)``, at a delta of ``slack``
    more than the mechanisms' sum. For epsilons that are fixed beforehand. Of few mechanisms
    `basic_epsilon` is less.

    Args:
        epsilons: A mechanism's epsilon, and the number of such mechanisms.
        slack: What delta grows by.

    Raises:
        ValueError: an epsilon is negative or not finite, a number is negative, or ``slack`` is
            not in (0, 1).

    References:
        Kairouz, Oh, Viswanath (2015), the last of the three bounds on heterogeneous composition.
    """
    deviation = _deviation(epsilons, slack)
    # (exp(e) - 1) / (exp(e) + 1) is tanh(e / 2), which cannot overflow.
    return deviation + sum(count * e * math.tanh(e / 2) for e, count in epsilons)


def pure_dp_rho(epsilon: float) -> float:
    """Return the rho of which every (epsilon, 0)-DP mechanism is rho-zCDP: half the square.

    Raises:
        ValueError: ``epsilon`` is not finite and positive.
    """
    _require_positive_epsilon(epsilon)
    return epsilon * epsilon / 2


def pure_dp_mu(epsilon: float) -> float:
    """Return the least mu of which every (epsilon, 0)-DP mechanism is mu-GDP.

    ``2 Phi^-1(exp(epsilon) / (1 + exp(epsilon)))``, by logarithms of the opposite tails.

    Raises:
        ValueError: ``epsilon`` is not finite and positive.
    """
    _require_positive_epsilon(epsilon)
    return -2 * float(ndtri_exp(log_expit(-epsilon)))


def analytic_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise over sensitivity at which one Gaussian is (epsilon, delta)-DP.

    For every epsilon. `calibration.solve_noise_multiplier` is the safe one: it rounds up.

    Raises:
        ValueError: ``epsilon`` is not finite and positive, or ``delta`` not in (0, 1).

    References:
        Balle, Wang (2018), Theorem 8 and Algorithm 1.
    """
    _require_positive_epsilon(epsilon)
    _require_fraction("delta", delta)
    enough = 1.0
    while gdp_delta(epsilon, 1 / enough) > delta:
        enough *= 2
    while gdp_delta(epsilon, 2 / enough) <= delta:
        enough /= 2
    too_small = enough / 2
    while enough - too_small > _ADJACENT * enough:
        middle = (too_small + enough) / 2
        if gdp_delta(epsilon, 1 / middle) <= delta:
            enough = middle
        else:
            too_small = middle
    return enough


def classic_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the textbook's noise over sensitivity, ``sqrt(2 ln(1.25 / delta)) / epsilon``.

    Raises:
        ValueError: ``epsilon`` is not in (0, 1), outside of which it is unproven and, at 10 for
            instance, too little; or ``delta`` is not in (0, 1).

    References:
        Dwork, Roth (2014), Theorem A.1.
    """
    if not 0 < epsilon < 1:
        raise ValueError(
            f"the classic Gaussian mechanism needs epsilon above 0 and below 1, not {epsilon}: at "
            "1 and above nothing proves its noise, and it can be too little; use "
            "analytic_noise_multiplier"
        )
    _require_fraction("delta", delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _epsilons(charges: Collection[tuple[int, int]], delta: float) -> list[tuple[float, int]]:
    return [
        (_release_epsilon(math.sqrt(2 * charge / UNITS_PER_RHO), delta), count)
        for charge, count in charges
    ]


def _release_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of one release. Its rounding up would add up: it is not rounded."""
    if gdp_delta(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, mu * (mu / 2 + _FARTHEST_DEVIATION)
    while high - low > _ADJACENT * high:
        middle = (low + high) / 2
        if gdp_delta(middle, mu) <= delta:
            high = middle
        else:
            low = middle
    return high


def _deviation(epsilons: Collection[tuple[float, int]], slack: float) -> float:
    """Return the term that both advanced compositions begin with."""
    _require_epsilons(epsilons)
    _require_fraction("slack", slack)
    return math.sqrt(-2 * math.log(slack) * sum(count * e * e for e, count in epsilons))


def _require_epsilons(epsilons: Collection[tuple[float, int]]) -> None:
    for epsilon, count in epsilons:
        if not 0 <= epsilon < math.inf:
            raise ValueError(f"epsilon must be finite and not negative, not {epsilon}")
        if count < 0:
            raise ValueError(f"a number of mechanisms must not be negative, not {count}")


def _require_positive_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and positive, not {epsilon}")


def _require_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be above 0 and below 1, not {value}")
