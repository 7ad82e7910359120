"""Where peers run: environments of their own, made once in the cache of the user.

Their requirements do not go together with ours (Quix Streams needs an older confluent-kafka, Flower
an older protobuf), and a peer is a process of its own anyway. `make lock` pins them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.kafka_jars import find_java
from agents.local_kafka import BrokerError

_FOLDER = Path(__file__).parent
_JAVA_PROJECT = _FOLDER / "kafka_streams"
_TIMEOUT_S = 900
_LINES_SHOWN = 20

# No larger heap makes it faster; a smaller one would be felt at 1 MB.
_JAVA_OPTIONS = (
    "-Xms512m",
    "-Xmx512m",
    "-XX:+UseParallelGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class MissingPeerError(Exception):
    """A peer cannot be had here; the message says why."""


def python_command(name: str, *, may_install: bool = True) -> list[str]:
    """Return how to run ``peer_NAME.py`` with the packages of its own requirements.

    Raises:
        MissingPeerError: they are not installed, and may not be or could not be.
    """
    lock = _FOLDER / "peer_requirements" / f"{name}.txt"
    key = lock.read_bytes() + f"{sys.version_info[:2]} {sysconfig.get_platform()}".encode()

    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", "--no-compile", "--require-hashes", "-r", str(lock)])

    folder = _made(f"peer-{name}", key, make, may_make=may_install)
    return [str(folder / "bin" / "python"), str(_FOLDER / f"peer_{name}.py")]


def java_command(*, may_install: bool = True) -> list[str]:
    """Return how to run the peer of the folder ``kafka_streams``, which Maven builds.

    Raises:
        MissingPeerError: it is not built, and may not be or could not be.
    """
    sources = sorted(path for path in _JAVA_PROJECT.rglob("*") if path.is_file())
    key = b"".join(path.read_bytes() for path in sources)

    def make(folder: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingPeerError("no mvn on the PATH")
        project = folder / "project"
        shutil.copytree(_JAVA_PROJECT, project)
        _run([maven, "--quiet", "--batch-mode", "package"], cwd=project)
        (project / "target" / "libs").rename(folder / "libs")
        shutil.rmtree(project)

    try:
        java = find_java()
    except BrokerError as error:
        raise MissingPeerError(str(error)) from error
    folder = _made("peer-kafka-streams", key, make, may_make=may_install)
    return [java, *_JAVA_OPTIONS, "-cp", f"{folder}/libs/*", "VectorSum"]


def _made(name: str, key: bytes, make: Callable[[Path], None], *, may_make: bool) -> Path:
    """Return a folder that is complete or absent: it appears in one rename."""
    home = _cache_dir() / f"{name}-{hashlib.sha256(key).hexdigest()[:12]}"
    if home.is_dir():
        return home
    if not may_make:
        raise MissingPeerError(f"{home.name} is not installed: `make bench` does")
    home.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"installing {name} (once)\n")
    with tempfile.TemporaryDirectory(prefix=".peer-", dir=home.parent) as folder:
        made = Path(folder) / "made"
        made.mkdir()
        make(made)
        try:
            made.rename(home)
        except OSError:
            if not home.is_dir():  # not because another process was faster
                raise
    return home


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sdp"


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingPeerError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = "\n".join(done.stdout.splitlines()[-_LINES_SHOWN:])
        raise MissingPeerError(f"{' '.join(command)} failed:\n{said}")
