"""The benchmark suite: `make bench`, or `python tests/benchmarks/run.py --output bench.json`.

One run, one thread; heads, and what they are compared with, are processes beside a broker of their
own. Nothing is asserted: a figure is printed beside its floor, for a person to judge on a quiet
machine.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from measurement import Effort, Result, as_json, table

FULL = Effort(
    repeats=31,
    samples=1_000_000,
    opendp_samples=2_000,
    memory_samples=10_000_000,
    head_rounds=7,
    latency_windows=120,
    peer_rounds=5,
)
QUICK = replace(
    FULL,
    repeats=5,
    opendp_samples=1_000,
    head_rounds=3,
    head_share=0.5,
    latency_windows=40,
    peer_rounds=1,
    peer_share=0.5,
)
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("MKL", "NUMBA", "OMP", "OPENBLAS", "POLARS")
}
PACKAGES = ("numpy", "numba", "opendp", "dp-accounting")


def measured(effort: Effort) -> Iterator[Result]:
    """Yield every figure."""
    # Not above: numpy and numba read the number of threads when they are imported.
    from aggregation import flower_results
    from client_path import client_results
    from epsilon import DEFAULT_PLAN, epsilon_results
    from latency import latency_results
    from loop_lag import lag_results
    from merge import merge_results
    from peers import found_commands, peer_results
    from sampler import sampler_results
    from throughput import head_results

    from agents.native_kafka import NativeBroker, say_on_stderr
    from stream.privacy.plan import PrivacyPlan

    yield from sampler_results(effort)
    yield from client_results(effort)
    yield from merge_results(effort)
    if effort.head_rounds:
        peers = None
        if effort.peer_rounds:
            peers = partial(peer_results, commands=found_commands(), effort=effort)
        yield from head_results(effort.head_rounds, effort.head_share, peers)
    if effort.peer_rounds:
        yield from flower_results(effort)
    if effort.latency_windows:
        with NativeBroker(say=say_on_stderr) as broker:
            yield from latency_results(broker.bootstrap_servers, effort.latency_windows)
            yield from lag_results(broker.bootstrap_servers, effort.head_rounds)
    yield from epsilon_results(PrivacyPlan.from_toml(DEFAULT_PLAN.read_text(encoding="utf-8")))


def circumstances() -> str:
    """Return what the figures depend on, in a line."""
    names = " ".join(f"{name} {_version(name)}" for name in PACKAGES)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, load {load} before; "
        f"python {platform.python_version()} {names}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure, print a table, write JSON.")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: a few minutes")
    return parser.parse_args()


def main() -> None:
    """Measure; write the file only when everything was measured."""
    arguments = _arguments()
    os.environ.update(ONE_THREAD)
    before, start = circumstances(), time.monotonic()
    results = list(measured(QUICK if arguments.quick else FULL))
    arguments.output.write_text(json.dumps(as_json(results), indent=2) + "\n", encoding="utf-8")
    missed = sum(result.is_missed for result in results)
    floors = sum(result.floor is not None for result in results)
    lines = [
        *table(results),
        "",
        before,
        f"{time.monotonic() - start:.0f} s; {floors - missed} of {floors} floors reached; "
        f"written to {arguments.output}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
