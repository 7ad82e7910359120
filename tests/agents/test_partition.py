"""Durable state that is not as it must be: the cluster is refused, with the reason and a remedy."""

import dataclasses

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents.partition import ClusterOpener
from agents.protocol_steps import Step
from agents.settings import Settings
from agents.topics import topics_of
from schemas import LedgerKind, decode_ledger_record, encode_ledger_record
from stream.testing import UnsafeNoNoise

pytestmark = pytest.mark.integration


@pytest.fixture
def stopped(deploy):
    """A deployment of one cluster that has released and was stopped."""
    deployment = deploy(cluster_count=1, window_length_ms=300, grace_ms=50, release_delay_ms=100)
    head = deployment.start_head()
    deployment.wait_until_owned()
    deployment.eventually("three windows are released", lambda: len(deployment.releases()) >= 3)
    assert head.stop() == 0
    return deployment


def refusal(deployment):
    """Start a head; return why it refuses cluster 0, once it does."""
    head = deployment.start_head()

    def why():
        return ((head.health() or {}).get("refused") or {}).get("0")

    return deployment.eventually("the cluster is refused", why)


def produce(deployment, topic, *values):
    producer = Producer(deployment.config)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def recreate(deployment, topic):
    """Delete a topic and make it again, empty."""
    admin = AdminClient(deployment.config)
    admin.delete_topics([topic])[topic].result()
    spec = next(spec for spec in topics_of(deployment.plan) if spec.name == topic)

    def made():
        new = NewTopic(topic, spec.partitions, 1, config=spec.config())
        try:
            admin.create_topics([new])[topic].result()
        except Exception:  # noqa: BLE001 - the deletion may take a moment
            return False
        return True

    deployment.eventually(f"{topic} is made again", made)


def test_a_ledger_whose_beginning_was_deleted_is_refused(stopped):
    admin = AdminClient(stopped.config)
    where = TopicPartition(stopped.names.ledger, 0, 2)
    admin.delete_records([where])[where].result()
    assert "truncated" in refusal(stopped)


def test_a_ledger_that_is_gone_is_refused_since_releases_are_public(stopped):
    recreate(stopped, stopped.names.ledger)
    why = refusal(stopped)
    assert "is empty, though it must have existed" in why
    assert "backup" in why


def test_a_ledger_that_lost_its_newest_records_is_refused(stopped):
    records = [message.value() for message in stopped.read(stopped.names.ledger)]
    recreate(stopped, stopped.names.ledger)
    produce(stopped, stopped.names.ledger, *records[:-1])
    assert "older" in refusal(stopped)


def test_a_ledger_with_a_changed_record_is_refused(stopped):
    records = [message.value() for message in stopped.read(stopped.names.ledger)]
    changed = dataclasses.replace(decode_ledger_record(records[1]), next_offset=0, window=0)
    recreate(stopped, stopped.names.ledger)
    produce(stopped, stopped.names.ledger, records[0], encode_ledger_record(changed), *records[2:])
    why = refusal(stopped)
    assert "ledger of cluster 0" in why


def test_foreign_bytes_in_the_ledger_are_refused(stopped):
    produce(stopped, stopped.names.ledger, b"foreign")
    assert "cannot be read" in refusal(stopped)


def test_another_plan_on_the_same_topics_is_refused(stopped):
    other = dataclasses.replace(stopped.plan, epsilon=9.0)
    stopped.plan_file.write_text(other.to_toml())
    assert "belongs to plan" in refusal(stopped)


def test_an_outbox_that_was_written_to_by_another_is_refused(stopped):
    produce(stopped, stopped.names.outbox, b"foreign")
    assert "foreign bytes" in refusal(stopped)


def test_an_outbox_is_looked_at_although_the_budget_is_spent(deploy):
    deployment = deploy(
        cluster_count=1,
        window_length_ms=300,
        grace_ms=50,
        release_delay_ms=100,
        horizon_windows=2,
    )
    head = deployment.start_head()
    deployment.wait_until_owned()

    def is_closed():
        newest = deployment.read(deployment.names.ledger)[-1].value()
        return decode_ledger_record(newest).kind is LedgerKind.EXHAUSTED

    deployment.eventually("the budget is spent", is_closed)
    assert head.stop() == 0
    produce(deployment, deployment.names.outbox, b"foreign")
    assert "foreign bytes" in refusal(deployment)


def test_an_outbox_that_is_gone_is_no_reason_to_stop_or_to_draw_again(stopped):
    before = stopped.releases()
    recreate(stopped, stopped.names.outbox)
    head = stopped.start_head()
    stopped.wait_until_owned(head)
    stopped.eventually("it goes on", lambda: len(stopped.releases()) > len(before))
    after = stopped.releases()
    assert all((after[cell].vector == release.vector).all() for cell, release in before.items())


def test_a_committed_release_that_was_not_published_is_published_byte_for_byte(stopped):
    newest = stopped.read(stopped.names.outbox)[-1].value()
    recreate(stopped, stopped.names.releases)
    head = stopped.start_head()
    stopped.wait_until_owned(head)
    published = stopped.eventually("it is published", lambda: stopped.read(stopped.names.releases))
    assert published[0].value() == newest


def test_an_updates_topic_that_was_made_again_is_refused(deploy):
    deployment = deploy(cluster_count=1, window_length_ms=300, grace_ms=50, release_delay_ms=100)
    head = deployment.start_head()
    deployment.wait_until_owned()
    deployment.send("a", deployment.update("a", [1] * 12))
    deployment.producer().flush(30)

    def read_up_to():
        newest = deployment.read(deployment.names.ledger)[-1].value()
        return decode_ledger_record(newest).next_offset

    deployment.eventually("the ledger has read the update", read_up_to)
    assert head.stop() == 0
    recreate(deployment, deployment.names.updates)
    assert "made again" in refusal(deployment)


def test_an_opening_is_watched_step_by_step(deploy):
    deployment = deploy(cluster_count=1)
    settings = Settings(bootstrap_servers=deployment.bootstrap_servers, plan=deployment.plan_file)

    def steps():
        passed = []
        ClusterOpener(
            settings,
            deployment.plan,
            deployment.config,
            UnsafeNoNoise(),
            1 << 20,
            watch=passed.append,
        ).open(0)
        return passed

    fenced = [Step.FENCE, Step.SETTLE, Step.READ_STATE]
    written = [Step.BEGIN_TRANSACTION, Step.PRODUCE, Step.COMMIT, Step.COMMITTED]
    assert steps() == [*fenced, Step.GENESIS, *written, Step.CONSUME]
    assert steps() == [*fenced, Step.RESTORE, Step.CONSUME]
