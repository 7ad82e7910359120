"""Small reads of Kafka: the newest records of a partition, where it begins and ends."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

# Control records of transactions take offsets too: reach back further than what is wanted.
_REACH = 4
_READ_TIMEOUT_S = 60.0
_RETRY_S = 0.5
_AWAY_TIMEOUT_S = 240.0
_REFUSALS = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
_log = logging.getLogger(__name__)


_T = TypeVar("_T")

# A client that cannot reach its broker says so twenty times a second.
_SAME_FAILURE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Tail(Generic[_T]):
    """The newest records of a partition.

    Attributes:
        values: What was kept of each one, oldest first, at most as many as were asked for.
        begin: The first offset that the broker still has.
        end: One past the newest offset at the time of reading.
        is_complete: Whether these are all that the broker has.
    """

    values: list[_T]
    begin: int
    end: int
    is_complete: bool


def connection(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return what every client of ours needs to reach the broker.

    A client's own log is left to its consumer (see `client_log`); what goes wrong in another
    client reaches its caller as an error.
    """
    return {"log_level": "2", **options, "bootstrap.servers": bootstrap_servers}


class _RareFailures(logging.Filter):
    """Lets a failure to connect be told once in a while, and everything else always."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at = -_SAME_FAILURE_EVERY_S

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether ``record`` is to be told."""
        if not record.getMessage().startswith("FAIL"):
            return True
        now = time.monotonic()
        is_due = now - self._told_at >= _SAME_FAILURE_EVERY_S
        if is_due:
            self._told_at = now
        return is_due


def client_log() -> logging.Logger:
    """Return the log for what a Kafka client has to say of its connections."""
    log = logging.getLogger("sdp.kafka")
    if not log.filters:
        log.addFilter(_RareFailures())
    return log


def read_tail(
    config: Mapping[str, str],
    topic: str,
    partition: int,
    count: int,
    keep: Callable[[bytes], _T],
    *,
    only_committed: bool = True,
) -> Tail[_T]:
    """Return what ``keep`` makes of the newest ``count`` committed records of a partition.

    Walks back from the end until there are enough, so a long topic costs no more than its tail.
    Where a transaction is not decided yet, for example since a broker comes back and has still
    to finish one that was committed, its outcome is waited for: a tail that lacks it would be
    an older truth. Without ``only_committed`` records count whatever became of their
    transaction, and none is waited for.

    Raises:
        KafkaException: the broker cannot be asked, or did not decide a transaction in a minute.
    """
    common = _reading(config)
    where = TopicPartition(topic, partition)
    begin, end = _watermarks({**common, "isolation.level": "read_uncommitted"}, where)
    isolation = "read_committed" if only_committed else "read_uncommitted"
    consumer = Consumer({**common, "isolation.level": isolation})
    try:
        reach = _REACH * count
        while True:
            start = max(begin, end - reach)
            consumer.assign([TopicPartition(topic, partition, start)])
            values: deque[_T] = deque(maxlen=count + 1)
            for value in _until(consumer, end, f"{topic} partition {partition}"):
                values.append(keep(value))
            if len(values) >= count or start == begin:
                is_complete = start == begin and len(values) <= count
                return Tail(list(values)[-count:], begin, end, is_complete)
            reach *= _REACH
    finally:
        consumer.close()


def read_all(config: Mapping[str, str], topic: str, partition: int) -> Iterator[bytes]:
    """Yield all committed records of a partition, oldest first, up to its end as it is now.

    Raises:
        KafkaException: the broker cannot be asked, or did not decide a transaction in a minute.
    """
    common = _reading(config)
    where = TopicPartition(topic, partition)
    begin, end = _watermarks({**common, "isolation.level": "read_uncommitted"}, where)
    consumer = Consumer({**common, "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, partition, begin)])
        yield from _until(consumer, end, f"{topic} partition {partition}")
    finally:
        consumer.close()


def _reading(config: Mapping[str, str]) -> dict[str, str | int | bool]:
    return {
        **config,
        "group.id": "sdp-reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        # The end of a quiet topic is told when the broker's wait for more is over.
        "fetch.wait.max.ms": 10,
    }


def _watermarks(config: Mapping[str, str | int | bool], where: TopicPartition) -> tuple[int, int]:
    """Return where a partition begins and ends, undecided transactions included."""
    consumer = Consumer(dict(config))
    try:
        begin, end = consumer.get_watermark_offsets(where, timeout=30)
    finally:
        consumer.close()
    return begin, end


def _until(consumer: Consumer, end: int, where: str) -> Iterator[bytes]:
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message.value() or b""
            deadline = time.monotonic() + _READ_TIMEOUT_S
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif (message.offset() or 0) >= end:
            return
    reason = f"{where} ends in a transaction that nobody decides: is its writer one of ours?"
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))


def retry_while_away(what: str, call: Callable[[], _T]) -> _T:
    """Return what ``call`` returns, trying again while the broker is away or coming back.

    Raises:
        KafkaException: it was not for want of a broker, or the broker stayed away for minutes.
    """
    deadline = time.monotonic() + _AWAY_TIMEOUT_S
    while True:
        try:
            return call()
        except KafkaException as exception:
            error = exception.args[0]
            is_final = error.fatal() or error.code() in _REFUSALS
            if is_final or time.monotonic() > deadline:
                raise
            _log.warning("%s is tried again: %s", what, error.str())
            time.sleep(_RETRY_S)


def known_offset(offset: int) -> int:
    """Return an offset that an admin client was told; -1 stands for none.

    Raises:
        KafkaException: it is none at all. A broker that is still to hear who leads a partition
            may answer so, and without an error.
    """
    if offset < -1:
        reason = "the broker does not know the offset yet"
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason))
    return offset


class LogEnds:
    """Asks a broker where partitions begin and end; safe to share between threads."""

    def __init__(self, config: Mapping[str, str], request_timeout_s: float) -> None:
        """Connect lazily, on the first question."""
        self._config = config
        self._timeout_s = request_timeout_s
        self._admin = AdminClient(dict(self._config))

    def end_offset(self, topic: str, partition: int) -> int:
        """Return one past the newest offset, counting records of open transactions."""
        return self._offset(topic, partition, OffsetSpec.latest())

    def begin_offset(self, topic: str, partition: int) -> int:
        """Return the first offset that the broker still has."""
        return self._offset(topic, partition, OffsetSpec.earliest())

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return the first offset appended at or after ``timestamp_ms``, or the log's end."""
        offset = self._offset(topic, partition, OffsetSpec.for_timestamp(timestamp_ms))
        return offset if offset >= 0 else self.end_offset(topic, partition)

    def committed_offset(self, group: str, topic: str, partition: int) -> int | None:
        """Return what ``group`` has committed for the partition, or None for nothing."""
        committed = self.committed(group, topic, partition)
        return None if committed is None else committed[0]

    def committed(self, group: str, topic: str, partition: int) -> tuple[int, str] | None:
        """Return the offset that ``group`` has committed, and the note that goes with it."""
        # Not an AdminClient: librdkafka crashes the process when a broker answers that question
        # of one with an error that it would ask again after (2.16, a coordinator that loads).
        consumer = Consumer(
            {**self._config, "group.id": group, "isolation.level": "read_uncommitted"}
        )
        try:
            where = [TopicPartition(topic, partition)]
            (answer,) = consumer.committed(where, timeout=self._timeout_s)
        finally:
            consumer.close()
        if answer.error is not None:
            raise KafkaException(answer.error)
        return (answer.offset, answer.metadata or "") if answer.offset >= 0 else None

    def _offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        where = TopicPartition(topic, partition)

        def question(admin: AdminClient, timeout_s: float) -> int:
            futures = admin.list_offsets(
                {where: spec},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=timeout_s,
            )
            return known_offset(futures[where].result(2 * timeout_s).offset)

        return self.ask(question)

    def ask(self, question: Callable[[AdminClient, float], _T]) -> _T:
        """Return the answer to ``question``, which is given an admin client and a time-out.

        Raises:
            KafkaException: the broker cannot be asked.
        """
        # A local name keeps the client alive: its futures never end without it.
        admin = self._admin
        try:
            return question(admin, self._timeout_s)
        except TimeoutError:
            self._admin = AdminClient(dict(self._config))
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "the admin client gave no answer")
            ) from None
        except KafkaException:
            # An admin client keeps a leader's old epoch for minutes after the leader changed,
            # and every question fails until then; a new one asks afresh.
            self._admin = AdminClient(dict(self._config))
            raise


def now_ms() -> int:
    """Return the time of day, in epoch milliseconds."""
    return time.time_ns() // 1_000_000
