import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from agents.local_kafka import NativeBroker
from schemas import ModelSnapshot, TopicNames, encode_model_snapshot
from stream.client import ModelSubscriber
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

DIMENSION = 4
NOBODY = "127.0.0.1:9"


def make_plan(topic_prefix: str, name: str = "test", dimension: int = DIMENSION) -> PrivacyPlan:
    return PrivacyPlan(
        name=name,
        dimension=dimension,
        cluster_count=2,
        assignment="hash",
        assignment_key="key",
        expected_clients=100,
        start_ms=0,
        window_length_ms=1000,
        grace_ms=100,
        release_delay_ms=200,
        l2_clip_norm=1.0,
        grid_l2_bound=200,
        count_weight=20,
        update_dtype="int8",
        epsilon=8.0,
        delta=1e-5,
        horizon_windows=10,
        optimizer=OptimizerSpec("sgd", 0.1),
        normalizer="expected_clients",
        topic_prefix=topic_prefix,
    )


class ModelTopic:
    """The model topic of one plan, written as the global agent does: in transactions."""

    def __init__(self, bootstrap_servers: str, plan: PrivacyPlan) -> None:
        self.plan = plan
        self.bootstrap_servers = bootstrap_servers
        self.name = TopicNames(plan.topic_prefix).model
        self._writer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": plan.topic_prefix,
                "log_level": 0,
            }
        )

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(self.name, 1, 1)])[self.name].result()
        self._writer.init_transactions()

    def begin(self, *versions: int) -> None:
        self._writer.begin_transaction()
        for version in versions:
            self.produce(snapshot(self.plan, version))
        self._writer.flush()

    def produce(self, value: bytes | None) -> None:
        self._writer.produce(self.name, value, b"model", partition=0)

    def commit(self) -> None:
        self._writer.commit_transaction()

    def abort(self) -> None:
        self._writer.abort_transaction()

    def publish(self, *versions: int) -> None:
        for version in versions:
            self.begin(version)
            self.commit()


def snapshot(plan: PrivacyPlan, version: int) -> bytes:
    vector = np.full(plan.dimension, version, dtype=np.float32)
    return encode_model_snapshot(ModelSnapshot(plan.plan_id, version, version - 1, 0, vector))


@pytest.fixture
def topic(bootstrap_servers: str, topic_prefix: str) -> ModelTopic:
    topic = ModelTopic(bootstrap_servers, make_plan(topic_prefix))
    topic.create()
    return topic


@pytest.fixture
def subscriber(topic: ModelTopic) -> Iterator[ModelSubscriber]:
    with ModelSubscriber(topic.plan, topic.bootstrap_servers) as subscriber:
        yield subscriber


def test_settings_that_the_search_rests_on_cannot_be_changed():
    with pytest.raises(ValueError, match=r"fixed, remove them: isolation\.level"):
        ModelSubscriber(make_plan("sdp"), NOBODY, {"isolation.level": "read_uncommitted"})


def test_without_a_broker_there_is_no_model_and_the_timeout_says_why():
    with ModelSubscriber(make_plan("sdp"), NOBODY) as subscriber:
        assert subscriber.newest() is None
        with pytest.raises(TimeoutError, match=r"no model 7 in 1 s: topic 'sdp.model', none yet"):
            subscriber.wait_for(7, 1)
        with pytest.raises(TimeoutError, match="last error from Kafka"):
            subscriber.wait_for(7, 1)


def test_closing_twice_is_harmless():
    subscriber = ModelSubscriber(make_plan("sdp"), NOBODY)
    subscriber.close()
    subscriber.close()
    assert list(subscriber) == []


@pytest.mark.integration
def test_an_empty_topic_has_no_model(subscriber: ModelSubscriber):
    with pytest.raises(TimeoutError, match="none yet, 0 messages ignored"):
        subscriber.wait_for(0, 1.5)
    assert subscriber.newest() is None


@pytest.mark.integration
def test_the_newest_of_many_models_is_found_without_reading_them_all(topic: ModelTopic):
    topic.publish(*range(100))
    with ModelSubscriber(topic.plan, topic.bootstrap_servers) as subscriber:
        model = subscriber.wait_for(0, 20)
    assert model.model_version == 99
    assert model.window == 98
    assert model.vector.tolist() == [99.0] * DIMENSION


@pytest.mark.integration
def test_the_callers_vector_can_be_written_to(topic: ModelTopic, subscriber: ModelSubscriber):
    topic.publish(1)
    vector = subscriber.wait_for(1, 20).vector
    assert vector.flags.writeable
    assert vector.flags.aligned
    assert vector.flags.owndata


@pytest.mark.integration
def test_aborted_models_are_never_seen_and_do_not_hide_the_newest(topic: ModelTopic):
    topic.publish(1, 2)
    for version in range(3, 30):
        topic.begin(version)
        topic.abort()
    with ModelSubscriber(topic.plan, topic.bootstrap_servers) as subscriber:
        assert subscriber.wait_for(0, 20).model_version == 2
        topic.publish(3)
        assert subscriber.wait_for(3, 20).model_version == 3


@pytest.mark.integration
def test_an_open_transaction_does_not_hide_the_newest_committed_model(topic: ModelTopic):
    topic.publish(1)
    topic.begin(*range(2, 50))
    with ModelSubscriber(topic.plan, topic.bootstrap_servers) as subscriber:
        assert subscriber.wait_for(0, 20).model_version == 1
        topic.commit()
        assert subscriber.wait_for(49, 20).model_version == 49


@pytest.mark.integration
def test_what_is_malformed_or_foreign_is_counted_and_passed_over(topic: ModelTopic):
    prefix = topic.plan.topic_prefix
    topic.publish(1)
    topic.begin()
    topic.produce(b"garbage")
    topic.produce(None)
    topic.produce(snapshot(make_plan(prefix, name="foreign"), 99))
    topic.produce(snapshot(make_plan(prefix, dimension=5), 99))
    topic.commit()
    with ModelSubscriber(topic.plan, topic.bootstrap_servers) as subscriber:
        assert subscriber.wait_for(0, 20).model_version == 1
        subscriber.newest()
        assert subscriber.ignored == 4


@pytest.mark.integration
def test_an_older_model_that_comes_late_does_not_replace_the_newest(
    topic: ModelTopic, subscriber: ModelSubscriber
):
    topic.publish(5, 4)
    assert subscriber.wait_for(5, 20).model_version == 5
    topic.publish(6)
    assert subscriber.wait_for(6, 20).model_version == 6


@pytest.mark.integration
def test_iteration_yields_each_newer_model_and_skips_those_overtaken(
    topic: ModelTopic, subscriber: ModelSubscriber
):
    topic.publish(1)
    models = iter(subscriber)
    assert next(models).model_version == 1
    topic.publish(2, 3, 4)
    versions = [model.model_version for model in islice(models, 1)]
    while versions[-1] < 4:
        versions.append(next(models).model_version)
    assert versions == sorted(set(versions))
    subscriber.close()
    assert list(models) == []


@pytest.mark.integration
def test_waiting_for_a_model_that_does_not_come_says_what_there_is(
    topic: ModelTopic, subscriber: ModelSubscriber
):
    topic.publish(7)
    subscriber.wait_for(7, 20)
    with pytest.raises(TimeoutError, match=r"no model 8 in 0\.2 s: .*newest is 7"):
        subscriber.wait_for(8, 0.2)


@pytest.mark.integration
def test_newest_does_not_wait(topic: ModelTopic, subscriber: ModelSubscriber):
    topic.publish(1)
    subscriber.wait_for(1, 20)
    started = time.monotonic()
    for _ in range(100):
        subscriber.newest()
    assert time.monotonic() - started < 5


@pytest.mark.integration
def test_a_topic_that_is_missing_is_told_and_found_once_it_is_there(
    bootstrap_servers, topic_prefix
):
    topic = ModelTopic(bootstrap_servers, make_plan(topic_prefix))
    config = {
        "topic.metadata.propagation.max.ms": 300,
        "topic.metadata.refresh.interval.ms": 300,
    }
    with ModelSubscriber(topic.plan, bootstrap_servers, config) as subscriber:
        with pytest.raises(TimeoutError, match="sdp topics create"):
            subscriber.wait_for(0, 3)
        topic.create()
        topic.publish(1)
        assert subscriber.wait_for(1, 30).model_version == 1


@pytest.mark.integration
def test_a_broker_that_goes_away_and_comes_back_only_delays(
    native_broker: NativeBroker, topic_prefix
):
    topic = ModelTopic(native_broker.bootstrap_servers, make_plan(topic_prefix))
    topic.create()
    topic.publish(1)
    with ModelSubscriber(topic.plan, native_broker.bootstrap_servers) as subscriber:
        subscriber.wait_for(1, 20)
        native_broker.kill()
        newest = subscriber.newest()
        assert newest is not None
        assert newest.model_version == 1
        native_broker.restart()
        topic.publish(2)
        assert subscriber.wait_for(2, 60).model_version == 2
