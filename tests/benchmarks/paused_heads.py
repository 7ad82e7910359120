"""Real heads that stand still (SIGSTOP) while updates are written, and then read them all.

So each has its clusters before the first update, and the cost is that of the updates and their
windows alone: no start, no waiting for windows to end, no producer that holds the heads up. CPU
time is that of all threads of the heads' processes (Linux).
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from deployment import Deployment, Worker, now_ms, small_plan

from schemas import Update, decode_release, encode_update, encode_update_batch

_PRODUCER = {"linger.ms": 5, "compression.type": "none", "message.max.bytes": 64 << 20}
# Nobody may take a head that stands still for dead, nor may it give up on itself.
_PATIENT = {"SDP_SESSION_TIMEOUT_MS": "30000", "SDP_REQUEST_TIMEOUT_S": "60"}
_END = -1  # librdkafka's OFFSET_END
_WAIT_S = 120.0
_POLL_S = 0.005
_VECTORS = 4
# Where in a window nothing is under way: all of the one before is public, and this one not over.
_FROM, _TO = 0.5, 0.8
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Load:
    """What is read in one run.

    Attributes:
        clusters: Number of clusters.
        clients: Clients of each, who send one update.
        dimension: Coordinates of an update, a byte each.
        per_message: Updates in a message.
        workers: Processes that share the clusters.
        window_ms: Length of a window.
        windows: Windows that are over when the heads go on: each is sealed in each cluster.
    """

    clusters: int = 1
    clients: int = 1000
    dimension: int = 1000
    per_message: int = 1
    workers: int = 1
    window_ms: int = 1000
    windows: int = 3

    @property
    def updates(self) -> int:
        return self.clusters * self.clients


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took, from the moment when the heads go on.

    Attributes:
        cpu_s: CPU seconds of all heads.
        wall_s: Seconds until the last window is public.
        windows: Windows that were released in it, by each cluster.
        begin_s: When it began, by the monotonic clock.
    """

    cpu_s: float
    wall_s: float
    windows: int
    begin_s: float


class PausedHeads:
    """Heads of one load's clusters on topics of their own."""

    def __init__(
        self,
        servers: str,
        folder: Path,
        load: Load,
        start: Callable[[Deployment], Worker] | None = None,
    ) -> None:
        """Start the heads (of the product, unless ``start`` does), and wait for their clusters."""
        start = start or partial(Deployment.start_head, noise=True)
        self.load = load
        self.deployment = Deployment(servers, _plan(load), folder, settings=_PATIENT)
        self.workers = [start(self.deployment) for _ in range(load.workers)]
        deployment = self.deployment
        deployment.eventually("the clusters are shared", self._are_shared)
        self._producer = Producer(deployment.config | _PRODUCER)
        self._vectors = _vectors(load.dimension)
        self._releases = Consumer(
            deployment.config | {"group.id": "bench", "enable.auto.commit": False}
        )
        self._releases.assign([TopicPartition(deployment.names.releases, 0, _END)])
        self._newest = dict.fromkeys(range(load.clusters), -1)
        self._wait_until_released(deployment.current_window())

    def run(self) -> Cost:
        """Write one update of each client while the heads stand still, and let them go on."""
        plan, counted = self.deployment.plan, self._counted()
        self._wait_for_a_quiet_moment()
        self._signal(signal.SIGSTOP)
        try:
            begin_window = self.deployment.current_window()
            self._write()
            last = max(self.deployment.current_window(), begin_window + self.load.windows - 1)
            _sleep_until(plan.window_end_ms(last) + plan.grace_ms)
            cpu_s, begin_s = self._cpu_s(), time.monotonic()
        finally:
            self._signal(signal.SIGCONT)
        self._wait_until_released(last)
        cost = Cost(
            self._cpu_s() - cpu_s, time.monotonic() - begin_s, last - begin_window + 1, begin_s
        )
        if self._counted() - counted != self.load.updates:
            raise RuntimeError(f"{self._counted() - counted:g} updates of {self.load} were counted")
        return cost

    def close(self) -> None:
        """End the heads."""
        self._releases.close()
        self.deployment.close()

    def _are_shared(self) -> bool:
        shares = [self.deployment.owned_clusters(worker) for worker in self.workers]
        return all(shares) and sorted(chain(*shares)) == list(range(self.load.clusters))

    def _write(self) -> None:
        load, plan, topic = self.load, self.deployment.plan, self.deployment.names.updates
        for cluster in range(load.clusters):
            updates = (
                encode_update(
                    Update(plan.plan_id, f"{cluster}/{n}", 0, self._vectors[n % _VECTORS])
                )
                for n in range(load.clients)
            )
            while taken := list(islice(updates, load.per_message)):
                value = taken[0] if load.per_message == 1 else encode_update_batch(taken)
                self._produce(topic, value, cluster)
        if self._producer.flush(_WAIT_S):
            raise RuntimeError("not every update was written")

    def _update(self, client_id: str, number: int) -> bytes:
        vector = self._vectors[number % _VECTORS]
        return encode_update(Update(self.deployment.plan.plan_id, client_id, 0, vector))

    def _produce(self, topic: str, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, partition=partition)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _wait_for_a_quiet_moment(self) -> None:
        plan = self.deployment.plan
        while True:
            self._wait_until_released(self.deployment.current_window() - 1)
            into = (now_ms() - plan.start_ms) % plan.window_length_ms / plan.window_length_ms
            if _FROM < into < _TO:
                return
            time.sleep(_POLL_S)

    def _wait_until_released(self, window: int) -> None:
        deadline = time.monotonic() + _WAIT_S
        while min(self._newest.values()) < window:
            message = self._releases.poll(1.0)
            if message is not None and message.error() is None:
                release = decode_release(message.value())
                newest = self._newest[release.cluster]
                self._newest[release.cluster] = max(newest, release.window)
            elif time.monotonic() > deadline:
                logs = "".join(w.log.read_text()[-2000:] for w in self.workers)
                raise RuntimeError(f"window {window} was not released: {self._newest}\n{logs}")

    def _counted(self) -> float:
        return sum(
            value
            for worker in self.workers
            for (name, labels), value in worker.metrics().items()
            if name == "sdp_updates_total" and labels.endswith(",accepted")
        )

    def _signal(self, number: int) -> None:
        for worker in self.workers:
            worker.process.send_signal(number)

    def _cpu_s(self) -> float:
        return sum(process_cpu_s(worker.process.pid) for worker in self.workers)


def process_cpu_s(pid: int) -> float:
    """Return CPU seconds of all threads of a process, also of those that have ended."""
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns


def _plan(load: Load):
    root = round(load.dimension**0.5)
    return small_plan(
        name="bench",
        dimension=load.dimension,
        grid_l2_bound=20 * root,
        count_weight=10 * root,
        cluster_count=load.clusters,
        assignment="prefix",
        assignment_key="",
        prefixes=tuple(map(str, range(load.clusters))),
        expected_clients=load.updates,
        window_length_ms=load.window_ms,
        grace_ms=load.window_ms // 10,
        release_delay_ms=3 * load.window_ms // 10,
        horizon_windows=100_000,
        topic_prefix=f"paused-{os.getpid()}-{next(_NUMBERS)}",
    )


def _vectors(dimension: int) -> Sequence[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-15, 16, dimension, np.int8) for _ in range(_VECTORS)]


def _sleep_until(epoch_ms: int) -> None:
    while now_ms() < epoch_ms:
        time.sleep(_POLL_S)
