"""`sdp kafka`: a broker that outlives its command, and what a person is told."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agents import kafka_daemon
from agents.broker import BrokerError, wait_until_ready
from agents.cli_kafka import NOT_RUNNING, kafka
from agents.kafka_daemon import KafkaUp, LocalKafka

RUNNING = LocalKafka(pid=4_711, port=9_092, data_dir="/data/kafka", temporary=True)


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    kafka_daemon.down()


def in_a_process_of_its_own(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from agents.cli_kafka import kafka; kafka()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )


def is_running(pid: int) -> bool:
    # An orphan that has ended stays in the table until init collects it.
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kafka, arguments)


@pytest.mark.integration
@pytest.mark.usefixtures("native_kafka", "runtime_dir")
def test_up_leaves_a_broker_that_status_sees_and_down_removes() -> None:
    first = in_a_process_of_its_own("up", "--json")
    assert first.returncode == 0, first.stderr
    state = json.loads(first.stdout)
    assert state["started"]
    assert state["temporary"]
    wait_until_ready(state["bootstrap_servers"], 5.0)

    again = json.loads(run("up", "--json").stdout)
    assert not again["started"]
    assert again["pid"] == state["pid"]

    other = run("up", "--port", "1")
    assert other.exit_code == 1
    assert "sdp kafka down" in other.stderr

    seen = run("status", "--json")
    assert seen.exit_code == 0
    assert json.loads(seen.stdout)["bootstrap_servers"] == state["bootstrap_servers"]

    assert run("down").exit_code == 0
    assert run("status").exit_code == NOT_RUNNING
    assert not Path(state["data_dir"]).exists()
    assert not is_running(state["pid"])


@pytest.mark.usefixtures("runtime_dir")
def test_status_without_a_broker_exits_3() -> None:
    result = run("status")
    assert (result.exit_code, result.stdout) == (NOT_RUNNING, "no local Kafka is running\n")
    assert json.loads(run("status", "--json").stdout) == {"running": False}


@pytest.mark.usefixtures("runtime_dir")
def test_down_without_a_broker_is_no_error() -> None:
    result = run("down")
    assert (result.exit_code, result.stdout) == (0, "no local Kafka was running\n")


def test_up_prints_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_daemon, "up", lambda *_: KafkaUp(RUNNING, started=True))
    result = run("up")
    assert result.stdout == "Kafka runs at 127.0.0.1:9092 (pid 4711)\n"
    assert "/data/kafka" in result.stderr


def test_up_shows_why_kafka_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> KafkaUp:
        raise BrokerError("no java on the PATH: install Java 17 or newer")

    monkeypatch.setattr(kafka_daemon, "up", fail)
    result = run("up")
    assert result.exit_code == 1
    assert result.stderr == "Error: no java on the PATH: install Java 17 or newer\n"


def test_a_port_that_cannot_be_is_a_usage_error() -> None:
    assert run("up", "--port", "70000").exit_code == 2
