"""One plan on its own topics, its workers as processes, and a look at what they wrote."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from agents.broker import free_port
from agents.kafka_edge import connection
from agents.topics import create_topics
from schemas import Release, TopicNames, Update, decode_release, encode_update
from stream.client import connect_producer
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.producer import UpdateProducer

_UNSAFE_HEAD = Path(__file__).parents[1] / "integration" / "unsafe_head.py"
_T = TypeVar("_T")


class Worker:
    """A head or global agent as a process."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self.operator_port = free_port()
        self.public_port = free_port()
        ports = {
            "SDP_OPERATOR_PORT": str(self.operator_port),
            "SDP_PUBLIC_PORT": str(self.public_port),
        }
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                command, env=environment | ports, stdout=sink, stderr=subprocess.STDOUT
            )

    def health(self) -> dict[str, object] | None:
        """The body of /healthz, or None while there is none."""
        try:
            url = f"http://127.0.0.1:{self.operator_port}/healthz"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return json.load(answer)
        except (urllib.error.HTTPError, OSError):
            return None

    def metrics(self, *, public: bool = False) -> dict[tuple[str, str], float]:
        """Samples by name and by their labels' values joined with commas."""
        port = self.public_port if public else self.operator_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def kill(self) -> None:
        """SIGKILL: nothing is said to anyone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Deployment:
    """One plan on its own topics, its workers, and a look at what they wrote."""

    def __init__(
        self,
        bootstrap_servers: str,
        plan: PrivacyPlan,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        replication_factor: int = 1,
        min_insync_replicas: int = 1,
    ) -> None:
        self.plan = plan
        self._settings = dict(settings or {})
        self.names = TopicNames(plan.topic_prefix)
        self.bootstrap_servers = bootstrap_servers
        self.config = connection(bootstrap_servers, {})
        self.workers: list[Worker] = []
        self._folder = folder
        self.plan_file = folder / "plan.toml"
        self.plan_file.write_text(plan.to_toml())
        create_topics(
            self.config,
            plan,
            replication_factor=replication_factor,
            min_insync_replicas=min_insync_replicas,
        )

    def environment(self) -> dict[str, str]:
        """What a worker of this deployment is started with."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SDP_")}
        return clean | {
            "SDP_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "SDP_PLAN": str(self.plan_file),
            "SDP_SESSION_TIMEOUT_MS": "6000",
            "SDP_REQUEST_TIMEOUT_S": "5",
            **self._settings,
        }

    def start_head(self, *, noise: bool = False) -> Worker:
        """Start a head, without noise unless it is asked for."""
        product = ["-m", "agents", "head"]
        return self.start("head", product if noise else [str(_UNSAFE_HEAD)])

    def start_global(self) -> Worker:
        return self.start("global", ["-m", "agents", "global"])

    def start(self, role: str, arguments: list[str]) -> Worker:
        """Start a Python program as a worker."""
        log = self._folder / f"{role}-{len(self.workers)}.log"
        worker = Worker([sys.executable, "-P", *arguments], self.environment(), log)
        self.workers.append(worker)
        return worker

    def owned_clusters(self, *workers: Worker) -> list[int]:
        """The clusters that these workers are heads of."""
        bodies = [worker.health() or {} for worker in workers or self.workers]
        return sorted(c for body in bodies for c in body.get("clusters", []))

    def wait_until_owned(self, *workers: Worker) -> None:
        every = list(range(self.plan.cluster_count))
        self.eventually("all clusters have a head", lambda: self.owned_clusters(*workers) == every)

    def current_window(self) -> int:
        """The window of this moment, by this machine's clock."""
        return self.plan.window_of(now_ms())

    def update(self, client_id: str, vector: list[int] | np.ndarray, version: int = 0) -> bytes:
        """An update's bytes, whether or not the plan would have it so."""
        return encode_update(
            Update(
                plan_id=self.plan.plan_id,
                client_id=client_id,
                model_version=version,
                vector=np.asarray(vector, np.dtype(self.plan.update_dtype)),
            )
        )

    def send(self, client_id: str, value: bytes, *, cluster: int | None = None) -> None:
        """Produce raw bytes to the client's own cluster, or to another."""
        home = self.plan.cluster_of(client_id) if cluster is None else cluster
        self.producer().send(self.names.updates, home, client_id.encode(), value)

    def producer(self) -> UpdateProducer:
        if not hasattr(self, "_producer"):
            self._producer = connect_producer(self.plan, self.bootstrap_servers)
        return self._producer

    def read(
        self, topic: str, partition: int = 0, *, isolation: str = "read_committed"
    ) -> list[Message]:
        """All records of a partition, now; by default the committed ones."""
        consumer = Consumer(
            self.config
            | {
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        messages: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(10)
                assert message is not None, f"the broker is silent about {topic}"
                if message.error() is None:
                    messages.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return messages
        finally:
            consumer.close()

    def updates(self, cluster: int = 0) -> list[Message]:
        """What clients wrote for a cluster: a record without a value is a head's mark."""
        return [m for m in self.read(self.names.updates, cluster) if m.value() is not None]

    def releases(self) -> dict[tuple[int, int], Release]:
        """The releases by cell; fails where a cell has two contents."""
        bytes_by_cell: dict[tuple[int, int], bytes] = {}
        for message in self.read(self.names.releases):
            release = decode_release(message.value())
            cell = (release.cluster, release.window)
            assert bytes_by_cell.setdefault(cell, message.value()) == message.value(), (
                f"cell {cell} was released twice with different content"
            )
        return {cell: decode_release(value) for cell, value in bytes_by_cell.items()}

    def sdp(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "agents", *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def eventually(self, what: str, probe: Callable[[], _T | None], timeout_s: float = 60.0) -> _T:
        """Return the first true result of ``probe``; on time-out fail with the workers' logs."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if result := probe():
                return result
            time.sleep(0.05)
        logs = "".join(f"\n--- {w.log.name}\n{w.log.read_text()[-3000:]}" for w in self.workers)
        raise AssertionError(f"not within {timeout_s:g} s: {what}{logs}")

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        if hasattr(self, "_producer"):
            self._producer.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def small_plan(**changes: object) -> PrivacyPlan:
    """A plan that begins now, with windows of a second; ``changes`` replace its fields."""
    fields: dict[str, object] = {
        "name": "test",
        "dimension": 12,
        "cluster_count": 2,
        "assignment": "hash",
        "assignment_key": "test",
        "expected_clients": 12,
        "start_ms": now_ms(),
        "window_length_ms": 1000,
        "grace_ms": 100,
        "release_delay_ms": 300,
        "l2_clip_norm": 1.0,
        "grid_l2_bound": 256,
        "count_weight": 1,
        "update_dtype": "int8",
        "epsilon": 8.0,
        "delta": 1e-5,
        "horizon_windows": 1000,
        "optimizer": OptimizerSpec("sgd", 0.1),
        "normalizer": "expected_clients",
        "topic_prefix": "test",
    }
    return PrivacyPlan(**(fields | changes))
