"""`make protocol`: a search of the protocol that takes minutes, and says what it saw."""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from broken_rules import BROKEN_DEEP
from checker import Report, check
from merge_model import MergeModel
from merge_state import MergeSetup
from release_model import ReleaseModel
from release_state import LEDGER, OFFSETS, OUTBOX, PARTICIPATION, Setup

MARKERS = (LEDGER, OUTBOX, OFFSETS)


def searches(extra_faults: int) -> Iterator[tuple[str, Any, int]]:
    """Yield what is searched: its name, the model, and how many faults."""
    heads = (
        ("two heads, two windows", Setup(2, 2, losable=MARKERS), 3),
        ("two heads, the budget ends", Setup(3, 2), 3),
        ("two heads, four faults", Setup(1, 1), 4),
        (
            "two heads, clients pay",
            Setup(2, 1, clients_pay=True, losable=(LEDGER, OUTBOX, PARTICIPATION)),
            3,
        ),
        ("two heads, clients pay, three windows", Setup(3, 3, clients_pay=True), 2),
    )
    for name, setup, faults in heads:
        yield name, ReleaseModel(setup), faults + extra_faults
    for releases, faults in ((6, 2), (4, 3)):
        name = f"two global agents, {releases} releases"
        yield name, MergeModel(MergeSetup(releases)), faults + extra_faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Search the models of the protocol.")
    parser.add_argument(
        "--extra-faults", type=int, default=0, help="faults beyond the usual (default: 0)"
    )
    is_fine = True
    for name, model, faults in searches(parser.parse_args().extra_faults):
        report = _told(f"{name}, {faults} faults", model, faults)
        is_fine &= report.violation is None and report.is_exhaustive
    for broken in BROKEN_DEEP:
        report = _told(f"without {broken.rules}", broken.model, broken.faults, [broken.promise])
        is_fine &= report.violation is not None and report.violation.faults == broken.faults
    return 0 if is_fine else 1


def _told(name: str, model: Any, faults: int, promises: list[str] | None = None) -> Report[Any]:
    begin = time.monotonic()
    report = check(model, faults, promises)
    seconds = time.monotonic() - begin
    print(f"{name}: {report} ({seconds:.0f} s)", flush=True)  # noqa: T201 - a script's output
    return report


if __name__ == "__main__":
    sys.exit(main())
