"""The epsilon of a plan against the privacy loss distribution of dp-accounting."""

from collections.abc import Iterator
from pathlib import Path

from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from measurement import Floor, Result

from stream.privacy.plan import PrivacyPlan

DEFAULT_PLAN = Path(__file__).parents[2] / "deploy" / "plan.toml"
EQUAL = Floor("<=", 1e-4)


def epsilon_results(plan: PrivacyPlan) -> Iterator[Result]:
    """Yield how far our epsilon of all windows is from theirs, relatively; no chance is involved.

    Raises:
        ValueError: the windows of ``plan`` do not all cost the same.
    """
    windows = plan.windows_allowed
    if windows is None or plan.schedule_spec.kind != "constant":
        raise ValueError(f"plan {plan.name!r} is not spent in equal parts: compare one that is")
    ours = plan.privacy_filter.epsilon(windows * plan.charge_units, plan.delta)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(plan.noise_multiplier), windows)
    theirs = accountant.get_epsilon(plan.delta)
    yield Result("epsilon_vs_pld", "relative", [abs(ours / theirs - 1)], EQUAL)
