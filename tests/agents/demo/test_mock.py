"""The demonstration on librdkafka's mock cluster, and that only the demonstration runs so."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from rich.console import Console

from agents import cli, workers
from agents.demo import run
from agents.demo.data import DIMENSION
from agents.demo.mock import MOST_WINDOWS, create_mock_topics
from agents.demo.plan import CLUSTERS, WINDOWS, demo_plan
from agents.demo.run import DemoOptions
from agents.feed import PartitionFeed
from agents.kafka_edge import connection
from agents.local_kafka import Broker, BrokerError, MockBroker
from agents.record_batch import RecordBatch, WrongTimestampsError
from agents.settings import Settings
from agents.topics import TopicError, check_mock_topics
from schemas import Release, encode_release
from stream.privacy.plan import PrivacyPlan

ROOT = Path(__file__).parents[3]


class MockDemo:
    """A shortened ``sdp demo`` where neither Docker nor Java can be found."""

    def __init__(self, folder: Path) -> None:
        self.temporary, self.report = folder / "tmp", folder / "report.json"
        self.temporary.mkdir()
        (folder / "bin").mkdir()
        self._log_path = folder / "demo.log"
        command = [sys.executable, "-P", "-m", "agents", "demo", "--windows", "3"]
        command += ["--clients", "100", "--window-ms", "1500", "--json", str(self.report)]
        command += ["--png", str(folder / "picture.png")]
        unwanted = {"KAFKA_BOOTSTRAP_SERVERS", "JAVA_HOME"}
        inherited = {name: value for name, value in os.environ.items() if name not in unwanted}
        changed = {"PATH": str(folder / "bin"), "TMPDIR": str(self.temporary)}
        changed["PYTHONUNBUFFERED"] = "1"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=inherited | changed, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        """What the screen says, with no regard to line ends."""
        return " ".join(self._log_path.read_text().split())

    def wait_until(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def left_behind(self) -> list[str]:
        """Return the files and the processes that know this demo's folder."""
        found = [path.name for path in self.temporary.iterdir()]
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = entry.read_bytes()
            except OSError:
                continue
            if os.fsencode(self.temporary) in command:
                found.append(command.decode())
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[MockDemo]:
    started = MockDemo(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(60)


@pytest.fixture
def mock_config() -> Iterator[dict[str, str]]:
    with MockBroker() as broker:
        yield connection(broker.bootstrap_servers, {})


def plan(windows: int = WINDOWS) -> PrivacyPlan:
    return demo_plan(
        start_ms=0, clients=2000, windows=windows, window_ms=3000, topic_prefix="mocked"
    )


@pytest.mark.slow
def test_the_whole_job_runs_with_neither_docker_nor_java_and_says_what_it_does_not_show(
    demo: MockDemo,
) -> None:
    assert demo.process.wait(120) == 0, demo.output
    report = json.loads(demo.report.read_text())
    assert report["broker"] == "mock"
    assert (report["cells_released"], report["cells_released_twice"]) == (12, 0)
    assert report["ledger_verified"] is True
    assert 0 < report["epsilon"] <= 8.0
    assert report["epsilon_independent"] == pytest.approx(report["epsilon"], rel=0.01)
    assert report["updates_accepted"] > 0
    before, after = demo.output.split("waiting for 2 heads", maxsplit=1)
    assert "on librdkafka's mock cluster" in before
    for lack in ("transaction isolation", "broker timestamps", "durability"):
        assert lack in before
        assert lack in after
    assert demo.left_behind() == []


@pytest.mark.slow
def test_a_run_on_the_mock_that_is_stopped_leaves_nothing_behind(demo: MockDemo) -> None:
    demo.wait_until("to be ready")
    assert demo.left_behind()
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 1
    assert not demo.report.exists()
    assert demo.left_behind() == []


def test_more_windows_than_the_mock_can_keep_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_mock(say: Callable[[str], None]) -> Broker:
        return MockBroker()

    monkeypatch.setattr(run, "start_broker", start_mock)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = DemoOptions(
        clients=10,
        windows=MOST_WINDOWS + 1,
        window_ms=2000,
        minimum_accuracy=0.0,
        json_path=None,
        png_path=tmp_path / "picture.png",
        keeps_logs=False,
    )
    with pytest.raises(BrokerError, match=f"--windows {MOST_WINDOWS} or fewer"):
        run.run_demo(options, Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []


def test_the_releases_of_the_whole_job_fit_into_what_the_mock_keeps() -> None:
    whole = plan()
    release = Release(
        plan_id=whole.plan_id,
        cluster=CLUSTERS - 1,
        window=WINDOWS,
        sequence=WINDOWS,
        charge_units=whole.charge_units,
        spent_units=whole.cap_units,
        cap_units=whole.cap_units,
        noise_variance=whole.noise_variance,
        l2_sensitivity_squared=whole.l2_sensitivity_squared,
        vector=np.zeros(DIMENSION + 1, np.dtype(whole.release_dtype)),
    )
    batch_overhead = 150
    bytes_needed = (len(encode_release(release)) + batch_overhead) * CLUSTERS * MOST_WINDOWS
    assert WINDOWS <= MOST_WINDOWS
    assert bytes_needed <= 5 << 20


def test_a_mock_cluster_passes_its_own_check_only_with_all_topics(
    mock_config: dict[str, str],
) -> None:
    with pytest.raises(TopicError, match=r"missing on the mock cluster.*mocked\.updates"):
        check_mock_topics(mock_config, plan())
    create_mock_topics(mock_config, plan())
    check_mock_topics(mock_config, plan())


@pytest.mark.integration
def test_the_check_that_a_mock_cluster_passes_refuses_a_real_kafka(bootstrap_servers: str) -> None:
    with pytest.raises(TopicError, match="this is another"):
        check_mock_topics(connection(bootstrap_servers, {}), plan())


class Reader:
    """Owner and channel of a feed; keeps what arrives."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []

    async def open_partition(self, partition: int, epoch: int, metadata: object) -> int | None:
        return 0 if partition == 0 else None

    async def close_partition(self, partition: int) -> None:
        """Nothing was opened."""

    async def put(self, batch: RecordBatch) -> None:
        if batch.records:
            self.batches.append(batch)


async def read_one(config: dict[str, str], **options: bool) -> list[RecordBatch]:
    """Return the first records of the topic ``stamped``; raise what ends the feed."""
    reader = Reader()
    feed = PartitionFeed(
        config=config,
        topic="stamped",
        group=f"group-{len(options)}",  # one that crashed has not left its group
        session_timeout_ms=6000,
        isolation_level="read_uncommitted",
        batch_records=10,
        batch_bytes=1 << 20,
        owner=reader,
        channel=reader,
        **options,
    )
    await feed.start()
    deadline = time.monotonic() + 30
    while not reader.batches and feed.crash_reason is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await feed.stop()
    if feed.crash_reason is not None:
        raise feed.crash_reason
    return reader.batches


def test_a_feed_refuses_the_producers_own_times_unless_it_is_told_that_they_are_unsafe(
    mock_config: dict[str, str],
) -> None:
    producer = Producer(mock_config)
    producer.produce("stamped", b"value", partition=0, timestamp=1234)
    assert producer.flush(10) == 0
    with pytest.raises(WrongTimestampsError, match="LogAppendTime"):
        asyncio.run(read_one(mock_config))
    (batch,) = asyncio.run(read_one(mock_config, unsafe_any_timestamps=True))
    assert [timestamp_ms for _, timestamp_ms, _ in batch.records] == [1234]


@pytest.mark.parametrize(("command", "role"), [("head", "run_head"), ("global", "run_global")])
def test_whatever_the_command_line_is_given_the_checks_stay_on(
    command: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_file = tmp_path / "plan.toml"
    plan_file.write_text(plan().to_toml())
    switches: list[dict[str, object]] = []
    monkeypatch.setattr(workers, role, lambda *_, **switched: switches.append(switched))
    arguments = [command, "--plan", str(plan_file), "--bootstrap-servers", "127.0.0.1:1"]
    assert CliRunner().invoke(cli.main, arguments).exit_code == 0
    for refused in (["--unsafe-mock-broker"], ["--unsafe-any-timestamps"]):
        assert CliRunner().invoke(cli.main, [*arguments, *refused]).exit_code == 2
    monkeypatch.setenv("SDP_UNSAFE_MOCK_BROKER", "1")
    assert CliRunner().invoke(cli.main, arguments).exit_code == 2
    assert switches == [{}]


def test_no_option_and_no_setting_is_about_what_is_unsafe() -> None:
    commands = [cli.main.commands[name] for name in ("head", "global")]
    named = {str(parameter.name) for command in commands for parameter in command.params}
    assert {"plan", "bootstrap_servers", "log_level"} <= named
    named |= set(Settings.model_fields)
    assert [name for name in named if re.search("unsafe|mock|timestamp|check", name)] == []


def test_only_the_demonstration_switches_the_checks_off() -> None:
    # Whoever was told may pass it on; whoever says anything else decides.
    decides = re.compile(
        r"unsafe_(mock_broker|any_timestamps)=(?!(unsafe_mock_broker|self\._unsafe_any_timestamps)\b)"
    )
    found = [
        path.relative_to(ROOT).as_posix()
        for package in ("agents", "schemas", "stream")
        for path in (ROOT / package).rglob("*.py")
        if decides.search(path.read_text())
    ]
    assert sorted(found) == ["agents/demo/mock.py", "agents/demo/run.py"]
