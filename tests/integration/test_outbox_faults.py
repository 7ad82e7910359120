"""An outbox that is gone, older or foreign: nothing is drawn again, and what is lost is said."""

import dataclasses

import pytest
from topic_faults import (
    SHORT,
    commit_unpublished,
    has_no_gap,
    produce,
    recreate,
    refused,
    truncate,
    verify,
    wait_for_windows,
    windows,
)

from schemas import decode_ledger_record, decode_release, encode_release

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def changed(values, **changes):
    return encode_release(dataclasses.replace(decode_release(values[-1]), **changes))


# By cluster: what becomes of its outbox, and why its head refuses it, if it does.
FAULTS = {
    1: (lambda values: [], ""),
    2: (lambda values: [], ""),
    3: (lambda values: values[:-1], ""),
    4: (lambda values: [*values, b"foreign"], "holds foreign bytes"),
    5: (lambda values: [*values, None], "holds foreign bytes"),
    6: (lambda values: [*values, changed(values, plan_id=bytes(16))], "under plan 0000"),
    7: (lambda values: [*values[:-1], changed(values, window=3)], "paid for"),
}
PUBLISHED, GONE, OLDER = 1, 2, 3
CLOSED = {4, 5, 6, 7}


def newest(deployment, topic, cluster):
    return deployment.read(topic, cluster)[-1].value()


def plant(deployment):
    topic = deployment.names.outbox
    outboxes = [
        [message.value() for message in deployment.read(topic, cluster)]
        for cluster in range(deployment.plan.cluster_count)
    ]
    produce(deployment, deployment.names.releases, outboxes[PUBLISHED][-1])
    recreate(deployment, topic)
    for cluster, values in enumerate(outboxes):
        change, _ = FAULTS.get(cluster, (list, ""))
        produce(deployment, topic, *change(values), partition=cluster, key=b"%d" % cluster)


def has_told_loss(log, cluster, window):
    lost = f"cluster {cluster}: the outbox has lost the release of window {window} before it was"
    return f"{lost} published; its charge stays spent" in log


def test_what_the_outbox_lost_stays_charged_and_what_is_foreign_is_not_published(deploy):
    deployment = deploy(cluster_count=1 + len(FAULTS), **SHORT)
    every = range(deployment.plan.cluster_count)
    head = deployment.start_head()
    wait_for_windows(deployment, 2, every)
    assert head.stop() == 0
    for cluster in every:
        commit_unpublished(deployment, cluster)
    committed = newest(deployment, deployment.names.outbox, 0)
    last = {
        c: decode_ledger_record(newest(deployment, deployment.names.ledger, c)).window
        for c in every
    }
    before = deployment.releases()
    plant(deployment)

    head = deployment.start_head()
    deployment.eventually("the foreign are refused", lambda: refused(head).keys() == CLOSED)
    open_ones = sorted(set(every) - CLOSED)
    wait_for_windows(deployment, 2, open_ones)
    for cluster in CLOSED:
        why = refused(head)[cluster]
        assert FAULTS[cluster][1] in why
        assert deployment.names.outbox in why
        assert "delete" in why
        assert head.metrics()["sdp_cluster_refused", str(cluster)] == 1
    releases = deployment.releases()
    assert {cell for cell in releases if cell[0] in CLOSED} <= before.keys()
    shown = [m.value() for m in deployment.read(deployment.names.releases)]
    assert committed in shown

    # What was public, or still in the outbox, has no gap; what was lost is one, and is told.
    log = head.log.read_text()
    for cluster in (0, PUBLISHED):
        assert has_no_gap(windows(deployment, cluster))
        assert not has_told_loss(log, cluster, last[cluster])
    for cluster in (GONE, OLDER):
        assert has_no_gap(sorted({*windows(deployment, cluster), last[cluster]}))
        assert (cluster, last[cluster]) not in releases
        assert has_told_loss(log, cluster, last[cluster])
    assert head.stop() == 0

    # The remedy for the others: the records of the outbox are deleted.
    for cluster in CLOSED:
        truncate(deployment, deployment.names.outbox, cluster)
    head = deployment.start_head()
    deployment.wait_until_owned(head)
    wait_for_windows(deployment, 2, every)
    log = head.log.read_text()
    assert all(has_told_loss(log, cluster, last[cluster]) for cluster in CLOSED)
    assert head.stop() == 0
    problems = verify(deployment, is_fine=False)
    lost = sorted((GONE, OLDER, *CLOSED))
    assert [p.split(":")[0] for p in problems] == [
        f"release of cluster {cluster}, window {last[cluster]}" for cluster in lost
    ]
    assert all(problem.endswith("it was never published") for problem in problems)
