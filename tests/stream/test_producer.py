import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents.local_kafka import NativeBroker
from stream.errors import DeliveryError
from stream.producer import UpdateProducer

# Port 9 is "discard": nobody listens there.
NOBODY = "127.0.0.1:9"
IMPATIENT = {"delivery.timeout.ms": 300, "linger.ms": 0}


def create_topic(bootstrap_servers: str, name: str, partitions: int = 2, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topic = NewTopic(name, partitions, 1, config=config)
    admin.create_topics([topic])[name].result()


def read(bootstrap_servers: str, topic: str, partition: int) -> list[tuple[bytes, bytes]]:
    """Return all keys and values of one partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    records = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is not None:
            break
        if message is not None:
            records.append((message.key(), message.value()))
    consumer.close()
    return records


@pytest.fixture
def lonely_producer() -> Iterator[UpdateProducer]:
    """A producer whose broker is not there and that soon gives up."""
    producer = UpdateProducer(NOBODY, config=IMPATIENT)
    yield producer
    producer.close(0)


@pytest.mark.parametrize(
    "setting",
    [
        "enable.idempotence",
        "acks",
        "allow.auto.create.topics",
        "message.max.bytes",
        "bootstrap.servers",
    ],
)
def test_settings_that_the_guarantee_rests_on_cannot_be_changed(setting):
    with pytest.raises(ValueError, match=f"fixed, remove them: {setting}"):
        UpdateProducer(NOBODY, config={setting: "1"})


def test_a_failed_delivery_is_raised_by_flush_with_topic_count_and_cause(lonely_producer):
    for number in range(3):
        lonely_producer.send("sdp.updates", 0, b"client", b"%d" % number)
    with pytest.raises(
        DeliveryError, match=r"'sdp.updates': 3 records .*timed out.*bootstrap_servers"
    ):
        lonely_producer.flush(10)


def test_a_failure_is_raised_once(lonely_producer):
    lonely_producer.send("sdp.updates", 0, b"client", b"value")
    with pytest.raises(DeliveryError):
        lonely_producer.flush(10)
    lonely_producer.flush(10)


def test_the_next_send_raises_an_earlier_failure_and_sends_nothing(lonely_producer):
    lonely_producer.send("sdp.updates", 0, b"client", b"early")
    attempts: list[int] = []
    failed_later: list[DeliveryError] = []

    def send_until_it_raises() -> None:
        while len(attempts) < 100:
            time.sleep(0.2)
            attempts.append(len(attempts))
            lonely_producer.send("sdp.updates", 0, b"client", b"late", failed_later.append)

    with pytest.raises(DeliveryError, match="1 record was not delivered"):
        send_until_it_raises()
    lonely_producer.flush(10)
    assert len(failed_later) == len(attempts) - 1


def test_failures_of_several_topics_are_told_together(lonely_producer):
    lonely_producer.send("one", 0, b"client", b"value")
    lonely_producer.send("two", 0, b"client", b"value")
    with pytest.raises(DeliveryError, match=r"'one': 1 record.*'two': 1 record"):
        lonely_producer.flush(10)


def test_a_failure_with_a_callback_goes_there_and_is_not_raised(lonely_producer):
    told: list[str] = []
    lonely_producer.send(
        "sdp.updates", 0, b"client", b"value", on_failure=lambda error: told.append(str(error))
    )
    lonely_producer.flush(10)
    assert len(told) == 1
    assert "'sdp.updates': 1 record was not delivered" in told[0]


def test_flush_raises_what_is_not_acknowledged_and_keeps_it():
    producer = UpdateProducer(NOBODY)
    producer.send("sdp.updates", 0, b"client", b"value")
    with pytest.raises(DeliveryError, match=r"not acknowledged after 0\.1 s"):
        producer.flush(0.1)
    with pytest.raises(DeliveryError, match="close gave it up"):
        producer.close(0)


def test_closing_twice_is_harmless():
    producer = UpdateProducer(NOBODY)
    producer.close()
    producer.close()


def test_an_error_in_the_block_is_not_hidden_by_an_undelivered_record(monkeypatch):
    monkeypatch.setattr(UpdateProducer.close, "__defaults__", (0.0,))

    def fail() -> None:
        with UpdateProducer(NOBODY) as producer:
            producer.send("sdp.updates", 0, b"client", b"value")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fail()
    assert "1 record was not delivered" in caught.value.__notes__[0]


def test_a_message_too_large_is_refused_with_the_fix():
    with (
        UpdateProducer(NOBODY, max_message_bytes=10_000) as producer,
        pytest.raises(DeliveryError, match=r"too large.*sdp topics create.*20006 bytes"),
    ):
        producer.send("sdp.updates", 0, b"client", bytes(20_000))


def test_a_full_queue_blocks_then_raises_and_drops_nothing():
    producer = UpdateProducer(
        NOBODY, queue_timeout_s=0.3, config={"queue.buffering.max.messages": 2}
    )
    producer.send("sdp.updates", 0, b"client", b"1")
    producer.send("sdp.updates", 0, b"client", b"2")
    started = time.monotonic()
    with pytest.raises(DeliveryError, match="the local queue stayed full"):
        producer.send("sdp.updates", 0, b"client", b"3")
    assert time.monotonic() - started >= 0.3
    with pytest.raises(DeliveryError, match="2 records were not delivered"):
        producer.close(0)


@pytest.mark.integration
def test_a_record_arrives_in_its_partition_with_its_key(bootstrap_servers, topic_prefix):
    create_topic(bootstrap_servers, topic_prefix)
    with UpdateProducer(bootstrap_servers) as producer:
        producer.send(topic_prefix, 1, b"client", b"value")
    assert read(bootstrap_servers, topic_prefix, 1) == [(b"client", b"value")]
    assert read(bootstrap_servers, topic_prefix, 0) == []


@pytest.mark.integration
def test_a_queue_that_fills_up_only_slows_the_caller(bootstrap_servers, topic_prefix):
    create_topic(bootstrap_servers, topic_prefix)
    config = {"queue.buffering.max.messages": 10, "linger.ms": 1}
    with UpdateProducer(bootstrap_servers, config=config) as producer:
        for number in range(200):
            producer.send(topic_prefix, 0, b"client", b"%d" % number)
    assert len(read(bootstrap_servers, topic_prefix, 0)) == 200


@pytest.mark.integration
def test_a_topic_that_is_missing_surfaces(bootstrap_servers, topic_prefix):
    config = {"topic.metadata.propagation.max.ms": 500}
    with UpdateProducer(bootstrap_servers, config=config) as producer:
        producer.send(topic_prefix, 0, b"client", b"value")
        with pytest.raises(DeliveryError, match="sdp topics create"):
            producer.flush(20)


@pytest.mark.integration
def test_a_partition_that_is_missing_surfaces(bootstrap_servers, topic_prefix):
    create_topic(bootstrap_servers, topic_prefix, partitions=1)
    with UpdateProducer(bootstrap_servers) as producer:
        producer.send(topic_prefix, 7, b"client", b"value")
        with pytest.raises(DeliveryError, match="too few partitions"):
            producer.flush(20)


@pytest.mark.integration
def test_a_topic_with_a_smaller_limit_surfaces_with_the_fix(bootstrap_servers, topic_prefix):
    create_topic(bootstrap_servers, topic_prefix, **{"max.message.bytes": "1000"})
    with UpdateProducer(bootstrap_servers, config={"compression.type": "none"}) as producer:
        producer.send(topic_prefix, 0, b"client", bytes(5000))
        with pytest.raises(DeliveryError, match=r"too large.*sdp topics create"):
            producer.flush(20)


@dataclass(frozen=True)
class Outage:
    """What two producers saw of a broker that was killed and came back."""

    patient_during: str
    impatient_during: str
    patient_values: list[bytes]
    impatient_values: list[bytes]


@pytest.fixture(scope="module")
def outage(native_broker: NativeBroker) -> Outage:
    servers = native_broker.bootstrap_servers
    create_topic(servers, "outage")
    impatient_config = {"delivery.timeout.ms": 4000}
    with (
        UpdateProducer(servers) as patient,
        UpdateProducer(servers, config=impatient_config) as impatient,
    ):
        for partition, producer in enumerate((patient, impatient)):
            producer.send("outage", partition, b"client", b"before")
            producer.flush(20)
        native_broker.kill()
        impatient.send("outage", 1, b"client", b"lost")
        for number in range(50):
            patient.send("outage", 0, b"client", b"%d" % number)
        with pytest.raises(DeliveryError) as impatient_error:
            impatient.flush(20)
        with pytest.raises(DeliveryError) as patient_error:
            patient.flush(0.5)
        native_broker.restart()
        patient.flush(60)
        impatient.send("outage", 1, b"client", b"after")
    return Outage(
        patient_during=str(patient_error.value),
        impatient_during=str(impatient_error.value),
        patient_values=[value for _, value in read(servers, "outage", 0)],
        impatient_values=[value for _, value in read(servers, "outage", 1)],
    )


@pytest.mark.integration
def test_a_broker_that_goes_away_and_comes_back_only_delays(outage: Outage):
    assert "not acknowledged after 0.5 s" in outage.patient_during
    numbers = [b"%d" % number for number in range(50)]
    assert outage.patient_values == [b"before", *numbers]


@pytest.mark.integration
def test_a_broker_that_stays_away_too_long_surfaces(outage: Outage):
    assert "1 record was not delivered" in outage.impatient_during
    assert "check bootstrap_servers" in outage.impatient_during


@pytest.mark.integration
def test_a_producer_goes_on_after_a_failure(outage: Outage):
    assert outage.impatient_values == [b"before", b"after"]
