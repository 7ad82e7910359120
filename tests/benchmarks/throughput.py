"""A real head against a consumer that only sums, on one backlog of a real broker, in turns."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backlog import Backlog
from measurement import Effort, Floor, Result

from agents.native_kafka import NativeBroker, say_on_stderr


@dataclass(frozen=True, slots=True)
class Size:
    """One size of update, and what a head's speed must be, as a part of the limit's."""

    name: str
    dimension: int
    clients: int
    floor: float


# About half a gigabyte each; a window's clients are as many as a cluster of that size may have.
SIZES = (
    Size("1KB", 1_000, 100_000, 0.80),
    Size("10KB", 10_000, 15_000, 0.80),
    Size("100KB", 100_000, 1_500, 0.75),
    Size("1MB", 1_000_000, 150, 0.70),
)
WINDOWS = 4
_MOST_CPU = 1.25


def head_results(effort: Effort) -> Iterator[Result]:
    """Yield the head's throughput and CPU time as parts of the limit's, for each size."""
    with NativeBroker(say=say_on_stderr) as broker:
        for size in SIZES:
            yield from size_results(broker.bootstrap_servers, size, WINDOWS, effort.repeats)


def size_results(servers: str, size: Size, windows: int, repeats: int) -> Iterator[Result]:
    """Yield the figures of one size."""
    with tempfile.TemporaryDirectory(prefix="sdp-bench-") as folder:
        backlog = Backlog(
            servers, Path(folder), dimension=size.dimension, clients=size.clients, windows=windows
        )
        try:
            # The first one of each fills caches, of the operating system too.
            backlog.run_limit()
            rounds = [_round(backlog, is_even=n % 2 == 0) for n in range(repeats)]
        finally:
            backlog.close()
    speeds = [limit["seconds"] / head["seconds"] for limit, head in rounds]
    cpu = [head["cpu_seconds"] / limit["cpu_seconds"] for limit, head in rounds]
    yield Result(
        f"head_updates_{size.name}",
        "updates/s",
        [backlog.count / head["seconds"] for _, head in rounds],
    )
    yield Result(f"head_vs_limit_{size.name}", "of its updates/s", speeds, Floor(">=", size.floor))
    yield Result(f"cpu_vs_limit_{size.name}", "of its CPU time", cpu, Floor("<=", _MOST_CPU))
    yield Result(f"head_peak_{size.name}", "MiB", [head["peak_mib"] for _, head in rounds])


def _round(backlog: Backlog, *, is_even: bool) -> tuple[dict[str, float], dict[str, float]]:
    if is_even:
        return backlog.run_limit(), backlog.run_head()
    head = backlog.run_head()
    return backlog.run_limit(), head
