"""A real head against a consumer that only sums, on one backlog of a real broker, in turns."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
    per_message: int = 1  # as many in a message, as well as one


# About half a gigabyte each, or more, so that a window is mostly sums. The noise of a window costs
# as much however many its clients are.
SIZES = (
    Size("1KB", 1_000, 40_000, 0.80, 10, per_message=64),
    Size("10KB", 10_000, 15_000, 0.80, 6),
    Size("100KB", 100_000, 2_000, 0.75, 4),
    Size("1MB", 1_000_000, 400, 0.70, 2),
)
_MOST_CPU = 1.25
_MOST_MIB = 512

Figures = dict[str, float]
PeerResults = Callable[[Backlog, str], Iterator[Result]]


def head_results(rounds: int, share: float, peers: PeerResults | None = None) -> Iterator[Result]:
    """Yield a head's throughput, CPU time and memory for each size, against the limit's.

    ``share``: Of a backlog's windows.
    """
    with NativeBroker(say=say_on_stderr) as broker:
        for size in SIZES:
            part = replace(size, windows=max(1, round(share * size.windows)))
            yield from size_results(broker.bootstrap_servers, part, rounds, peers)


def size_results(
    servers: str, size: Size, rounds: int, peers: PeerResults | None = None
) -> Iterator[Result]:
    """Yield the figures of one size of update."""
    with ExitStack() as stack:
        backlog = stack.enter_context(backlog_of(servers, size))
        runs = [backlog.run_limit, backlog.run_head]
        if size.per_message > 1:
            batches = stack.enter_context(backlog_of(servers, size, size.per_message))
            runs.append(batches.run_head)
        # The first one of each fills caches, of the operating system too.
        for run in runs:
            run()
        figures = in_turns(runs, rounds)
        if peers is not None:
            yield from peers(backlog, size.name)
    limits, heads, *batched = zip(*figures, strict=True)
    speeds = _quotients(limits, heads, "seconds")
    yield Result(f"head_vs_limit_{size.name}", "of its speed", speeds, Floor(">=", size.floor))
    cpu = _quotients(heads, limits, "cpu_seconds")
    floor = Floor("<=", _MOST_CPU) if size.name == "10KB" else None
    yield Result(f"cpu_vs_limit_{size.name}", "of its CPU time", cpu, floor)
    rates = [backlog.count / head["seconds"] for head in heads]
    yield Result(f"head_{size.name}", "updates/s", rates)
    yield _peaks(f"head_peak_{size.name}", heads)
    for many in batched:
        name, gains = f"batch{size.per_message}", _quotients(heads, many, "seconds")
        yield Result(f"{name}_vs_single", "times as fast", gains, Floor(">=", 2))
        yield _peaks(f"head_peak_{name}", many)


def _quotients(above: Sequence[Figures], below: Sequence[Figures], name: str) -> list[float]:
    return [one[name] / other[name] for one, other in zip(above, below, strict=True)]


def _peaks(name: str, heads: Sequence[Figures]) -> Result:
    return Result(name, "MiB", [head["peak_mib"] for head in heads], Floor("<=", _MOST_MIB))


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
