"""Following the model: the newest snapshot of a plan, from the model topic."""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from schemas import MalformedMessageError, ModelSnapshot, TopicNames, decode_model_snapshot

from .privacy.plan import PrivacyPlan
from .producer import Setting, merge_settings

_LOG = logging.getLogger(__name__)

_DEFAULTS: dict[str, Setting] = {
    "group.id": "sdp-model-reader",
    "reconnect.backoff.max.ms": 1000,
    # A topic that is missing is told this soon, and found this soon once it is created.
    "topic.metadata.refresh.interval.ms": 5000,
    "topic.metadata.propagation.max.ms": 5000,
}
# The search for the newest model reads from the log's tail to its end, and commits nothing.
_FIXED: dict[str, Setting] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
# librdkafka's RD_KAFKA_OFFSET_TAIL_BASE: this minus n is the n-th offset from the end.
_OFFSET_TAIL_BASE = -2000
# A model takes two offsets (itself and its transaction's marker), so the first look finds one
# unless the newest transactions were aborted.
_FIRST_TAIL, _TAIL_GROWTH = 4, 8
# How long a blocking read waits before it looks whether the subscriber was closed.
_POLL_S = 1.0


class ModelSubscriber:
    """Follows the model of a plan; starts at the newest one, however long the log is.

    It reads committed records only, commits nothing, and passes over what is malformed or of
    another plan. A broker that is away only delays. Not for use by several threads at once.

    Args:
        plan: The plan whose model is wanted.
        bootstrap_servers: Addresses as Kafka clients take them.
        config: Further librdkafka settings; those that the search rests on cannot be changed.

    Attributes:
        ignored: Number of messages read that were malformed or of another plan.

    Raises:
        ValueError: ``config`` has a setting that is fixed.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        bootstrap_servers: str,
        config: Mapping[str, Setting] | None = None,
    ) -> None:
        self.ignored = 0
        self._plan_id, self._dimension = plan.plan_id, plan.dimension
        self._topic = TopicNames(plan.topic_prefix).model
        self._newest: ModelSnapshot | None = None
        self._last_error: KafkaError | None = None
        self._is_closed = False
        fixed = {**_FIXED, "bootstrap.servers": bootstrap_servers}
        settings = merge_settings(_DEFAULTS, config, fixed)
        self._consumer = Consumer({**settings, "error_cb": self._note_error}, logger=_LOG)
        self._read_tail(_FIRST_TAIL)

    def newest(self) -> ModelSnapshot | None:
        """Take what has arrived, without waiting; return the newest model so far, if any.

        The snapshot's vector is the caller's: writable, aligned and contiguous.
        """
        while messages := self._consumer.consume(num_messages=100, timeout=0):
            for message in messages:
                self._take(message)
        return self._newest

    def wait_for(self, version: int, timeout_s: float) -> ModelSnapshot:
        """Return the newest model, once its version is at least ``version``.

        Raises:
            TimeoutError: there was none within ``timeout_s``; the text says what there was.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            newest = self.newest()
            if newest is not None and newest.model_version >= version:
                return newest
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"no model {version} in {timeout_s:g} s: {self._status()}")
            self._wait(min(remaining_s, _POLL_S))

    def __iter__(self) -> Iterator[ModelSnapshot]:
        """Yield the newest model, then each newer one, until the subscriber is closed.

        Models that were overtaken while the caller was busy are skipped.
        """
        seen = -1
        while not self._is_closed:
            newest = self.newest()
            if newest is not None and newest.model_version > seen:
                seen = newest.model_version
                yield newest
            else:
                self._wait(_POLL_S)

    def close(self) -> None:
        """Leave Kafka; harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read_tail(self, length: int) -> None:
        """Read on from ``length`` offsets before the end, or from the beginning if shorter."""
        self._tail = length
        # Whatever of the tail was read before is read, and counted, again.
        self.ignored = 0
        self._consumer.assign([TopicPartition(self._topic, 0, _OFFSET_TAIL_BASE - length)])

    def _wait(self, timeout_s: float) -> None:
        message = self._consumer.poll(timeout_s)
        if message is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._offer(message.value())
        elif error.code() != KafkaError._PARTITION_EOF:
            self._note_error(error)
        elif self._newest is None and self._tail < (message.offset() or 0):
            self._read_tail(_TAIL_GROWTH * self._tail)

    def _offer(self, value: bytes | None) -> None:
        try:
            snapshot = decode_model_snapshot(value)
        except MalformedMessageError:
            self.ignored += 1
            return
        if snapshot.plan_id != self._plan_id or snapshot.vector.size != self._dimension:
            self.ignored += 1
        elif self._newest is None or snapshot.model_version > self._newest.model_version:
            # A decoded vector is a read-only and perhaps unaligned view of the message.
            self._newest = replace(snapshot, vector=snapshot.vector.copy())

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = error
        _LOG.warning("reading the model from %s: %s", self._topic, error.str())

    def _status(self) -> str:
        found = "none yet" if self._newest is None else f"newest is {self._newest.model_version}"
        text = f"topic {self._topic!r}, {found}, {self.ignored} messages ignored"
        if self._last_error is not None:
            text += f", last error from Kafka: {self._last_error.str()}"
        if self._last_error is not None and (
            self._last_error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
        ):
            text += ": run `sdp topics create`"
        return text
