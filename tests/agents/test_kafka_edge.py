"""Small reads of Kafka, on logs with gaps: aborted transactions, control records, deletions."""

import logging
import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents import kafka_edge
from agents.kafka_edge import LogEnds, client_log, connection, read_tail, retry_while_away
from stream.errors import LedgerError

_REQUEST_TIMEOUT_S = 5


class Log:
    """One partition of a topic of its own, and a writer to it."""

    def __init__(self, servers, name):
        self.config = connection(servers, {})
        self.topic = name
        self.admin = AdminClient(self.config)
        self.admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        self._transactional = None

    def append(self, *values, timestamp_ms=0):
        producer = Producer(self.config)
        for value in values:
            producer.produce(self.topic, value, partition=0, timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    def begin(self, *values):
        """Write ``values`` in a transaction that is left open."""
        if self._transactional is None:
            self._transactional = Producer(self.config | {"transactional.id": self.topic})
            self._transactional.init_transactions(30)
        self._transactional.begin_transaction()
        for value in values:
            self._transactional.produce(self.topic, value, partition=0)
        assert self._transactional.flush(30) == 0

    def commit(self, *values):
        self.begin(*values)
        self._transactional.commit_transaction(30)

    def abort(self, *values):
        self.begin(*values)
        self._transactional.abort_transaction(30)

    def abort_open(self):
        self._transactional.abort_transaction(30)

    def commit_open(self):
        self._transactional.commit_transaction(30)

    def delete_below(self, offset):
        where = TopicPartition(self.topic, 0, offset)
        self.admin.delete_records([where])[where].result()

    def tail(self, count, keep=bytes):
        return read_tail(self.config, self.topic, 0, count, keep)

    def ends(self):
        return LogEnds(self.config, _REQUEST_TIMEOUT_S)


@pytest.fixture
def log(bootstrap_servers, topic_prefix):
    return Log(bootstrap_servers, topic_prefix)


def numbers(*range_arguments):
    return [b"%d" % number for number in range(*range_arguments)]


@pytest.mark.integration
def test_the_tail_of_an_empty_log_is_empty_and_complete(log):
    tail = log.tail(3)
    assert (tail.values, tail.begin, tail.end, tail.is_complete) == ([], 0, 0, True)


@pytest.mark.integration
def test_a_tail_is_complete_only_if_nothing_stands_before_it(log):
    log.append(*numbers(5))
    for count, is_complete in ((1, False), (4, False), (5, True), (100, True)):
        tail = log.tail(count)
        assert tail.values == numbers(5)[-count:], count
        assert tail.is_complete is is_complete, count
        assert (tail.begin, tail.end) == (0, 5)


@pytest.mark.integration
def test_the_tail_of_a_long_log_keeps_what_it_is_told_of_the_newest(log):
    log.append(*numbers(3000))
    tail = log.tail(100, keep=int)
    assert tail.values == list(range(2900, 3000))
    assert not tail.is_complete


@pytest.mark.integration
def test_aborted_and_control_records_do_not_count_though_they_take_offsets(log):
    for number in numbers(6):
        log.commit(number)
    log.abort(*numbers(1000, 1100))
    # The newest hundred offsets hold nothing for a reader: it must reach back behind them.
    tail = log.tail(2)
    assert tail.values == [b"4", b"5"]
    assert not tail.is_complete
    assert tail.end == 6 * 2 + 101

    tail = log.tail(6)
    assert tail.values == numbers(6)
    assert tail.is_complete


@pytest.mark.integration
def test_a_log_of_nothing_but_aborted_records_has_an_empty_tail(log):
    log.abort(*numbers(10))
    tail = log.tail(1)
    assert tail.values == []
    assert tail.is_complete
    assert tail.end > 0


@pytest.mark.integration
def test_an_open_transaction_is_waited_for_whichever_way_it_ends(log):
    log.append(b"before")
    for end, values in ((log.abort_open, [b"before"]), (log.commit_open, [b"before", b"open"])):
        log.begin(b"open")
        decided = threading.Timer(1.0, end)
        decided.start()
        assert log.tail(10).values == values
        decided.join()


@pytest.mark.integration
def test_a_transaction_that_nobody_decides_is_an_error_that_may_be_tried_again(log, monkeypatch):
    monkeypatch.setattr(kafka_edge, "_READ_TIMEOUT_S", 1.0)
    log.begin(b"open")
    with pytest.raises(KafkaException, match="a transaction that nobody decides"):
        log.tail(1)
    monkeypatch.undo()
    log.commit_open()
    assert log.tail(1).values == [b"open"]


@pytest.mark.integration
def test_a_deleted_beginning_is_told(log):
    log.append(*numbers(10))
    log.delete_below(7)
    tail = log.tail(100)
    assert tail.values == numbers(7, 10)
    assert (tail.begin, tail.end, tail.is_complete) == (7, 10, True)
    assert log.ends().begin_offset(log.topic, 0) == 7

    log.delete_below(10)
    tail = log.tail(100)
    assert (tail.values, tail.begin, tail.end) == ([], 10, 10)


@pytest.mark.integration
def test_a_topic_that_is_not_there_is_an_error(log):
    with pytest.raises(KafkaException):
        read_tail(log.config, f"{log.topic}-missing", 0, 1, bytes)


@pytest.mark.integration
def test_the_end_counts_records_of_open_transactions(log):
    ends = log.ends()
    assert ends.end_offset(log.topic, 0) == 0
    log.append(b"plain")
    log.begin(b"open", b"open too")
    assert ends.end_offset(log.topic, 0) == 3
    assert ends.begin_offset(log.topic, 0) == 0


@pytest.mark.integration
def test_the_offset_at_a_time_is_the_first_record_since_or_the_end(log):
    now_ms = time.time_ns() // 1_000_000
    log.append(b"a", b"b", timestamp_ms=now_ms - 2000)
    log.append(b"c", timestamp_ms=now_ms - 1000)
    ends = log.ends()
    for timestamp_ms, offset in (
        (0, 0),
        (now_ms - 2000, 0),
        (now_ms - 1999, 2),
        (now_ms - 1000, 2),
        (now_ms - 999, 3),
        (now_ms + 60_000, 3),
    ):
        assert ends.offset_at(log.topic, 0, timestamp_ms) == offset


@pytest.mark.integration
def test_a_group_has_committed_nothing_or_an_offset(log):
    group = f"{log.topic}-group"
    ends = log.ends()
    assert ends.committed_offset(group, log.topic, 0) is None
    for offset in (0, 7):
        consumer = Consumer(log.config | {"group.id": group})
        consumer.commit(offsets=[TopicPartition(log.topic, 0, offset)], asynchronous=False)
        consumer.close()
        # Zero is an offset too, and not the same as none.
        assert ends.committed_offset(group, log.topic, 0) == offset
    assert ends.committed(group, log.topic, 0) == (7, "")
    consumer = Consumer(log.config | {"group.id": group})
    noted = TopicPartition(log.topic, 0, 8, "a note")
    consumer.commit(offsets=[noted], asynchronous=False)
    consumer.close()
    assert ends.committed(group, log.topic, 0) == (8, "a note")


class _KeepsItsClient(LogEnds):
    """The planted fault: the same admin client for ever."""

    def ask(self, question):
        return question(self._admin, self._timeout_s)


@pytest.mark.integration
@pytest.mark.slow
def test_the_end_is_found_again_after_the_broker_came_back(native_broker):
    log = Log(native_broker.bootstrap_servers, f"test-{uuid.uuid4().hex[:12]}")
    log.append(*numbers(3))
    ends, faulty = log.ends(), _KeepsItsClient(log.config, _REQUEST_TIMEOUT_S)
    assert ends.end_offset(log.topic, 0) == faulty.end_offset(log.topic, 0) == 3

    native_broker.kill()
    native_broker.restart()

    def ask():
        return ends.end_offset(log.topic, 0)

    assert retry_while_away("asking", ask) == 3
    assert ask() == 3
    # Every question of a client from before fails: it knows the leader's old epoch, or none.
    for _ in range(3):
        with pytest.raises(KafkaException) as caught:
            faulty.end_offset(log.topic, 0)
        code = caught.value.args[0].code()
        assert code in (KafkaError.FENCED_LEADER_EPOCH, KafkaError._NOENT)


def failing(*errors):
    """A call that raises these, one after the other, and then returns 5."""
    left = list(errors)

    def call():
        if left:
            raise left.pop(0)
        return 5

    return call


def test_a_broker_that_is_away_is_asked_again_and_an_operator_is_told(caplog):
    away = KafkaException(KafkaError(KafkaError._TIMED_OUT, "nobody there"))
    assert retry_while_away("reading the ledger", failing(away)) == 5
    assert "reading the ledger is tried again: nobody there" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED),
        KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        KafkaError(KafkaError._AUTHENTICATION),
        KafkaError(KafkaError._FENCED, "fenced", fatal=True),
    ],
    ids=lambda error: error.name(),
)
def test_a_refusal_is_final(error):
    call = failing(KafkaException(error))
    with pytest.raises(KafkaException):
        retry_while_away("asking", call)
    assert call() == 5, "it was asked once"


def test_what_is_no_error_of_kafka_is_not_tried_again():
    with pytest.raises(LedgerError):
        retry_while_away("asking", failing(LedgerError("truncated")))


def test_the_connection_takes_options_and_always_our_servers():
    config = connection("a:1", {"security.protocol": "SSL", "bootstrap.servers": "b:2"})
    assert config["security.protocol"] == "SSL"
    assert config["bootstrap.servers"] == "a:1"


def test_a_failure_to_connect_is_told_once_in_a_while_and_all_else_always(caplog, monkeypatch):
    monkeypatch.setattr(client_log(), "filters", [])
    log = client_log()
    assert client_log() is log
    assert len(log.filters) == 1
    with caplog.at_level(logging.INFO, log.name):
        for _ in range(50):
            log.error("FAIL [thrd:a] %s", "connect refused")
            log.warning("%s", "MAXPOLL: another matter")
    told = [record.getMessage() for record in caplog.records]
    assert told.count("FAIL [thrd:a] connect refused") == 1
    assert told.count("MAXPOLL: another matter") == 50
