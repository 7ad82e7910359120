"""The windows that a plan's schedule foresees: what each costs, and the noise that this buys."""

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, groupby, islice

from stream.privacy.accounting import gaussian_charge_units
from stream.privacy.plan import PrivacyPlan

MOST_WINDOWS = 10_000
"""How many windows of a schedule are followed, a third of a second's work."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Consecutive windows that are planned alike.

    Attributes:
        windows: How many.
        charge_units: What each of them costs, in units of 2^-60 zCDP.
        noise_variance: Of each coordinate's noise, in squared grid steps.
    """

    windows: int
    charge_units: int
    noise_variance: Fraction


@dataclass(frozen=True, slots=True)
class PlannedWindows:
    """A schedule's windows, if each one is released.

    Attributes:
        runs: In order, at least one.
        is_whole: Whether releases end after them; else these are only the first ones.
    """

    runs: tuple[PlannedRun, ...]
    is_whole: bool

    @classmethod
    def of(cls, plan: PrivacyPlan, most: int = MOST_WINDOWS) -> "PlannedWindows":
        """Return what ``plan`` foresees, at most ``most`` windows unless they are all alike.

        With scope ``client``: the windows that a client can take part in. With ``snr``: as if
        every release asked for what its own window had.
        """
        return _follow(plan, most)

    @property
    def windows(self) -> int:
        """How many windows these are."""
        return sum(run.windows for run in self.runs)

    @property
    def total_units(self) -> int:
        """What they cost together, in units of 2^-60 zCDP."""
        return self.spent_after(self.windows)

    @property
    def charges(self) -> list[tuple[int, int]]:
        """Each charge that occurs, and how many windows have it."""
        count_by_charge: dict[int, int] = {}
        for run in self.runs:
            count = count_by_charge.get(run.charge_units, 0)
            count_by_charge[run.charge_units] = count + run.windows
        return list(count_by_charge.items())

    def run_of(self, window: int) -> PlannedRun:
        """Return the run that ``window`` belongs to, counted from 0."""
        starts = [0, *accumulate(run.windows for run in self.runs)]
        return self.runs[bisect_right(starts, window) - 1]

    def spent_after(self, windows: int) -> int:
        """Return what the first ``windows`` of them cost together, at most all of them."""
        spent = 0
        for run in self.runs:
            taken = min(run.windows, windows)
            spent, windows = spent + taken * run.charge_units, windows - taken
        return spent


@lru_cache(maxsize=8)
def _follow(plan: PrivacyPlan, most: int) -> PlannedWindows:
    if plan.schedule_spec.kind == "constant" and plan.windows_allowed is not None:
        run = PlannedRun(plan.windows_allowed, plan.charge_units, plan.noise_variance)
        return PlannedWindows((run,), is_whole=True)
    planned = [units for _, units in islice(plan.schedule.planned(), most + 1)]
    runs = tuple(
        _run(plan, sum(1 for _ in alike), units) for units, alike in groupby(planned[:most])
    )
    return PlannedWindows(runs, is_whole=len(planned) <= most)


def _run(plan: PrivacyPlan, windows: int, units: int) -> PlannedRun:
    variance = plan.schedule.noise_variance(units)
    charge_units = gaussian_charge_units(plan.l2_sensitivity_squared, variance)
    return PlannedRun(windows, charge_units, variance)
