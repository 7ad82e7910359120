"""What a head computes in memory for a window, against Flower's aggregate with central privacy.

Flower is given what its servers have, each update as float32 in its own encoding; it clips, sums
and adds numpy's normal noise. The head decodes, checks and sums int8 updates, charges, adds exact
noise and encodes.
"""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from backlog import run_process
from clocks import Clocks
from deployment import small_plan
from measurement import Effort, Result
from peer_environment import MissingPeerError, python_command
from throughput import Figures, in_turns

from schemas import Update, encode_ledger_record, encode_update
from stream.cluster_head import ClusterHead
from stream.ledger_chain import genesis
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import PrivacyPlan

COUNTS = {"1KB": (1_000, 4_000), "10KB": (10_000, 2_000), "100KB": (100_000, 300)}
COUNTS |= {"1MB": (1_000_000, 40)}
_BATCH_BYTES = 4 << 20  # as the feed gives
_DISTINCT_VECTORS = 16

Record = tuple[int, int, bytes]


def flower_results(effort: Effort) -> Iterator[Result]:
    """Yield how many times as fast as Flower a head computes a window, by size of update."""
    try:
        command = python_command("flower")
    except MissingPeerError as error:
        sys.stderr.write(f"flower is left out: {error}\n")
        return
    for size, (dimension, count) in COUNTS.items():
        yield size_result(command, size, dimension, count, effort.peer_rounds)


def size_result(
    command: Sequence[str], size: str, dimension: int, count: int, rounds: int
) -> Result:
    """Return the figure of one size: CPU time, as both are one thread."""
    plan = plan_of(dimension, count)
    records = window_of_updates(plan, count)
    aggregate(plan, records)  # builds the tables of the noise, once for all windows
    theirs = partial(
        run_process, [*command, str(count), str(dimension)], os.environ | {"PYTHONPATH": ""}
    )
    turns = in_turns([partial(aggregate, plan, records), theirs], rounds)
    gains = [flower["cpu_seconds"] / head["cpu_seconds"] for head, flower in turns]
    return Result(f"aggregate_vs_flower_{size}", "times as fast", gains)


def plan_of(dimension: int, clients: int) -> PrivacyPlan:
    """Return a plan of one cluster whose window has so many clients."""
    root = math.isqrt(dimension)
    return small_plan(
        dimension=dimension,
        grid_l2_bound=20 * root,
        count_weight=10 * root,
        cluster_count=1,
        expected_clients=clients,
    )


def window_of_updates(plan: PrivacyPlan, count: int) -> list[Record]:
    """Return the records of a plan's first window, each of another client."""
    rng = np.random.default_rng(0)
    vectors = rng.integers(-15, 16, (_DISTINCT_VECTORS, plan.dimension), np.int8)
    return [
        (
            n,
            plan.start_ms,
            encode_update(Update(plan.plan_id, f"client-{n}", 0, vectors[n % len(vectors)])),
        )
        for n in range(count)
    ]


def aggregate(plan: PrivacyPlan, records: Sequence[Record]) -> Figures:
    """Let a new head take all of a window, and seal it.

    Raises:
        RuntimeError: not all of them were counted.
    """
    first = encode_ledger_record(genesis(plan, 0, 0, 0, 0))
    noise = RoundedGaussian(os.urandom)
    head = ClusterHead(plan, 0, noise, [first], is_complete=True, max_open_windows=2)
    batch = max(1, _BATCH_BYTES // plan.dimension)
    counted = 0
    clocks = Clocks()
    for start in range(0, len(records), batch):
        counted += head.offer(records[start : start + batch]).accepted
    head.expect(0, len(records))
    head.seal(plan.window_end_ms(0))
    told = clocks.since()
    if counted != len(records):
        raise RuntimeError(f"{counted} of {len(records)} updates were counted")
    return told | {"counted": counted}
