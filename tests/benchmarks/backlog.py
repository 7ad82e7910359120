"""A backlog of real updates on a real broker, that heads and others read again and again."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deployment import Deployment, now_ms, small_plan
from durable_head import DurableHead
from peer_job import Job
from topic_faults import delete, existing, recreate, write

from agents.partition import group_of
from agents.topics import topics_of
from schemas import Update, encode_update, encode_update_batch

_FOLDER = Path(__file__).parent
_PAUSE_S = 0.02
_PRODUCER = {"linger.ms": 5, "compression.type": "none", "message.max.bytes": 4 << 20}
_CLUSTER_KEY = b"0"  # what peers group by, without sending every update once more to be sorted
_DISTINCT_VECTORS = 16
_LARGEST_SUM = 16 << 20


class Backlog:
    """Some windows of updates of one cluster, each client once a window.

    Attributes:
        deployment: The plan and its topics.
        count: How many updates there are.
        dimension: Coordinates of each.
        vectors: What they hold, in rows; a window's clients take turns with them.
    """

    def __init__(
        self,
        servers: str,
        folder: Path,
        *,
        dimension: int,
        clients: int,
        windows: int,
        per_message: int = 1,
        window_ms: int = 2_000,
        kernel: str = "numba",
    ) -> None:
        self.deployment = Deployment(
            servers,
            small_plan(
                name="bench",
                dimension=dimension,
                grid_l2_bound=20 * math.isqrt(dimension),
                count_weight=10 * math.isqrt(dimension),
                cluster_count=1,
                expected_clients=clients,
                window_length_ms=window_ms,
                grace_ms=200,
                release_delay_ms=300,
                horizon_windows=10_000,
                topic_prefix=f"bench-{dimension}-{per_message}-{os.getpid()}",
            ),
            folder,
            settings={"SDP_KERNEL": kernel},
        )
        self.count = clients * windows
        self.dimension = dimension
        self._clients = clients
        self._peers = 0
        rng = np.random.default_rng(0)
        self.vectors = rng.integers(-15, 16, (_DISTINCT_VECTORS, dimension), np.int8)
        head = DurableHead(self.deployment)
        head.open()
        # Committed is not yet visible.
        (genesis,) = self.deployment.eventually(
            "the first record can be read",
            lambda: self.deployment.read(self.deployment.names.ledger),
        )
        self._genesis = genesis.value()
        self._produce(clients, windows, per_message)

    def run_head(self) -> dict[str, float]:
        """Let a real head begin with the backlog, and count all of it."""
        deployment, names = self.deployment, self.deployment.names
        recreate(deployment, names.ledger, names.outbox, names.releases, names.rejects)
        self._forget_group()
        write(deployment, names.ledger, 0, [(b"0", self._genesis)])
        return run_process(self._ours("head_worker.py", str(self.count)), self._our_environment())

    def run_limit(self) -> dict[str, float]:
        """Let a consumer sum the backlog, and nothing else."""
        names = self.deployment.names
        command = self._ours(
            "limit_worker.py",
            self.deployment.bootstrap_servers,
            names.updates,
            str(self.count),
            str(self.dimension),
        )
        return run_process(command, self._our_environment())

    def run_peer(self, command: Sequence[str], count: int, warmup: int = 0) -> dict[str, float]:
        """Let a peer sum the first ``count`` updates by window.

        Args:
            command: The peer's process; its job is in its environment.
            count: How many it reads; not more than there are.
            warmup: How many of them are read before its clock starts.

        Raises:
            RuntimeError: it failed, or its sum is wrong.
        """
        self._peers += 1
        group = f"{self.deployment.plan.topic_prefix}-peer-{self._peers}"
        with tempfile.TemporaryDirectory(prefix="sdp-peer-") as folder:
            job = Job(
                servers=self.deployment.bootstrap_servers,
                topic=self.deployment.names.updates,
                output=f"{group}-sums",
                group=group,
                folder=folder,
                count=count,
                warmup=warmup,
                dimension=self.dimension,
                window_ms=self.deployment.plan.window_length_ms,
            )
            self._create(job.output)
            try:
                environment = dict(os.environ) | {"PYTHONPATH": str(_FOLDER)} | job.environment()
                told = run_process(command, environment)
            finally:  # what it made for itself, too
                delete(self.deployment, *(t for t in existing(self.deployment) if group in t))
        if told["sum"] != self.sum_of(count):
            raise RuntimeError(
                f"{command} summed {told['sum']}, and the sum is {self.sum_of(count)}"
            )
        return told

    def sum_of(self, count: int) -> int:
        """Return the sum of all coordinates of the first ``count`` updates."""
        places = np.arange(count) % self._clients % _DISTINCT_VECTORS
        return int(self.vectors.sum(1, np.int64)[places].sum())

    def close(self) -> None:
        """Delete the topics, which may be large."""
        self.deployment.close()
        specs = topics_of(self.deployment.plan)
        delete(self.deployment, *(spec.name for spec in specs))

    def _produce(self, clients: int, windows: int, per_message: int) -> None:
        plan, vectors = self.deployment.plan, self.vectors
        producer = Producer(self.deployment.config | _PRODUCER)
        for _ in range(windows):
            window = self.deployment.current_window()
            while self.deployment.current_window() == window:
                time.sleep(_PAUSE_S)
            updates = (
                encode_update(Update(plan.plan_id, f"client-{n:06d}", 0, vectors[n % len(vectors)]))
                for n in range(clients)
            )
            while taken := list(islice(updates, per_message)):
                value = taken[0] if per_message == 1 else encode_update_batch(taken)
                _send(producer, self.deployment.names.updates, value)
            assert producer.flush(60) == 0
        end_ms = plan.window_end_ms(self.deployment.current_window())
        while now_ms() < end_ms + plan.grace_ms:
            time.sleep(_PAUSE_S)

    def _forget_group(self) -> None:
        admin = AdminClient(self.deployment.config)
        group = group_of(self.deployment.plan)
        for future in admin.delete_consumer_groups([group]).values():
            try:
                future.result(30)
            except KafkaException as error:  # it is not there at first
                if "GROUP_ID_NOT_FOUND" not in str(error):
                    raise

    def _create(self, topic: str) -> None:
        new = NewTopic(topic, 1, 1, config={"max.message.bytes": str(_LARGEST_SUM)})
        # A local name keeps the client alive: its futures never end without it.
        admin = AdminClient(self.deployment.config)
        admin.create_topics([new])[topic].result(30)

    def _ours(self, script: str, *arguments: str) -> list[str]:
        return [sys.executable, "-P", str(_FOLDER / script), *arguments]

    def _our_environment(self) -> dict[str, str]:
        paths = [str(_FOLDER), *sys.path]
        return self.deployment.environment() | {"PYTHONPATH": os.pathsep.join(paths)}


def _send(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, _CLUSTER_KEY, partition=0)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def run_process(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Return the figures in a process's last line.

    Raises:
        RuntimeError: it failed; the message has the end of what it said.
    """
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        said = f"{done.stdout[-1000:]}{done.stderr[-3000:]}"
        raise RuntimeError(f"{command} ended with {done.returncode}: {said}")
    return json.loads(done.stdout.splitlines()[-1])
