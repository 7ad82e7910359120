import hashlib

import numpy as np
import pytest

from stream.errors import EntropyError
from stream.privacy import keystream
from stream.privacy.keystream import BATCH_WORDS, Keystream

# NIST SP 800-38A, F.5.5 (CTR-AES256): keystream = plaintext xor ciphertext.
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
NIST_PLAINTEXT = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHERTEXT = bytes.fromhex(
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)


class CountingEntropy:
    """Different bytes at each call, the same in each run."""

    def __init__(self):
        self.requests = []

    def __call__(self, count):
        self.requests.append(count)
        return hashlib.shake_256(str(len(self.requests)).encode()).digest(count)


def test_the_words_are_those_of_the_aes_256_ctr_standard():
    words = Keystream(lambda _: NIST_KEY + NIST_COUNTER).words(8)
    expected = bytes(a ^ b for a, b in zip(NIST_PLAINTEXT, NIST_CIPHERTEXT, strict=True))
    assert words.astype("<u8").tobytes() == expected


def test_each_object_asks_once_for_a_key_and_a_nonce():
    entropy = CountingEntropy()
    first, second = Keystream(entropy), Keystream(entropy)
    assert entropy.requests == [48, 48]
    assert not np.intersect1d(first.words(100), second.words(100)).size


def test_no_word_is_given_twice():
    stream = Keystream(CountingEntropy())
    parts = [
        stream.borrow(BATCH_WORDS).copy(),
        stream.words(3),
        np.array([stream.word()], np.uint64),
        stream.words(2 * BATCH_WORDS + 1),
        stream.borrow(5).copy(),
    ]
    reference = Keystream(CountingEntropy()).words(3 * BATCH_WORDS + 10)
    assert np.unique(np.concatenate(parts)).size == 3 * BATCH_WORDS + 10
    assert np.array_equal(parts[0], reference[:BATCH_WORDS])


def test_a_borrowed_buffer_is_reused_and_words_are_not():
    stream = Keystream(CountingEntropy())
    borrowed, owned = stream.borrow(4), stream.words(4)
    before = owned.copy()
    later = stream.borrow(4)
    assert np.shares_memory(borrowed, later)
    assert np.array_equal(owned, before)


def test_the_key_is_replaced_from_entropy_before_it_has_made_too_many_bytes(monkeypatch):
    monkeypatch.setattr(keystream, "BYTES_PER_KEY", 64)
    entropy = CountingEntropy()
    stream = Keystream(entropy)
    first = stream.words(8)
    assert len(entropy.requests) == 1
    second = stream.words(8)
    assert entropy.requests == [48, 48]
    later = CountingEntropy()
    later(1)
    assert np.array_equal(second, Keystream(later).words(8))
    assert not np.intersect1d(first, second).size


def test_a_key_makes_at_most_a_gibibyte():
    assert keystream.BYTES_PER_KEY == 2**30


@pytest.mark.parametrize("count", [0, 16, 47, 49])
def test_entropy_of_the_wrong_length_is_refused(count):
    with pytest.raises(EntropyError, match=f"gave {count} bytes instead of 48"):
        Keystream(lambda _: bytes(count))


@pytest.mark.parametrize("error", [OSError("no device"), NotImplementedError("no source")])
def test_entropy_that_fails_is_one_kind_of_error(error):
    def entropy(count):
        raise error

    with pytest.raises(EntropyError, match=str(error)):
        Keystream(entropy)


def test_entropy_that_fails_when_rekeying_yields_no_words(monkeypatch):
    monkeypatch.setattr(keystream, "BYTES_PER_KEY", 64)
    answers = iter([bytes(48), b""])
    stream = Keystream(lambda _: next(answers))
    stream.words(8)
    with pytest.raises(EntropyError, match="gave 0 bytes"):
        stream.word()


def test_a_cipher_that_writes_too_little_is_refused(monkeypatch):
    class LazyCipher:
        def update_into(self, data, buffer):
            return len(data) - 1

    monkeypatch.setattr(keystream, "_encryptor", lambda entropy: LazyCipher())
    with pytest.raises(EntropyError, match="the cipher wrote 7 bytes instead of 8"):
        Keystream(CountingEntropy()).word()
