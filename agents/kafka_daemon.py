"""The local Kafka that outlives its command: ``sdp kafka up``, ``down`` and ``status``."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .broker import BrokerError
from .native_kafka import STOP_TIMEOUT_S, NativeBroker, say_on_stderr


@dataclass(frozen=True, slots=True)
class LocalKafka:
    """A broker that was left running, as its state file records it.

    Attributes:
        pid: Its process.
        port: Its port on 127.0.0.1.
        data_dir: Folder of its data, settings and log.
        temporary: Whether ``down`` removes the folder.
    """

    pid: int
    port: int
    data_dir: str
    temporary: bool

    @property
    def bootstrap_servers(self) -> str:
        """Address as Kafka clients take it."""
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class KafkaUp:
    """What ``up`` found or did: ``started`` is False for a broker that ran already."""

    kafka: LocalKafka
    started: bool


def up(
    data_dir: Path | None = None,
    port: int | None = None,
    *,
    say: Callable[[str], None] = say_on_stderr,
) -> KafkaUp:
    """Leave a native Kafka running, or find the one that runs.

    Args:
        data_dir: Where its data stays after ``down``; None for a folder that ``down`` removes.
        port: Port on 127.0.0.1; None takes a free one.
        say: Where progress is told.

    Raises:
        BrokerError: Kafka cannot run here, or one runs that is not the one asked for.
    """
    with _locked() as state_file:
        if (running := _running(state_file)) is not None:
            _refuse_another(running, data_dir, port)
            return KafkaUp(running, started=False)
        broker = NativeBroker(data_dir, port, outlives_us=True, say=say)
        try:
            kafka = LocalKafka(
                broker.pid, broker.port, str(broker.data_dir), temporary=data_dir is None
            )
            _write(state_file, kafka)
        except BaseException:
            broker.stop()
            raise
        broker.detach()
        return KafkaUp(kafka, started=True)


def down() -> LocalKafka | None:
    """Stop the broker of ``up``; return what it was, or None where none ran.

    Raises:
        BrokerError: its process ignores even SIGKILL.
    """
    with _locked() as state_file:
        kafka = _running(state_file)
        if kafka is not None:
            _stop(kafka)
        recorded = kafka or _read(state_file)
        # Also after a crash or a reboot: what is temporary must not stay behind.
        if recorded is not None and recorded.temporary:
            shutil.rmtree(recorded.data_dir, ignore_errors=True)
        state_file.unlink(missing_ok=True)
        return kafka


def status() -> LocalKafka | None:
    """Return the broker of ``up`` that runs now, or None."""
    with _locked() as state_file:
        return _running(state_file)


def _refuse_another(running: LocalKafka, data_dir: Path | None, port: int | None) -> None:
    other_port = port is not None and port != running.port
    other_folder = data_dir is not None and str(data_dir.absolute()) != running.data_dir
    if other_port or other_folder:
        raise BrokerError(
            f"a local Kafka already runs at {running.bootstrap_servers} with its data in "
            f"{running.data_dir}: stop it first with `sdp kafka down`"
        )


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    """Hold the lock that makes two commands at once take turns; yield the state file's path."""
    folder = _runtime_dir()
    with (folder / "kafka.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "kafka.json"


def _runtime_dir() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "sdp" if base else Path(tempfile.gettempdir()) / f"sdp-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    # In a shared /tmp somebody else may have made it first, to choose what we stop and remove.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BrokerError(f"{folder} must be a folder of yours with mode 700: remove it")
    return folder


def _write(state_file: Path, kafka: LocalKafka) -> None:
    fresh = state_file.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(kafka)), encoding="utf-8")
    fresh.replace(state_file)


def _read(state_file: Path) -> LocalKafka | None:
    try:
        return LocalKafka(**json.loads(state_file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise BrokerError(f"{state_file} is not a state file of ours: remove it") from error


def _running(state_file: Path) -> LocalKafka | None:
    kafka = _read(state_file)
    return kafka if kafka is not None and _is_ours(kafka) else None


def _is_ours(kafka: LocalKafka) -> bool:
    """Return whether the recorded pid is still that broker, and not a new owner of the number."""
    command_line = Path(f"/proc/{kafka.pid}/cmdline")
    try:
        if Path("/proc/self").exists():
            arguments = command_line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        else:
            arguments = subprocess.run(  # noqa: S603 - a fixed command
                ["/bin/ps", "-o", "command=", "-p", str(kafka.pid)],
                capture_output=True,
                text=True,
                check=False,
            ).stdout
    except OSError:
        return False
    return f"{kafka.data_dir}/server.properties" in arguments


def _stop(kafka: LocalKafka) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(kafka.pid, signal_number)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if not _is_ours(kafka):
                return
            time.sleep(0.05)
    raise BrokerError(f"process {kafka.pid} of the local Kafka does not end")
