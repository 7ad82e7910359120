"""Processes that run, die, or do not listen to a request to end."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.broker import free_port
from agents.demo import processes
from agents.demo.processes import Children, ProcessError


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as found:
        yield found


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that children can be started from."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "child_of_test.py"


def start(children: Children, *, port: int | None = None, ends_by_itself: bool = False) -> None:
    children.start(
        "child",
        ["child_of_test"],
        {"SDP_OPERATOR_PORT": str(port)},
        free_port() if port is None else port,
        ends_by_itself=ends_by_itself,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_that_dies_shows_the_end_of_its_log(children: Children, module: Path) -> None:
    module.write_text("raise SystemExit('the reason')")
    start(children)
    with pytest.raises(ProcessError, match=r"(?s)child ended \(exit 1\).*the reason"):
        children.wait_until_healthy(10)


def test_a_process_that_answers_is_healthy_and_is_stopped(children: Children, module: Path) -> None:
    module.write_text(
        "import http.server, os\n"
        "port = int(os.environ['SDP_OPERATOR_PORT'])\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    start(children, port=free_port())
    (child,) = children._children
    children.wait_until_healthy(10)
    children.check()
    children.stop()
    assert child.process.returncode == -15
    assert not child.is_healthy()


def test_a_process_that_never_answers_is_given_up(children: Children, module: Path) -> None:
    module.write_text("print('still thinking'); import time; time.sleep(60)")
    start(children)
    with pytest.raises(ProcessError, match="did not become ready"):
        children.wait_until_healthy(0.5)


def test_an_expected_end_is_no_error(children: Children, module: Path) -> None:
    module.write_text("")
    start(children, ends_by_itself=True)
    children._children[0].process.wait(10)
    children.check()


def test_who_has_done_its_work_before_being_asked_was_ready(
    children: Children, module: Path
) -> None:
    module.write_text("")
    start(children, ends_by_itself=True)
    children._children[0].process.wait(10)
    children.wait_until_healthy(10)


def test_an_end_that_is_not_expected_is_an_error_even_with_code_0(
    children: Children, module: Path
) -> None:
    module.write_text("")
    start(children)
    children._children[0].process.wait(10)
    with pytest.raises(ProcessError, match="exit 0"):
        children.check()


def test_a_process_that_ignores_the_request_is_killed(
    children: Children, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STOP_TIMEOUT_S", 0.3)
    ready = module.with_name("ready")
    module.write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    start(children)
    (child,) = children._children
    wait_for(ready)
    children.stop()
    assert child.process.returncode == -9


def test_settings_of_our_own_shell_do_not_reach_a_child(
    children: Children, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDP_PLAN", "somewhere.toml")
    module.write_text("import os; print(sorted(k for k in os.environ if k.startswith('SDP_')))")
    start(children, ends_by_itself=True)
    (child,) = children._children
    child.process.wait(10)
    assert child.log_path.read_text().strip() == "['SDP_OPERATOR_PORT']"
