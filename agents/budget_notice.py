"""What the log says of a budget when a window is due: it follows from public numbers alone."""

from schemas import LedgerKind
from stream.cluster_head import SealedCell
from stream.privacy.plan import PrivacyPlan


def budget_notice(plan: PrivacyPlan, cell: SealedCell, spent_before: int, spent_units: int) -> str:
    """Return a line for the log about ``cell``, or an empty one.

    Args:
        plan: The plan.
        cell: What was sealed.
        spent_before: What the cluster had spent before it, in units of 2^-60 zCDP.
        spent_units: What it has spent with it.
    """
    if cell.kind is LedgerKind.EXHAUSTED:
        return "the budget is spent; nothing more is released"
    if cell.kind is LedgerKind.THROTTLED:
        return f"a rate limit holds window {cell.window} back"
    level = plan.schedule.level(spent_units)
    if plan.scope == "client" or level is plan.schedule.level(spent_before):
        return ""
    return f"{100 * spent_units / plan.cap_units:.1f} % of the budget is spent: {level}"
