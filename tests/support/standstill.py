"""Processes that stand still: their connections stay, and nobody answers."""

import os
import signal
import time
from pathlib import Path

_PAUSE_S = 0.001
_PATIENCE_S = 30.0


def stop(pid: int) -> None:
    """Send SIGSTOP and return when no thread runs any more, which a busy machine puts off.

    Raises:
        TimeoutError: one still runs after half a minute.
    """
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + _PATIENCE_S
    while not all(_has_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > until:
            raise TimeoutError(f"process {pid} does not stand still")
        time.sleep(_PAUSE_S)


def _has_stopped(task: Path) -> bool:
    try:
        stat = (task / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return True
    # Behind the name, which may have brackets and spaces of its own.
    return stat.rpartition(")")[2].split()[0] in {"T", "Z", "X"}
