"""Reads one partition of a log forward, with offsets and the broker's times."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_TIMEOUT_S = 30.0
# A transaction of a writer that died is decided by the broker after its own time-out, a minute.
_PATIENCE_S = 90.0
_BATCH_RECORDS = 500
# A record that is so little ahead is read up to; one that is further is jumped to.
_NEAR_BYTES = 1 << 20

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record, as the broker gave it."""

    offset: int
    timestamp_ms: int
    value: bytes | None


class LogReader:
    """A consumer of one partition, outside any group; a context manager. Blocks."""

    def __init__(
        self,
        config: Mapping[str, str],
        topic: str,
        partition: int,
        isolation: Isolation = "read_committed",
        *,
        prefetch_kib: int = 16 * 1024,
    ) -> None:
        """Connect lazily.

        Args:
            config: How to reach the broker.
            topic: The topic.
            partition: The partition.
            isolation: Whether records of undecided or aborted transactions count.
            prefetch_kib: How much is fetched ahead; in vain where `at` jumps.
        """
        self._topic = topic
        self._partition = partition
        self._position: int | None = None
        self._size = 0
        self._waiting: list[Message] = []
        self._common = {
            **config,
            "group.id": "sdp-auditor",
            "enable.auto.commit": False,
            # What is deleted while it is read is passed over; who needs it asks for the begin.
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": prefetch_kib,
        }
        self._consumer = Consumer({**self._common, "isolation.level": isolation})

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def limits(self) -> tuple[int, int]:
        """Return the first offset that the broker still has, and one past the newest.

        Records of undecided transactions are among them.
        """
        asking = Consumer({**self._common, "isolation.level": "read_uncommitted"})
        try:
            begin, end = asking.get_watermark_offsets(self._where(0), timeout=_TIMEOUT_S)
        finally:
            asking.close()
        return begin, end

    def records(self, begin: int, end: int) -> Iterator[LogRecord]:
        """Yield the records from ``begin`` on and below ``end``, in order.

        Waits until the transactions among them are decided.

        Raises:
            KafkaException: the broker cannot be asked, or does not decide.
        """
        if begin >= end:
            return
        self._go_to(begin)
        for record in self._read(end):
            if record.offset >= end:
                return
            yield record

    def at(self, offset: int) -> LogRecord | None:
        """Return the record at an offset below the log's end, None if it is gone.

        Fast where the offsets that are asked for ascend.
        """
        position = self._position
        is_ahead = position is not None and offset >= position
        # As large as the last one, the records between are read as quickly.
        if not is_ahead or (offset - (position or 0)) * self._size > _NEAR_BYTES:
            self._go_to(offset)
        for record in self._read(offset + 1):
            if record.offset >= offset:
                return record if record.offset == offset else None
        return None

    def _where(self, offset: int) -> TopicPartition:
        return TopicPartition(self._topic, self._partition, offset)

    def _go_to(self, offset: int) -> None:
        self._consumer.assign([self._where(offset)])
        self._position = offset
        self._waiting.clear()

    def _read(self, end: int) -> Iterator[LogRecord]:
        """Yield records from the position on, until the log's end is at ``end`` or past it."""
        heard_s = time.monotonic()
        while True:
            message = self._next()
            if message is None:
                if time.monotonic() - heard_s > _PATIENCE_S:
                    where = f"{self._topic} partition {self._partition}"
                    reason = f"{where} gives nothing more before its end"
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))
                continue
            error, offset = message.error(), message.offset()
            if error is None and offset is not None:
                heard_s = time.monotonic()
                value = message.value()
                self._position, self._size = offset + 1, len(value or b"")
                yield LogRecord(offset, message.timestamp()[1], value)
            elif error is None or error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif (offset or 0) >= end:
                return

    def _next(self) -> Message | None:
        if not self._waiting:
            first = self._consumer.poll(1.0)
            if first is None:
                return None
            # poll() waits for one message only; what else has arrived comes with it.
            self._waiting = [first, *self._consumer.consume(_BATCH_RECORDS, 0)][::-1]
        return self._waiting.pop()
