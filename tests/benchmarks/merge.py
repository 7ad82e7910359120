"""The global model's merge of one window: CPU time of one thread, and memory, by clusters."""

import time
from collections.abc import Iterator

import numpy as np
from deployment import small_plan
from measurement import Effort, Floor, Result
from sampler import peak_bytes

from schemas import Release, decode_release, encode_release
from stream.global_model import GlobalModel, Stepped
from stream.privacy.plan import PrivacyPlan

_CLUSTERS, _FEW_CLUSTERS = 64, 4
_DIMENSION = 1_000_000
_LARGEST = 1_000_000  # of a coordinate that is released, either way
_MOST_SECONDS = Floor("<=", 2)
_MOST_GROWTH = Floor("<=", 1.1)
_MOST_REPEATS = 5


class Merge:
    """One window's releases, encoded, into one model."""

    def __init__(self, clusters: int, dimension: int) -> None:
        self.plan: PrivacyPlan = small_plan(
            dimension=dimension,
            cluster_count=clusters,
            expected_clients=100 * clusters,
            grid_l2_bound=20 * round(dimension**0.5),
            start_ms=0,
        )

    def vector(self, cluster: int) -> np.ndarray:
        """What a cluster releases, the same each time."""
        rng = np.random.default_rng(cluster)
        dtype = np.dtype(self.plan.release_dtype)
        return rng.integers(-_LARGEST, _LARGEST, self.plan.release_size, dtype, endpoint=True)

    def run(self) -> tuple[float, Stepped]:
        """Merge everything; return CPU seconds, without those that made the releases."""
        plan = self.plan
        model = GlobalModel.start(plan, np.zeros(plan.dimension), merge_deadline_ms=0)
        appended_ms = plan.release_due_ms(0)
        taken_ns = 0
        for cluster in range(plan.cluster_count):
            encoded = self._encoded(cluster)
            begin = time.process_time_ns()
            model.offer(cluster, decode_release(encoded), appended_ms)
            taken_ns += time.process_time_ns() - begin
        begin = time.process_time_ns()
        stepped = model.step(appended_ms)
        model.commit(stepped)
        return (taken_ns + time.process_time_ns() - begin) / 1e9, stepped

    def _encoded(self, cluster: int) -> bytes:
        plan = self.plan
        return encode_release(
            Release(
                plan_id=plan.plan_id,
                cluster=cluster,
                window=0,
                sequence=1,
                charge_units=plan.charge_units,
                spent_units=plan.charge_units,
                cap_units=plan.cap_units,
                noise_variance=plan.noise_variance,
                l2_sensitivity_squared=plan.l2_sensitivity_squared,
                vector=self.vector(cluster),
            )
        )


def merge_results(effort: Effort) -> Iterator[Result]:
    """Yield seconds for many clusters, and their peak memory against that of few."""
    many, few = Merge(_CLUSTERS, _DIMENSION), Merge(_FEW_CLUSTERS, _DIMENSION)
    many.run()
    repeats = min(effort.repeats, _MOST_REPEATS)
    seconds = [many.run()[0] for _ in range(repeats)]
    yield Result("merge_64x1M", "s", seconds, _MOST_SECONDS)
    growth = peak_bytes(many.run) / peak_bytes(few.run)
    yield Result("merge_memory_64_vs_4", "of its memory", [growth], _MOST_GROWTH)
