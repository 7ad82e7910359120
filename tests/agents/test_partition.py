"""Durable state that is not as it must be: the cluster is refused, with the reason and a remedy.

What a head's process makes of it is in tests/integration/test_*_faults.py.
"""

import dataclasses

import pytest
from confluent_kafka import Consumer, TopicPartition
from durable_head import DurableHead
from topic_faults import produce, recreate, truncate, wait_until_led

from agents import partition
from agents.partition import group_of
from agents.protocol_steps import Step
from agents.takeover_checks import offset_note
from schemas import LedgerKind, decode_ledger_record, encode_ledger_record
from stream.errors import LedgerError

pytestmark = pytest.mark.integration

SHORT = {"cluster_count": 1, "window_length_ms": 100, "grace_ms": 0, "release_delay_ms": 0}


@pytest.fixture
def head(deploy):
    """A head that has committed three windows and published two of them."""
    head = DurableHead(deploy(**SHORT))
    wait_until_led(head.deployment)
    head.open()
    head.release(is_public=True)
    head.release(is_public=True)
    head.release()
    return head


def values(head, topic):
    return [message.value() for message in head.deployment.read(topic)]


def replace_ledger(head, *records):
    recreate(head.deployment, head.deployment.names.ledger)
    produce(head.deployment, head.deployment.names.ledger, *records)


def commit_offset(head, sequence):
    """What a head's group commits in the transaction of a ledger record."""
    group = group_of(head.deployment.plan)
    consumer = Consumer(head.deployment.config | {"group.id": group})
    where = TopicPartition(head.deployment.names.updates, 0, 0, offset_note(sequence))
    consumer.commit(offsets=[where], asynchronous=False)
    consumer.close()


def send_updates(head, count):
    for number in range(count):
        head.deployment.send(f"{number}", head.deployment.update(f"{number}", [1] * 12))
    head.deployment.producer().flush(30)


def refusal(head):
    with pytest.raises(LedgerError) as caught:
        head.open()
    assert "new plan on new topics" in str(caught.value)
    return str(caught.value)


def test_what_was_committed_and_not_published_is_to_be_published_byte_for_byte(head):
    opened = head.open()
    assert opened.newest.sequence == 3
    assert opened.unpublished.data == head.acknowledged[opened.newest.window]
    assert opened.head.next_window == opened.newest.window + 1
    assert opened.lost_records == 0


def test_a_ledger_whose_beginning_was_deleted_is_refused(head):
    truncate(head.deployment, head.deployment.names.ledger, 0, 3)
    why = refusal(head)
    assert "was truncated: its records below offset 3 are gone" in why
    assert "sdp ledger import" in why


@pytest.mark.parametrize("trace", ["outbox", "releases", "offset"])
def test_a_ledger_that_is_gone_is_refused_for_each_trace_of_it(head, trace):
    names = head.deployment.names
    kept = {"outbox": names.outbox, "releases": names.releases}
    recreate(head.deployment, names.ledger, *(t for name, t in kept.items() if name != trace))
    if trace == "offset":
        commit_offset(head, 3)
    words = {
        "outbox": f"{names.outbox} has been written to",
        "releases": f"{names.releases} holds releases of this cluster",
        "offset": "the consumer group has committed an offset",
    }
    assert f"is empty, though it must have existed: {words[trace]}. Restore" in refusal(head)


@pytest.mark.parametrize("witness", ["outbox", "releases", "offset"])
def test_an_older_copy_of_the_ledger_is_refused_for_each_witness_of_more(head, witness):
    names = head.deployment.names
    head.publish(head.acknowledged[head.opened.newest.window + 3])
    older = values(head, names.ledger)[:-1]
    kept = {"outbox": names.outbox, "releases": names.releases}
    recreate(head.deployment, *(t for name, t in kept.items() if name != witness))
    replace_ledger(head, *older)
    if witness == "offset":
        commit_offset(head, 3)
    words = {
        "outbox": f"{names.outbox} holds the release of record 3",
        "releases": "a release of record 3 is public",
        "offset": "the consumer group has committed an offset with record 3",
    }
    why = refusal(head)
    assert f"ends at record 2, but {words[witness]}" in why
    assert "from a newer backup (sdp ledger import)" in why


def test_without_any_witness_an_older_copy_cannot_be_told_from_the_ledger(head):
    # Whoever restores all topics and forgets the group's offsets must know: deploy/README says so.
    names = head.deployment.names
    older = values(head, names.ledger)[:-1]
    recreate(head.deployment, names.outbox, names.releases)
    replace_ledger(head, *older)
    assert head.open().newest.sequence == 2


def test_an_offset_that_was_committed_by_hand_is_no_witness(head):
    group = group_of(head.deployment.plan)
    consumer = Consumer(head.deployment.config | {"group.id": group})
    where = TopicPartition(head.deployment.names.updates, 0, 0)
    consumer.commit(offsets=[where], asynchronous=False)
    consumer.close()
    assert head.open().newest.sequence == 3


def test_a_ledger_with_a_changed_record_is_refused(head):
    records = values(head, head.deployment.names.ledger)
    changed = dataclasses.replace(decode_ledger_record(records[1]), sealed_at_ms=0)
    replace_ledger(head, records[0], encode_ledger_record(changed), *records[2:])
    assert "broken chain" in refusal(head)


@pytest.mark.parametrize("value", [b"foreign", None])
def test_foreign_bytes_in_the_ledger_are_refused(head, value):
    produce(head.deployment, head.deployment.names.ledger, value)
    assert "cannot be read" in refusal(head)


def test_another_plan_on_the_same_topics_is_refused(head):
    other = dataclasses.replace(head.deployment.plan, epsilon=9.0)
    head.deployment.plan = other
    assert "not this one" in refusal(DurableHead(head.deployment))


def test_an_outbox_is_looked_at_although_the_budget_is_spent(deploy):
    head = DurableHead(deploy(**SHORT, horizon_windows=1))
    head.open()
    head.release(is_public=True)
    assert head.seal().kind is LedgerKind.EXHAUSTED
    head.release()
    assert head.open().unpublished.data is None
    produce(head.deployment, head.deployment.names.outbox, b"foreign")
    with pytest.raises(LedgerError, match="foreign bytes"):
        head.open()


def test_updates_that_were_deleted_before_they_were_read_are_counted_and_passed(head):
    send_updates(head, 5)
    truncate(head.deployment, head.deployment.names.updates, 0, 3)
    opened = head.open()
    assert opened.lost_records == 3
    assert opened.head.position == 3


def test_an_updates_topic_that_is_shorter_than_what_was_read_is_refused(head):
    send_updates(head, 5)
    head.release(5)
    recreate(head.deployment, head.deployment.names.updates)
    assert "deleted and made again" in refusal(head)


def test_an_updates_topic_that_was_made_again_is_refused_although_it_is_longer(head, monkeypatch):
    monkeypatch.setattr(partition, "_CLOCK_SKEW_MS", 0)
    send_updates(head, 5)
    head.release(5)
    assert head.open().head.position == 5
    recreate(head.deployment, head.deployment.names.updates)
    send_updates(head, 9)
    assert "deleted and made again" in refusal(head)


def test_an_opening_is_watched_step_by_step(deploy):
    passed = []
    head = DurableHead(deploy(**SHORT), watch=passed.append)
    fenced = [Step.FENCE, Step.SETTLE, Step.READ_STATE, Step.RESTORE]
    written = [Step.BEGIN_TRANSACTION, Step.PRODUCE, Step.COMMIT, Step.COMMITTED]
    head.open()
    assert passed == [*fenced, Step.GENESIS, *written, Step.CONSUME]
    passed.clear()
    head.open()
    assert passed == [*fenced, Step.CONSUME]
