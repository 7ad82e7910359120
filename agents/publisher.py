"""What a head writes outside its transactions: public releases, reasons of rejection, marks."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from schemas import RejectRecord, TopicNames, encode_reject_record
from stream.aggregation.intake import RejectedUpdate
from stream.aggregation.validation import Reason
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import now_ms

log = logging.getLogger(__name__)

# A flood of bad updates is counted whole, and written down so often a cluster, window and reason.
REPORTS_PER_WINDOW = 100
# Short, since a delivery may be told to another thread's poll.
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Mark:
    """A record without a value among the updates, and what is known by it.

    Attributes:
        offset: Its offset. All that was appended before it can be read.
        timestamp_ms: When it was appended, by the broker's clock, which windows go by.
    """

    offset: int
    timestamp_ms: int


class Publisher:
    """An idempotent producer for what readers take once, however often it is written.

    Safe to share.
    """

    def __init__(
        self,
        config: Mapping[str, str],
        plan: PrivacyPlan,
        *,
        request_timeout_s: float,
        max_message_bytes: int,
        unsafe_mock_broker: bool = False,
    ) -> None:
        """Make the producer; it connects on its own.

        ``unsafe_mock_broker``: librdkafka's mock has no clock, so marks bear this host's time.
        """
        self._has_clock = not unsafe_mock_broker
        self._plan = plan
        self._names = TopicNames(plan.topic_prefix)
        self._timeout_s = request_timeout_s
        # Of each cluster, the newest window that had rejects, and how many of each reason.
        self._reported: dict[int, tuple[int, Counter[Reason]]] = {}
        self._producer = Producer(
            {
                **config,
                "enable.idempotence": True,
                # A topic that a broker made for us would be one that forgets.
                "allow.auto.create.topics": False,
                "acks": "all",
                "linger.ms": 0,
                "compression.type": "zstd",
                "message.max.bytes": max_message_bytes,
                # Waits out a broker that is away; the caller tries again after it.
                "message.timeout.ms": max(1000, int(request_timeout_s * 1000)),
            }
        )

    def publish(self, cluster: int, release: bytes) -> bool:
        """Publish committed bytes; return whether the broker has acknowledged them.

        After False the caller publishes the same bytes again: readers drop a repeat.
        """
        return self._deliver(cluster, self._names.releases, 0, release, str(cluster)) is not None

    def mark(self, cluster: int) -> Mark | None:
        """Append a mark to the cluster's updates; return it, or None if it may not be there.

        Where a broker says that a log ends tells less: what it has appended, with a time of that
        moment, is not shown before its replicas have it. They have all that is before a mark.
        """
        asked_ms = now_ms()
        message = self._deliver(cluster, self._names.updates, cluster, None, None)
        if message is None or (offset := message.offset()) is None:
            return None
        _, timestamp_ms = message.timestamp()
        return Mark(offset, timestamp_ms if self._has_clock else asked_ms)

    def _deliver(
        self, cluster: int, topic: str, partition: int, value: bytes | None, key: str | None
    ) -> Message | None:
        """Write a record; return it as the broker has acknowledged it, or None."""
        outcomes: list[tuple[KafkaError | None, Message]] = []
        try:
            self._producer.produce(
                topic,
                value,
                key,
                partition=partition,
                on_delivery=lambda *outcome: outcomes.append(outcome),
            )
        except BufferError:
            log.warning("cluster %d: writing to %s is tried again: no room", cluster, topic)
            self._producer.poll(_POLL_S)
            return None
        # The delivery fails by itself after the message's time-out, so this ends.
        deadline = time.monotonic() + 2 * self._timeout_s
        while not outcomes and time.monotonic() < deadline:
            self._producer.poll(_POLL_S)
        if not outcomes:
            return None
        error, message = outcomes[0]
        if error is not None:
            log.warning("cluster %d: writing to %s is tried again: %s", cluster, topic, error)
            return None
        return message

    def report_rejected(self, cluster: int, rejected: Sequence[RejectedUpdate]) -> None:
        """Write down why updates were refused, for operators; best effort, never blocks."""
        for update in rejected:
            if not self._is_worth_a_record(cluster, update):
                continue
            record = RejectRecord(
                plan_id=self._plan.plan_id,
                cluster=cluster,
                reason=update.rejection.reason,
                client_id=update.client_id,
                window=update.window,
                partition=cluster,
                offset=update.offset,
                detail=update.rejection.detail,
            )
            try:
                self._producer.produce(
                    self._names.rejects,
                    encode_reject_record(record),
                    str(cluster),
                    partition=cluster,
                )
            except BufferError:
                break  # no room; nor is it told, since a log may leave the boundary
        self._producer.poll(0)

    def close(self, timeout_s: float) -> None:
        """Send what is waiting, for at most ``timeout_s``."""
        self._producer.flush(timeout_s)

    def _is_worth_a_record(self, cluster: int, update: RejectedUpdate) -> bool:
        window, counts = self._reported.get(cluster, (update.window, Counter()))
        if update.window > window:
            window, counts = update.window, Counter()
        self._reported[cluster] = window, counts
        counts[update.rejection.reason] += 1
        return counts[update.rejection.reason] <= REPORTS_PER_WINDOW
