"""The state file: what `down` may stop and remove."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from agents import kafka_daemon
from agents.broker import BrokerError
from agents.kafka_daemon import LocalKafka


@pytest.fixture
def state_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "sdp").mkdir(mode=0o700)
    return tmp_path / "sdp" / "kafka.json"


def record(state_file: Path, kafka: LocalKafka) -> None:
    state_file.write_text(json.dumps(asdict(kafka)), encoding="utf-8")


def test_a_recycled_pid_is_not_stopped(state_file: Path, tmp_path: Path) -> None:
    somebody = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        record(state_file, LocalKafka(somebody.pid, 9_092, str(tmp_path / "data"), temporary=True))
        assert kafka_daemon.status() is None
        assert kafka_daemon.down() is None
        assert somebody.poll() is None
        assert not state_file.exists()
    finally:
        somebody.kill()
        somebody.wait()


def test_a_process_that_carries_our_settings_is_stopped(state_file: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    code = "import time; print('up', flush=True); time.sleep(60)"
    arguments = [sys.executable, "-c", code, f"{data_dir}/server.properties"]
    broker = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"up\n"  # its command line is visible from here on
        kafka = LocalKafka(broker.pid, 9_092, str(data_dir), temporary=True)
        record(state_file, kafka)
        assert kafka_daemon.status() == kafka
        assert kafka_daemon.down() == kafka
        assert broker.wait() == -15
        assert not data_dir.exists()
    finally:
        broker.kill()
        broker.communicate()


def test_after_a_crash_down_removes_what_was_temporary(state_file: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    record(state_file, LocalKafka(2**22 + 1, 9_092, str(data_dir), temporary=True))
    assert kafka_daemon.down() is None
    assert not data_dir.exists()


def test_a_named_folder_stays(state_file: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    record(state_file, LocalKafka(2**22 + 1, 9_092, str(data_dir), temporary=False))
    kafka_daemon.down()
    assert data_dir.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1, "surprise": 2}'])
def test_a_state_file_that_is_not_ours_is_named(state_file: Path, text: str) -> None:
    state_file.write_text(text, encoding="utf-8")
    with pytest.raises(BrokerError, match=r"kafka\.json is not a state file of ours"):
        kafka_daemon.status()


def test_a_runtime_folder_open_to_others_is_refused(state_file: Path) -> None:
    state_file.parent.chmod(0o777)
    with pytest.raises(BrokerError, match="mode 700"):
        kafka_daemon.status()


def test_without_a_runtime_directory_the_folder_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert kafka_daemon.status() is None
    folder = tmp_path / f"sdp-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
