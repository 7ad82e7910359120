"""Reads the ledgers of a plan from Kafka: what was spent, and whether all of it fits.

An auditor needs to read the topics of ledgers and releases; where a ledger is empty, also to see
whether the outbox or the heads' consumer group have ever been used.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas import LedgerKind, TopicNames
from stream.errors import LedgerError
from stream.ledger_chain import verify_records
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, read_tail
from .ledger_audit import LedgerAudit
from .ledger_report import ClusterRow, LedgerReport, Verification
from .partition import group_of
from .topics import check_mock_topics

_TIMEOUT_S = 30.0
# Two records: the newest, and its link to the one before.
_RECORDS_SHOWN = 2
# The end of a partition is seen when a fetch comes back empty: let it come back at once.
_HASTE = {"fetch.wait.max.ms": "10"}
# A topic that was made a moment ago, or whose leader is changing.
_NO_LEADER = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION})


def show(config: Mapping[str, str], plan: PrivacyPlan) -> LedgerReport:
    """Return what every cluster has spent, from the newest records of its ledger.

    Raises:
        LedgerError: the topic of ledgers is missing or was made for another plan.
        KafkaException: the broker cannot be asked.
    """
    with _Reader(config, plan) as reader:
        reader.require_topics()
        rows = tuple(
            _newest_row(config, plan, cluster, reader) for cluster in range(plan.cluster_count)
        )
    return LedgerReport(plan.plan_id_hex, plan.delta, rows)


def verify(
    config: Mapping[str, str], plan: PrivacyPlan, *, unsafe_mock_broker: bool = False
) -> Verification:
    """Read all ledgers and releases from their beginning, and check that everything fits.

    Safe while the heads are running: the ends of the ledgers are asked for first, then that of
    the releases, and only then is anything read. So each release that is read has its record,
    and each record that stood before has its release, but for the newest one of a cluster.

    Args:
        config: How to reach the broker.
        plan: The plan.
        unsafe_mock_broker: See `agents.workers.run_head`.

    Raises:
        LedgerError: the topics are missing or were made for another plan.
        KafkaException: the broker cannot be asked.
    """
    names = TopicNames(plan.topic_prefix)
    audit = LedgerAudit(plan)
    with _Reader(config, plan) as reader:
        if unsafe_mock_broker:
            check_mock_topics(config, plan)
        else:
            reader.require_topics()
        ledgers = [reader.limits(names.ledger, c) for c in range(plan.cluster_count)]
        releases_begin, releases_end = reader.limits(names.releases, 0)
        for cluster, (begin, _) in enumerate(ledgers):
            audit.begin_ledger(cluster, begin)
        for cluster, offset, data in reader.records(names.ledger, [begin for begin, _ in ledgers]):
            audit.take_record(cluster, data, is_settled=offset < ledgers[cluster][1])
        for cluster in filter(audit.is_empty, range(plan.cluster_count)):
            audit.take_traces(cluster, reader.traces(cluster))
        for _, offset, data in reader.records(names.releases, [releases_begin]):
            if offset >= releases_end:
                break
            audit.take_release(data)
    return audit.verification()


def _newest_row(
    config: Mapping[str, str], plan: PrivacyPlan, cluster: int, reader: "_Reader"
) -> ClusterRow:
    topic = TopicNames(plan.topic_prefix).ledger
    tail = read_tail({**config, **_HASTE}, topic, cluster, _RECORDS_SHOWN, bytes)
    newest, refused = None, ""
    if tail.begin > 0:
        refused = f"truncated: the records below offset {tail.begin} are gone"
    elif not tail.values:
        refused = "; ".join(reader.traces(cluster))
    else:
        try:
            newest = verify_records(plan, cluster, tail.values, is_complete=tail.is_complete)
        except LedgerError as error:
            refused = str(error)
    releases = 0
    if newest is not None:
        # Each record but the first and the one that closes the ledger is a release.
        releases = newest.sequence - (newest.kind is LedgerKind.EXHAUSTED)
    return ClusterRow.of(
        plan,
        cluster,
        newest,
        releases=releases,
        spent_units=newest.spent_units if newest is not None else 0,
        refused=refused,
    )


class _Reader:
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

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def require_topics(self) -> None:
        """Raise `LedgerError` unless the topics to read are there, as the plan needs them."""
        expected = {self._names.ledger: self._plan.cluster_count, self._names.releases: 1}
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
        where = TopicPartition(topic, partition)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                begin, end = self._consumer.get_watermark_offsets(where, timeout=_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)
            else:
                return begin, end

    def records(self, topic: str, begins: Sequence[int]) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield partition, offset and value of all committed records.

        Each partition is read in order and up to its end, the partitions at the same time.

        Args:
            topic: The topic.
            begins: The offset to begin at, by partition.
        """
        self._consumer.assign(
            [TopicPartition(topic, partition, begin) for partition, begin in enumerate(begins)]
        )
        unread = set(range(len(begins)))
        heard_s = time.monotonic()
        while unread:
            message = self._consumer.poll(1.0)
            if message is not None:
                heard_s = time.monotonic()
                yield from _content(message, unread)
            elif time.monotonic() - heard_s > _TIMEOUT_S:
                reason = f"no answer while reading {topic}"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))

    def traces(self, cluster: int) -> list[str]:
        """Return what shows that a ledger was there before, though it holds nothing."""
        traces = []
        # Offsets alone say nothing: each head's fence takes some.
        outbox = read_tail({**self._config, **_HASTE}, self._names.outbox, cluster, 1, bytes)
        if outbox.values or outbox.begin > 0:
            traces.append(f"{self._names.outbox} has been written to")
        group = group_of(self._plan)
        ends = LogEnds(self._config, _TIMEOUT_S)
        if ends.committed_offset(group, self._names.updates, cluster) is not None:
            traces.append("the consumer group of the heads has committed an offset")
        return traces


def _content(message: Message, unread: set[int]) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield what a message holds; one that says "end of partition" goes off ``unread``."""
    error, partition, offset = message.error(), message.partition(), message.offset()
    if error is not None and error.code() == KafkaError._PARTITION_EOF and partition is not None:
        unread.discard(partition)
    elif error is not None or partition is None or offset is None:
        raise KafkaException(error)
    else:
        yield partition, offset, message.value()
