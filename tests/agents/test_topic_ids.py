"""Which topics are there, and whether they are still the same, on real Kafka."""

import pytest
from topic_faults import delete, make_again, produce, recreate, truncate, wait_until_led

from agents import topic_ids
from agents.kafka_edge import LogEnds
from agents.topic_ids import Topics, global_topics, gone_text, head_topics
from stream.errors import LedgerError

pytestmark = pytest.mark.integration


@pytest.fixture
def deployment(deploy):
    return deploy(scope="client")


@pytest.fixture
def ends(deployment):
    wait_until_led(deployment)
    return LogEnds(deployment.config, 10)


def test_a_worker_cannot_do_without_its_topics(deployment, ends):
    names, plan = deployment.names, deployment.plan
    assert set(head_topics(ends, plan).names) == {
        names.updates,
        names.ledger,
        names.outbox,
        names.releases,
        names.participation,
    }
    assert set(global_topics(ends, plan).names) == {
        names.releases,
        names.model,
        names.model_state,
    }


def test_what_is_seen_changes_with_each_deletion(deployment, ends):
    topics, ledger = head_topics(ends, deployment.plan), deployment.names.ledger
    topics.require()
    before = topics.look()
    assert set(before.ids) == set(topics.names)
    assert before.begins == (0, 0)
    assert topics.look() == before

    produce(deployment, ledger, b"x", b"y", partition=1)
    truncate(deployment, ledger, 1, 1)
    deployment.eventually("the cut is seen", lambda: topics.look().begins == (0, 1))
    recreate(deployment, ledger)
    made = topics.look()
    assert made.begins == (0, 0)
    assert {name for name in before.ids if before.ids[name] != made.ids[name]} == {ledger}


def test_a_topic_that_is_not_there_is_waited_for_and_then_told(deployment, ends, monkeypatch):
    monkeypatch.setattr(topic_ids, "_PATIENCE_S", 1.0)
    topics, outbox = head_topics(ends, deployment.plan), deployment.names.outbox
    delete(deployment, outbox)
    assert topics.missing() == (outbox,)
    with pytest.raises(LedgerError) as caught:
        topics.require()
    assert str(caught.value) == gone_text([outbox])
    assert "sdp topics create" in str(caught.value)
    assert topics.look().begins == (0, 0)
    make_again(deployment, outbox)
    topics.require()
    assert topics.missing() == ()
    assert Topics(ends, [outbox]).look().begins == ()
