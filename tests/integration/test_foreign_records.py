"""Records that are not ours in each of our topics, and another plan on the same topics."""

import dataclasses
import json

import numpy as np
import pytest
from topic_faults import (
    SHORT,
    has_no_gap,
    produce,
    refused,
    sdp,
    verify,
    wait_for_windows,
    windows,
)

from schemas import (
    Update,
    decode_model_snapshot,
    decode_model_state,
    decode_release,
    encode_model_snapshot,
    encode_model_state,
    encode_release,
    encode_update,
)
from stream.client import ModelSubscriber

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FOREIGN = bytes(16)


def snapshots(deployment):
    """The models of the plan that are public; what is foreign does not count."""
    values = [message.value() for message in deployment.read(deployment.names.model)]
    models = [decode_model_snapshot(value) for value in values if value not in (None, b"foreign")]
    return [model for model in models if model.plan_id == deployment.plan.plan_id]


def of_another_plan(deployment):
    """For each topic that a worker reads while it runs, a sound record of another plan."""
    names = deployment.names
    update = Update(FOREIGN, "a", 0, np.ones(12, np.int8))
    makers = {
        names.releases: (decode_release, encode_release),
        names.model: (decode_model_snapshot, encode_model_snapshot),
        names.model_state: (decode_model_state, encode_model_state),
    }
    records = {names.updates: encode_update(update), names.rejects: b"a record of another plan"}
    for topic, (decode, encode) in makers.items():
        newest = decode(deployment.read(topic)[-1].value())
        records[topic] = encode(dataclasses.replace(newest, plan_id=FOREIGN))
    return records


def rejected(head):
    return {key[1]: n for key, n in head.metrics().items() if key[0] == "sdp_updates_total"}


def passed_over(merger):
    """How many releases the global agent has read, by outcome."""
    samples = merger.metrics(public=True).items()
    return {key[1]: n for key, n in samples if key[0] == "sdp_releases_read_total"}


def test_foreign_records_are_passed_over_and_told_by_whoever_reads_the_topic(deploy):
    deployment = deploy(cluster_count=1, **SHORT)
    names = deployment.names
    head, merger = deployment.start_head(), deployment.start_global()
    deployment.eventually("a model is made", lambda: len(snapshots(deployment)) >= 2)

    for topic, record in of_another_plan(deployment).items():
        produce(deployment, topic, b"foreign", None, record, key=b"model")
    deployment.eventually("they are refused", lambda: rejected(head)["0,wrong_plan"] == 1)
    # A record without a value is what heads write as a mark: nobody refuses it.
    assert rejected(head)["0,malformed"] == 1
    # The one of another plan was the last of them.
    deployment.eventually("and passed over", lambda: passed_over(merger).get("wrong_plan") == 1)
    assert passed_over(merger)["malformed"] == 2
    made = len(snapshots(deployment))
    deployment.eventually("models go on", lambda: len(snapshots(deployment)) >= made + 2)

    # The same at a start, with the foreign records the newest ones.
    assert (head.stop(), merger.stop()) == (0, 0)
    for topic, record in of_another_plan(deployment).items():
        produce(deployment, topic, record, b"foreign", None, key=b"model")
    with ModelSubscriber(deployment.plan, deployment.bootstrap_servers) as subscriber:
        newest = snapshots(deployment)[-1].model_version
        assert subscriber.wait_for(newest, 30).model_version == newest
        assert subscriber.ignored >= 3
    head, merger = deployment.start_head(), deployment.start_global()
    made = len(snapshots(deployment))
    deployment.eventually("models go on", lambda: len(snapshots(deployment)) >= made + 2)
    assert f"{names.model_state} holds a record that cannot be read" in merger.log.read_text()
    assert has_no_gap([model.model_version for model in snapshots(deployment)])
    assert has_no_gap(windows_of_own(deployment))
    assert (head.stop(), merger.stop()) == (0, 0)
    found = sdp(deployment, "ledger", "verify", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["malformed_releases"], told["foreign_releases"]) == (4, 2)


def windows_of_own(deployment):
    values = [message.value() for message in deployment.read(deployment.names.releases)]
    releases = [decode_release(value) for value in values if value not in (None, b"foreign")]
    return sorted({r.window for r in releases if r.plan_id == deployment.plan.plan_id})


def test_another_plan_on_the_same_topics_is_refused_and_harms_nobody(deploy):
    deployment = deploy(**SHORT)
    head, merger = deployment.start_head(), deployment.start_global()
    wait_for_windows(deployment, 1, range(2))
    deployment.eventually("a model is made", lambda: len(snapshots(deployment)) >= 2)
    other = deploy(topic_prefix=deployment.plan.topic_prefix, epsilon=9.0, **SHORT)
    assert other.plan.plan_id != deployment.plan.plan_id

    other_head, other_merger = other.start_head(), other.start_global()
    deployment.eventually("it is refused", lambda: refused(other_head).keys() == {0, 1})
    why = refused(other_head)[0]
    assert f"belongs to plan {deployment.plan.plan_id_hex}, not this one" in why
    assert "start a new plan on new topics" in why
    assert other_head.metrics()["sdp_cluster_refused", "0"] == 1
    deployment.eventually("it ends", lambda: other_merger.process.poll() == 1)
    text = other_merger.log.read_text()
    assert f"the stored model belongs to plan {deployment.plan.plan_id_hex}" in text
    assert "another topic_prefix" in text
    assert "Traceback" not in text
    assert sdp(other, "ledger", "verify").exit_code == 3

    other.send("a", other.update("a", [1] * 12), cluster=0)
    other.producer().flush(30)
    deployment.eventually("its update is refused", lambda: rejected(head)["0,wrong_plan"] == 1)
    made = len(snapshots(deployment))
    wait_for_windows(deployment, 2, range(2))
    deployment.eventually("models go on", lambda: len(snapshots(deployment)) >= made + 2)
    assert has_no_gap([model.model_version for model in snapshots(deployment)])
    assert all(has_no_gap(windows(deployment, cluster)) for cluster in range(2))
    assert not refused(head)
    assert (head.stop(), merger.stop(), other_head.stop()) == (0, 0, 0)
    verify(deployment)
