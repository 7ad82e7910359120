"""What a process holds, sampled from outside, and whether that grows.

Linux only: everything is read from /proc. Memory is what the process alone holds (USS): the
pages of libraries and files come and go with what else the machine does.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from scipy.stats import theilslopes

# A head's transaction and each answer to a scrape have a thread that lives for milliseconds, so
# threads and descriptors are looked at so often a sample, and the fewest seen count.
_LOOKS = 5
_LOOK_APART_S = 0.01
_MOST_PAIRS_FROM = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process.

    Attributes:
        at_s: When, in seconds of the run.
        uss_kib: Memory that nobody else maps.
        pss_kib: The same, with its share of what others map too.
        rss_kib: All that it maps and that is in memory.
        fds: Open file descriptors.
        threads: Threads.
        metrics: Samples of /metrics; -1 where the process has none.
    """

    at_s: float
    uss_kib: int
    pss_kib: int
    rss_kib: int
    fds: int
    threads: int
    metrics: int = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be more at the end than after the warm-up.

    Attributes:
        memory_percent: Of memory, by medians and by slope.
        threads: A pool takes a new thread where the one that has just finished is not quite free
            again: it fills in its own time, and then is full.
        fds: Descriptors.
        metrics: Samples of /metrics.
    """

    memory_percent: float
    threads: int = 0
    fds: int = 0
    metrics: int = 0


@dataclass(frozen=True, slots=True)
class Trend:
    """First and last third of the samples of one figure after the warm-up."""

    first: float
    last: float

    @property
    def growth(self) -> float:
        return self.last - self.first


@dataclass(slots=True)
class Probe:
    """Samples of one process, and what they tell."""

    name: str
    pid: int
    count_metrics: Callable[[], int] = lambda: -1
    samples: list[Sample] = field(default_factory=list)

    def look(self, at_s: float) -> None:
        """Take a sample.

        Raises:
            OSError: the process is no more.
        """
        metrics = self.count_metrics()
        fds, threads = _fewest(self.pid)
        self.samples.append(Sample(at_s, *memory_kib(self.pid), fds, threads, metrics))

    def findings(self, warm_up_s: float, limits: Limits) -> "Findings":
        """Return what the samples after ``warm_up_s`` tell.

        Raises:
            ValueError: there are fewer than nine of them.
        """
        samples = [sample for sample in self.samples if sample.at_s >= warm_up_s]
        if len(samples) < 9:
            raise ValueError(f"{self.name}: {len(samples)} samples after the warm-up are too few")
        return Findings(
            name=self.name,
            uss=_medians([sample.uss_kib for sample in samples]),
            rss=_medians([sample.rss_kib for sample in samples]),
            uss_slope_kib_s=_slope(samples),
            span_s=samples[-1].at_s - samples[0].at_s,
            fds=_floors([sample.fds for sample in samples]),
            threads=_floors([sample.threads for sample in samples]),
            metrics=_floors([sample.metrics for sample in samples]),
            limits=limits,
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """What one process held after the warm-up and at the end."""

    name: str
    uss: Trend
    rss: Trend
    uss_slope_kib_s: float
    span_s: float
    fds: Trend
    threads: Trend
    metrics: Trend
    limits: Limits

    @property
    def growth_percent(self) -> float:
        """From the median of the first third to that of the last."""
        return 100 * self.uss.growth / self.uss.first

    @property
    def slope_percent(self) -> float:
        """What the slope makes of the whole time: a steady leak shows half as much again here."""
        return 100 * self.uss_slope_kib_s * self.span_s / self.uss.first

    @property
    def violations(self) -> list[str]:
        """What grew more than it may."""
        found = []
        worst = max(self.growth_percent, self.slope_percent)
        if worst > self.limits.memory_percent:
            found.append(
                f"{self.name}: memory grew {worst:.2f} % (limit {self.limits.memory_percent:g} %), "
                f"{self.uss_slope_kib_s * 60:.0f} KiB a minute"
            )
        for what in ("fds", "threads", "metrics"):
            if self.grows(what):
                trend: Trend = getattr(self, what)
                found.append(f"{self.name}: {what} grew from {trend.first:g} to {trend.last:g}")
        return found

    def grows(self, what: str) -> bool:
        """Say whether there are more of ``what`` (fds, threads or metrics) than there may be."""
        trend: Trend = getattr(self, what)
        limit: int = getattr(self.limits, what)
        return trend.growth > limit

    def as_json(self) -> dict[str, object]:
        """Return the figures as plain data."""
        return {
            "uss_kib_first": self.uss.first,
            "uss_kib_last": self.uss.last,
            "rss_kib_first": self.rss.first,
            "rss_kib_last": self.rss.last,
            "growth_percent": round(self.growth_percent, 3),
            "slope_percent": round(self.slope_percent, 3),
            "slope_kib_per_minute": round(self.uss_slope_kib_s * 60, 1),
            "fds": [self.fds.first, self.fds.last],
            "threads": [self.threads.first, self.threads.last],
            "metric_samples": [self.metrics.first, self.metrics.last],
        }


def memory_kib(pid: int) -> tuple[int, int, int]:
    """Return USS, PSS and RSS of a process in KiB."""
    values: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        values[name.rstrip(":")] = int(value)
    return values["Private_Clean"] + values["Private_Dirty"], values["Pss"], values["Rss"]


def _fewest(pid: int) -> tuple[int, int]:
    """Return the fewest descriptors and the fewest threads of a few looks."""
    looks = []
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_APART_S)
        looks.append([len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task")])
    fds, threads = map(min, zip(*looks, strict=True))
    return fds, threads


def _medians(values: Sequence[float]) -> Trend:
    third = len(values) // 3
    return Trend(median(values[:third]), median(values[-third:]))


def _floors(values: Sequence[float]) -> Trend:
    """Lower deciles: what is left when all that comes and goes is gone; a leak raises them."""
    third = len(values) // 3
    first, last = (sorted(part)[third // 10] for part in (values[:third], values[-third:]))
    return Trend(first, last)


def _slope(samples: Sequence[Sample]) -> float:
    """Theil-Sen: the median slope of all pairs, which a fifth of wild samples cannot move far."""
    thinned = samples[:: 1 + len(samples) // _MOST_PAIRS_FROM]
    times, sizes = [s.at_s for s in thinned], [s.uss_kib for s in thinned]
    return float(theilslopes(sizes, times).slope)
