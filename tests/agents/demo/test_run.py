"""The demonstration from end to end, shortened, on a real Kafka: good, stopped, with a death."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

_READY = "to be ready"


class Demo:
    """A shortened ``sdp demo`` as a process, with a folder of its own for temporary files."""

    def __init__(self, folder: Path, bootstrap_servers: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.report = folder / "report.json"
        self.picture = folder / "picture.png"
        self.log_path = folder / "demo.log"
        command = [sys.executable, "-P", "-m", "agents", "demo"]
        command += ["--windows", "4", "--clients", "200", "--window-ms", "2000"]
        command += ["--json", str(self.report), "--png", str(self.picture)]
        environment = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
            "TMPDIR": str(self.temporary),
            "PYTHONUNBUFFERED": "1",
        }
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self.log_path.read_text()

    def wait_until(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def children(self) -> list[int]:
        """Return the pids of all processes that were told of this demo's folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(self.temporary).encode() in command:
                found.append(int(entry.name))
        return found


@pytest.fixture
def demo(tmp_path: Path, bootstrap_servers: str) -> Iterator[Demo]:
    started = Demo(tmp_path, bootstrap_servers)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(60)


def demo_topics(bootstrap_servers: str) -> list[str]:
    topics = AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=10).topics
    return [name for name in topics if name.startswith("sdp-demo-")]


def assert_nothing_is_left(demo: Demo, bootstrap_servers: str) -> None:
    assert demo.children() == []
    assert list(demo.temporary.iterdir()) == []
    assert demo_topics(bootstrap_servers) == []


@pytest.mark.integration
@pytest.mark.slow
def test_a_shortened_run_passes_and_leaves_nothing_behind(
    demo: Demo, bootstrap_servers: str
) -> None:
    assert demo.process.wait(120) == 0, demo.output
    report = json.loads(demo.report.read_text())
    assert report["broker"] == "env"
    assert (report["cells_released"], report["cells_released_twice"]) == (16, 0)
    assert report["ledger_verified"] is True
    assert 0 < report["epsilon"] <= 8.0
    assert report["epsilon_independent"] == pytest.approx(report["epsilon"], rel=0.01)
    assert report["updates_accepted"] > 0
    assert report["release_latency_s"]["max"] < 10
    assert demo.picture.read_bytes().startswith(b"\x89PNG")
    assert_nothing_is_left(demo, bootstrap_servers)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_nothing_behind(
    demo: Demo, bootstrap_servers: str, number: int
) -> None:
    demo.wait_until(_READY)
    assert demo.children()
    demo.process.send_signal(number)
    assert demo.process.wait(60) == 1
    assert not demo.report.exists()
    assert_nothing_is_left(demo, bootstrap_servers)


@pytest.mark.integration
@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_and_its_log_is_shown(
    demo: Demo, bootstrap_servers: str
) -> None:
    demo.wait_until(_READY)
    os.kill(min(demo.children()), signal.SIGKILL)
    assert demo.process.wait(60) == 1
    assert "ended (exit -9); the end of its log:" in demo.output
    assert_nothing_is_left(demo, bootstrap_servers)
