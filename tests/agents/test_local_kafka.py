"""Finding a broker, and what a test may do to a native one."""

import uuid
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents import local_kafka
from agents.kafka_container import ApacheKafkaContainer
from agents.local_kafka import Broker, BrokerError, NativeBroker, start_broker


def create_topic(bootstrap_servers: str, **config: str) -> str:
    name = f"test-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(10)
    return name


def produce(bootstrap_servers: str, topic: str, value: bytes) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    producer.produce(
        topic,
        value,
        partition=0,
        timestamp=1_000,
        on_delivery=lambda error, _: failures.append(error),
    )
    assert producer.flush(15) == 0
    assert failures == [None]


def read_first(bootstrap_servers: str, topic: str) -> tuple[bytes | None, tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(15)
        assert message is not None
        assert message.error() is None
        return message.value(), message.timestamp()
    finally:
        consumer.close()


@pytest.mark.integration
def test_the_session_broker_keeps_what_is_produced(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers)
    produce(broker.bootstrap_servers, topic, b"value")
    assert read_first(broker.bootstrap_servers, topic)[0] == b"value"


@pytest.mark.integration
def test_the_broker_stamps_records_itself_where_the_topic_says_so(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, **{"message.timestamp.type": "LogAppendTime"})
    produce(broker.bootstrap_servers, topic, b"claims to be from 1970")
    kind, timestamp = read_first(broker.bootstrap_servers, topic)[1]
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert timestamp > 1_000


@pytest.mark.integration
def test_a_large_vector_fits_into_one_record(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap_servers, **{"max.message.bytes": str(20_000_000)})
    value = bytes(16_000_000)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 20_000_000}
    )
    producer.produce(topic, value)
    assert producer.flush(30) == 0
    assert read_first(broker.bootstrap_servers, topic)[0] == value


@pytest.mark.integration
def test_killed_and_restarted_the_broker_has_the_same_address_and_data(
    native_broker: NativeBroker,
) -> None:
    address, pid = native_broker.bootstrap_servers, native_broker.pid
    topic = create_topic(address)
    produce(address, topic, b"survives")
    native_broker.kill()
    with pytest.raises(BrokerError, match="no process"):
        _ = native_broker.pid
    native_broker.restart()
    assert native_broker.bootstrap_servers == address
    assert native_broker.pid != pid
    assert read_first(address, topic)[0] == b"survives"


def test_a_kind_that_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(BrokerError, match="KAFKA_BOOTSTRAP_SERVERS is not set"):
        start_broker("env")
    monkeypatch.setattr(local_kafka, "docker_answers", lambda: False)
    with pytest.raises(BrokerError, match="no Docker engine answers"):
        start_broker("container")


def test_without_engine_and_java_the_mock_serves_and_says_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def no_native(*_: object, **__: object) -> NativeBroker:
        raise BrokerError("no java on the PATH: install Java 17 or newer")

    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr(local_kafka, "docker_answers", lambda: False)
    monkeypatch.setattr(local_kafka, "NativeBroker", no_native)
    with start_broker("auto", say=said.append) as broker:
        assert broker.kind == "mock"
        topic = f"test-{uuid.uuid4().hex}"
        produce(broker.bootstrap_servers, topic, b"value")
        assert read_first(broker.bootstrap_servers, topic)[0] == b"value"
    assert said[:2] == [
        "no container broker: no Docker engine answers",
        "no native broker: no java on the PATH: install Java 17 or newer",
    ]
    assert "no LogAppendTime" in said[2]


def test_a_named_broker_is_used_and_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_broker("mock", say=lambda _: None) as mock:
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", mock.bootstrap_servers)
        with start_broker("auto") as broker:
            assert broker.kind == "env"
            assert broker.bootstrap_servers == mock.bootstrap_servers
            assert mock.bootstrap_servers in broker.description
        produce(mock.bootstrap_servers, "still-there", b"value")


def test_a_named_broker_that_does_not_answer_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_kafka, "_ENV_TIMEOUT_S", 0.2)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    with pytest.raises(BrokerError, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
        start_broker("auto")


def test_an_engine_that_hangs_counts_as_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexec sleep 30\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert not local_kafka.docker_answers()


def test_the_container_class_publishes_on_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testcontainers.core.container.DockerClient", lambda **_: None)
    container = ApacheKafkaContainer(port=19_999)
    assert repr(container.ports) == "{'9092/tcp': ('127.0.0.1', 19999)}"
    assert container.env["KAFKA_ADVERTISED_LISTENERS"].startswith("HOST://127.0.0.1:19999,")
