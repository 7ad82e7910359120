"""What a local Kafka broker is, whoever runs it."""

import contextlib
import itertools
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

KAFKA_VERSION = "4.3.1"

# Below the ranges that Linux (32768 and up), macOS and IANA (49152 and up) give to clients.
_FIRST_PORT = 20_000
# Ports of one process, and how many processes have ports of their own.
_PORTS = 200
_SHARES = 60
_turns = itertools.count()

BrokerKind = Literal["env", "container", "native", "mock"]


class BrokerError(Exception):
    """No broker could be had, or one stopped; the message says why and shows its log."""


class Broker(ABC):
    """A running broker. As a context manager, it stops at the end of the block."""

    kind: BrokerKind
    bootstrap_servers: str

    @abstractmethod
    def stop(self) -> None:
        """Stop what this object started and remove its temporary files; harmless when repeated."""

    @property
    def description(self) -> str:
        """One phrase for a person, for example ``native (Apache Kafka 4.3.1)``."""
        return f"{self.kind} (Apache Kafka {KAFKA_VERSION})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a loopback TCP port that nobody uses at this moment.

    It is not one of those that the system gives to clients: one that looks for a broker that is
    away would sooner or later be given the broker's own port, and keep it. Nor is it one that was
    returned a while ago and may not be in use yet, here or in a neighbour process.
    """
    first = _FIRST_PORT + os.getpid() % _SHARES * _PORTS
    for turn in itertools.islice(_turns, _PORTS):
        port = first + turn % _PORTS
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise BrokerError(f"no free port from {first} to {first + _PORTS - 1}")


def wait_until_ready(
    bootstrap_servers: str, timeout_s: float, check_alive: Callable[[], None] = lambda: None
) -> None:
    """Return when the broker answers and takes part in its cluster.

    Args:
        bootstrap_servers: Addresses as Kafka clients take them.
        timeout_s: How long to go on asking.
        check_alive: Called between attempts; raises when there is no use in going on.

    Raises:
        BrokerError: no answer within ``timeout_s``.
    """
    # Refused connections are expected here; librdkafka would print each of them.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    deadline = time.monotonic() + timeout_s
    while True:
        check_alive()
        try:
            # A KRaft broker answers a moment before it may host partitions (it is fenced
            # and not in the list): a topic created then would be refused.
            if admin.list_topics(timeout=1.0).brokers:
                return
        except KafkaException as error:
            reason = str(error)
        else:
            reason = "the cluster has no active broker"
        if time.monotonic() > deadline:
            raise BrokerError(
                f"no Kafka broker answers at {bootstrap_servers} after {timeout_s:g} s ({reason})"
            )
        time.sleep(0.1)
