import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents import log_reader
from agents.kafka_edge import connection
from agents.log_reader import LogReader

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(bootstrap_servers: str, topic_prefix: str) -> str:
    name = f"{topic_prefix}.log"
    admin = AdminClient(connection(bootstrap_servers, {}))  # its futures end only while it lives
    new = NewTopic(name, 2, 1, config={"message.timestamp.type": "CreateTime"})
    admin.create_topics([new])[name].result(30)
    return name


@pytest.fixture
def config(bootstrap_servers: str) -> dict[str, str]:
    return connection(bootstrap_servers, {})


def fill(config: dict[str, str], topic: str, count: int, *, first: int = 0) -> None:
    producer = Producer(config)
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode(), partition=1, timestamp=1000 + number)
    assert producer.flush(30) == 0


def test_records_come_in_order_with_offsets_and_times(config: dict[str, str], topic: str) -> None:
    fill(config, topic, 1500)
    with LogReader(config, topic, 1) as reader:
        assert reader.limits() == (0, 1500)
        records = list(reader.records(3, 1400))
    assert [record.offset for record in records] == list(range(3, 1400))
    assert records[0].value == b"3"
    assert records[0].timestamp_ms == 1003


def test_nothing_is_waited_for_where_nothing_is_wanted(config: dict[str, str], topic: str) -> None:
    fill(config, topic, 3)
    with LogReader(config, topic, 1) as reader:
        assert list(reader.records(3, 3)) == []
        assert [record.offset for record in reader.records(1, 3)] == [1, 2]
    with LogReader(config, topic, 0) as empty:
        assert empty.limits() == (0, 0)


def test_single_records_are_found_near_and_far(config: dict[str, str], topic: str) -> None:
    fill(config, topic, 1000)
    with LogReader(config, topic, 1) as reader:
        for offset in (2, 3, 10, 900, 950, 951, 4, 999):
            record = reader.at(offset)
            assert record is not None
            assert record.value == str(offset).encode()


def test_what_is_deleted_is_passed_over(config: dict[str, str], topic: str) -> None:
    fill(config, topic, 20)
    admin = AdminClient(config)
    where = TopicPartition(topic, 1, 12)
    admin.delete_records([where])[where].result(30)
    with LogReader(config, topic, 1) as reader:
        assert reader.limits() == (12, 20)
        assert [record.offset for record in reader.records(5, 20)] == list(range(12, 20))
        assert reader.at(5) is None
        assert reader.at(15) is not None


def test_transactions_are_read_when_they_are_decided(
    config: dict[str, str], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(config, topic, 2)
    writer = Producer({**config, "transactional.id": topic})
    writer.init_transactions(30)
    for value in (b"aborted", b"committed"):
        writer.begin_transaction()
        writer.produce(topic, value, partition=1)
        writer.flush(30)
        (writer.abort_transaction if value == b"aborted" else writer.commit_transaction)(30)
    with LogReader(config, topic, 1) as reader:
        _, end = reader.limits()
        assert [record.value for record in reader.records(0, end)] == [b"0", b"1", b"committed"]
    with LogReader(config, topic, 1, "read_uncommitted") as reader:
        assert len(list(reader.records(0, end))) == 4
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=1)
    writer.flush(30)
    monkeypatch.setattr(log_reader, "_PATIENCE_S", 0.5)
    with LogReader(config, topic, 1) as reader:
        _, end = reader.limits()
        with pytest.raises(KafkaException, match="gives nothing more before its end"):
            list(reader.records(0, end))
    writer.abort_transaction(30)
