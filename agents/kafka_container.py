"""Apache Kafka in a container, through testcontainers (a development dependency)."""

import re

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from .broker import KAFKA_VERSION, Broker, free_port, wait_until_ready

IMAGE = f"apache/kafka:{KAFKA_VERSION}"
_START_TIMEOUT_S = 120

_SETTINGS = {
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": "HOST://0.0.0.0:9092,BROKER://0.0.0.0:9094,CONTROLLER://0.0.0.0:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
        "HOST:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
    ),
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_MESSAGE_MAX_BYTES": str(64 * 1024 * 1024),
    "KAFKA_SOCKET_REQUEST_MAX_BYTES": str(128 * 1024 * 1024),
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "3",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "3",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
    "KAFKA_HEAP_OPTS": "-Xms256m -Xmx1g",
}


class ApacheKafkaContainer(DockerContainer):
    """The official ``apache/kafka`` image as one KRaft node, published on loopback only.

    testcontainers' own Kafka class needs the layout of Confluent's images. Here the address
    is chosen before the start, so nothing has to be injected into the running container.
    """

    def __init__(self, port: int) -> None:
        super().__init__(IMAGE)
        # docker-py takes (address, port) here, and binds to every address without one.
        self.ports["9092/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
        self.env.update(_SETTINGS)
        self.env["KAFKA_ADVERTISED_LISTENERS"] = f"HOST://127.0.0.1:{port},BROKER://localhost:9094"
        started = LogMessageWaitStrategy(re.compile(".*Kafka Server started.*"))
        self.waiting_for(started.with_startup_timeout(_START_TIMEOUT_S))


class ContainerBroker(Broker):
    """A container of ours; its data goes with it."""

    kind = "container"

    def __init__(self, port: int | None = None) -> None:
        port = free_port() if port is None else port
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self._container: ApacheKafkaContainer | None = ApacheKafkaContainer(port)
        try:
            self._container.start()
            wait_until_ready(self.bootstrap_servers, 30.0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop and remove the container."""
        if self._container is not None:
            self._container.stop()
            self._container = None
