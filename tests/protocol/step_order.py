"""In which order a process of a model passes its steps."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from checker import Label, check

from agents.protocol_steps import Step

Order = set[tuple[str, str]]


def order_of(model: Any, max_faults: int) -> Order:
    """Return each pair of steps that one process may pass one right after the other."""
    pairs: Order = set()

    def observe(before: Any, label: Label, after: Any) -> None:
        if label.who >= 0:
            pairs.add((before.processes[label.who].at, after.processes[label.who].at))

    check(model, max_faults, [], observe=observe)
    return _between_named_steps(pairs)


def _between_named_steps(pairs: Order) -> Order:
    """Return the pairs with what has no name in the code left out in between."""
    named = {each.value for each in Step}
    unnamed = {after for _, after in pairs} - named
    for middle in unnamed:
        before = {first for first, second in pairs if second == middle}
        after = {second for first, second in pairs if first == middle}
        pairs = pairs | {(first, second) for first in before for second in after}
    return {(first, second) for first, second in pairs if {first, second} <= named}


def strangers(order: Order, steps: Iterable[str]) -> Order:
    """Return the pairs of successive ``steps`` that are not in ``order``."""
    passed = list(steps)
    # A step that is tried again is passed again.
    return {pair for pair in pairwise(passed) if pair[0] != pair[1]} - order
