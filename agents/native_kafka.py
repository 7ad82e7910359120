"""Apache Kafka as a child process: one KRaft node on loopback."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from .broker import KAFKA_VERSION, Broker, BrokerError, free_port, wait_until_ready
from .kafka_jars import fetch_jars, find_java, kafka_resource, tail

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
STOP_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 90.0
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"

# The C1 compiler and the serial collector bring a node up in half the time on two cores;
# a broker that lives for minutes never earns back what C2 costs.
_JVM_OPTIONS = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# The session timeout is how long a restart after a SIGKILL waits for its predecessor's registration
# to lapse (nine seconds by default).
_SERVER_PROPERTIES = """\
node.id=1
process.roles=broker,controller
listeners=CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENT://127.0.0.1:{port}
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={log_dir}
auto.create.topics.enable=false
message.max.bytes={max_message_bytes}
socket.request.max.bytes={max_request_bytes}
replica.fetch.max.bytes={max_message_bytes}
num.io.threads=4
num.network.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=33554432
broker.heartbeat.interval.ms=1000
broker.session.timeout.ms=4000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
offsets.topic.num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""

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
        java, libs = find_java(), fetch_jars(say)
        self._temporary = data_dir is None
        if data_dir is None:
            self.data_dir = Path(tempfile.mkdtemp(prefix="sdp-kafka-"))
        else:
            self.data_dir = data_dir.absolute()
            self.data_dir.mkdir(parents=True, exist_ok=True)
        self._outlives_us = outlives_us
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        logging_config = self.data_dir / "log4j2.properties"
        self._java = [java, *_JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging_config}"]
        self._java += ["-cp", f"{libs}/*"]
        try:
            logging_config.write_bytes(kafka_resource("log4j2.properties"))
            self._first_start(port)
        except BaseException:  # Ctrl-C too leaves nothing behind
            self.stop()
            raise

    @property
    def log_path(self) -> Path:
        """What the broker printed."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int:
        """Process id of the broker.

        Raises:
            BrokerError: it was stopped or killed.
        """
        if self._process is None:
            raise BrokerError("the broker was stopped or killed: it has no process")
        return self._process.pid

    def stop(self) -> None:
        """Stop the process (SIGTERM, after ten seconds SIGKILL); remove a temporary folder."""
        self._end_process()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def kill(self) -> None:
        """Take the broker away as a power cut would (SIGKILL); its data stays."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def restart(self) -> None:
        """Bring a killed or running broker back on the same port with the same data.

        Raises:
            BrokerError: it did not come up, or its temporary folder is already removed.
        """
        if not self._settings_path.exists():
            raise BrokerError(f"nothing to restart: {self.data_dir} was removed by stop()")
        self._end_process()
        self._start()

    def detach(self) -> int:
        """Give the process away and return its pid: this object no longer stops it."""
        pid = self.pid
        if self._process is not None:
            self._process.returncode = 0  # or its finalizer warns about a child still running
        self._process, self._temporary = None, False
        return pid

    @property
    def _settings_path(self) -> Path:
        return self.data_dir / "server.properties"

    def _first_start(self, port: int | None) -> None:
        self._configure(free_port() if port is None else port)
        try:
            self._format()
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
        settings = _SERVER_PROPERTIES.format(
            port=port,
            controller_port=free_port(),
            log_dir=self.data_dir / "data",
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_request_bytes=2 * MAX_MESSAGE_BYTES,
        )
        self._settings_path.write_text(settings, encoding="utf-8")

    def _format(self) -> None:
        options = ["--ignore-formatted", "--cluster-id", _CLUSTER_ID]
        options += ["--config", str(self._settings_path)]
        result = subprocess.run(  # noqa: S603 - our own command line
            [*self._java, "kafka.tools.StorageTool", "format", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_START_TIMEOUT_S,
        )
        if result.returncode != 0:
            raise BrokerError(
                f"Kafka could not format {self.data_dir}; its output:\n{tail(result.stdout)}"
            )

    def _start(self) -> None:
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
            self._guard = _start_guard(self.pid, self.data_dir if self._temporary else None)
        try:
            wait_until_ready(self.bootstrap_servers, _START_TIMEOUT_S, self._check_alive)
        except BrokerError as error:
            self.kill()
            raise BrokerError(f"{error}; the end of its log:\n{self._log_tail()}") from error

    def _check_alive(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            raise BrokerError(f"Apache Kafka {KAFKA_VERSION} stopped while starting (exit {code})")

    def _log_tail(self) -> str:
        return tail(self.log_path.read_text(encoding="utf-8", errors="replace"))

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

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
