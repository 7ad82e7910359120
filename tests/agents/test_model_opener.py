"""Taking over the model on real Kafka: continued, begun, or refused with a remedy."""

import dataclasses

import numpy as np
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from agents.model_opener import ModelOpener
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
    producer = Producer(deployment.config)
    producer.produce(topic, value, b"model", partition=0)
    assert producer.flush(30) == 0


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
    produce(deployment, deployment.names.model, b"a model")
    with pytest.raises(LedgerError, match="restore it from a backup"):
        opener(deployment).open()


def test_foreign_bytes_in_the_state_are_refused(deployment):
    produce(deployment, deployment.names.model_state, b"foreign")
    with pytest.raises(LedgerError, match="cannot be read"):
        opener(deployment).open()


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
    admin = AdminClient(deployment.config)
    where = TopicPartition(deployment.names.releases, 0, 2)
    admin.delete_records([where])[where].result()
    with pytest.raises(LedgerError, match="offset 0, but the topic has offsets 2 to 3"):
        opener(deployment).open()
