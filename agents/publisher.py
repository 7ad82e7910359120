"""What a head writes outside its transactions: public releases, and reasons of rejection."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, Message, Producer

from schemas import RejectRecord, TopicNames, encode_reject_record
from stream.aggregation.intake import RejectedUpdate
from stream.aggregation.validation import Reason
from stream.privacy.plan import PrivacyPlan

log = logging.getLogger(__name__)

# A flood of bad updates is counted whole, and written down so often a cluster, window and reason.
REPORTS_PER_WINDOW = 100


class Publisher:
    """An idempotent producer for the topics of releases and rejects; safe to share."""

    def __init__(
        self,
        config: Mapping[str, str],
        plan: PrivacyPlan,
        *,
        request_timeout_s: float,
        max_message_bytes: int,
    ) -> None:
        """Make the producer; it connects on its own."""
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
        acknowledged = threading.Event()
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)
            acknowledged.set()

        try:
            self._producer.produce(
                self._names.releases, release, str(cluster), partition=0, on_delivery=delivered
            )
        except BufferError:
            log.warning("cluster %d: publishing is tried again: the queue is full", cluster)
            self._producer.poll(0.05)
            return False
        # The delivery fails by itself after the message's time-out, so this ends.
        deadline = time.monotonic() + 2 * self._timeout_s
        while not acknowledged.is_set() and time.monotonic() < deadline:
            self._producer.poll(0.05)
        if failures:
            log.warning("cluster %d: publishing is tried again: %s", cluster, failures[0])
        return acknowledged.is_set() and not failures

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
