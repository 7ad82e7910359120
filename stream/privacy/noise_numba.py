"""The kernel of `noise_kernel`, compiled: the same words give the same proposals.

Needs numba, the extra `sdp-stream[fast]`. Integers only, so that a compiler has nothing to round.
"""

from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from .noise_tables import COIN_BITS, ENTRY_BITS, SLOT_BITS

# Not "import numba": type checks must come out the same with and without the extra.
_numba = import_module("numba")

_SLOT_MASK = np.uint64((1 << SLOT_BITS) - 1)
_SLOT_SHIFT = np.uint64(SLOT_BITS)
_COIN_SHIFT = np.uint64(64 - COIN_BITS)
_ACCEPT_MASK = (1 << ENTRY_BITS) - 1


def _propose(
    words: NDArray[np.uint64],
    entries: NDArray[np.int64],
    offset_mask: int,
    width_log2: int,
    values: NDArray[np.int64],
    unsure: NDArray[np.int64],
) -> int:
    """Do what `noise_kernel.propose_with_numpy` does, one word at a time."""
    count = 0
    mask = np.uint64(offset_mask)
    for i in range(values.size):
        word = words[i]
        entry = entries[word & _SLOT_MASK]
        block = entry >> ENTRY_BITS
        offset = np.int64((word >> _SLOT_SHIFT) & mask)
        coin = np.int64(word >> _COIN_SHIFT)
        values[i] = block << width_log2 | offset if width_log2 > 0 else block >> -width_log2
        if coin >= entry & _ACCEPT_MASK:
            unsure[0, count] = i
            unsure[1, count] = block
            unsure[2, count] = offset
            unsure[3, count] = coin
            count += 1
    return count


_types = _numba.types
# Compiled here, so that no release waits for the compiler; not cached on disk, since a service
# may have no directory to write to.
propose_with_numba = _numba.njit(
    _types.int64(
        _types.uint64[::1],
        _types.Array(_types.int64, 1, "C", readonly=True),
        _types.int64,
        _types.int64,
        _types.int64[::1],
        _types.int64[:, ::1],
    ),
    nogil=True,
)(_propose)
