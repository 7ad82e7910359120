"""How the C library's allocator shares memory between the threads of a worker."""

import ctypes
import os
import sys

# Of glibc's malloc.h.
_M_ARENA_MAX = -8
_HEAPS = 2


def share_heaps() -> None:
    """Let all threads share two heaps; to be called before the first Kafka client is made.

    glibc gives threads heaps of their own, up to eight a core, and each of them keeps what it
    once needed at a peak. A worker has dozens of threads, most of them of Kafka clients, and they
    come and go with its transactions: with 16 heaps, a third of what a head held was free memory,
    and it grew whenever another heap had its peak. Who has set ``MALLOC_ARENA_MAX`` knows better,
    and C libraries other than glibc have no such heaps.
    """
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _HEAPS)
