"""What the topics beside a ledger say of it, without Kafka."""

import dataclasses
import logging

import numpy as np
import pytest
from written_cluster import WrittenCluster

from agents.kafka_edge import Tail
from agents.public_charges import PublicCharge
from agents.takeover_checks import Traces, Unpublished, noted_record, offset_note
from schemas import TopicNames, decode_ledger_record, decode_release, encode_release
from stream.errors import LedgerError

NAMES = TopicNames("sdp")


@pytest.fixture
def cluster():
    """Three windows sealed, the budget open."""
    written = WrittenCluster()
    for _ in range(3):
        written.seal()
    return written


def newest(cluster):
    return decode_ledger_record(cluster.ledger[-1])


def traces(cluster, *outbox, begin=0, **changes):
    tail = Tail(list(outbox), begin=begin, end=begin + len(outbox), is_complete=True)
    found = Traces(NAMES, cluster.plan, 0, tail, None, None)
    return dataclasses.replace(found, **changes)


def changed(data, **changes):
    return encode_release(dataclasses.replace(decode_release(data), **changes))


def public(sequence, spent_units=0):
    return PublicCharge(0, sequence, spent_units)


def test_a_note_names_the_record_and_any_other_note_none():
    assert noted_record(offset_note(17)) == 17
    for note in ("", "17", "ledger record", "ledger record -1", "ledger record 1 ", "x"):
        assert noted_record(note) is None


def test_what_is_due_within_a_pause_ends_it_and_what_is_overdue_is_tried_once_a_pause(cluster):
    waiting = Unpublished(3, None)
    due_s = cluster.plan.release_due_ms(3) / 1000
    pauses = [waiting.pause_s(cluster.plan, due_s - left_s, 0.25) for left_s in (60, 0.125, 0, -9)]
    assert pauses == [0.25, pytest.approx(0.125), 0.25, 0.25]


def test_a_ledger_that_left_no_trace_may_begin(cluster):
    traces(cluster).check_empty()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"begin": 4}, "sdp.outbox has been written to"),
        ({"released": public(1)}, "sdp.releases holds releases of this cluster"),
        ({"committed": (0, "")}, "the consumer group has committed an offset"),
    ],
)
def test_each_trace_of_a_ledger_that_is_gone_is_named(cluster, changes, words):
    with pytest.raises(LedgerError, match=f"though it must have existed: {words}. Restore"):
        traces(cluster, **changes).check_empty()


def test_a_ledger_that_goes_as_far_as_all_else_is_sound(cluster):
    record = newest(cluster)
    traces(
        cluster,
        cluster.releases[2],
        released=public(record.sequence, record.spent_units),
        committed=(9, offset_note(record.sequence)),
    ).check_not_older(record)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"released": public(3)}, "a release of record 3 is public"),
        ({"released": public(2, 1 << 70)}, "a release is public by which more was spent"),
        ({"committed": (9, offset_note(3))}, "has committed an offset with record 3"),
    ],
)
def test_a_ledger_that_ends_before_something_else_is_older(cluster, changes, words):
    before = decode_ledger_record(cluster.ledger[-2])
    with pytest.raises(LedgerError, match=f"ends at record 2, but .*{words}"):
        traces(cluster, **changes).check_not_older(before)


def test_an_outbox_that_is_ahead_of_the_ledger_makes_it_older(cluster):
    before = decode_ledger_record(cluster.ledger[-2])
    with pytest.raises(LedgerError, match=r"sdp\.outbox holds the release of record 3"):
        traces(cluster, cluster.releases[2]).check_not_older(before)


@pytest.mark.parametrize("other", ["bytes", "plan", "cluster"])
def test_what_is_foreign_in_the_outbox_is_no_witness_and_is_not_published(cluster, other):
    data = {
        "bytes": b"foreign",
        "plan": changed(cluster.releases[2], plan_id=bytes(16), sequence=99),
        "cluster": changed(cluster.releases[2], cluster=7, sequence=99),
    }[other]
    found = traces(cluster, data)
    found.check_not_older(newest(cluster))
    with pytest.raises(LedgerError, match=r"delete the records of sdp\.outbox"):
        found.unpublished(cluster.ledger)


def test_the_newest_release_is_to_be_published_as_the_ledger_has_it(cluster):
    found = traces(cluster, cluster.releases[2]).unpublished(cluster.ledger)
    assert (found.window, found.data) == (2, cluster.releases[2])


@pytest.mark.parametrize("changes", [{"window": 1}, {"vector": np.ones(7, np.int32)}])
def test_a_release_that_the_ledger_did_not_pay_for_is_not_published(cluster, changes):
    forged = changed(cluster.releases[2], **changes)
    with pytest.raises(LedgerError, match=r"does not hold the bytes that record 3 .* paid for"):
        traces(cluster, forged).unpublished(cluster.ledger)


@pytest.mark.parametrize("is_older", [False, True])
def test_a_release_that_the_outbox_lost_is_told_unless_it_is_public(cluster, is_older, caplog):
    outbox = [cluster.releases[1]] if is_older else []
    with caplog.at_level(logging.ERROR):
        assert traces(cluster, *outbox, released=public(3)).unpublished(cluster.ledger) is None
        assert not caplog.records
        assert traces(cluster, *outbox, released=public(2)).unpublished(cluster.ledger) is None
    assert "has lost the release of window 2 before it was published; its charge stays spent" in (
        caplog.text
    )


def test_a_release_that_is_older_than_the_records_read_was_public_long_ago(cluster):
    first = changed(cluster.releases[0], sequence=1)
    assert traces(cluster, first, released=public(3)).unpublished(cluster.ledger[-1:]) is None


def test_a_closed_ledger_is_told_of_and_publishes_nothing(caplog):
    cluster = WrittenCluster(dataclasses.replace(WrittenCluster().plan, horizon_windows=1))
    cluster.seal()
    cluster.seal()
    end = traces(cluster, cluster.releases[0], released=public(1)).unpublished(cluster.ledger)
    assert (end.window, end.data) == (1, None)
    assert traces(cluster).unpublished(cluster.ledger) == end
    assert not caplog.records
