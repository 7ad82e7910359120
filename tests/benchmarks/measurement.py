"""Interleaved timing, and figures with the floors that they are read against.

pyperf and pytest-benchmark time one thing after another, in processes or rounds of its own. Here
what is compared takes turns, and a ratio is formed within each round: whatever slows the machine
for a while slows both.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from agents.text_table import aligned


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repeats: int
    samples: int  # of a draw of ours or numpy's, and coordinates of a gradient
    opendp_samples: int
    memory_samples: int
    head_rounds: int = 0  # of a head on a broker; 0 leaves these figures out
    head_share: float = 1  # how much of what it reads in a full run
    latency_windows: int = 0  # likewise
    peer_rounds: int = 0  # of what a user would pick instead; likewise
    peer_share: float = 1  # how much of what it reads in a full run


@dataclass(frozen=True, slots=True)
class Floor:
    """What the median of a figure must reach."""

    sign: Literal["<=", ">="]
    bound: float

    def is_met_by(self, value: float) -> bool:
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: its value in each repeat."""

    name: str
    unit: str
    values: Sequence[float]
    floor: Floor | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def is_missed(self) -> bool:
        return self.floor is not None and not self.floor.is_met_by(self.median)


@dataclass(frozen=True, slots=True)
class Variant:
    """Something to time, and how many items one call makes."""

    run: Callable[[], object]
    items: int


def interleaved(
    variants: Mapping[str, Variant],
    repeats: int,
    clock_ns: Callable[[], int] = time.process_time_ns,
) -> dict[str, list[float]]:
    """Return nanoseconds an item of each variant in each of ``repeats`` rounds.

    Every round calls each variant once; an uncounted round before builds tables, compiles and
    touches memory. Every other round goes backwards, so that nobody always comes after the same
    neighbour.

    The clock counts the CPU time of all threads of this process: another process that wants the
    core does not show, and a library that secretly used a second thread would.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant.run()
    for repeat in range(repeats):
        for name in list(variants)[:: 1 if repeat % 2 == 0 else -1]:
            start = clock_ns()
            variants[name].run()
            times[name].append((clock_ns() - start) / variants[name].items)
    return times


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def as_json(results: Sequence[Result]) -> dict[str, dict[str, float | str]]:
    """Return what bench.json holds.

    Raises:
        ValueError: two results have the same name.
    """
    figures: dict[str, dict[str, float | str]] = {
        result.name: {
            "median": result.median,
            "min": min(result.values),
            "max": max(result.values),
            "unit": result.unit,
        }
        for result in results
    }
    if len(figures) < len(results):
        raise ValueError("two results have the same name")
    return figures


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table: each figure beside its floor."""
    rows = [("figure", "median", "min", "max", "unit", "floor", "")]
    for result in results:
        middle, least, most = map(_digits, (result.median, min(result.values), max(result.values)))
        verdict = "" if result.floor is None else "MISSED" if result.is_missed else "ok"
        floor = "" if result.floor is None else str(result.floor)
        rows.append((result.name, middle, least, most, result.unit, floor, verdict))
    return aligned(rows)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
