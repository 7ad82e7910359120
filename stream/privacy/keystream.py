"""The only source of randomness of the privacy noise: AES-256-CTR under a fresh key."""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from stream.errors import EntropyError

Entropy = Callable[[int], bytes]
"""Returns that many unpredictable bytes, never the same twice: ``os.urandom`` in production."""

BYTES_PER_KEY = 1 << 30
BATCH_WORDS = 1 << 14

_KEY_BYTES = 32
_NONCE_BYTES = 16
_WORD_BYTES = 8
# `update_into` may ask for one cipher block more than it writes.
_SLACK_BYTES = 15


class Keystream:
    """Uniform 64-bit words, each used once, under a key that nobody else has.

    One object serves one draw: the sampler makes it inside ``sample`` and it never escapes
    that call. It therefore needs no process-id check against a fork: the child of a fork
    runs only the thread that forked, and that thread was not inside ``sample``. For the same
    reason it needs no lock. Nothing seeds it but ``entropy``.

    Guarantee:
        Against a bounded adversary the words are independent and uniform: AES-256 in counter
        mode, rekeyed after ``BYTES_PER_KEY`` = 2^30 bytes (q = 2^26 blocks, so the
        distinguishing term q^2 / 2^129 stays below 2^-76 for each key).

    Raises:
        EntropyError: ``entropy`` failed or returned the wrong number of bytes.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._zeros = memoryview(bytes(BATCH_WORDS * _WORD_BYTES))
        self._buffer = bytearray(BATCH_WORDS * _WORD_BYTES + _SLACK_BYTES)
        self._rekey()

    def borrow(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` <= ``BATCH_WORDS`` words in a buffer that the next call overwrites."""
        size = count * _WORD_BYTES
        if size > self._bytes_left:
            self._rekey()
        written = self._cipher.update_into(self._zeros[:size], self._buffer)
        if written != size:
            raise EntropyError(f"the cipher wrote {written} bytes instead of {size}")
        self._bytes_left -= size
        return np.frombuffer(self._buffer, "<u8", count)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` words in an array of their own."""
        result = np.empty(count, np.uint64)
        for start in range(0, count, BATCH_WORDS):
            part = result[start : start + BATCH_WORDS]
            part[:] = self.borrow(part.size)
        return result

    def word(self) -> int:
        """Return one word."""
        return int(self.borrow(1)[0])

    def _rekey(self) -> None:
        self._cipher = _encryptor(self._entropy)
        self._bytes_left = BYTES_PER_KEY


def _encryptor(entropy: Entropy) -> CipherContext:
    wanted = _KEY_BYTES + _NONCE_BYTES
    try:
        secret = entropy(wanted)
    except (OSError, NotImplementedError) as error:
        raise EntropyError(f"the source of entropy failed: {error}") from error
    if len(secret) != wanted:
        raise EntropyError(f"the source of entropy gave {len(secret)} bytes instead of {wanted}")
    key, nonce = secret[:_KEY_BYTES], secret[_KEY_BYTES:]
    return Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
