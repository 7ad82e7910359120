"""What a head writes outside its transactions: acknowledged or told so, and bounded."""

import itertools
import os
import signal
import time
from collections import Counter

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka.admin import AdminClient
from deployment import small_plan
from standstill import stop

from agents.kafka_edge import connection, read_tail
from agents.local_kafka import start_broker
from agents.publisher import Publisher
from agents.topics import topics_of
from schemas import decode_reject_record
from stream.aggregation.intake import RejectedUpdate
from stream.aggregation.validation import Reason, Rejection

_NOBODY = connection("127.0.0.1:1", {})
_EVERY = 10_000
_RECORDS_KEPT = 100


@pytest.fixture
def make_publisher():
    made = []

    def make(deployment, config=None, *, request_timeout_s=5.0):
        largest = max(spec.max_message_bytes for spec in topics_of(deployment.plan))
        publisher = Publisher(
            config or deployment.config,
            deployment.plan,
            request_timeout_s=request_timeout_s,
            max_message_bytes=largest,
        )
        made.append(publisher)
        return publisher

    yield make
    for publisher in made:
        publisher.close(0)


def rejected(count, window=3, reason=Reason.DUPLICATE):
    offsets = itertools.count()
    return [
        RejectedUpdate(next(offsets), window, "client-7", Rejection(reason, "seen before"))
        for _ in range(count)
    ]


def reports(deployment, cluster):
    return read_tail(
        deployment.config, deployment.names.rejects, cluster, _EVERY, decode_reject_record
    ).values


@pytest.mark.integration
def test_a_release_that_was_published_is_there(deploy, make_publisher):
    deployment = deploy()
    publisher = make_publisher(deployment)
    assert publisher.publish(1, b"first")
    assert publisher.publish(0, b"second")
    messages = deployment.read(deployment.names.releases)
    assert [(message.key(), message.value()) for message in messages] == [
        (b"1", b"first"),
        (b"0", b"second"),
    ]


@pytest.mark.integration
def test_a_mark_says_where_the_updates_of_a_cluster_end_and_when_by_the_broker_s_clock(
    deploy, make_publisher
):
    deployment = deploy()
    publisher = make_publisher(deployment)
    deployment.send("client", b"some update", cluster=1)
    deployment.producer().flush(30)
    marks = [publisher.mark(cluster) for cluster in (1, 0)]
    assert [mark.offset for mark in marks] == [1, 0]
    for cluster, mark in zip((1, 0), marks, strict=True):
        last = deployment.read(deployment.names.updates, cluster)[-1]
        assert (last.key(), last.value(), last.offset()) == (None, None, mark.offset)
        assert last.timestamp() == (TIMESTAMP_LOG_APPEND_TIME, mark.timestamp_ms)


@pytest.mark.integration
@pytest.mark.slow
def test_without_a_broker_publishing_says_so_and_afterwards_it_works(
    deploy, native_broker, make_publisher
):
    deployment = deploy(servers=native_broker.bootstrap_servers)
    publisher = make_publisher(deployment, request_timeout_s=2.0)
    # A broker this young may take longer than that for its first answer.
    deployment.eventually("it is published", lambda: publisher.publish(0, b"before"))
    # As a network that drops everything: the connection stays, and nobody answers.
    stop(native_broker.pid)
    asked_at = time.monotonic()
    try:
        assert not publisher.publish(0, b"during")
        assert publisher.mark(0) is None
        assert time.monotonic() - asked_at < 2 * (2 * 2.0 + 1)
    finally:
        os.kill(native_broker.pid, signal.SIGCONT)
    deployment.eventually("it is published", lambda: publisher.publish(0, b"during"))
    values = [message.value() for message in deployment.read(deployment.names.releases)]
    # A try that was given up may have arrived all the same: readers drop a repeat.
    assert values[0] == b"before"
    assert values[-1] == b"during"
    assert set(values) == {b"before", b"during"}


@pytest.mark.integration
def test_a_reject_record_tells_what_an_operator_needs(deploy, make_publisher):
    deployment = deploy()
    publisher = make_publisher(deployment)
    publisher.report_rejected(1, rejected(2, window=5, reason=Reason.LATE))
    publisher.close(10)
    first, second = reports(deployment, 1)
    assert (first.cluster, first.reason, first.client_id) == (1, "late", "client-7")
    assert (first.window, first.partition, first.offset) == (5, 1, 0)
    assert first.detail == "seen before"
    assert first.plan_id == deployment.plan.plan_id
    assert second.offset == 1
    assert reports(deployment, 0) == []


@pytest.mark.integration
def test_a_flood_is_written_down_so_often_a_cluster_window_and_reason(deploy, make_publisher):
    deployment = deploy()
    publisher = make_publisher(deployment)
    for cluster, reason in itertools.product((0, 1), (Reason.DUPLICATE, Reason.MALFORMED)):
        for _ in range(5):
            publisher.report_rejected(cluster, rejected(60, reason=reason))
    # The same flood goes on in the next window.
    publisher.report_rejected(0, rejected(300, window=4))
    publisher.close(10)

    kinds = Counter(
        (report.cluster, report.window, report.reason)
        for cluster in (0, 1)
        for report in reports(deployment, cluster)
    )
    assert kinds == {
        (0, 3, "duplicate"): _RECORDS_KEPT,
        (0, 3, "malformed"): _RECORDS_KEPT,
        (0, 4, "duplicate"): _RECORDS_KEPT,
        (1, 3, "duplicate"): _RECORDS_KEPT,
        (1, 3, "malformed"): _RECORDS_KEPT,
    }


@pytest.mark.integration
def test_reporting_never_waits_even_if_nobody_takes_the_reports(deploy, make_publisher):
    config = _NOBODY | {"queue.buffering.max.messages": "10"}
    publisher = make_publisher(deploy(), config, request_timeout_s=1.0)
    begun_at = time.monotonic()
    for reason in Reason:
        publisher.report_rejected(0, rejected(1000, reason=reason))
    assert time.monotonic() - begun_at < 0.5
    # Nor does a queue full of reports end the head: its release is published later.
    assert not publisher.publish(0, b"release")
    assert time.monotonic() - begun_at < 5


def test_topics_that_are_gone_are_not_made_and_stop_nobody():
    # Made by a broker, they would forget what they hold.
    with start_broker("mock", say=lambda _: None) as broker:
        config = connection(broker.bootstrap_servers, {})
        publisher = Publisher(config, small_plan(), request_timeout_s=1, max_message_bytes=1 << 20)
        for _ in range(3):
            assert not publisher.publish(0, b"release")
            publisher.report_rejected(0, rejected(2))
        publisher.close(1)
        assert not AdminClient(config).list_topics(timeout=10).topics
