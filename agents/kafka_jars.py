"""The Java and the jars that a native Kafka runs on, fetched once by Maven."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from .broker import KAFKA_VERSION, BrokerError

_JAVA_OLDEST = 17
_FETCH_TIMEOUT_S = 900
_LOG_LINES_SHOWN = 40


def kafka_resource(name: str) -> bytes:
    """Return a file of the folder ``agents/kafka``."""
    return (resources.files("agents") / "kafka" / name).read_bytes()


def tail(log: str) -> str:
    """Return the last lines of ``log``, as error messages show them."""
    return "\n".join(log.splitlines()[-_LOG_LINES_SHOWN:])


def find_java() -> str:
    """Return the path of a Java runtime that Kafka 4 accepts.

    Raises:
        BrokerError: there is none; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise BrokerError(f"no java {where}: install Java {_JAVA_OLDEST} or newer")
    printed = subprocess.run(  # noqa: S603 - the user's own java
        [java, "-version"], capture_output=True, text=True, check=False, timeout=30
    ).stderr
    match = re.search(r'version "(\d+)', printed)
    if match is None or int(match[1]) < _JAVA_OLDEST:
        first_line = (printed.splitlines() or ["no version printed"])[0]
        raise BrokerError(f"{java} is too old for Kafka 4 ({first_line}): install Java 17 or newer")
    return java


def fetch_jars(say: Callable[[str], None]) -> Path:
    """Return the folder with Kafka's jars, downloaded on first use.

    The folder's name holds a hash of the pom.xml, and it appears in one rename, so it is
    either complete or absent, also when two processes fetch at once.

    Raises:
        BrokerError: Maven is missing or failed; the message shows the end of its output.
    """
    pom = kafka_resource("pom.xml")
    home = _cache_dir() / f"kafka-{KAFKA_VERSION}-{hashlib.sha256(pom).hexdigest()[:12]}"
    if (home / "libs").is_dir():
        return home / "libs"
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerError("no mvn on the PATH: install Maven, which fetches Kafka's jars once")
    home.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching Apache Kafka {KAFKA_VERSION} with Maven (about 45 MB, once)")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home.parent) as folder:
        _run_maven(maven, pom, Path(folder))
        try:
            Path(folder).rename(home)
        except OSError:
            if not (home / "libs").is_dir():  # not because another process was faster
                raise
        else:
            Path(folder).mkdir()  # for TemporaryDirectory to remove
    return home / "libs"


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sdp"


def _run_maven(maven: str, pom: bytes, folder: Path) -> None:
    (folder / "pom.xml").write_bytes(pom)
    command = [maven, "--quiet", "--batch-mode", "dependency:copy-dependencies"]
    try:
        result = subprocess.run(  # noqa: S603 - the user's own mvn, on our own pom.xml
            [*command, f"-DoutputDirectory={folder / 'libs'}"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_FETCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(f"Maven took more than {_FETCH_TIMEOUT_S} s, gave up") from error
    if result.returncode != 0:
        raise BrokerError(
            f"Maven could not fetch Apache Kafka {KAFKA_VERSION} (exit {result.returncode}); "
            f"the end of its output:\n{tail(result.stdout)}"
        )
