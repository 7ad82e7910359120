"""How a plan spreads its budget, and what slows it down: for scripts and for people."""

import math
from dataclasses import asdict, fields

from stream.privacy.accounting import UNITS_PER_RHO
from stream.privacy.plan import PrivacyPlan
from stream.privacy.schedule_spec import ScheduleSpec

from .plan_utility import Utility
from .plan_windows import PlannedRun, PlannedWindows


def schedule_report(plan: PrivacyPlan) -> dict[str, object]:
    """Return the schedule with its first and its last planned window, as plain data.

    ``is_whole`` says whether releases end after ``windows_planned``; else these are the first of
    more, and ``last`` is the last of these.
    """
    planned = PlannedWindows.of(plan)
    return {
        "kind": plan.schedule_spec.kind,
        **_parameters(plan.schedule_spec),
        "windows_planned": planned.windows,
        "is_whole": planned.is_whole,
        "rho_planned": planned.total_units / UNITS_PER_RHO,
        "first": _window_report(plan, planned.runs[0]),
        "last": _window_report(plan, planned.runs[-1]),
    }


def limits_report(plan: PrivacyPlan) -> list[dict[str, object]]:
    """Return the sliding limits as plain data."""
    epsilons = {"hour": plan.hour_epsilon, "day": plan.day_epsilon}
    return [
        {
            "name": name,
            "windows": windows,
            "epsilon": epsilons[name],
            "rho": cap / UNITS_PER_RHO,
            "windows_paid": cap // plan.charge_units,
        }
        for name, windows, cap in plan.sliding_caps
    ]


def schedule_rows(plan: PrivacyPlan) -> list[tuple[str, str]]:
    """Return what `schedule_report` says, and the rest of the budget, as rows of a table."""
    planned = PlannedWindows.of(plan)
    spec = plan.schedule_spec
    said = ", ".join(f"{name} {value}" for name, value in _parameters(spec).items())
    rows = [
        ("noise", f"{plan.noise}; charges become epsilon by {plan.privacy_filter.value}"),
        ("schedule", f"{spec.kind}, {said}" if said else spec.kind),
        ("charge of the first window", _window_text(plan, planned.runs[0])),
    ]
    if len(planned.runs) > 1:
        which = "last" if planned.is_whole else f"{planned.windows:,}th"
        share = 100 * planned.total_units / plan.cap_units
        rows += [
            (f"charge of the {which} window", _window_text(plan, planned.runs[-1])),
            ("planned so far" if not planned.is_whole else "planned", _total_text(planned, share)),
        ]
    if not plan.schedule.is_deterministic:
        rows.append(("assumed here", "that every release asks for what the first one had"))
    return rows + _limit_rows(plan)


def _limit_rows(plan: PrivacyPlan) -> list[tuple[str, str]]:
    rows = []
    for name, windows, cap in plan.sliding_caps:
        epsilon = plan.hour_epsilon if name == "hour" else plan.day_epsilon
        paid = cap // plan.charge_units
        pays_for = "all" if paid >= windows else f"{paid:,}"
        rest = "" if paid >= windows else "; others are throttled"
        rows.append(
            (
                f"limit of {windows:,} windows",
                f"{name}: epsilon {epsilon:g}, which pays for {pays_for} of them at the first "
                f"window's charge{rest}",
            )
        )
    return rows


def _total_text(planned: PlannedWindows, share: float) -> str:
    rho = planned.total_units / UNITS_PER_RHO
    return f"{planned.windows:,} windows for {rho:.6g} rho, {share:.4g} % of the budget"


def _window_report(plan: PrivacyPlan, run: PlannedRun) -> dict[str, float]:
    return {
        "rho": run.charge_units / UNITS_PER_RHO,
        "noise_multiplier": math.sqrt(run.noise_variance / plan.l2_sensitivity_squared),
        "noise_stddev_grid_steps": math.sqrt(run.noise_variance),
        "noise_to_signal": Utility.of(plan, run.noise_variance).noise_to_signal,
    }


def _window_text(plan: PrivacyPlan, run: PlannedRun) -> str:
    found = _window_report(plan, run)
    return (
        f"{found['rho']:.6g} rho: noise multiplier {found['noise_multiplier']:.4g}, noise of the "
        f"mean {found['noise_to_signal']:.3g} times the clip norm"
    )


def _parameters(spec: ScheduleSpec) -> dict[str, object]:
    """Return what the schedule was given, besides its kind."""
    values = asdict(spec)
    given = {
        item.name: values[item.name]
        for item in fields(spec)
        if item.name != "kind" and values[item.name] != item.default
    }
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }
