import sys

import numpy as np
import pytest

from stream.privacy import noise_kernel
from stream.privacy.noise_kernel import find_propose, propose_with_numpy


def test_numpy_is_there_without_the_extra():
    assert find_propose("numpy") is propose_with_numpy


def test_numba_that_is_missing_is_refused_and_the_extra_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "stream.privacy.noise_numba", raising=False)
    monkeypatch.delattr("stream.privacy.noise_numba", raising=False)
    with pytest.raises(ImportError, match=r"install sdp-stream\[fast\], or use 'numpy'"):
        find_propose("numba")


@pytest.mark.parametrize("kernel", ["", "Numba", "auto"])
def test_an_unknown_kernel_is_refused(kernel):
    with pytest.raises(ValueError, match="write 'numpy' or 'numba'"):
        find_propose(kernel)


ENTRIES = np.zeros(1 << 16, np.int64)
ENTRIES[:3] = [-2 << 25 | 100, 3 << 25 | 1 << 24, 5 << 25]


def propose(words, width_log2, propose=noise_kernel.propose_with_numpy):
    values = np.empty(len(words), np.int64)
    unsure = np.empty((4, 8), np.int64)
    mask = (1 << max(width_log2, 0)) - 1
    count = propose(np.array(words, np.uint64), ENTRIES, mask, width_log2, values, unsure)
    return values.tolist(), unsure[:, :count].tolist()


WORDS = [99 << 40 | 0b1011 << 16, 100 << 40 | 6 << 16, (2**24 - 1) << 40 | 7 << 16 | 1, 2]


@pytest.mark.parametrize(
    ("width_log2", "values", "offsets"),
    [(3, [-13, -10, 31, 40], [6, 0]), (0, [-2, -2, 3, 5], [0, 0]), (-1, [-1, -1, 1, 2], [0, 0])],
)
def test_a_word_is_slot_offset_and_coin(width_log2, values, offsets):
    proposed, unsure = propose(WORDS, width_log2)
    assert proposed == values
    assert unsure == [[1, 3], [-2, 5], offsets, [100, 0]]
