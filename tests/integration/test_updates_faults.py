"""Raw updates that are gone: what was lost is said, and nothing is made up for it."""

import pytest
from topic_faults import (
    SHORT,
    body,
    delete,
    has_no_gap,
    make_again,
    recreate,
    refused,
    truncate,
    verify,
    wait_for_windows,
    windows,
)

from schemas import decode_ledger_record

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLIENTS = 8


def publish(deployment, cluster):
    """Each client of a cluster sends one grid step in its own coordinate."""
    for client in range(CLIENTS):
        one_hot = [int(coordinate == client) for coordinate in range(12)]
        name = f"c{cluster}/{client}"
        deployment.send(name, deployment.update(name, one_hot))
    deployment.producer().flush(30)


def total(deployment, cluster):
    """The sum of a cluster's releases, of which there is one a window, without noise."""
    vectors = [r.vector for (c, _), r in deployment.releases().items() if c == cluster]
    return sum(vectors).tolist()


def expected(clients):
    return [*(int(coordinate in clients) for coordinate in range(12)), len(clients)]


@pytest.fixture
def deployment(deploy):
    return deploy(assignment="prefix", assignment_key="", prefixes=("c0", "c1"), **SHORT)


def read_through(deployment, cluster):
    """How far a cluster's ledger has read its updates."""
    newest = deployment.read(deployment.names.ledger, cluster)[-1].value()
    return decode_ledger_record(newest).next_offset


def test_updates_deleted_before_they_were_read_are_counted_and_the_rest_is_released(deployment):
    head = deployment.start_head()
    wait_for_windows(deployment, 1, range(2))
    assert head.stop() == 0
    for cluster in range(2):
        publish(deployment, cluster)
    first_left = deployment.updates(0)[3].offset()
    lost = first_left - read_through(deployment, 0)
    truncate(deployment, deployment.names.updates, 0, first_left)

    head = deployment.start_head()
    deployment.wait_until_owned(head)
    deployment.eventually(
        "all that was left is released",
        lambda: total(deployment, 0)[-1] >= CLIENTS - 3 and total(deployment, 1)[-1] >= CLIENTS,
    )
    wait_for_windows(deployment, 2, range(2))
    assert total(deployment, 0) == expected(range(3, CLIENTS))
    assert total(deployment, 1) == expected(range(CLIENTS))
    metrics, log = head.metrics(), head.log.read_text()
    # Three updates, and perhaps the mark of a window that was not sealed any more.
    assert metrics["sdp_updates_lost_total", "0"] == lost
    assert lost in (3, 4)
    assert metrics["sdp_updates_lost_total", "1"] == 0
    assert "cluster 0: the broker deleted updates before they were read" in log
    assert "cluster 1: the broker deleted" not in log
    assert all(has_no_gap(windows(deployment, cluster)) for cluster in range(2))
    assert head.stop() == 0
    verify(deployment)


def test_a_topic_that_was_made_again_closes_what_had_read_the_old_one(deployment):
    topic = deployment.names.updates
    head = deployment.start_head()
    deployment.wait_until_owned(head)
    for cluster in range(2):
        publish(deployment, cluster)
    deployment.eventually(
        "both have read their updates",
        lambda: all(read_through(deployment, c) >= CLIENTS for c in range(2)),
    )

    # Without the topic nobody goes on, and nobody spins.
    delete(deployment, topic)
    deployment.eventually("it is noticed", lambda: body(head).get("deleted_topics") == [topic])
    assert f"deleted: {topic}. Stop all workers" in head.log.read_text()
    make_again(deployment, topic)

    def are_refused():
        return [why for why in refused(head).values() if "made again" in why][1:]

    deployment.eventually("both are refused", are_refused)
    assert "Start a new plan" in refused(head)[0]
    last = deployment.releases().keys()
    assert len(head.log.read_text()) < 20_000
    assert head.stop() == 0

    # A head that was down meanwhile finds out as well.
    recreate(deployment, topic)
    head = deployment.start_head()
    deployment.eventually("both are refused", are_refused)
    assert deployment.releases().keys() == last
