"""Who may release: one head a cluster, and never one that was replaced."""

import pytest
from confluent_kafka import Producer

pytestmark = pytest.mark.integration


def test_a_head_whose_identity_was_taken_stops_and_releases_nothing_more(deploy):
    deployment = deploy(cluster_count=1)
    head = deployment.start_head()
    deployment.wait_until_owned()
    deployment.eventually("a window is released", deployment.releases)

    usurper = Producer(
        deployment.config | {"transactional.id": f"sdp-head-{deployment.plan.plan_id_hex}-0"}
    )
    usurper.init_transactions(30)
    deployment.eventually("the head has stopped", lambda: head.process.poll() is not None)
    assert head.process.returncode != 0
    assert "fenced" in head.log.read_text().lower()
    ledger = len(deployment.read(deployment.names.ledger))
    assert len(deployment.releases()) in (ledger - 1, ledger - 2)  # less the genesis


def test_what_a_dead_head_left_open_is_aborted_and_its_window_released_once(deploy):
    deployment = deploy(cluster_count=1)
    dead = Producer(
        deployment.config | {"transactional.id": f"sdp-head-{deployment.plan.plan_id_hex}-0"}
    )
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(deployment.names.ledger, b"half-done", partition=0)
    dead.flush(30)
    deployment.start_head()
    deployment.wait_until_owned()
    deployment.eventually("two windows are released", lambda: len(deployment.releases()) >= 2)
    values = [message.value() for message in deployment.read(deployment.names.ledger)]
    assert b"half-done" not in values


def test_heads_share_the_clusters_and_one_takes_over_what_the_other_leaves(deploy):
    deployment = deploy(cluster_count=4)
    first = deployment.start_head()
    deployment.wait_until_owned(first)
    second = deployment.start_head()
    deployment.eventually(
        "each has two clusters",
        lambda: (
            len(deployment.owned_clusters(first)) == 2
            and len(deployment.owned_clusters(second)) == 2
        ),
    )
    assert first.stop() == 0
    deployment.wait_until_owned(second)


def test_a_spare_head_is_well_though_it_has_no_cluster(deploy):
    deployment = deploy(cluster_count=1)
    heads = [deployment.start_head(), deployment.start_head()]
    deployment.eventually("both are well", lambda: all(head.health() for head in heads))
    deployment.wait_until_owned()
