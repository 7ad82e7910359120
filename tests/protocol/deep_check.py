"""`make protocol`: a search of the release protocol that takes minutes, and says what it saw."""

import argparse
import sys

from checker import check
from release_model import ReleaseModel
from release_state import Setup


def main() -> int:
    parser = argparse.ArgumentParser(description="Search the model of the release protocol.")
    parser.add_argument("--windows", type=int, default=2, help="windows to seal (default: 2)")
    parser.add_argument("--faults", type=int, default=3, help="at most so many (default: 3)")
    given = parser.parse_args()
    setup = Setup(given.windows, max(1, given.windows - 1), loses_offsets=True)
    report = check(ReleaseModel(setup), given.faults)
    print(report)  # noqa: T201 - a script's output
    return int(report.violation is not None)


if __name__ == "__main__":
    sys.exit(main())
