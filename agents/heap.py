"""How a worker's memory is kept: the C library's heaps, and what Python's collector looks at."""

import ctypes
import gc
import os
import sys

# Of glibc's malloc.h.
_M_ARENA_MAX = -8
_HEAPS = 2
# Sums and noise (8 bytes each), the release, its bytes, and the client's copy of them.
_SEAL_BYTES_A_COORDINATE = 40
_ALL_SEALS_BYTES = 256 << 20
# Some batches of a head.
_OBJECTS_A_COLLECTION = 50_000


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


def keep_what_is_there() -> None:
    """Let Python's collector never look again at what there is now; to be called once set up.

    All that the imported packages have made stays as long as the process. A collection that looks
    at it takes 60 ms, in which no other thread runs Python: neither the event loop nor those of
    releases. Without it, one takes a few milliseconds.

    And let it look less often: a batch is thousands of objects that are in no cycle, and every 700
    of them would set off a collection, of which some walk through all clients of all open windows.
    """
    gc.set_threshold(_OBJECTS_A_COLLECTION, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()


def seals_at_once(release_size: int) -> int:
    """Return how many windows may be sealed and committed at the same time, at least one.

    Args:
        release_size: How many coordinates a release has. What sealing one takes for a while grows
            with it, and a worker may be head of many clusters whose windows end together.
    """
    return max(1, _ALL_SEALS_BYTES // (_SEAL_BYTES_A_COORDINATE * release_size))
