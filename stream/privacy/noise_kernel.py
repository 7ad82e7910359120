"""The first look of `noise_rejection`, where most time goes, and the choice of who takes it.

Kernels differ in speed alone: the same words give the same proposals.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .noise_tables import COIN_BITS, ENTRY_BITS, SLOT_BITS

Kernel = Literal["numpy", "numba"]

# words, entries, offset mask, log2 of the width, values, unsure -> number of unsure proposals
Propose = Callable[
    [NDArray[np.uint64], NDArray[np.int64], int, int, NDArray[np.int64], NDArray[np.int64]], int
]


def find_propose(kernel: Kernel) -> Propose:
    """Return what takes the first look.

    Raises:
        ValueError: there is no such kernel.
        ImportError: numba is asked for and not installed; the message names the extra.
    """
    if kernel == "numpy":
        return propose_with_numpy
    if kernel != "numba":
        raise ValueError(f"no noise kernel is named {kernel!r}: write 'numpy' or 'numba'")
    try:
        from .noise_numba import propose_with_numba
    except ImportError as error:
        raise ImportError(
            "noise kernel 'numba': install sdp-stream[fast], or use 'numpy'"
        ) from error
    compiled: Propose = propose_with_numba
    return compiled


def propose_with_numpy(
    words: NDArray[np.uint64],
    entries: NDArray[np.int64],
    offset_mask: int,
    width_log2: int,
    values: NDArray[np.int64],
    unsure: NDArray[np.int64],
) -> int:
    """Write a proposal for each word to ``values``; return how many are not surely accepted.

    The first so many columns of ``unsure`` hold their places in ``values``, blocks, offsets and
    coins; the rest of it is scratch.
    """
    index, entry, coin, _ = unsure[:, : values.size]
    np.bitwise_and(words.view(np.int64), (1 << SLOT_BITS) - 1, out=index)
    entries.take(index, out=entry, mode="clip")
    np.right_shift(words, 64 - COIN_BITS, out=coin.view(np.uint64))
    np.bitwise_and(entry, (1 << ENTRY_BITS) - 1, out=index)
    late = np.flatnonzero(coin >= index)
    block = np.right_shift(entry, ENTRY_BITS, out=entry)
    offset = np.right_shift(words.view(np.int64), SLOT_BITS, out=index)
    offset &= offset_mask
    if width_log2 > 0:
        np.left_shift(block, width_log2, out=values)
        np.bitwise_or(values, offset, out=values)
    else:
        np.right_shift(block, -width_log2, out=values)
    unsure[:, : late.size] = late, block[late], offset[late], coin[late]
    return late.size
