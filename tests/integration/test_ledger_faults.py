"""Faults of the ledger on real Kafka: its cluster closes, the others go on, a backup opens it."""

import dataclasses
from fractions import Fraction

import pytest
from topic_faults import (
    SHORT,
    body,
    copy,
    delete,
    has_no_gap,
    make_again,
    produce,
    recreate,
    refused,
    sdp,
    truncate,
    verify,
    wait_for_windows,
    windows,
)

from schemas import decode_ledger_record, decode_release, encode_ledger_record, record_hash
from stream.privacy.event import GaussianEvent

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def another_plans(values):
    return dataclasses.replace(decode_ledger_record(values[-1]), plan_id=bytes(16))


def too_cheap(values):
    """What a foreign head writes that follows the chain, and charges less than its noise costs."""
    before = decode_ledger_record(values[-1])
    return dataclasses.replace(
        before,
        sequence=before.sequence + 1,
        window=before.window + 1,
        previous_hash=record_hash(values[-1]),
        charge_units=1,
        spent_units=before.spent_units + 1,
        release_digest=bytes(32),
    )


def other_noise(values):
    """The same with a charge that is right for its noise, which is not the planned one."""
    forged = too_cheap(values)
    variance = forged.noise_variance * Fraction(1, 4)
    units = GaussianEvent(forged.l2_sensitivity_squared, variance).units
    spent = decode_ledger_record(values[-1]).spent_units + units
    return dataclasses.replace(
        forged, noise_variance=variance, charge_units=units, spent_units=spent
    )


# By cluster: what becomes of its records, and what the head and the verifier say of it.
FAULTS = {
    1: (lambda values: values, "was truncated"),
    2: (lambda values: values, "was truncated"),
    3: (lambda values: [], "is empty, though it must have existed"),
    4: (lambda values: values[:-1], "older than what was spent"),
    5: (lambda values: [*values, b"foreign"], "cannot be read"),
    6: (lambda values: [*values, None], "cannot be read"),
    7: (lambda values: [*values, encode_ledger_record(another_plans(values))], "belongs to plan"),
    8: (lambda values: [*values, encode_ledger_record(too_cheap(values))], "charges 1 units"),
    9: (lambda values: [*values, encode_ledger_record(other_noise(values))], "other noise"),
    10: (lambda values: [*values[:2], *values[3:]], "broken chain"),
}
# Without what was added to them, these ledgers are whole.
ONLY_ADDED_TO = {5, 6, 7, 8, 9}


def plant(deployment):
    """Make the topic of ledgers again, with a fault in each partition but the first."""
    topic = deployment.names.ledger
    ledgers = [
        [message.value() for message in deployment.read(topic, cluster)]
        for cluster in range(deployment.plan.cluster_count)
    ]
    recreate(deployment, topic)
    for cluster, values in enumerate(ledgers):
        change, _ = FAULTS.get(cluster, (list, ""))
        produce(deployment, topic, *change(values), partition=cluster, key=b"%d" % cluster)
    truncate(deployment, topic, 1, 2)
    truncate(deployment, topic, 2)


def test_each_fault_closes_its_cluster_with_the_remedy_and_backups_open_it_again(deploy, tmp_path):
    deployment = deploy(cluster_count=1 + len(FAULTS), **SHORT)
    every = range(deployment.plan.cluster_count)
    head = deployment.start_head()
    wait_for_windows(deployment, 3, every)
    assert head.stop() == 0
    backup = str(tmp_path / "backup")
    assert sdp(deployment, "ledger", "export", backup).exit_code == 0
    before = deployment.releases()
    plant(deployment)

    head = deployment.start_head()
    deployment.eventually("the others are refused", lambda: refused(head).keys() == FAULTS.keys())
    wait_for_windows(deployment, 2, [0])
    # The newest one may have been committed, and not yet public, when the head was stopped.
    closed = {cell for cell in deployment.releases() if cell[0]} - before.keys()
    assert closed == set()
    metrics, log = head.metrics(), head.log.read_text()
    for cluster, (_, words) in FAULTS.items():
        why = refused(head)[cluster]
        assert words in why
        assert "sdp ledger import" in why
        assert f"cluster {cluster} is refused: {why}" in log
        assert metrics["sdp_cluster_refused", str(cluster)] == 1
    assert metrics.get(("sdp_cluster_refused", "0"), 0) == 0
    assert head.stop() == 0
    problems = "\n".join(verify(deployment, is_fine=False))
    assert {c for c in every if f"cluster {c}" in problems} == set(FAULTS)

    # The remedy: what is whole now and what the backup has, together.
    now = str(tmp_path / "now")
    exported = sdp(deployment, "ledger", "export", now)
    assert exported.exit_code == 3
    lost = [c for c in every if f"cluster {c}: NOT IN THE BACKUP" in exported.stdout]
    assert lost == sorted(FAULTS.keys() - ONLY_ADDED_TO)
    recreate(deployment, deployment.names.ledger)
    imported = sdp(deployment, "ledger", "import", backup, now)
    assert imported.exit_code == 0, imported.stderr
    assert f"restored from {now}" in imported.stdout.splitlines()[0]

    head = deployment.start_head()
    deployment.wait_until_owned(head)
    wait_for_windows(deployment, 2, every)
    assert all(has_no_gap(windows(deployment, cluster)) for cluster in every)
    verify(deployment)


def test_a_running_head_notices_that_its_ledger_is_not_what_it_was(deploy, tmp_path):
    deployment = deploy(cluster_count=2, **SHORT)
    topic = deployment.names.ledger
    head = deployment.start_head()
    wait_for_windows(deployment, 2, range(2))
    backup = str(tmp_path / "backup")

    # One partition is cut off: its neighbour goes on.
    ledgers = {cluster: deployment.read(topic, cluster) for cluster in range(2)}
    truncate(deployment, topic, 0, ledgers[0][1].offset())
    deployment.eventually("it is refused", lambda: "truncated" in refused(head).get(0, ""))
    left = deployment.read(topic, 0)
    ledgers[0] = [m for m in ledgers[0] if m.offset() < left[0].offset()] + left
    wait_for_windows(deployment, 2, [1])
    assert windows(deployment, 0)[-1] < windows(deployment, 1)[-1]

    # The topic is deleted: nobody goes on.
    assert sdp(deployment, "ledger", "export", backup).exit_code == 3
    ledgers[1] = deployment.read(topic, 1)
    delete(deployment, topic)
    deployment.eventually(
        "both are refused",
        lambda: [why for why in refused(head).values() if why.startswith(f"deleted: {topic}")][1:],
    )
    assert "sdp topics create" in refused(head)[1]
    assert head.process.poll() is None
    last = deployment.releases().keys()
    missing = sdp(deployment, "ledger", "verify")
    assert missing.exit_code == 2
    assert f"there is no topic {topic}" in missing.stderr

    # It is made again, empty, under the running head.
    make_again(deployment, topic)
    deployment.eventually(
        "both are refused anew",
        lambda: [why for why in refused(head).values() if "must have existed" in why][1:],
    )
    assert deployment.releases().keys() == last
    assert len(head.log.read_text()) < 20_000
    assert head.stop() == 0

    # With all records back it goes on where it was; one that has lost one more stays closed.
    for cluster, messages in ledgers.items():
        copy(deployment, topic, cluster, messages)
    newest = decode_ledger_record(ledgers[1][-1].value())
    committed = decode_release(deployment.read(deployment.names.outbox, 1)[-1].value())
    is_whole = newest.sequence >= committed.sequence
    head = deployment.start_head()
    closed = set() if is_whole else {1}
    deployment.eventually("it has looked", lambda: body(head).get("clusters"))
    wait_for_windows(deployment, 2, {0, 1} - closed)
    assert refused(head).keys() == closed
    assert all(has_no_gap(windows(deployment, cluster)) for cluster in range(2))
