"""The Kafka process itself: what it leaves behind, and what it says when it fails."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.broker import BrokerError, free_port
from agents.native_kafka import NativeBroker

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("native_kafka")]


def silent(_: str) -> None:
    pass


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_stop_leaves_no_process_and_no_folder() -> None:
    with NativeBroker(say=silent) as broker:
        pid, folder = broker.pid, broker.data_dir
        assert is_alive(pid)
        assert folder.exists()
    assert not is_alive(pid)
    assert not folder.exists()
    broker.stop()  # once more is harmless
    with pytest.raises(BrokerError, match="was removed by stop"):
        broker.restart()


def test_a_port_in_use_is_told_with_the_log_and_a_named_folder_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with pytest.raises(BrokerError, match=r"(?s)end of its log:.*Address already in use"):
            NativeBroker(folder, port, say=silent)
    port = free_port()
    with NativeBroker(folder, port, say=silent) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"
    assert {"broker.log", "data", "server.properties"} <= {path.name for path in folder.iterdir()}


def test_when_its_owner_is_killed_the_broker_goes_too() -> None:
    code = (
        "import os, signal; from agents.native_kafka import NativeBroker\n"
        "broker = NativeBroker()\n"
        "print(broker.pid, broker.data_dir, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    pid, folder = owner.stdout.split()
    wait_for(lambda: not is_alive(int(pid)))
    wait_for(lambda: not Path(folder).exists())
