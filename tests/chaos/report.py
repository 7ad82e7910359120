"""What a chaos run did, as JSON and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that was injected.

    Attributes:
        kind: Its name.
        recovery_s: Seconds from its end until every cluster had released a later window; None
            where that did not happen.
        problems: What the verifier found after it.
        updates_lost: Acknowledged updates that were gone after it and not before.
        is_fault: False for the comparison at the end of a round, which injects nothing.
    """

    kind: str
    recovery_s: float | None
    problems: tuple[str, ...] = ()
    updates_lost: int = 0
    is_fault: bool = True


def as_json(entries: Sequence[Injected]) -> dict[str, object]:
    """Return the contract for scripts."""
    faults = [entry for entry in entries if entry.is_fault]
    kinds = sorted({fault.kind for fault in faults})
    return {
        "faults": len(faults),
        "by_kind": {kind: sum(fault.kind == kind for fault in faults) for kind in kinds},
        "violations": sum(len(entry.problems) for entry in entries),
        "updates_lost": sum(entry.updates_lost for entry in entries),
        "recovery_s": _seconds(faults),
        "recovery_s_by_kind": {
            kind: _seconds([fault for fault in faults if fault.kind == kind]) for kind in kinds
        },
        "problems": [f"{entry.kind}: {line}" for entry in entries for line in entry.problems],
    }


def table(faults: Sequence[Injected]) -> str:
    """Return a row a kind: times injected, violations, updates lost, seconds to recover."""
    kinds = sorted({fault.kind for fault in faults})
    width = max((len(kind) for kind in kinds), default=5)
    lines = [f"{'fault':{width}}  times  violations  lost  seconds to the next release: p50, max"]
    for kind in kinds:
        ours = [fault for fault in faults if fault.kind == kind]
        seconds = _seconds(ours)
        lines.append(
            f"{kind:{width}}  {len(ours):5}  {sum(len(f.problems) for f in ours):10}"
            f"  {sum(f.updates_lost for f in ours):4}  {_text(seconds['p50'])}, "
            f"{_text(seconds['max'])}"
        )
    return "\n".join(lines)


def last_line(entries: Sequence[Injected]) -> str:
    """Return the line that a script looks for."""
    figures = as_json(entries)
    return (
        f"{figures['faults']} faults, {figures['violations']} violations, "
        f"{figures['updates_lost']} updates lost"
    )


def _seconds(faults: Sequence[Injected]) -> dict[str, float | None]:
    known = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
    if not known:
        return {"p50": None, "max": None}
    return {"p50": round(median(known), 2), "max": round(max(known), 2)}


def _text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"
