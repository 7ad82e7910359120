"""The same input without a crash: what the releases and the model would have been.

Updates have their windows from the broker's clock, so the log itself is the input. It is read by
one head that never stops, and its releases (there is no noise in a chaos run) must be the public
ones, byte by byte. Likewise each model must be the one before it and a step over whole releases.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from schemas import ModelState, Release, decode_release
from stream.aggregation.intake import Record
from stream.cluster_head import ClusterHead
from stream.privacy.plan import PrivacyPlan
from stream.testing import UnsafeNoNoise

_BATCH = 1000


def releases_without_a_crash(
    plan: PrivacyPlan, cluster: int, genesis: bytes, records: Sequence[Record], last_window: int
) -> dict[int, bytes]:
    """Return the bytes of each release up to ``last_window``, by window.

    Args:
        plan: The plan.
        cluster: The cluster.
        genesis: The first record of its ledger.
        records: Its partition of the updates, whole.
        last_window: Where to end.
    """
    head = ClusterHead(
        plan, cluster, UnsafeNoNoise(), [genesis], is_complete=True, max_open_windows=1 << 30
    )
    for begin in range(0, len(records), _BATCH):
        head.offer(records[begin : begin + _BATCH])
    now_ms = plan.window_end_ms(last_window) + plan.grace_ms
    head.expect(last_window, head.position)
    releases = {}
    while head.next_window <= last_window:
        cell = head.seal(now_ms)
        if cell.release is not None:
            releases[cell.window] = cell.release
        head.commit(cell)
    return releases


def model_faults(
    plan: PrivacyPlan, states: Sequence[ModelState], releases: Mapping[tuple[int, int], Release]
) -> list[str]:
    """Return what is wrong with the models of a plan with plain SGD; nothing if all is right.

    A state says how far each cluster is merged, so two neighbours say which releases the step
    between them has merged: each release is in exactly one step, whatever the order was.
    """
    faults = []
    versions = [state.model_version for state in states]
    if versions != list(range(len(versions))):
        faults.append(f"model versions are {versions}")
    for before, after in pairwise(states):
        cells = [cell for cell in releases if _is_between(cell, before, after)]
        expected = before.vectors[0] - _step(plan, [releases[cell] for cell in cells])
        if not np.allclose(after.vectors[0], expected, rtol=1e-9, atol=1e-12):
            faults.append(
                f"model version {after.model_version} is not version {before.model_version} and "
                f"a step over {sorted(cells)}"
            )
    return faults


def _is_between(cell: tuple[int, int], before: ModelState, after: ModelState) -> bool:
    cluster, window = cell
    return before.merged_through[cluster] < window <= after.merged_through[cluster]


def _step(plan: PrivacyPlan, merged: Iterable[Release]) -> np.ndarray:
    vectors = [release.vector[: plan.dimension].astype(np.float64) for release in merged]
    divisor = plan.expected_clients * len(vectors) / plan.cluster_count
    return plan.optimizer.learning_rate * plan.grid_step * np.sum(vectors, axis=0) / divisor


def decoded(releases: Mapping[tuple[int, int], bytes]) -> dict[tuple[int, int], Release]:
    """Return the releases as values."""
    return {cell: decode_release(data) for cell, data in releases.items()}
