"""Checks what a ledger plans: sliding limits, and what released vectors decide.

The head keeps a ring of the newest charges; here the sum of any windows is the difference of two
running totals. The next charge of an adaptive schedule and the clip norm are computed from the
vectors on the public topic; what needs no vector is a rule of the chain (`stream.ledger_chain`).
"""

from collections.abc import Sequence

from schemas import ClipState, LedgerKind, LedgerRecord, Release
from stream.clip_progress import clip_after, next_clip_window
from stream.privacy.plan import PrivacyPlan
from stream.privacy.schedule_signal import Released

from .cluster_row import newest_cost


def limit_faults(
    plan: PrivacyPlan, before: LedgerRecord, record: LedgerRecord, totals: Sequence[int]
) -> list[str]:
    """Return what is wrong with a record under the sliding limits of the plan.

    Args:
        plan: The plan.
        before: The record before ``record``.
        record: The newest record.
        totals: What all windows up to each one have cost, oldest first, beginning with 0.
    """
    where = f"record {record.sequence}"
    if record.kind is LedgerKind.RELEASE:
        broken = _refusing(plan, totals, record.charge_units)
        return [f"{where} breaks the {name} limit" for name in broken]
    if record.kind is LedgerKind.THROTTLED and not _refusing(plan, totals, before.next_units):
        return [f"{where} throttles a window though no limit was reached"]
    return []


def consequence_faults(
    plan: PrivacyPlan,
    release: Release,
    *,
    planned_units: int,
    next_units: int,
    clip_before: ClipState | None,
    clip: ClipState | None,
) -> list[str]:
    """Return where a ledger record does not plan what its release's vector makes of the plan.

    Args:
        plan: The plan.
        release: What the record released.
        planned_units: What was planned for it; 0 if that is not known.
        next_units: What the record plans for the next window.
        clip_before: The state of adaptive clipping before it.
        clip: That state as the record has it.
    """
    faults = []
    if planned_units and not plan.schedule.is_deterministic:
        released = Released(release.vector[: plan.coordinate_count], release.noise_variance)
        wanted = plan.schedule.next_units(
            release.sequence, release.spent_units, planned_units, released
        )
        # No window is planned to cost more than a limit lets any windows cost together.
        if next_units != min([wanted, *(cap for _, _, cap in plan.sliding_caps)]):
            faults.append("the ledger plans another next charge than this vector asks for")
    if clip is None or clip_before is None:
        return faults
    if clip != clip_after(plan, clip_before, release.window, release.vector):
        faults.append("the ledger's clip norm is not what this vector makes of it")
    next_window = next_clip_window(plan, release.window) if clip.next_norm else 0
    announced = (release.clip_norm, release.next_clip_norm, release.next_clip_window)
    if announced != (clip.norm, clip.next_norm, next_window):
        faults.append("it announces another clip norm than the ledger")
    return faults


def _refusing(plan: PrivacyPlan, totals: Sequence[int], units: int) -> list[str]:
    """Return the limits that one more window of ``units`` would break."""
    return [
        name
        for name, windows, cap in plan.sliding_caps
        if newest_cost(totals, windows - 1) + units > cap
    ]
