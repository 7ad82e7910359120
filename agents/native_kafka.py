"""Apache Kafka as a child process: one KRaft node on loopback."""

import sys
from collections.abc import Callable
from pathlib import Path

from .broker import Broker, BrokerError, free_port, wait_until_ready
from .kafka_process import START_TIMEOUT_S, STOP_TIMEOUT_S, KafkaProcess

__all__ = ["STOP_TIMEOUT_S", "NativeBroker", "say_on_stderr"]

_HEAP = ("256m", "1g")


def say_on_stderr(message: str) -> None:
    """Tell the person in front of the terminal."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


class NativeBroker(Broker):
    """A Kafka process of ours.

    Args:
        data_dir: Folder for the log, the settings and the data, kept after the stop. None
            takes a temporary folder, removed at the stop.
        port: Port on 127.0.0.1; None takes a free one.
        outlives_us: Leave the broker running when this process ends (``sdp kafka up``).
        say: Where progress is told.

    Raises:
        BrokerError: no Java, no jars, or Kafka did not come up; nothing is left behind.
    """

    kind = "native"

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int | None = None,
        *,
        outlives_us: bool = False,
        say: Callable[[str], None] = say_on_stderr,
    ) -> None:
        self._kafka = KafkaProcess(data_dir, heap=_HEAP, outlives_us=outlives_us, say=say)
        try:
            self._first_start(port)
        except BaseException:  # Ctrl-C too leaves nothing behind
            self.stop()
            raise

    @property
    def data_dir(self) -> Path:
        """Folder of the log, the settings and the data."""
        return self._kafka.folder

    @property
    def log_path(self) -> Path:
        """What the broker printed."""
        return self._kafka.log_path

    @property
    def pid(self) -> int:
        """Process id of the broker.

        Raises:
            BrokerError: it was stopped or killed.
        """
        return self._kafka.pid

    def has_ended(self) -> bool:
        """Return whether it runs no more, by itself or because it was ended."""
        return self._kafka.has_ended()

    def stop(self) -> None:
        """Stop the process (SIGTERM, after ten seconds SIGKILL); remove a temporary folder."""
        self._kafka.end()
        self._kafka.remove()

    def kill(self) -> None:
        """Take the broker away as a power cut would (SIGKILL); its data stays."""
        self._kafka.kill()

    def restart(self) -> None:
        """Bring a killed or running broker back on the same port with the same data.

        Raises:
            BrokerError: it did not come up, or its temporary folder is already removed.
        """
        self._kafka.end()
        self._start()

    def detach(self) -> int:
        """Give the process away and return its pid: this object no longer stops it."""
        return self._kafka.detach()

    def _first_start(self, port: int | None) -> None:
        self._configure(free_port() if port is None else port)
        try:
            self._kafka.format()
            self._start()
        except BrokerError as error:
            # Between our choice of a free port and Kafka's use of it, somebody else took it.
            if port is not None or "Address already in use" not in str(error):
                raise
            self._configure(free_port())
            self._start()

    def _configure(self, port: int) -> None:
        self.port = port
        self.bootstrap_servers = f"127.0.0.1:{port}"
        controller = f"127.0.0.1:{free_port()}"
        self._kafka.configure(
            {
                "node.id": 1,
                "process.roles": "broker,controller",
                "listeners": f"CLIENT://{self.bootstrap_servers},CONTROLLER://{controller}",
                "advertised.listeners": f"CLIENT://{self.bootstrap_servers}",
                "controller.quorum.voters": f"1@{controller}",
                "offsets.topic.replication.factor": 1,
                "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1,
                "share.coordinator.state.topic.replication.factor": 1,
                "share.coordinator.state.topic.min.isr": 1,
            }
        )

    def _start(self) -> None:
        self._kafka.start(
            lambda check_alive: wait_until_ready(
                self.bootstrap_servers, START_TIMEOUT_S, check_alive
            )
        )
