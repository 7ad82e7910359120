"""One process of Apache Kafka: its settings, its log and its data in one folder."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from .broker import KAFKA_VERSION, BrokerError
from .kafka_jars import fetch_jars, find_java, kafka_resource, tail

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
STOP_TIMEOUT_S = 10.0
START_TIMEOUT_S = 90.0
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"

# The C1 compiler and the serial collector bring a node up in half the time on two cores;
# a broker that lives for minutes never earns back what C2 costs.
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# What every local node has. The session timeout is how long a restart after a SIGKILL waits for
# its predecessor's registration to lapse (nine seconds by default).
LOCAL_SETTINGS: Mapping[str, object] = {
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "auto.create.topics.enable": "false",
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "socket.request.max.bytes": 2 * MAX_MESSAGE_BYTES,
    "replica.fetch.max.bytes": MAX_MESSAGE_BYTES,
    "num.io.threads": 4,
    "num.network.threads": 2,
    "background.threads": 2,
    "log.cleaner.dedupe.buffer.size": 33554432,
    "broker.heartbeat.interval.ms": 1000,
    "broker.session.timeout.ms": 4000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 1,
}

# Waits on a pipe whose other end our process holds. A line means that all is done; the end
# of the file without one means that our process is gone, however it ended, SIGKILL included.
# (prctl's PR_SET_PDEATHSIG would fire when the starting *thread* ends, and only on Linux.)
_GUARD = """\
read -r _ && exit 0
pid=$1 folder=$2 tries=0
alive() {
    kill -0 "$pid" 2>/dev/null || return 1
    # A pid can have a new owner by now; where /proc can tell, it must still be a Kafka.
    [ ! -d /proc/self ] || grep -qs kafka.Kafka "/proc/$pid/cmdline"
}
alive && kill -TERM "$pid"
while alive && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
alive && kill -KILL "$pid"
[ -z "$folder" ] || rm -rf -- "$folder"
"""


class KafkaProcess:
    """A Kafka that is formatted, started and ended, with nothing left behind.

    Args:
        folder: Where its settings, its log and its data are, kept after the end. None takes a
            temporary folder, removed by `remove`, or when our process ends without it.
        heap: The JVM's smallest and largest heap, as Java writes them.
        outlives_us: Leave the process running when ours ends.
        say: Where progress is told.

    Raises:
        BrokerError: no Java or no jars; nothing is left behind.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        heap: tuple[str, str],
        outlives_us: bool = False,
        say: Callable[[str], None],
    ) -> None:
        java, libs = find_java(), fetch_jars(say)
        self._is_temporary = folder is None
        if folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="sdp-kafka-"))
        else:
            self.folder = folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
        self._outlives_us = outlives_us
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        logging_config = self.folder / "log4j2.properties"
        self._java = [java, f"-Xms{heap[0]}", f"-Xmx{heap[1]}", *_JVM_OPTIONS]
        self._java += [f"-Dlog4j2.configurationFile={logging_config}", "-cp", f"{libs}/*"]
        logging_config.write_bytes(kafka_resource("log4j2.properties"))

    @property
    def log_path(self) -> Path:
        """What the process printed."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            BrokerError: it was stopped or killed.
        """
        if self._process is None:
            raise BrokerError("the broker was stopped or killed: it has no process")
        return self._process.pid

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write its settings, those that every local node has among them."""
        merged = {"log.dirs": self.folder / "data", **LOCAL_SETTINGS, **settings}
        lines = [f"{name}={value}\n" for name, value in merged.items()]
        self._settings_path.write_text("".join(lines), encoding="utf-8")

    def format(self) -> None:
        """Make its data folder, unless there is one.

        Raises:
            BrokerError: Kafka refused; the message shows its output.
        """
        options = ["--ignore-formatted", "--cluster-id", _CLUSTER_ID]
        options += ["--config", str(self._settings_path)]
        result = subprocess.run(  # noqa: S603 - our own command line
            [*self._java, "kafka.tools.StorageTool", "format", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=START_TIMEOUT_S,
        )
        if result.returncode != 0:
            raise BrokerError(
                f"Kafka could not format {self.folder}; its output:\n{tail(result.stdout)}"
            )

    def start(self, wait: Callable[[Callable[[], None]], None]) -> None:
        """Start the process; return when ``wait`` does.

        Args:
            wait: Waits until it is ready. It is given what raises once the process has ended.

        Raises:
            BrokerError: it did not come up, and was killed; the message shows the end of its
                log. Or its temporary folder is already removed.
        """
        if not self._settings_path.exists():
            raise BrokerError(f"nothing to start: {self.folder} was removed by stop()")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [*self._java, "kafka.Kafka", str(self._settings_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must reach our process first, which then stops Kafka.
                start_new_session=True,
            )
        if not self._outlives_us:
            self._guard = _start_guard(self.pid, self.folder if self._is_temporary else None)
        try:
            wait(self._check_alive)
        except BrokerError as error:
            self.kill()
            log_tail = tail(self.log_path.read_text(encoding="utf-8", errors="replace"))
            raise BrokerError(f"{error}; the end of its log:\n{log_tail}") from error

    def has_ended(self) -> bool:
        """Return whether it runs no more, by itself or because it was ended."""
        return self._process is None or self._process.poll() is not None

    def end(self) -> None:
        """End the process (SIGTERM, after ten seconds SIGKILL)."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def kill(self) -> None:
        """Take the process away as a power cut would (SIGKILL); its data stays."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def remove(self) -> None:
        """Remove its folder, where that is a temporary one."""
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def detach(self) -> int:
        """Give the process away and return its pid: this object no longer ends it."""
        pid = self.pid
        if self._process is not None:
            self._process.returncode = 0  # or its finalizer warns about a child still running
        self._process, self._is_temporary = None, False
        return pid

    @property
    def _settings_path(self) -> Path:
        return self.folder / "server.properties"

    def _check_alive(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            raise BrokerError(f"Apache Kafka {KAFKA_VERSION} stopped while starting (exit {code})")

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._guard is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.communicate(b"done\n")
            self._guard = None


def _start_guard(pid: int, folder: Path | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command line
        ["/bin/sh", "-c", _GUARD, "sdp-kafka-guard", str(pid), str(folder or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
