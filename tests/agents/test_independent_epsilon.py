import math
from collections import Counter
from fractions import Fraction

import pytest

from agents.independent_epsilon import are_equal, independent_epsilon
from stream.privacy.accounting import zcdp_epsilon
from stream.privacy.calibration import PrivacyFilter


def events(rho: float) -> Counter[tuple[int, Fraction]]:
    """One release of this cost."""
    return Counter({(1, Fraction(1 / (2 * rho))): 1})


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("rho", [1e-9, 1e-4, 0.01, 0.5, 3.0, 40.0])
def test_it_is_our_own_epsilon_by_another_way(rho: float, delta: float) -> None:
    zcdp = independent_epsilon([Counter(), events(rho)], delta, PrivacyFilter.ZCDP)
    assert zcdp == pytest.approx(zcdp_epsilon(rho, delta), rel=1e-9)
    for privacy_filter in PrivacyFilter:
        ours = privacy_filter.epsilon(math.ceil(rho * 2**60), delta)
        assert are_equal(ours, independent_epsilon([events(rho)], delta, privacy_filter))


def test_nothing_released_costs_nothing() -> None:
    for privacy_filter in PrivacyFilter:
        assert independent_epsilon([Counter(), Counter()], 1e-6, privacy_filter) == 0


def test_a_window_more_is_a_difference() -> None:
    few, many = (Counter({(1, Fraction(100)): windows}) for windows in (99, 100))
    for privacy_filter in PrivacyFilter:
        first, second = (independent_epsilon([e], 1e-6, privacy_filter) for e in (few, many))
        assert first < second
        assert not are_equal(first, second)
