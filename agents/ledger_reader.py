"""Reads the private and public topics of a plan for whoever audits it."""

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas import TopicNames
from stream.errors import LedgerError
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, read_tail
from .partition import group_of
from .takeover_checks import noted_record

_TIMEOUT_S = 30.0
# The end of a partition is seen when a fetch comes back empty: let it come back at once.
_HASTE = {"fetch.wait.max.ms": "10"}
# A topic that was made a moment ago, or whose leader is changing.
_NO_LEADER = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION})


class LedgerReader:
    """Reads committed records of whole partitions, one at a time; a context manager."""

    def __init__(self, config: Mapping[str, str], plan: PrivacyPlan) -> None:
        self._config = config
        self._plan = plan
        self._names = TopicNames(plan.topic_prefix)
        self._consumer = Consumer(
            {
                **config,
                **_HASTE,
                "group.id": "sdp-auditor",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )

    def __enter__(self) -> "LedgerReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def require_topics(self, *, is_deep: bool = False) -> None:
        """Raise `LedgerError` unless the topics to read are there, as the plan needs them.

        Args:
            is_deep: Whether those of a deep verification are to be read too.
        """
        names, clusters = self._names, self._plan.cluster_count
        expected = {names.ledger: clusters, names.releases: 1}
        if is_deep:
            expected |= dict.fromkeys((names.updates, names.outbox, names.rejects), clusters)
            expected |= dict.fromkeys((names.model, names.model_state), 1)
        if self._plan.scope == "client":
            expected[self._names.participation] = self._plan.cluster_count
        for topic, count in expected.items():
            found = len(
                self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
            )
            if found == 0:
                raise LedgerError(
                    f"there is no topic {topic}: wrong brokers, wrong plan, or a plan that was "
                    "never started (sdp topics create --plan FILE makes its topics)"
                )
            if found != count:
                raise LedgerError(
                    f"{topic} has {found} partitions, the plan needs {count}: it was made for "
                    "another plan; check topic_prefix"
                )

    def limits(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that the broker still has, and one past the newest."""
        return self._limits(self._consumer, TopicPartition(topic, partition))

    def _limits(self, consumer: Consumer, where: TopicPartition) -> tuple[int, int]:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                begin, end = consumer.get_watermark_offsets(where, timeout=_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)
            else:
                return begin, end

    def records(self, topic: str, begins: Sequence[int]) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield partition, offset and value of all committed records.

        Each partition is read in order and up to its end, the partitions at the same time. A
        transaction that is not decided yet is waited for: a broker says that it has committed
        before every partition shows it, and a release may be public by then.

        Args:
            topic: The topic.
            begins: The offset to begin at, by partition.
        """
        self._consumer.assign(
            [TopicPartition(topic, partition, begin) for partition, begin in enumerate(begins)]
        )
        unread = dict(enumerate(self._ends(topic, len(begins))))
        heard_s = time.monotonic()
        while unread:
            message = self._consumer.poll(1.0)
            if message is not None:
                heard_s = time.monotonic()
                yield from _content(message, unread)
            elif time.monotonic() - heard_s > _TIMEOUT_S:
                reason = f"no answer while reading {topic}"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))

    def _ends(self, topic: str, count: int) -> list[int]:
        """Return one past the newest offset of each partition, undecided transactions included."""
        everything = Consumer(
            {**self._config, "group.id": "sdp-auditor", "isolation.level": "read_uncommitted"}
        )
        try:
            return [
                self._limits(everything, TopicPartition(topic, partition))[1]
                for partition in range(count)
            ]
        finally:
            everything.close()

    def noted_record(self, cluster: int) -> int | None:
        """Return the newest record that the heads' offset tells of; None if that is not known."""
        ends = LogEnds(self._config, _TIMEOUT_S)
        try:
            committed = ends.committed(group_of(self._plan), self._names.updates, cluster)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return None  # an auditor need not be allowed to look at it
            raise
        return noted_record(committed[1]) if committed else None

    def traces(self, cluster: int) -> list[str]:
        """Return what shows that a ledger was there before, though it holds nothing."""
        traces = []
        # Offsets alone say nothing: each head's fence takes some.
        topics = [self._names.outbox]
        if self._plan.scope == "client":
            topics.append(self._names.participation)
        for topic in topics:
            tail = read_tail(self._config, topic, cluster, 1, bytes)
            if tail.values or tail.begin > 0:
                traces.append(f"{topic} has been written to")
        group = group_of(self._plan)
        ends = LogEnds(self._config, _TIMEOUT_S)
        if ends.committed_offset(group, self._names.updates, cluster) is not None:
            traces.append("the consumer group of the heads has committed an offset")
        return traces


def _content(message: Message, unread: dict[int, int]) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield what a message holds; one that says "end of partition" may go off ``unread``."""
    error, partition, offset = message.error(), message.partition(), message.offset()
    if error is not None and error.code() == KafkaError._PARTITION_EOF and partition is not None:
        if offset is not None and offset >= unread.get(partition, 0):
            unread.pop(partition, None)
    elif error is not None or partition is None or offset is None:
        raise KafkaException(error)
    else:
        yield partition, offset, message.value()
