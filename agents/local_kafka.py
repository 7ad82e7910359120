"""Find or start the Kafka broker that the demo and the tests run on.

The order: the broker that ``KAFKA_BOOTSTRAP_SERVERS`` names; a container, where a Docker
engine answers; a native Apache Kafka, where Java and Maven are; else librdkafka's mock
cluster inside this process.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from confluent_kafka import Producer

from .broker import Broker, BrokerError, BrokerKind, wait_until_ready
from .native_kafka import NativeBroker, say_on_stderr

__all__ = [
    "Broker",
    "BrokerError",
    "BrokerKind",
    "EnvBroker",
    "MockBroker",
    "NativeBroker",
    "start_broker",
]

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
_ENV_TIMEOUT_S = 15.0

MOCK_LIMITS = (
    "using librdkafka's mock cluster: it has no transaction isolation and no LogAppendTime, "
    "and keeps 5 MB a partition. For the real thing install Java 17 and Maven, or start Docker, "
    f"or set {BOOTSTRAP_VARIABLE}."
)


class EnvBroker(Broker):
    """A broker that somebody else runs; ours to use, not to stop.

    Raises:
        BrokerError: ``KAFKA_BOOTSTRAP_SERVERS`` is empty, or nobody answers there.
    """

    kind = "env"

    def __init__(self) -> None:
        self.bootstrap_servers = os.environ.get(BOOTSTRAP_VARIABLE, "")
        if not self.bootstrap_servers:
            raise BrokerError(f"{BOOTSTRAP_VARIABLE} is not set")
        wait_until_ready(self.bootstrap_servers, _ENV_TIMEOUT_S)

    def stop(self) -> None:
        """Do nothing: the broker is not ours."""

    @property
    def description(self) -> str:
        """Where it is, for its version is not ours to know."""
        return f"env ({self.bootstrap_servers})"


class MockBroker(Broker):
    """librdkafka's mock cluster, inside this process; reachable from others over loopback."""

    kind = "mock"

    def __init__(self) -> None:
        # The cluster lives as long as the client that was configured with it.
        self._owner: Producer | None = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers = self._owner.list_topics(timeout=10).brokers.values()
        self.bootstrap_servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def stop(self) -> None:
        """End the cluster and everything that it held."""
        self._owner = None

    @property
    def description(self) -> str:
        """What it is, in one phrase."""
        return "mock (librdkafka's in-process cluster, not a real Kafka)"


def start_broker(
    kind: BrokerKind | Literal["auto"] = "auto",
    data_dir: Path | None = None,
    port: int | None = None,
    *,
    say: Callable[[str], None] = say_on_stderr,
) -> Broker:
    """Return a broker that answers.

    Args:
        kind: Which one, or ``auto`` for the first of the order above that can be had.
        data_dir: Where a native broker keeps its data, also after the stop; None for a
            temporary folder. The other kinds have no folder of ours.
        port: Port on 127.0.0.1 of a native or container broker; None takes a free one.
        say: Where progress and the reasons for passing a kind over are told.

    Raises:
        BrokerError: the named kind cannot be had; for ``auto``, the broker that the
            environment names does not answer.
    """
    if kind == "auto":
        return _first_available(data_dir, port, say)
    return _start(kind, data_dir, port, say)


def _first_available(data_dir: Path | None, port: int | None, say: Callable[[str], None]) -> Broker:
    if os.environ.get(BOOTSTRAP_VARIABLE):
        return EnvBroker()
    kinds: tuple[BrokerKind, ...] = ("container", "native")
    for kind in kinds:
        try:
            return _start(kind, data_dir, port, say)
        except BrokerError as error:
            say(f"no {kind} broker: {error}")
    return _start("mock", None, None, say)


def _start(
    kind: BrokerKind, data_dir: Path | None, port: int | None, say: Callable[[str], None]
) -> Broker:
    match kind:
        case "env":
            return EnvBroker()
        case "container":
            return _start_container(port, say)
        case "native":
            return NativeBroker(data_dir, port, say=say)
        case "mock":
            say(MOCK_LIMITS)
            return MockBroker()


def _start_container(port: int | None, say: Callable[[str], None]) -> Broker:
    if not docker_answers():
        raise BrokerError("no Docker engine answers")
    try:
        # A development dependency: absent where only the product is installed.
        from . import kafka_container
    except ImportError as error:
        raise BrokerError(f"testcontainers cannot be imported ({error})") from error
    say(f"starting a container of {kafka_container.IMAGE}")
    try:
        return kafka_container.ContainerBroker(port)
    except BrokerError:
        raise
    except Exception as error:
        # docker-py and testcontainers raise dozens of types; all of them mean: not here.
        raise BrokerError(f"the container did not start: {error}") from error


def docker_answers() -> bool:
    """Return whether ``docker version`` reaches an engine within two seconds."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    command = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=2)  # noqa: S603
    except (subprocess.SubprocessError, OSError):
        return False
    return True
