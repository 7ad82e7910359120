"""What the windows that a plan pays for would cost by other accountings."""

from stream.privacy.accounting import UNITS_PER_RHO, zcdp_epsilon_simple
from stream.privacy.calibration import PrivacyFilter
from stream.privacy.composition import Accounting, compare_accountings
from stream.privacy.plan import PrivacyPlan

from .plan_windows import PlannedWindows
from .text_table import aligned

# Each different charge takes a third of a millisecond to compare.
_MOST_WINDOWS = 2000
_NAMES = {
    Accounting.GDP: "GDP, exact, rounded up",
    Accounting.ZCDP_OPTIMAL: "zCDP, best conversion (RDP, not shipped, comes to the same)",
    Accounting.ZCDP_SIMPLE: "zCDP, textbook conversion",
    Accounting.ADVANCED: "advanced composition",
    Accounting.BASIC: "basic composition",
}
_OURS = {
    PrivacyFilter.GDP: Accounting.GDP,
    PrivacyFilter.ZCDP: Accounting.ZCDP_OPTIMAL,
}


def comparison(plan: PrivacyPlan) -> dict[str, float]:
    """Return the epsilon of the windows that ``plan`` foresees, by name of the accounting.

    Discrete Gaussian noise is converted by zCDP, and nothing else here is proven for it. Of a
    schedule that is not constant, the first 2,000 windows.
    """
    planned = PlannedWindows.of(plan, _MOST_WINDOWS)
    if plan.privacy_filter is PrivacyFilter.GDP:
        found = compare_accountings(planned.charges, plan.delta)
        return {accounting.value: epsilon for accounting, epsilon in found.items()}
    units = planned.total_units
    return {
        Accounting.ZCDP_OPTIMAL.value: plan.privacy_filter.epsilon(units, plan.delta),
        Accounting.ZCDP_SIMPLE.value: zcdp_epsilon_simple(units / UNITS_PER_RHO, plan.delta),
    }


def comparison_lines(plan: PrivacyPlan) -> list[str]:
    """Return what `comparison` says, for people."""
    found, ours = comparison(plan), _OURS[plan.privacy_filter]
    rows = [
        (
            f"{name}: this product" if accounting is ours else name,
            f"{found[accounting]:.5g}",
        )
        for accounting, name in _NAMES.items()
        if accounting in found
    ]
    planned = PlannedWindows.of(plan, _MOST_WINDOWS)
    which = "same" if planned.is_whole else "first"
    return [
        f"The {which} {planned.windows:,} windows under other accountings, as epsilon at delta "
        f"{plan.delta:g}:",
        *aligned(rows, indent="  "),
    ]
