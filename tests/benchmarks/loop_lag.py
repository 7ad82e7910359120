"""How long a head's event loop is held up while it reads a backlog and seals short windows."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from latency import percentile
from measurement import Floor, Result
from paused_heads import Cost, Load, PausedHeads

_WORKER = Path(__file__).with_name("lag_worker.py")
_LONGEST = Floor("<=", 50)
# A hundred megabytes each, of small updates and of large ones; a window of the latter takes a head
# longer than the 100 ms that the others have.
LOADS = (
    Load(clusters=4, clients=25_000, dimension=1_000, window_ms=100, windows=10),
    Load(clusters=1, clients=100, dimension=1_000_000, window_ms=1000, windows=2),
)


def lag_results(servers: str, rounds: int) -> Iterator[Result]:
    """Yield what the longest waits of the loop were, in so many backlogs of each kind."""
    yield from figures([run for load in LOADS for run in measured_lags(servers, load, rounds)])


def figures(lags_of_runs: Sequence[Sequence[float]]) -> Iterator[Result]:
    """Yield the longest waits of each run, in milliseconds.

    They are the operating system's as well: a process that does not get a core waits too.
    """
    longest = [1e3 * percentile(lags, 0.99) for lags in lags_of_runs]
    yield Result("event_loop_lag_p99", "ms", longest)
    yield Result("event_loop_lag_max", "ms", [1e3 * max(lags) for lags in lags_of_runs], _LONGEST)


def measured_lags(servers: str, load: Load, rounds: int) -> list[list[float]]:
    """Return how much too late the loop was while it read the load, for each round."""
    with tempfile.TemporaryDirectory(prefix="sdp-bench-") as folder:
        told = Path(folder) / "sleeps.json"
        arguments = [str(_WORKER), str(told)]
        heads = PausedHeads(
            servers, Path(folder), load, lambda deployment: deployment.start("head", arguments)
        )
        try:
            costs = [heads.run() for _ in range(rounds)]
            for worker in heads.workers:
                worker.stop()
            sleeps = json.loads(told.read_text())
        finally:
            heads.close()
    return [_lags_in(cost, sleeps) for cost in costs]


def _lags_in(cost: Cost, sleeps: Sequence[tuple[float, float]]) -> list[float]:
    # One that began before the run spans the time in which the head stood still.
    end_s = cost.begin_s + cost.wall_s
    return [max(lag, 0.0) for begin, lag in sleeps if cost.begin_s <= begin < end_s]
