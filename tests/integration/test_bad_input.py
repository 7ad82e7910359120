"""Bad input through real Kafka: one reason or one clear error each, and nobody else is touched."""

import dataclasses

import numpy as np
import pytest
from confluent_kafka import Producer

from schemas import Update, decode_reject_record, encode_update

pytestmark = pytest.mark.integration

GOOD = [3] * 12


def wait_for_fresh_window(deployment):
    """Return the number of a window that has only just begun."""
    window = deployment.current_window() + 1
    deployment.eventually("a window begins", lambda: deployment.current_window() >= window)
    return window


def counts(head):
    return {key[1]: n for key, n in head.metrics().items() if key[0] == "sdp_updates_total"}


def bad_updates(deployment, foreign_plan):
    """Everything that a broken or hostile client may send, by the reason it must get."""
    plan = deployment.plan
    good = deployment.update("good", GOOD)
    from_the_future = bytearray(good)
    from_the_future[3] = 2  # after the header's tag and length and the version's tag
    int16 = encode_update(Update(plan.plan_id, "a", 0, np.full(12, 3, np.int16)))
    return {
        "malformed": [b"", b"garbage", good[:-3], good + b"x", bytes(from_the_future)],
        "wrong_plan": [encode_update(Update(foreign_plan, "a", 0, np.full(12, 3, np.int8)))],
        "wrong_dimension": [deployment.update("a", [1] * 11), deployment.update("a", [1] * 13)],
        "wrong_dtype": [int16],
        "norm_too_large": [deployment.update("north/2", [127] * 12)],
        "forbidden_value": [deployment.update("north/2", [-128] + [0] * 11)],
        "future_model": [deployment.update("north/2", GOOD, version=10**9)],
        "foreign_cluster": [deployment.update("south/1", GOOD)],
        "unknown_cluster": [deployment.update("east/1", GOOD)],
    }


def test_every_kind_of_bad_update_gets_its_reason_and_changes_no_sum(deploy):
    deployment = deploy(
        window_length_ms=2000,
        assignment="prefix",
        assignment_key="",
        prefixes=("north", "south"),
    )
    foreign = dataclasses.replace(deployment.plan, name="foreign").plan_id
    head = deployment.start_head()
    deployment.wait_until_owned()
    window = wait_for_fresh_window(deployment)

    good = deployment.update("north/1", GOOD)
    bad = bad_updates(deployment, foreign)
    deployment.send("north/1", good, cluster=0)
    for values in bad.values():
        for value in values:
            deployment.send("a", value, cluster=0)
    deployment.send("north/1", good, cluster=0)
    deployment.producer().flush(30)

    release = deployment.eventually(
        "the window is released", lambda: deployment.releases().get((0, window))
    )
    assert release.vector.tolist() == [*GOOD, 1]
    outcomes = counts(head)
    assert outcomes["0,accepted"] == 1
    assert outcomes["0,duplicate"] == 1
    for reason, values in bad.items():
        assert outcomes[f"0,{reason}"] == len(values), reason
    records = deployment.eventually(
        "the reasons are written down",
        lambda: deployment.read(deployment.names.rejects, 0),
    )
    reasons = {decode_reject_record(record.value()).reason for record in records}
    assert reasons == {*bad, "duplicate"}


def test_ten_thousand_updates_of_one_client_count_once(deploy):
    deployment = deploy(cluster_count=1, window_length_ms=6000)
    head = deployment.start_head()
    deployment.wait_until_owned()
    window = wait_for_fresh_window(deployment)

    flood = deployment.update("flood", GOOD)
    deployment.send("before", deployment.update("before", GOOD))
    for _ in range(10_000):
        deployment.send("flood", flood)
    deployment.send("after", deployment.update("after", GOOD))
    deployment.producer().flush(30)

    release = deployment.eventually(
        "the window is released", lambda: deployment.releases().get((0, window))
    )
    assert release.vector.tolist() == [9] * 12 + [3]
    assert counts(head)["0,duplicate"] == 9_999
    # What is written down is bounded, so that a flood is not doubled.
    assert len(deployment.read(deployment.names.rejects, 0)) <= 100


def test_updates_before_the_plan_starts_are_refused(deploy):
    in_an_hour = deploy().plan.start_ms + 3_600_000
    deployment = deploy(cluster_count=1, start_ms=in_an_hour)
    head = deployment.start_head()
    deployment.wait_until_owned()
    deployment.send("a", deployment.update("a", GOOD))
    deployment.producer().flush(30)
    deployment.eventually("it is refused", lambda: counts(head)["0,not_started"] == 1)
    assert not deployment.releases()


def test_empty_windows_are_released_and_charged_like_any_other(deploy):
    deployment = deploy()
    deployment.start_head()
    deployment.wait_until_owned()
    releases = deployment.eventually(
        "four cells are released", lambda: len(r := deployment.releases()) >= 4 and r
    )
    assert all(not release.vector.any() for release in releases.values())
    assert all(r.charge_units == deployment.plan.charge_units for r in releases.values())


def test_after_the_cap_nothing_is_released_and_updates_are_drained(deploy):
    deployment = deploy(cluster_count=1, horizon_windows=2)
    head = deployment.start_head()
    deployment.wait_until_owned()
    deployment.eventually(
        "the budget is spent",
        lambda: head.metrics(public=True).get(("sdp_budget_exhausted", "0")) == 1,
    )
    assert len(deployment.releases()) == 2
    deployment.send("a", deployment.update("a", GOOD))
    deployment.producer().flush(30)
    deployment.eventually("it is drained", lambda: counts(head)["0,exhausted"] == 1)

    head.kill()
    again = deployment.start_head()
    deployment.wait_until_owned(again)
    deployment.send("a", deployment.update("a", GOOD))
    deployment.producer().flush(30)
    deployment.eventually("it is drained again", lambda: counts(again)["0,exhausted"] >= 1)
    window = deployment.current_window()
    deployment.eventually("windows pass", lambda: deployment.current_window() > window + 1)
    assert len(deployment.releases()) == 2
    assert len(deployment.read(deployment.names.ledger, 0)) == 4  # genesis, two, closed


def test_a_client_that_writes_in_transactions_stops_nobody(deploy):
    # An aborted transaction leaves a control record that no consumer is given, and an open one
    # would hold back every reader of committed records.
    deployment = deploy(cluster_count=1)
    deployment.start_head()
    deployment.wait_until_owned()
    hostile = Producer(deployment.config | {"transactional.id": deployment.plan.topic_prefix})
    hostile.init_transactions(30)
    for end in (hostile.abort_transaction, hostile.commit_transaction, lambda _: None):
        hostile.begin_transaction()
        hostile.produce(deployment.names.updates, b"hostile", "a", partition=0)
        assert hostile.flush(30) == 0
        end(30)
        window = deployment.current_window()
        deployment.send("good", deployment.update("good", GOOD))
        deployment.producer().flush(30)

        def counted(since=window):
            # It is in this window or, on a machine that is held up, in a later one.
            vectors = [
                r.vector.tolist() for (_, at), r in deployment.releases().items() if at >= since
            ]
            return [*GOOD, 1] in vectors

        deployment.eventually("the update is released", counted)
        deployment.eventually(
            "its window is over", lambda since=window: deployment.current_window() > since + 1
        )
