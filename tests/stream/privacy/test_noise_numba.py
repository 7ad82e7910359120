"""The compiled kernel: it must give what numpy gives, to the last bit."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("numba", reason="the extra sdp-stream[fast] is not installed")

from stream.privacy import noise_numba
from stream.privacy.keystream import BATCH_WORDS, Keystream
from stream.privacy.noise import NOISE_SOURCES, noise_source
from stream.privacy.noise_kernel import find_propose, propose_with_numpy
from stream.privacy.noise_rejection import fill_exactly
from stream.privacy.noise_tables import Law, build_tables, noise_tables
from stream.testing import insecure_entropy

VARIANCES = [Fraction(1, 64), Fraction(1, 4), 1, 100, Fraction(12345, 7), 10**6, 10**10, 1 << 60]
each_law = pytest.mark.parametrize("law", list(Law), ids=lambda law: law.name)
each_variance = pytest.mark.parametrize("variance", VARIANCES, ids=str)


@pytest.mark.parametrize("kind", NOISE_SOURCES)
@each_variance
def test_the_same_words_give_the_same_noise(kind, variance):
    sizes = [0, 1, 3 * BATCH_WORDS + 5]
    slow, fast = (noise_source(kind, insecure_entropy(1), name) for name in ("numpy", "numba"))
    for size in sizes:
        expected = slow.sample(Fraction(variance), size)
        assert np.array_equal(fast.sample(Fraction(variance), size), expected)


@each_law
def test_the_same_words_give_the_same_noise_in_exact_decisions_and_tails(law):
    tables = build_tables(law, Fraction(9), Fraction(3, 2))
    drawn = np.empty((2, 4_000), np.int64)
    for row, kernel in zip(drawn, ("numpy", "numba"), strict=True):
        fill_exactly(row, tables, Keystream(insecure_entropy(2)), find_propose(kernel), 0.3)
    assert np.array_equal(*drawn)


def test_a_different_keystream_is_noticed():
    slow = noise_source("rounded_gaussian", insecure_entropy(1), "numpy")
    fast = noise_source("rounded_gaussian", insecure_entropy(2), "numba")
    assert not np.array_equal(slow.sample(Fraction(1), 100), fast.sample(Fraction(1), 100))


@each_law
@each_variance
def test_extreme_words_are_read_alike(law, variance):
    """All-zero and all-one fields, in each slot of the table."""
    tables = noise_tables(law, Fraction(variance))
    mask, log2 = (1 << tables.layout.offset_bits) - 1, tables.layout.width_log2
    slots = np.arange(1 << 16, dtype=np.uint64)
    seeds = np.frombuffer(hashlib.shake_256(b"words").digest(8 << 16), np.uint64)
    for high in (0, 2**48 - 1, None):
        words = slots | (seeds << 16 if high is None else np.uint64(high << 16))
        drawn = np.empty((2, words.size), np.int64)
        unsure = np.empty((2, 4, words.size), np.int64)
        counts = [
            propose(words, tables.entries, mask, log2, values, late)
            for propose, values, late in zip(
                (propose_with_numpy, noise_numba.propose_with_numba), drawn, unsure, strict=True
            )
        ]
        assert counts[0] == counts[1]
        assert np.array_equal(*drawn)
        assert np.array_equal(*unsure[:, :, : counts[0]])


def test_the_kernel_is_compiled_before_the_first_release():
    assert len(noise_numba.propose_with_numba.signatures) == 1
