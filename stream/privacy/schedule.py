"""Schedules: what each window of a cluster may cost, and the noise that this buys.

A schedule is a pure function of the plan, of the ledger's public numbers and, for one kind, of
what has been released. Its arithmetic is exact, so every head and every auditor computes the
same integer.
"""

import math
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction

from stream.errors import PlanError

from .accounting import UNITS_PER_RHO, gaussian_charge_units
from .schedule_shares import planned_shares
from .schedule_signal import Released, signal_energy
from .schedule_spec import ScheduleSpec

_SMALLEST_VARIANCE, _LARGEST_VARIANCE = Fraction(1, 64), Fraction(1 << 60)


class BudgetLevel(StrEnum):
    """How much of a budget is spent; whether it pays for another window is for `Schedule`."""

    NORMAL = "normal"
    """Below 80 %."""

    WARNING = "warning"
    """80 % or more."""

    CRITICAL = "critical"
    """90 % or more, and the plan has no saving mode."""

    SAVING = "saving"
    """90 % or more: the saving mode is on."""


class Schedule:
    """The charges of one cluster's windows, in units of 2^-60 zCDP.

    A window's noise has `noise_variance` of what is planned for it, so it costs at most that.

    Guarantee: whatever is released or throttled, all charges together are at most R
    (``cap_units``). Proof: let s be what is spent, e what this window's noise costs. No plan is
    handed out with s + e > R (`_admissible`, the last step of every plan), and what is not
    handed out is 0, for which nothing is released. Within H windows the plans need no such
    guard: with weights w_t >= 0 and W >= sum w_t, the charges floor(R w_t / W) add up to at most
    R, and every other plan is at most what is left, R - s.
    `stream.budget.Ledger` refuses an overspending charge in any case.

    Guarantee: a plan is a function of public numbers, and with ``snr`` of the released vector:
    post-processing of what the filter has admitted, which may choose the next event.

    Args:
        spec: The plan's [schedule].
        cap_units: The lifetime cap R, positive.
        horizon: Number of planned windows H, positive.
        l2_sensitivity_squared: Squared L2 distance of neighbouring sums, in grid steps; positive.

    Raises:
        PlanError: a planned window would have no charge, or noise that cannot be drawn or that
            ``max_noise_multiplier`` refuses.

    References:
        Feldman, Zrnic (2021), Individual privacy accounting via a Rényi filter.
        Smith, Thakurta (2022), Fully adaptive composition for Gaussian differential privacy.
    """

    def __init__(
        self, spec: ScheduleSpec, *, cap_units: int, horizon: int, l2_sensitivity_squared: int
    ) -> None:
        self.spec = spec
        self.cap_units = cap_units
        self.horizon = horizon
        self.l2_sensitivity_squared = l2_sensitivity_squared
        if spec.milestones and spec.milestones[-1] >= horizon:
            raise PlanError(
                f"[schedule] milestones ends at window {spec.milestones[-1]}, beyond the "
                f"{horizon} of [budget] windows: raise windows or remove the milestone"
            )
        self._shares = planned_shares(spec, horizon)
        self._total = self._shares.total
        self._smallest_units = self._units_at_most(spec.max_noise_multiplier)
        self._largest_units = self._units_at_least(spec.min_noise_multiplier)
        for step in self._shares.extreme_steps:
            self._check(step, self._share_units(step))
        if not self.first_units():
            raise PlanError("[schedule] saving_windows leaves nothing for window 0: lower it")

    @property
    def is_deterministic(self) -> bool:
        """Whether the plan and the ledger alone decide the charges (all kinds but ``snr``)."""
        return self.spec.kind != "snr"

    @property
    def windows_allowed(self) -> int | None:
        """The most releases that can be made, or None where nothing but the noise ends them."""
        if self.spec.saving_windows or self.spec.kind in ("infinite", "snr"):
            return None
        if self.spec.kind != "constant":
            return self.horizon
        return self.cap_units // self._charge_units(self.first_units())

    @property
    def largest_noise_variance(self) -> Fraction:
        """No window has more noise than this, whatever happens."""
        if self.spec.saving_windows or self.spec.kind in ("infinite", "snr"):
            return self.noise_variance(self._smallest_units)
        # A paced plan never falls: nobody can spend more than was planned.
        return self.noise_variance(self._share_units(self._shares.extreme_steps[0]))

    def noise_variance(self, units: int) -> Fraction:
        """Return the variance of the noise that ``units``, positive, pay for."""
        return noise_variance(units, self.l2_sensitivity_squared)

    def first_units(self) -> int:
        """Return what is planned for window 0."""
        return self.next_units(0, 0, self._share_units(0), None)

    def next_units(
        self, step: int, spent_units: int, planned_units: int, released: Released | None
    ) -> int:
        """Return what is planned for window ``step``, or 0 where releases have ended.

        Args:
            step: Number of windows sealed since genesis, which is the index of the window.
            spent_units: What has been spent after the window before.
            planned_units: What was planned for the window before.
            released: The release of the window before; None where it was throttled. Only
                ``snr`` looks at it.
        """
        if self.spec.kind == "snr":
            wanted = self._snr_units(spent_units, planned_units, released)
        else:
            wanted = self._wanted_units(step, spent_units)
        if self.spec.saving_windows:
            # A large window must not leap from below the mark to the end.
            before_saving = 9 * self.cap_units // 10 - spent_units
            wanted = min(wanted, max(before_saving, self._saved_units(spent_units)))
        return self._admissible(wanted, spent_units)

    def level(self, spent_units: int) -> BudgetLevel:
        """Return how much of the budget ``spent_units`` is."""
        if 10 * spent_units >= 9 * self.cap_units:
            return BudgetLevel.SAVING if self.spec.saving_windows else BudgetLevel.CRITICAL
        if 10 * spent_units >= 8 * self.cap_units:
            return BudgetLevel.WARNING
        return BudgetLevel.NORMAL

    def planned(self) -> Iterator[tuple[int, int]]:
        """Yield (step, units) of every window until releases end, if each one is released.

        It may never end, or after more windows than anybody waits for: the caller stops. With
        ``snr``, as if every release asked for what its own window had.
        """
        step, spent, units = 0, 0, self.first_units()
        while units:
            yield step, units
            step, spent = step + 1, spent + self._charge_units(units)
            units = self.next_units(step, spent, units, None)

    def _wanted_units(self, step: int, spent_units: int) -> int:
        kind, left = self.spec.kind, self.cap_units - spent_units
        if kind == "infinite":
            return left // self.horizon
        if step < self.horizon:
            return left // (self.horizon - step) if kind == "paced" else self._share_units(step)
        if kind != "constant" and not self.spec.saving_windows:
            return 0
        if kind == "paced":
            return self._saved_units(spent_units)
        return self._share_units(self.horizon - 1)

    def _share_units(self, step: int) -> int:
        return self.cap_units * self._shares.weight(step) // self._total

    def _snr_units(self, spent_units: int, planned_units: int, released: Released | None) -> int:
        largest = min(self._largest_units, self._saved_units(spent_units))
        if largest < self._smallest_units:
            return 0
        if released is None:
            return max(self._smallest_units, min(planned_units, largest))
        wanted = self._units_for_target_snr(released)
        wanted = max(self._smallest_units, min(wanted, self._largest_units))
        kept = Fraction(str(self.spec.smoothing))
        wanted = math.floor(kept * planned_units + (1 - kept) * wanted)
        return max(self._smallest_units, min(wanted, largest))

    def _units_for_target_snr(self, released: Released) -> int:
        """Return the charge at which the signal in ``released`` would have the wanted energy."""
        energy = signal_energy(released)
        if energy <= 0:
            return self._largest_units
        size = len(released.vector)
        wanted_variance = energy / (size * Fraction(str(self.spec.target_snr)))
        return math.floor(self.l2_sensitivity_squared * UNITS_PER_RHO / (2 * wanted_variance))

    def _saved_units(self, spent_units: int) -> int:
        return (self.cap_units - spent_units) // max(1, self.spec.saving_windows)

    def _admissible(self, wanted: int, spent_units: int) -> int:
        units = min(wanted, self._largest_units)
        if units < self._smallest_units:
            return 0
        return units if spent_units + self._charge_units(units) <= self.cap_units else 0

    def _charge_units(self, units: int) -> int:
        return gaussian_charge_units(self.l2_sensitivity_squared, self.noise_variance(units))

    def _units_at_most(self, noise_multiplier: float) -> int:
        """Return the charge of the most noise: the sampler's, or the multiplier's if not 0."""
        units = gaussian_charge_units(self.l2_sensitivity_squared, _LARGEST_VARIANCE)
        if noise_multiplier:
            units = max(units, gaussian_charge_units(1, Fraction(str(noise_multiplier)) ** 2))
        return units

    def _units_at_least(self, noise_multiplier: float) -> int:
        """Return the charge of the least noise: the sampler's, or the multiplier's if not 0."""
        units = gaussian_charge_units(self.l2_sensitivity_squared, _SMALLEST_VARIANCE)
        if noise_multiplier:
            least = UNITS_PER_RHO / (2 * Fraction(str(noise_multiplier)) ** 2)
            units = min(units, math.floor(least))
        return units

    def _check(self, step: int, units: int) -> None:
        if units < 1:
            raise PlanError(
                f"[budget] windows is too large for the budget: lower it (window {step} would "
                "have no charge)"
            )
        variance = self.noise_variance(units)
        if not _SMALLEST_VARIANCE <= variance <= _LARGEST_VARIANCE:
            raise PlanError(
                f"the noise of window {step} has a standard deviation of "
                f"{math.sqrt(variance):.3g} grid steps, outside 1/8 to 2^30: change [gradient] "
                "grid_l2_bound or [budget]"
            )
        if not self._smallest_units <= units <= self._largest_units:
            multiplier = math.sqrt(variance / self.l2_sensitivity_squared)
            bound = (
                "above [schedule] max" if units < self._smallest_units else "below [schedule] min"
            )
            raise PlanError(
                f"window {step} needs a noise multiplier of {multiplier:.4g}, {bound}"
                "_noise_multiplier: change that, [budget] epsilon or windows"
            )


def noise_variance(units: int, l2_sensitivity_squared: int) -> Fraction:
    """Return the least variance of a short denominator that costs at most ``units``.

    Args:
        units: What the noise may cost, in units of 2^-60 zCDP; positive.
        l2_sensitivity_squared: Squared L2 distance of neighbouring sums, in grid steps.

    Returns:
        The variance, in squared grid steps, up to 1e-12 of it above the exact one.
    """
    exact = Fraction(l2_sensitivity_squared * UNITS_PER_RHO, 2 * units)
    # A short denominator keeps records small; 40 bits cost less than 1e-12 of the noise.
    denominator = 1 << max(0, 40 - int(exact).bit_length())
    return Fraction(math.ceil(exact * denominator), denominator)
