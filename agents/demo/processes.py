"""The processes of a run: started with settings of their own, watched, stopped by pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agents.settings import PREFIX

from .watch import http_get

_STOP_TIMEOUT_S = 15.0
_LOG_LINES_SHOWN = 30
_HEALTH_TIMEOUT_S = 1.0
_HEALTH_POLL_S = 0.1


class ProcessError(Exception):
    """A process ended that should run, or did not become ready; the message shows its log."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that we started.

    Attributes:
        name: For people, and of its log file.
        process: The process; in a session of its own, so Ctrl-C is ours to pass on.
        log_path: What it printed.
        port: Loopback port that answers ``/healthz``.
        ends_by_itself: Whether an exit with code 0 is expected.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    log_path: Path
    port: int
    ends_by_itself: bool

    def check(self) -> None:
        """Raise ProcessError if the process has ended and should not have."""
        code = self.process.poll()
        if code is None or (code == 0 and self.ends_by_itself):
            return
        raise ProcessError(f"{self.name} ended (exit {code}); the end of its log:\n{self._tail()}")

    def is_healthy(self) -> bool:
        """Return whether ``/healthz`` says that the process is ready."""
        try:
            http_get(self.port, "/healthz", _HEALTH_TIMEOUT_S)
        except OSError:
            return False
        return True

    def wait_until_healthy(self, deadline_s: float) -> None:
        """Return when the process is ready, or has done all of its work already.

        Raises:
            ProcessError: it ended, or was not ready when the monotonic clock said ``deadline_s``.
        """
        while not self.is_healthy():
            self.check()
            if self.process.poll() is not None:
                return  # a short run was over before the others were ready
            if time.monotonic() > deadline_s:
                raise ProcessError(
                    f"{self.name} did not become ready; the end of its log:\n{self._tail()}"
                )
            time.sleep(_HEALTH_POLL_S)

    def _tail(self) -> str:
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES_SHOWN:])


class Children:
    """All processes of a run; stopped at the end of the block, the newest first.

    Args:
        folder: Where their logs go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        settings: Mapping[str, str],
        port: int,
        *,
        ends_by_itself: bool = False,
    ) -> Child:
        """Start ``python -P -m`` with ``arguments``; settings of ours reach it no other way."""
        log_path = self._folder / f"{name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                [sys.executable, "-P", "-m", *arguments],
                env=_environment(settings),
                # Whatever a library leaves in its working directory goes with the folder.
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, log_path, port, ends_by_itself)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise ProcessError if a process has ended that should run."""
        for child in self._children:
            child.check()

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Return when all are ready.

        Raises:
            ProcessError: one ended, or was not ready in time.
        """
        deadline_s = time.monotonic() + timeout_s
        for child in self._children:
            child.wait_until_healthy(deadline_s)

    def stop(self) -> None:
        """Ask all to end, wait, and kill what is left; harmless when repeated."""
        for child in reversed(self._children):
            # Popen signals only while the process has not been waited for: never another's pid.
            child.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for child in reversed(self._children):
            try:
                child.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.upper().startswith(PREFIX)}
    # One thread each: the processes share few cores, and spinning BLAS threads help nobody.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**inherited, **threads, "PYTHONUNBUFFERED": "1", **settings}
