"""Three brokers and a controller of Apache Kafka as processes of ours, to be taken away in turn.

The controller is a node of its own, so two of three brokers can be away while it is not: the
partitions are then below min.insync.replicas, and not without a controller.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from standstill import stop

from agents.broker import Broker, BrokerError, free_port
from agents.kafka_process import LOCAL_SETTINGS, START_TIMEOUT_S, KafkaProcess

CONTROLLER = 100
REPLICAS = 3
MIN_INSYNC = 2
_HEAP = ("64m", "384m")
_ASK_S = 2.0
_T = TypeVar("_T")


class KafkaCluster(Broker):
    """Nodes 1 to ``nodes`` are brokers; node `CONTROLLER` is the controller.

    Args:
        nodes: Number of brokers.
        say: Where progress is told.

    Raises:
        BrokerError: no Java, no jars, or a node did not come up; nothing is left behind.
    """

    kind = "native"

    def __init__(self, nodes: int = 3, *, say: Callable[[str], None]) -> None:
        self.nodes = range(1, nodes + 1)
        self._folder = tempfile.TemporaryDirectory(prefix="sdp-cluster-")
        self._addresses = {node: f"127.0.0.1:{free_port()}" for node in (CONTROLLER, *self.nodes)}
        self.bootstrap_servers = ",".join(self._addresses[node] for node in self.nodes)
        self._processes: dict[int, KafkaProcess] = {}
        try:
            for node in (CONTROLLER, *self.nodes):
                folder = Path(self._folder.name) / str(node)
                self._processes[node] = KafkaProcess(folder, heap=_HEAP, say=say)
                self._processes[node].configure(self._settings(node))
            self._first_start()
        except BaseException:
            self.stop()
            raise

    @property
    def description(self) -> str:
        return f"{super().description}, {len(self.nodes)} brokers"

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        self._folder.cleanup()

    def kill(self, node: int) -> None:
        """SIGKILL: a power cut, but for what the operating system still writes."""
        self._processes[node].kill()

    def stop_node(self, node: int) -> None:
        """SIGTERM: the node hands its leaderships over first."""
        self._processes[node].end()

    def restart(self, node: int) -> None:
        """Start a node that was killed or stopped; a broker is one of the cluster then."""
        self._processes[node].end()
        self._start(node)

    def pause(self, node: int) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        stop(self._processes[node].pid)

    def resume(self, node: int) -> None:
        """SIGCONT: it goes on as what it was, until it learns otherwise."""
        os.kill(self._processes[node].pid, signal.SIGCONT)

    def heal(self) -> None:
        """Bring back whatever is away, and wait until every replica is in sync."""
        for process in self._processes.values():
            if not process.has_ended():
                os.kill(process.pid, signal.SIGCONT)
        # The controller first: no broker comes up without it.
        for node in (CONTROLLER, *self.nodes):
            if self._processes[node].has_ended():
                self.restart(node)
        self.wait_until_in_sync()

    def wait_until_in_sync(self) -> None:
        """Return when all brokers are there and every partition has all of its replicas."""
        _wait(self._is_in_sync, "the replicas are not in sync")

    def in_sync(self, topic: str, partition: int) -> set[int]:
        """Return the brokers that a partition's record must reach, as they are now."""
        cluster = _ask(self.bootstrap_servers)
        return set() if cluster is None else set(cluster.topics[topic].partitions[partition].isrs)

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition; waits while nobody does."""

        def leader() -> int | None:
            cluster = _ask(self.bootstrap_servers)
            found = -1 if cluster is None else cluster.topics[topic].partitions[partition].leader
            return found if found in self.nodes else None

        return _wait(leader, f"{topic} partition {partition} has no leader")

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates the transactions of an identity."""
        return self._coordinator(transactional_id, "transaction.state.log", "__transaction_state")

    def group_coordinator(self, group: str) -> int:
        """Return the broker that coordinates a consumer group."""
        return self._coordinator(group, "offsets.topic", "__consumer_offsets")

    def _coordinator(self, key: str, log: str, topic: str) -> int:
        partitions = int(str(LOCAL_SETTINGS[f"{log}.num.partitions"]))
        return self.leader_of(topic, (_java_hash(key) & 0x7FFFFFFF) % partitions)

    def _settings(self, node: int) -> dict[str, object]:
        is_controller = node == CONTROLLER
        listener = f"{'CONTROLLER' if is_controller else 'CLIENT'}://{self._addresses[node]}"
        settings: dict[str, object] = {
            "node.id": node,
            "process.roles": "controller" if is_controller else "broker",
            "listeners": listener,
            "controller.quorum.voters": f"{CONTROLLER}@{self._addresses[CONTROLLER]}",
            "default.replication.factor": REPLICAS,
            "min.insync.replicas": MIN_INSYNC,
            "offsets.topic.replication.factor": REPLICAS,
            "transaction.state.log.replication.factor": REPLICAS,
            "transaction.state.log.min.isr": MIN_INSYNC,
            "share.coordinator.state.topic.replication.factor": REPLICAS,
            "share.coordinator.state.topic.min.isr": MIN_INSYNC,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
        }
        return settings if is_controller else settings | {"advertised.listeners": listener}

    def _first_start(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(KafkaProcess.format, self._processes.values()))
            list(pool.map(self._start, self._processes))

    def _start(self, node: int) -> None:
        def wait(check_alive: Callable[[], None]) -> None:
            def is_ready() -> bool:
                check_alive()
                if node == CONTROLLER:
                    return True  # it answers no client: whether it works shows at the brokers
                cluster = _ask(self._addresses[node])
                return cluster is not None and node in cluster.brokers

            _wait(is_ready, f"node {node} is not one of the cluster")

        self._processes[node].start(wait)

    def _is_in_sync(self) -> bool:
        cluster = _ask(self.bootstrap_servers)
        return (
            cluster is not None
            and set(cluster.brokers) == set(self.nodes)
            and all(
                partition.leader in self.nodes and set(partition.isrs) == set(partition.replicas)
                for topic in cluster.topics.values()
                for partition in topic.partitions.values()
            )
        )


def _ask(servers: str) -> ClusterMetadata | None:
    """Return what the brokers at ``servers`` say of the cluster, or None if nobody answers."""
    # Refused connections are expected here; librdkafka would print each of them.
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    try:
        return admin.list_topics(timeout=_ASK_S)
    except KafkaException:
        return None


def _wait(probe: Callable[[], _T | None], failure: str) -> _T:
    """Return the first true result of ``probe``."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (result := probe()):
        if time.monotonic() > deadline:
            raise BrokerError(f"{failure} after {START_TIMEOUT_S:g} s")
        time.sleep(0.1)
    return result


def _java_hash(text: str) -> int:
    """Return what Kafka spreads its coordinators by."""
    value = 0
    for letter in text.encode("ascii"):
        value = (31 * value + letter) & 0xFFFFFFFF
    return value
