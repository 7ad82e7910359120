"""A real head against a consumer that only sums, on one backlog of a real broker, in turns."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backlog import Backlog
from measurement import Floor, Result

from agents.native_kafka import NativeBroker, say_on_stderr


@dataclass(frozen=True, slots=True)
class Size:
    """One size of update, and what a head's speed must be, as a part of the limit's."""

    name: str
    dimension: int
    clients: int
    floor: float
    windows: int


# About half a gigabyte each, or more, so that a window is mostly sums. The noise of a window costs
# as much however many its clients are.
SIZES = (
    Size("1KB", 1_000, 40_000, 0.80, 10),
    Size("10KB", 10_000, 15_000, 0.80, 6),
    Size("100KB", 100_000, 2_000, 0.75, 4),
    Size("1MB", 1_000_000, 400, 0.70, 2),
)
_MOST_CPU = 1.25
_MOST_MIB = 512
_BATCH = 64

Figures = dict[str, float]
PeerResults = Callable[[Backlog, str], Iterator[Result]]


def head_results(rounds: int, peers: PeerResults | None = None) -> Iterator[Result]:
    """Yield a head's throughput, CPU time and memory for each size, against the limit's."""
    with NativeBroker(say=say_on_stderr) as broker:
        for size in SIZES:
            yield from size_results(broker.bootstrap_servers, size, rounds, peers)
        yield from batch_results(broker.bootstrap_servers, SIZES[0], rounds)


def size_results(
    servers: str, size: Size, rounds: int, peers: PeerResults | None = None
) -> Iterator[Result]:
    """Yield the figures of one size of update."""
    with backlog_of(servers, size) as backlog:
        # The first one of each fills caches, of the operating system too.
        backlog.run_limit()
        backlog.run_head()
        both = in_turns([backlog.run_limit, backlog.run_head], rounds)
        if peers is not None:
            yield from peers(backlog, size.name)
    speeds = [limit["seconds"] / head["seconds"] for limit, head in both]
    yield Result(f"head_vs_limit_{size.name}", "of its speed", speeds, Floor(">=", size.floor))
    cpu = [head["cpu_seconds"] / limit["cpu_seconds"] for limit, head in both]
    floor = Floor("<=", _MOST_CPU) if size.name == "10KB" else None
    yield Result(f"cpu_vs_limit_{size.name}", "of its CPU time", cpu, floor)
    rates = [backlog.count / head["seconds"] for _, head in both]
    yield Result(f"head_{size.name}", "updates/s", rates)
    peaks = [head["peak_mib"] for _, head in both]
    yield Result(f"head_peak_{size.name}", "MiB", peaks, Floor("<=", _MOST_MIB))


def batch_results(servers: str, size: Size, rounds: int) -> Iterator[Result]:
    """Yield how much faster a head reads updates that come many in a message."""
    with (
        backlog_of(servers, size) as single,
        backlog_of(servers, size, per_message=_BATCH) as batched,
    ):
        both = in_turns([single.run_head, batched.run_head], rounds)
    gains = [one["seconds"] / many["seconds"] for one, many in both]
    yield Result(f"batch{_BATCH}_vs_single", "times as fast", gains, Floor(">=", 2))


@contextmanager
def backlog_of(servers: str, size: Size, per_message: int = 1) -> Iterator[Backlog]:
    """Give a backlog, and delete it afterwards."""
    with tempfile.TemporaryDirectory(prefix="sdp-bench-") as folder:
        backlog = Backlog(
            servers,
            Path(folder),
            dimension=size.dimension,
            clients=size.clients,
            windows=size.windows,
            per_message=per_message,
        )
        try:
            yield backlog
        finally:
            backlog.close()


def in_turns(runs: Sequence[Callable[[], Figures]], rounds: int) -> list[list[Figures]]:
    """Run each once a round, every other round backwards; return the figures of each round."""
    done = []
    for number in range(rounds):
        order = runs if number % 2 == 0 else runs[::-1]
        figures = [run() for run in order]
        done.append(figures if number % 2 == 0 else figures[::-1])
    return done
