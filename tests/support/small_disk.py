"""A disk that can be filled."""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o size="$2" small-disk "$1" && echo mounted && exec cat'
_FILLER = "filler"
_CHUNK = 1 << 16


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path | None]:
    """Give the path of a file system of ``size``, or None where none may be mounted.

    It takes no privilege: it is mounted in name spaces of a process of ours, ends with that, and
    is reached through its folder in /proc.
    """
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", _MOUNT, "sh", folder, size]
    try:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError:
        yield None
        return
    with holder:
        is_mounted = holder.stdout.readline() == b"mounted\n"
        yield Path(f"/proc/{holder.pid}/root{folder}") if is_mounted else None
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.close()


def fill(disk: Path) -> None:
    """Write until nothing more fits."""
    try:
        with (disk / _FILLER).open("ab", buffering=0) as filler:
            while filler.write(bytes(_CHUNK)):
                pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def make_room(disk: Path) -> None:
    """Undo `fill`."""
    (disk / _FILLER).unlink()
