"""Topics that fit the plan, or an error that says what does not and what to do."""

import concurrent.futures
import dataclasses
import time

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from agents.kafka_edge import connection
from agents.topics import TopicError, check_mock_topics, check_topics, create_topics, topics_of

pytestmark = pytest.mark.integration


@pytest.fixture
def there(deploy):
    """A deployment, whose topics are there."""
    return deploy()


@pytest.fixture
def new_plan(there, topic_prefix):
    """A plan whose topics are not there."""
    return dataclasses.replace(there.plan, topic_prefix=f"{topic_prefix}-new")


def names(plan):
    return {spec.name for spec in topics_of(plan)}


def existing(deployment, plan):
    """The plan's topics that the broker has, with their number of partitions."""
    found = AdminClient(deployment.config).list_topics(timeout=10).topics
    return {name: len(found[name].partitions) for name in names(plan) & found.keys()}


def alter(deployment, topic, key, value):
    admin = AdminClient(deployment.config)
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    plain = ConfigResource(ResourceType.TOPIC, topic)

    def is_seen():
        try:
            return admin.describe_configs([plain])[plain].result()[key].value == value
        except KafkaException:
            return False  # the broker may not have heard of a topic that was just made

    deployment.eventually(f"{topic} has {key}={value}", is_seen)


def wait_until_made(deployment, plan):
    """A broker learns of new topics a moment after the controller has made them."""
    deployment.eventually(
        "topics are seen", lambda: existing(deployment, plan).keys() == names(plan)
    )


def test_all_topics_of_the_plan_are_made_with_their_partitions(there, new_plan):
    assert set(create_topics(there.config, new_plan)) == names(new_plan)
    wait_until_made(there, new_plan)
    assert existing(there, new_plan) == {s.name: s.partitions for s in topics_of(new_plan)}
    check_topics(there.config, new_plan)


def test_topics_that_are_there_are_left_alone(there):
    there.send("a", there.update("a", [3] * 12), cluster=0)
    there.producer().flush(30)
    assert create_topics(there.config, there.plan) == []
    assert len(there.read(there.names.updates, 0)) == 1


def test_only_what_is_missing_is_made(there):
    admin = AdminClient(there.config)
    admin.delete_topics([there.names.outbox])[there.names.outbox].result()
    there.eventually("it is gone", lambda: there.names.outbox not in existing(there, there.plan))
    assert create_topics(there.config, there.plan) == [there.names.outbox]


def test_a_wrong_number_of_partitions_is_refused_and_nothing_is_made(there, new_plan):
    updates = next(name for name in names(new_plan) if name.endswith(".updates"))
    admin = AdminClient(there.config)
    admin.create_topics([NewTopic(updates, 5, 1)])[updates].result()
    there.eventually("it is there", lambda: existing(there, new_plan))
    with pytest.raises(TopicError) as caught:
        create_topics(there.config, new_plan)
    message = str(caught.value)
    assert f"{updates} has 5 partitions, the plan needs 2" in message
    assert "a partition is a cluster and can be neither added nor removed" in message
    assert "Use another topic_prefix" in message
    assert existing(there, new_plan) == {updates: 5}


def test_missing_topics_are_named_with_the_command_that_makes_them(there, new_plan):
    with pytest.raises(TopicError) as caught:
        check_topics(there.config, new_plan)
    assert all(name in str(caught.value) for name in names(new_plan))
    assert "sdp topics create" in str(caught.value)


@pytest.mark.parametrize("ask", [check_topics, create_topics])
def test_times_that_producers_choose_are_refused(there, ask):
    alter(there, there.names.updates, "message.timestamp.type", "CreateTime")
    with pytest.raises(TopicError) as caught:
        ask(there.config, there.plan)
    assert str(caught.value) == (
        f"{there.names.updates} has message.timestamp.type=CreateTime, the plan needs "
        "LogAppendTime: alter the topic's configuration"
    )


def test_a_ledger_that_would_be_forgotten_and_all_else_that_is_wrong_is_told_at_once(there):
    alter(there, there.names.ledger, "retention.ms", "3600000")
    alter(there, there.names.model, "cleanup.policy", "delete")
    alter(there, there.names.releases, "max.message.bytes", "1000")
    with pytest.raises(TopicError) as caught:
        check_topics(there.config, there.plan)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for topic, key in (
        (there.names.ledger, "retention.ms"),
        (there.names.model, "cleanup.policy"),
        (there.names.releases, "max.message.bytes"),
    ):
        assert any(line.startswith(f"{topic} has {key}=") for line in lines)


def test_two_who_create_at_the_same_time_both_succeed(there, new_plan):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for turn in range(5):
            plan = dataclasses.replace(new_plan, topic_prefix=f"{new_plan.topic_prefix}-{turn}")
            both = [pool.submit(create_topics, there.config, plan) for _ in range(2)]
            made = set().union(*(future.result(30) for future in both))
            assert made == names(plan)
            wait_until_made(there, plan)
            check_topics(there.config, plan)


def test_more_replicas_than_brokers_is_an_error_that_names_the_topic(there, new_plan):
    with pytest.raises(TopicError, match=r"test-.* cannot be created: .*[Rr]eplication"):
        create_topics(there.config, new_plan, replication_factor=100)


def test_a_broker_that_does_not_answer_is_given_up(there):
    nobody = connection("127.0.0.1:1", {})
    begun_at = time.monotonic()
    for ask in (check_topics, create_topics):
        with pytest.raises(KafkaException) as caught:
            ask(nobody, there.plan, request_timeout_s=1)
        assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert time.monotonic() - begun_at < 10


def test_a_real_broker_is_never_taken_for_a_mock(there):
    with pytest.raises(TopicError, match="unsafe_mock_broker is for librdkafka's mock cluster"):
        check_mock_topics(there.config, there.plan)
