"""The edge to Kafka for clients: one producer, shared by many identities, that loses nothing.

Every record is acknowledged, or its failure is raised (or handed to a callback): never neither.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from .errors import DeliveryError

_LOG = logging.getLogger(__name__)

Setting = str | int | float | bool
"""The value of a librdkafka setting."""

DEFAULT_MAX_MESSAGE_BYTES = 1_000_000

# What makes a retry harmless and an acknowledgement mean something is not a matter of taste.
_FIXED: dict[str, Setting] = {
    "enable.idempotence": True,
    "acks": "all",
    # A topic that a broker made for us would take records with the times that clients choose.
    "allow.auto.create.topics": False,
}
_DEFAULTS: dict[str, Setting] = {
    # Rounded gradients have few bits of entropy a byte: lz4 finds no repeats in them, zstd's
    # entropy coder does not need any.
    "compression.type": "zstd",
    "compression.level": 1,
    # Updates are small and windows are seconds: a batch that waits costs nothing.
    "linger.ms": 50,
    "batch.size": 1_000_000,
    # A broker may be away for this long, and records only wait ...
    "delivery.timeout.ms": 120_000,
    # ... and go out soon after it is back.
    "reconnect.backoff.max.ms": 1000,
}
_QUEUE_KBYTES = 262_144
_FIX_BY_CODE = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "make sure that the producer's max_message_bytes and the topic's max.message.bytes "
        "come from the same plan: run `sdp topics create`"
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: "run `sdp topics create`, or check topic_prefix",
    KafkaError._UNKNOWN_TOPIC: "run `sdp topics create`, or check topic_prefix",
    KafkaError._UNKNOWN_PARTITION: "the topic has too few partitions: run `sdp topics create`",
    KafkaError._MSG_TIMED_OUT: (
        "no broker acknowledged within delivery.timeout.ms: check bootstrap_servers and the "
        "broker, or raise delivery.timeout.ms"
    ),
    KafkaError._PURGE_QUEUE: "close gave it up: is the broker there?",
    KafkaError._PURGE_INFLIGHT: "close gave it up: is the broker there?",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "this principal may not write here: allow it Write on the topic"
    ),
}


class RecordSender(Protocol):
    """What a client needs of a producer."""

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Hand one record over for delivery; raise DeliveryError for failures so far."""

    def flush(self, timeout_s: float) -> None:
        """Wait until all records are acknowledged; raise DeliveryError where one is not."""


def merge_settings(
    defaults: Mapping[str, Setting],
    config: Mapping[str, Setting] | None,
    fixed: Mapping[str, Setting],
) -> dict[str, Setting]:
    """Return ``defaults``, overridden by ``config``, with ``fixed``.

    Raises:
        ValueError: ``config`` has a setting that is fixed.
    """
    if clash := sorted((config or {}).keys() & fixed.keys()):
        raise ValueError(f"these settings are fixed, remove them: {', '.join(clash)}")
    return {**defaults, **(config or {}), **fixed}


class UpdateProducer:
    """An idempotent Kafka producer, safe to share among identities and threads.

    Guarantee: a record that `send` took is acknowledged by all in-sync replicas, or a later
    `send`, `flush` or `close` raises DeliveryError for it, or its ``on_failure`` is called.
    A broker that is away for less than ``delivery.timeout.ms`` only delays.

    As a context manager it waits for all acknowledgements at the end of the block.

    Args:
        bootstrap_servers: Addresses as Kafka clients take them.
        max_message_bytes: Largest record; of the plan, where there is one.
        queue_timeout_s: How long `send` waits for room in a full local queue.
        config: Further librdkafka settings (security, timeouts); those that the
            guarantee above rests on cannot be changed.

    Raises:
        ValueError: ``config`` has a setting that is fixed.
        KafkaException: librdkafka refuses the settings.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        queue_timeout_s: float = 60.0,
        config: Mapping[str, Setting] | None = None,
    ) -> None:
        fixed = {**_FIXED, "bootstrap.servers": bootstrap_servers}
        fixed["message.max.bytes"] = max_message_bytes
        # The queue must hold a few of the largest messages, or one could never be taken.
        queue_kbytes = max(_QUEUE_KBYTES, 4 * max_message_bytes // 1024)
        defaults = {**_DEFAULTS, "queue.buffering.max.kbytes": queue_kbytes}
        self._producer = Producer(merge_settings(defaults, config, fixed), logger=_LOG)
        self._queue_timeout_s = queue_timeout_s
        self._failures = _Failures()
        self._is_closed = False

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes,
        on_failure: Callable[[DeliveryError], None] | None = None,
    ) -> None:
        """Hand one record over; it is sent in the background.

        Args:
            topic: Where to.
            partition: Where to.
            key: The record's key.
            value: The record's value.
            on_failure: Called, from within a later call, if this record is not delivered. The
                failure is then the callback's to deal with and is not raised again.

        Raises:
            DeliveryError: an earlier record was not delivered, or this one cannot be taken:
                it is too large, or the local queue stayed full. This record was not sent.
        """
        self._producer.poll(0)
        self._failures.raise_if_any()

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                return
            if on_failure is None:
                self._failures.add(topic, error)
            else:
                on_failure(_delivery_error(topic, 1, error))

        try:
            self._produce(topic, partition, key, value, report)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            raise DeliveryError(
                f"{_describe(topic, 1, cause)} (key and value have {len(key) + len(value)} bytes)"
            ) from error

    def flush(self, timeout_s: float) -> None:
        """Wait until every record that was sent is acknowledged.

        Raises:
            DeliveryError: a record was not delivered, or some still wait after ``timeout_s``
                (they go on waiting).
        """
        is_timed_out = self._producer.flush(timeout_s) > 0
        self._failures.raise_if_any()
        if is_timed_out:
            raise DeliveryError(
                f"some records are not acknowledged after {timeout_s:g} s (they go on waiting): "
                "check the broker, or give flush more time"
            )

    def close(self, timeout_s: float = 130.0) -> None:
        """Flush, then end the producer; what is undelivered after ``timeout_s`` is given up.

        Harmless when repeated.

        Raises:
            DeliveryError: a record was not delivered.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._producer.flush(timeout_s):
            # Without this, librdkafka's close waits for ever. Each record reports its failure.
            self._producer.purge()
        self._producer.close()
        self._failures.raise_if_any()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except DeliveryError as undelivered:
            if error is None:
                raise
            # The error that ended the block is the more telling one.
            error.add_note(f"also: {undelivered}")

    def _produce(
        self,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes,
        report: Callable[[KafkaError | None, Message], None],
    ) -> None:
        """Produce, waiting for room in the local queue."""
        deadline = time.monotonic() + self._queue_timeout_s
        while True:
            try:
                self._producer.produce(
                    topic, partition=partition, key=key, value=value, on_delivery=report
                )
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise DeliveryError(
                        f"topic {topic!r}: the local queue stayed full for "
                        f"{self._queue_timeout_s:g} s: is the broker there and fast enough?"
                    ) from error
                self._producer.poll(0.1)
            else:
                return


class _Failures:
    """Records that were not delivered and have not been told about, by topic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._causes_by_topic: dict[str, list[KafkaError]] = {}

    def add(self, topic: str, cause: KafkaError) -> None:
        with self._lock:
            self._causes_by_topic.setdefault(topic, []).append(cause)

    def raise_if_any(self) -> None:
        if not self._causes_by_topic:
            return
        with self._lock:
            causes_by_topic, self._causes_by_topic = self._causes_by_topic, {}
        texts = [
            _describe(topic, len(causes), causes[0]) for topic, causes in causes_by_topic.items()
        ]
        if texts:
            raise DeliveryError("; ".join(texts))


def _delivery_error(topic: str, count: int, cause: KafkaError) -> DeliveryError:
    return DeliveryError(_describe(topic, count, cause))


def _describe(topic: str, count: int, cause: KafkaError) -> str:
    records = "1 record was" if count == 1 else f"{count} records were"
    fix = _FIX_BY_CODE.get(cause.code())
    return f"topic {topic!r}: {records} not delivered: {cause.str()}" + (f": {fix}" if fix else "")
