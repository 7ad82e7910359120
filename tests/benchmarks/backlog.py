"""A backlog of real updates on a real broker, that heads and others read again and again."""

import json
import math
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from deployment import Deployment, now_ms, small_plan
from durable_head import DurableHead
from topic_faults import delete, recreate, write

from agents.partition import group_of
from agents.topics import topics_of
from schemas import Update, encode_update, encode_update_batch

_FOLDER = Path(__file__).parent
_PAUSE_S = 0.02
_PRODUCER = {"linger.ms": 5, "compression.type": "none", "message.max.bytes": 4 << 20}


class Backlog:
    """Some windows of updates of one cluster, each client once a window.

    Attributes:
        deployment: The plan and its topics.
        count: How many updates there are.
        dimension: Coordinates of each.
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
                window_length_ms=5_000,
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
        return self._run("head_worker.py", str(self.count))

    def run_limit(self) -> dict[str, float]:
        """Let a consumer sum the backlog, and nothing else."""
        names = self.deployment.names
        return self._run(
            "limit_worker.py",
            self.deployment.bootstrap_servers,
            names.updates,
            str(self.count),
            str(self.dimension),
        )

    def close(self) -> None:
        """Delete the topics, which may be large."""
        self.deployment.close()
        specs = topics_of(self.deployment.plan)
        delete(self.deployment, *(spec.name for spec in specs))

    def _produce(self, clients: int, windows: int, per_message: int) -> None:
        rng, plan = np.random.default_rng(0), self.deployment.plan
        vectors = [rng.integers(-15, 16, self.dimension, np.int8) for _ in range(16)]
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

    def _run(self, script: str, *arguments: str) -> dict[str, float]:
        paths = [str(_FOLDER), *sys.path]
        done = subprocess.run(
            [sys.executable, "-P", str(_FOLDER / script), *arguments],
            env=self.deployment.environment() | {"PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{script} ended with {done.returncode}: {done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def _send(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=0)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
