"""Scaling out: `make bench-scale`, or `python tests/benchmarks/scale.py --output scale.json`.

Throughput for a second of CPU time (a machine has few cores, and the heads are not its only
processes) by worker processes that share clusters; how the cost grows with clusters, clients,
dimension and message size, with the slope of each on log-log axes (1 is proportional) and a plot
beside the JSON file; and a window of 8,000,000 parameters in 4 clusters. Needs the demo extra.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
from large_release import large_release_results
from measurement import Result, as_json, ratios, table
from paused_heads import Cost, Load, PausedHeads
from throughput import in_turns

from agents.native_kafka import NativeBroker, say_on_stderr

_ROUNDS, _LARGE_WINDOWS = 3, 2


@dataclass(frozen=True, slots=True)
class Sweep:
    """A cost that is followed while one thing grows.

    Attributes:
        name: What grows, as in the names of the figures.
        axis: The same, as it stands under the plot.
        unit: What the cost is in.
        size: What stands on the axis for a load.
        cost: What stands beside it for what the load took.
        loads: From the smallest to the largest.
    """

    name: str
    axis: str
    unit: str
    size: Callable[[Load], int]
    cost: Callable[[Load, Cost], float]
    loads: Sequence[Load]


@dataclass(frozen=True, slots=True)
class Curve:
    """A sweep that was measured: the median cost by size, and the slope of each round."""

    sweep: Sweep
    points: Sequence[tuple[int, float]]
    slopes: Sequence[float]


def _ms_a_window(_: Load, cost: Cost) -> float:
    return 1e3 * cost.cpu_s / cost.windows


def _us_an_update(load: Load, cost: Cost) -> float:
    return 1e6 * cost.cpu_s / load.updates


def _message_bytes(load: Load) -> int:
    return load.per_message * load.dimension


SHARED = tuple(Load(clusters=4, clients=50_000, workers=workers) for workers in (1, 2, 4))
SWEEPS = (
    Sweep(
        "clusters",
        "clusters, of 2,000 clients each",
        "CPU ms/window",
        lambda load: load.clusters,
        _ms_a_window,
        tuple(Load(clusters=clusters, clients=2_000) for clusters in (1, 2, 4, 8)),
    ),
    Sweep(
        "clients",
        "clients of a cluster",
        "CPU ms/window",
        lambda load: load.clients,
        _ms_a_window,
        tuple(Load(clients=clients) for clients in (100, 1_000, 10_000, 100_000)),
    ),
    Sweep(
        "dimension",
        "coordinates of an update, of 200 a window",
        "CPU µs/update",
        lambda load: load.dimension,
        _us_an_update,
        tuple(Load(clients=200, dimension=10**power) for power in (3, 4, 5, 6)),
    ),
    Sweep(
        "message_size",
        "bytes of a message of 1,000-byte updates",
        "CPU µs/update",
        _message_bytes,
        _us_an_update,
        tuple(Load(clients=50_000, per_message=count) for count in (1, 4, 16, 64)),
    ),
)


def measured(servers: str, rounds: int, large_windows: int) -> tuple[list[Result], list[Curve]]:
    """Return all figures, and what is to be plotted."""
    results = list(sharing_results(servers, SHARED, rounds))
    curves = [curve_of(servers, sweep, rounds) for sweep in SWEEPS]
    for curve in curves:
        results += curve_results(curve)
    results += large_release_results(servers, large_windows)
    return results, curves


def sharing_results(servers: str, loads: Sequence[Load], rounds: int) -> Iterator[Result]:
    """Yield updates a CPU second by the number of workers, and against the first number."""
    costs = _costs(servers, loads, rounds)
    rates = [
        [load.updates / cost.cpu_s for cost in of_load]
        for load, of_load in zip(loads, costs, strict=True)
    ]
    for load, of_load in zip(loads, rates, strict=True):
        yield Result(f"scale_workers_{load.workers}", "updates/CPU s", of_load)
    for load, of_load in zip(loads[1:], rates[1:], strict=True):
        name = f"scale_workers_{load.workers}_vs_{loads[0].workers}"
        yield Result(name, "of its updates/CPU s", ratios(of_load, rates[0]))


def curve_of(servers: str, sweep: Sweep, rounds: int) -> Curve:
    """Measure a sweep."""
    sizes = [sweep.size(load) for load in sweep.loads]
    values = [
        [sweep.cost(load, cost) for cost in of_load]
        for load, of_load in zip(sweep.loads, _costs(servers, sweep.loads, rounds), strict=True)
    ]
    points = [(size, median(of_load)) for size, of_load in zip(sizes, values, strict=True)]
    return Curve(sweep, points, [slope(sizes, of_round) for of_round in zip(*values, strict=True)])


def curve_results(curve: Curve) -> Iterator[Result]:
    """Yield the points of a curve, and its slope."""
    name = curve.sweep.name
    for size, cost in curve.points:
        yield Result(f"scale_{name}_{size}", curve.sweep.unit, [cost])
    yield Result(f"scale_{name}_slope", "log/log", curve.slopes)


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent of the power law that fits best: least squares on the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def plot(curve: Curve, path: Path) -> None:
    """Draw a curve on log-log axes, with its slope; the name's end says the format."""
    from matplotlib.figure import Figure

    sizes, costs = zip(*curve.points, strict=True)
    exponent = median(curve.slopes)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.loglog(sizes, costs, "o-", color="tab:blue")
    axes.set_xlabel(curve.sweep.axis)
    axes.set_ylabel(curve.sweep.unit)
    axes.set_title(f"slope {exponent:.2f}")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.savefig(path)


def _costs(servers: str, loads: Sequence[Load], rounds: int) -> list[list[Cost]]:
    """Return the costs of each load; in a round the loads take turns."""
    with ExitStack() as stack:
        heads = []
        for load in loads:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sdp-bench-"))
            heads.append(PausedHeads(servers, Path(folder), load))
            stack.callback(heads[-1].close)
        # The first turn fills caches.
        of_rounds = in_turns([each.run for each in heads], rounds + 1)[1:]
    return [list(of_load) for of_load in zip(*of_rounds, strict=True)]


def main() -> None:
    """Measure; write the files only when everything was measured."""
    parser = argparse.ArgumentParser(description="Measure how heads scale; write JSON and plots.")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    output = parser.parse_args().output
    start = time.monotonic()
    with NativeBroker(say=say_on_stderr) as broker:
        results, curves = measured(broker.bootstrap_servers, _ROUNDS, _LARGE_WINDOWS)
    output.write_text(json.dumps(as_json(results), indent=2) + "\n", encoding="utf-8")
    plots = [output.with_name(f"{output.stem}-{curve.sweep.name}.svg") for curve in curves]
    for curve, path in zip(curves, plots, strict=True):
        plot(curve, path)
    lines = [
        *table(results),
        "",
        f"{time.monotonic() - start:.0f} s; written to {output}, {', '.join(map(str, plots))}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
