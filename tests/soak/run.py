"""The soak: `make soak SOAK_MINUTES=20`, or `python tests/soak/run.py --output soak.json`.

Hours of windows in minutes: windows are as short as a plan may have them. Exit code 0 where
nothing grew and everything adds up.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from deployment import Deployment
from probes import Limits
from soak import CLIENT, Options, Report, Soak

from agents.local_kafka import NativeBroker
from agents.text_table import aligned
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

HEADS = 2
GROWTH_PERCENT = 1.0
# A worker's pools have so many threads in the end: its own, and the event loop's.
POOLS = 8 + min(32, (os.cpu_count() or 1) + 4)
# A third of the session timeout of a deployment's workers.
PAUSE_S = 2.0
# More than a soak can reach: the budget must not end before it.
HORIZON_WINDOWS = 10_000_000


def soak_plan(window_ms: int, clusters: int, dimension: int) -> PrivacyPlan:
    """Return a plan of windows that are sealed right after their end, from now on."""
    return PrivacyPlan(
        name="soak",
        dimension=dimension,
        cluster_count=clusters,
        assignment="hash",
        assignment_key="soak",
        expected_clients=500,
        start_ms=time.time_ns() // 1_000_000,
        window_length_ms=window_ms,
        grace_ms=window_ms // 10,
        release_delay_ms=window_ms // 2,
        l2_clip_norm=1.0,
        grid_l2_bound=256,
        count_weight=16,
        update_dtype="int8",
        epsilon=8.0,
        delta=1e-6,
        horizon_windows=HORIZON_WINDOWS,
        optimizer=OptimizerSpec("adam", 0.001),
        normalizer="expected_clients",
        topic_prefix="soak",
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run for long, fail if anything grows.")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    duration = parser.add_mutually_exclusive_group()
    duration.add_argument("--minutes", type=float, default=20.0, help="how long there is load")
    duration.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument("--windows-per-second", type=float, default=5.0, help="at most 10")
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--dimension", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2000.0, help="updates a second")
    parser.add_argument("--warm-up-seconds", type=float, help="a quarter, at most five minutes")
    parser.add_argument("--sample-seconds", type=float, default=2.0)
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> Options:
    seconds = arguments.seconds or 60 * arguments.minutes
    warm_up_s = arguments.warm_up_seconds
    return Options(
        seconds=seconds,
        warm_up_s=min(300.0, seconds / 4) if warm_up_s is None else warm_up_s,
        pause_s=PAUSE_S,
        sample_s=arguments.sample_seconds,
        rate=arguments.rate,
        limits={
            "": Limits(GROWTH_PERCENT, threads=POOLS),
            CLIENT: Limits(GROWTH_PERCENT),
        },
    )


def _table(report: Report) -> list[str]:
    rows = [("process", "first MiB", "last MiB", "growth %", "slope %", "fds", "threads")]
    for each in report.processes:
        sizes = [f"{kib / 1024:.2f}" for kib in (each.uss.first, each.uss.last)]
        percents = [f"{value:.2f}" for value in (each.growth_percent, each.slope_percent)]
        counts = [f"{t.first:g} -> {t.last:g}" for t in (each.fds, each.threads)]
        rows.append((each.name, *sizes, *percents, *counts))
    return aligned(rows)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    """Soak, write the report, print the verdict."""
    arguments = _arguments()
    window_ms = round(1000 / arguments.windows_per_second)
    with tempfile.TemporaryDirectory(prefix="sdp-soak-") as folder, NativeBroker() as broker:
        plan = soak_plan(window_ms, arguments.clusters, arguments.dimension)
        deployment = Deployment(broker.bootstrap_servers, plan, Path(folder))
        try:
            start = lambda: deployment.start_head(noise=True)  # noqa: E731
            report = Soak(deployment, _options(arguments)).run([start] * HEADS, _say)
        finally:
            deployment.close()
    arguments.output.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    lines = [*_table(report), *report.violations, report.last_line()]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
