"""Public doubles: what tests of programs built on `stream` need instead of Kafka, time and chance.

Nothing here belongs in production; what would be dangerous there says so in its name.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record as it would have gone to Kafka."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class LoopbackProducer:
    """Keeps what was sent; stands in for `stream.producer.UpdateProducer`.

    Attributes:
        sent: All records, in the order of sending.
    """

    def __init__(self) -> None:
        self.sent: list[SentRecord] = []

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Keep the record."""
        self.sent.append(SentRecord(topic, partition, key, value))

    def flush(self, timeout_s: float) -> None:
        """Return at once: nothing waits."""


class FakeClock:
    """A clock that stands still until it is told to go on. Call it for epoch milliseconds."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def __call__(self) -> int:
        """Return the time in epoch milliseconds."""
        return self._now_ms

    def advance(self, duration_ms: int) -> int:
        """Let ``duration_ms`` pass; return the new time.

        Raises:
            ValueError: ``duration_ms`` is negative.
        """
        if duration_ms < 0:
            raise ValueError("a clock does not go back")
        self._now_ms += duration_ms
        return self._now_ms


def insecure_entropy(seed: int) -> Callable[[int], bytes]:
    """Return a source of bytes that anyone who knows ``seed`` can repeat.

    Each call of the source gives other bytes: SHAKE-256 of the seed and the call's number.
    """
    calls = count()

    def entropy(size: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(calls)}".encode()).digest(size)

    return entropy


class UnsafeNoNoise:
    """A noise source whose noise is zero: releases are exact, and nobody's data is protected."""

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        """Return ``size`` zeros, whatever the variance."""
        return np.zeros(size, dtype=np.int64)
