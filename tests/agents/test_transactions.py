"""One transaction: all of it is there for readers, or nothing of it is."""

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents.kafka_edge import LogEnds, connection, read_tail
from agents.local_kafka import start_broker
from agents.transactions import (
    FencedError,
    OutgoingRecord,
    OwnershipLostError,
    TransactionalWriter,
    TransactionFailedError,
)

pytestmark = pytest.mark.integration

_EVERY = 10_000


class Topics:
    """The topics of one test: two to write to, one whose offsets are committed."""

    def __init__(self, servers, prefix):
        self.config = connection(servers, {})
        self.ledger, self.outbox, self.updates = (
            f"{prefix}.{name}" for name in ("ledger", "outbox", "updates")
        )
        self.group = f"{prefix}-group"
        new = [NewTopic(name, 1, 1) for name in (self.ledger, self.outbox, self.updates)]
        admin = AdminClient(self.config)  # must outlive its futures
        for future in admin.create_topics(new).values():
            future.result()

    def writer(self, transaction_timeout_ms=60_000):
        return TransactionalWriter(
            self.config,
            f"{self.group}-writer",
            transaction_timeout_ms=transaction_timeout_ms,
            request_timeout_s=5,
            max_message_bytes=1 << 20,
        )

    def records(self, value):
        return [OutgoingRecord(name, 0, b"0", value) for name in (self.ledger, self.outbox)]

    def committed(self, topic):
        """All that a reader of committed records sees."""
        return read_tail(self.config, topic, 0, _EVERY, bytes).values

    def end(self, topic):
        return LogEnds(self.config, 10).end_offset(topic, 0)

    def group_offset(self):
        return LogEnds(self.config, 10).committed_offset(self.group, self.updates, 0)


@pytest.fixture
def topics(bootstrap_servers, topic_prefix):
    return Topics(bootstrap_servers, topic_prefix)


class Member:
    """A member of the consumer group."""

    def __init__(self, topics):
        config = {"group.id": topics.group, "auto.offset.reset": "earliest"}
        self.consumer = Consumer(topics.config | config)
        self.consumer.subscribe([topics.updates], on_assign=self._on_assign)
        self.generations = 0

    def _on_assign(self, *_):
        self.generations += 1

    def metadata(self):
        return self.consumer.consumer_group_metadata()


@pytest.fixture
def join(topics):
    """Let a member join, and every member see the generation that follows."""
    members = []

    def one_more():
        members.append(Member(topics))
        before = [member.generations for member in members]
        deadline = time.monotonic() + 30
        while any(m.generations == b for m, b in zip(members, before, strict=True)):
            assert time.monotonic() < deadline, "the group does not settle"
            for member in members:
                member.consumer.poll(0.05)
        return members[-1]

    yield one_more
    for member in members:
        member.consumer.close()


def test_records_of_all_topics_and_the_offset_are_there_after_the_commit(topics, join):
    member = join()
    writer = topics.writer()
    writer.fence()
    assert topics.group_offset() is None

    resume = TopicPartition(topics.updates, 0, 7)
    writer.write(topics.records(b"one"), resume, member.metadata())
    writer.write(topics.records(b"two"))
    assert topics.committed(topics.ledger) == [b"one", b"two"]
    assert topics.committed(topics.outbox) == [b"one", b"two"]
    assert topics.group_offset() == 7


def test_what_an_earlier_producer_left_open_is_aborted_by_the_fence(topics):
    first = Producer(topics.config | {"transactional.id": f"{topics.group}-writer"})
    first.init_transactions(10)
    first.begin_transaction()
    first.produce(topics.ledger, b"never to be seen", partition=0)
    assert first.flush(10) == 0
    assert topics.end(topics.ledger) == 1

    writer = topics.writer()
    writer.fence()
    writer.write(topics.records(b"one"))
    assert topics.committed(topics.ledger) == [b"one"]


def test_a_fence_that_did_not_reach_every_partition_is_no_fence(topics):
    writer = topics.writer(transaction_timeout_ms=1000)
    with pytest.raises(KafkaException):
        writer.fence([(topics.ledger, 0), (f"{topics.ledger}-missing", 0)])


class _DiesInACallback:
    """What confluent-kafka does when a client dies while it serves delivery reports."""

    def init_transactions(self, _):
        pass

    def begin_transaction(self):
        pass

    def produce(self, *_, **__):
        pass

    def flush(self, _):
        cause = KafkaException(KafkaError(KafkaError._FENCED, "a newer instance"))
        raise SystemError("returned a result with an exception set") from cause


def test_a_client_that_dies_during_the_fence_says_why(topics):
    writer = topics.writer()
    writer._producer = _DiesInACallback()
    with pytest.raises(FencedError, match="a newer instance"):
        writer.fence([(topics.ledger, 0)])


def test_a_second_writer_of_the_same_identity_fences_the_first(topics):
    first, second = topics.writer(), topics.writer()
    first.fence()
    first.write(topics.records(b"before"))
    second.fence()
    with pytest.raises(FencedError, match=f"{topics.group}-writer"):
        first.write(topics.records(b"of a zombie"))
    second.write(topics.records(b"after"))
    assert topics.committed(topics.ledger) == [b"before", b"after"]
    assert topics.committed(topics.outbox) == [b"before", b"after"]

    with pytest.raises((FencedError, TransactionFailedError)):
        first.write(topics.records(b"of a zombie that tries again"))
    assert topics.committed(topics.ledger) == [b"before", b"after"]


def test_a_member_of_an_earlier_generation_writes_nothing(topics, join):
    writer = topics.writer()
    writer.fence()
    stays = join()
    stale = stays.metadata()
    join()

    resume = TopicPartition(topics.updates, 0, 7)
    with pytest.raises(OwnershipLostError):
        writer.write(topics.records(b"too late"), resume, stale)
    assert topics.committed(topics.ledger) == []
    assert topics.committed(topics.outbox) == []
    assert topics.group_offset() is None

    # The writer itself is well: with the generation that is, it writes.
    writer.write(topics.records(b"in time"), resume, stays.metadata())
    assert topics.committed(topics.ledger) == [b"in time"]
    assert topics.group_offset() == 7


def test_a_member_that_has_left_the_group_writes_nothing(topics, join):
    writer = topics.writer()
    writer.fence()
    leaves = Member(topics)
    while not leaves.generations:
        leaves.consumer.poll(0.05)
    stale = leaves.metadata()
    leaves.consumer.close()
    join()

    with pytest.raises(OwnershipLostError):
        writer.write(topics.records(b"too late"), TopicPartition(topics.updates, 0, 7), stale)
    assert topics.committed(topics.ledger) == []
    assert topics.group_offset() is None


class _NeverAnswers:
    """What librdkafka was seen to do when a broker went away and came back: nothing at all."""

    def __init__(self, asleep):
        self._asleep = asleep

    def begin_transaction(self):
        pass

    def produce(self, *_, **__):
        pass

    def commit_transaction(self, _):
        self._asleep.wait(60)


def test_a_client_that_never_answers_is_given_up_and_the_next_writer_tells(topics):
    writer = topics.writer()
    writer.fence()
    writer.write(topics.records(b"before"))
    writer._timeout_s = 0.2
    asleep = threading.Event()
    writer._producer = _NeverAnswers(asleep)
    try:
        with pytest.raises(TransactionFailedError, match="did not come back"):
            writer.write(topics.records(b"lost"))
    finally:
        asleep.set()
    second = topics.writer()
    second.fence()
    second.write(topics.records(b"after"))
    assert topics.committed(topics.ledger) == [b"before", b"after"]


def test_a_topic_that_is_gone_is_not_made_by_writing_to_it():
    # Made by a broker, it would forget what it holds.
    with start_broker("mock", say=lambda _: None) as broker:
        config = connection(broker.bootstrap_servers, {})
        writer = TransactionalWriter(
            config,
            "test",
            transaction_timeout_ms=10_000,
            request_timeout_s=1,
            max_message_bytes=1 << 20,
        )
        writer.fence()
        with pytest.raises(TransactionFailedError):
            writer.write([OutgoingRecord("ledger", 0, b"0", b"a charge")])
        assert not AdminClient(config).list_topics(timeout=10).topics
