"""What a gateway needs that speaks for many devices: their updates go out many in a message."""

import threading
from types import TracebackType
from typing import Self

from schemas import BATCH_OVERHEAD_BYTES, encode_update_batch

from .errors import DeliveryError
from .producer import DEFAULT_MAX_MESSAGE_BYTES, RecordSender

# A batch's own key would be one client's; the partition is given, so none is needed.
_NO_KEY = b""
_FLUSH_S = 130.0


class UpdateBatcher:
    """Sends updates of many clients in few messages; give it to `GradientClient` as its producer.

    A message costs a head more than a short update does, so many updates in one of them are read
    faster. Each of them is checked and counted for itself. Safe to share among threads.

    An update waits until its cluster's batch is full, or for `flush`. Which window it belongs to
    is decided when the batch reaches the broker, so a gateway calls `flush` at the end of each
    round, well before the window ends.

    As a context manager it flushes at the end of the block; the producer stays open.

    Args:
        producer: Where the batches go; shared, and closed by whoever made it.
        max_updates: Most updates in one message.
        max_message_bytes: Largest message; of the plan's topic, or less.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self,
        producer: RecordSender,
        *,
        max_updates: int = 64,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        if max_updates < 1 or max_message_bytes < 1:
            raise ValueError("max_updates and max_message_bytes must be at least 1")
        self._producer = producer
        self._max_updates = max_updates
        self._max_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], list[bytes]] = {}
        self._bytes: dict[tuple[str, int], int] = {}

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Take one update; send its cluster's batch where that is full.

        An update that is too large for a batch goes by itself, under its key.

        Raises:
            DeliveryError: an earlier record was not delivered, or one cannot be taken.
        """
        where, size = (topic, partition), len(value) + BATCH_OVERHEAD_BYTES
        with self._lock:
            if size > self._max_bytes:
                self._producer.send(topic, partition, key, value)
                return
            if self._bytes.get(where, 0) + size > self._max_bytes:
                self._send_batch(where)
            self._waiting.setdefault(where, []).append(value)
            self._bytes[where] = self._bytes.get(where, 0) + size
            if len(self._waiting[where]) == self._max_updates:
                self._send_batch(where)

    def flush(self, timeout_s: float) -> None:
        """Send what waits, and wait until all of it is acknowledged.

        Raises:
            DeliveryError: a record was not delivered, or some still wait after ``timeout_s``.
        """
        with self._lock:
            for where in list(self._waiting):
                self._send_batch(where)
        self._producer.flush(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.flush(_FLUSH_S)
        except DeliveryError as undelivered:
            if error is None:
                raise
            # The error that ended the block is the more telling one.
            error.add_note(f"also: {undelivered}")

    def _send_batch(self, where: tuple[str, int]) -> None:
        updates = self._waiting.get(where)
        if updates:
            # Taken out only when the producer has them: nothing is lost where it refuses.
            self._producer.send(*where, _NO_KEY, encode_update_batch(updates))
            del self._waiting[where], self._bytes[where]
