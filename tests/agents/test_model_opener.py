"""Taking over the model on real Kafka: continued, begun, or refused with a remedy."""

import dataclasses

import numpy as np
import pytest
import topic_faults
from confluent_kafka import Consumer, TopicPartition
from topic_faults import recreate, truncate

from agents.model_opener import ModelOpener, model_group
from agents.settings import Settings
from schemas import decode_model_snapshot
from stream.errors import LedgerError, PlanError

pytestmark = pytest.mark.integration


@pytest.fixture
def deployment(deploy):
    return deploy()


def opener(deployment, plan=None):
    settings = Settings(bootstrap_servers=deployment.bootstrap_servers, plan=deployment.plan_file)
    weights = np.arange(12.0)
    return ModelOpener(settings, plan or deployment.plan, deployment.config, weights, 1 << 20)


def produce(deployment, topic, value):
    topic_faults.produce(deployment, topic, value, key=b"model")


def test_the_first_opening_publishes_version_0_and_the_second_goes_on_from_it(deployment):
    first, _ = opener(deployment).open()
    second, _ = opener(deployment).open()
    assert first.version == second.version == 0
    assert (second.weights == np.arange(12.0)).all()
    (snapshot,) = [
        decode_model_snapshot(m.value()) for m in deployment.read(deployment.names.model)
    ]
    assert snapshot.vector.tolist() == list(range(12))


def test_a_state_that_is_gone_although_models_are_public_is_refused(deployment):
    opener(deployment).open()
    recreate(deployment, deployment.names.model_state)
    with pytest.raises(LedgerError, match="holds models: restore it from a backup"):
        opener(deployment).open()


def test_a_model_and_a_state_that_are_gone_are_refused_while_the_group_knows_of_them(deployment):
    group = model_group(deployment.plan)
    consumer = Consumer(deployment.config | {"group.id": group})
    where = TopicPartition(deployment.names.releases, 0, 0)
    consumer.commit(offsets=[where], asynchronous=False)
    consumer.close()
    with pytest.raises(LedgerError, match=f"the consumer group {group} has committed an offset"):
        opener(deployment).open()


def test_a_model_that_is_gone_is_published_again_from_its_state(deployment, caplog):
    opener(deployment).open()
    recreate(deployment, deployment.names.model)
    opener(deployment).open()
    (snapshot,) = [
        decode_model_snapshot(m.value()) for m in deployment.read(deployment.names.model)
    ]
    assert snapshot.vector.tolist() == list(range(12))
    assert "had lost version 0 of the model: published again" in caplog.text
    opener(deployment).open()
    assert len(deployment.read(deployment.names.model)) == 1


def test_foreign_bytes_instead_of_a_state_are_refused(deployment):
    produce(deployment, deployment.names.model_state, b"foreign")
    with pytest.raises(LedgerError, match="cannot be read"):
        opener(deployment).open()


def test_foreign_bytes_after_the_state_are_passed_over(deployment, caplog):
    opener(deployment).open()
    for value in (b"foreign", None):
        produce(deployment, deployment.names.model_state, value)
        produce(deployment, deployment.names.model, value)
    model, _ = opener(deployment).open()
    assert model.version == 0
    assert "passed over; find its writer" in caplog.text


def test_the_state_of_another_plan_is_refused(deployment):
    opener(deployment).open()
    other = dataclasses.replace(deployment.plan, epsilon=9.0)
    with pytest.raises(PlanError):
        opener(deployment, other).open()


def test_releases_that_are_gone_are_told_from_releases_that_were_not_read(deployment):
    opener(deployment).open()
    for _ in range(3):
        produce(deployment, deployment.names.releases, b"not a release")
    opener(deployment).open()
    truncate(deployment, deployment.names.releases, 0, 2)
    with pytest.raises(LedgerError, match="offset 0, but the topic has offsets 2 to 3"):
        opener(deployment).open()
