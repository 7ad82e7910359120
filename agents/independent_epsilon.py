"""Epsilon once more, from the noise alone: no charge, unit or formula of ours takes part."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from stream.privacy.calibration import PrivacyFilter

# Our epsilon is rounded up to 1e-6, each charge to 2^-60; what is more is a difference.
_ABSOLUTE_TOLERANCE, _RELATIVE_TOLERANCE = 2e-6, 1e-9
_ORDERS = 1e-9, 1e12  # of alpha - 1: wide enough for any epsilon that is worth a name


def independent_epsilon(
    events_by_cluster: Sequence[Counter[tuple[int, Fraction]]],
    delta: float,
    privacy_filter: PrivacyFilter,
) -> float:
    """Return epsilon from the sigmas alone; the most of any cluster.

    Gaussian releases with the noise multipliers z compose to one of multiplier
    ``1 / sqrt(sum of 1/z^2)``. For rounded noise `dp_accounting.get_epsilon_gaussian` converts
    it. Discrete noise is ``sum of 1/(2 z^2)``-zCDP, and scipy searches the order at which the
    conversion is best.

    Args:
        events_by_cluster: How often each (sensitivity^2, variance) was released, by cluster.
        delta: The plan's delta.
        privacy_filter: GDP for rounded noise, zCDP for discrete noise.

    References:
        Canonne, Kamath, Steinke (2020), Proposition 12, at all orders.
    """
    most = max(
        math.fsum(
            count * float(squared / variance) for (squared, variance), count in events.items()
        )
        for events in events_by_cluster
    )
    if most == 0:
        return 0.0
    if privacy_filter is PrivacyFilter.ZCDP:
        return _by_best_order(most / 2, delta)
    # Loading it takes seconds, which no other command or worker should have to wait for.
    from dp_accounting import get_epsilon_gaussian  # type: ignore[import-untyped]

    return float(get_epsilon_gaussian(1 / math.sqrt(most), delta))


def are_equal(epsilon: float, independent: float) -> bool:
    """Say whether two epsilons are one, but for roundings."""
    return math.isclose(
        epsilon, independent, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE
    )


def _by_best_order(rho: float, delta: float) -> float:
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]

    def epsilon(log_order: float) -> float:
        above_one = math.exp(log_order)
        order = 1 + above_one
        return float(
            order * rho
            + (-math.log(delta) + above_one * math.log1p(-1 / order) - math.log(order)) / above_one
        )

    bounds = tuple(math.log(end) for end in _ORDERS)
    found = minimize_scalar(epsilon, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))
