"""What a worker process has taken since its first record."""

import resource
import time
from pathlib import Path


class Clocks:
    """Wall time and CPU time of all threads, from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def since(self) -> dict[str, float]:
        """Return seconds of both, and the largest memory of the process in MiB."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
            "peak_mib": _peak_mib(),
        }


def _peak_mib() -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # Linux's ru_maxrss begins with what the process had that started this one.
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024
