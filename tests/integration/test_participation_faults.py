"""What clients have paid is as precious as the ledger: without all of it a cluster is closed."""

import dataclasses

import pytest
from topic_faults import (
    SHORT,
    has_no_gap,
    produce,
    recreate,
    refused,
    sdp,
    verify,
    wait_for_windows,
    windows,
)

from schemas import (
    decode_ledger_record,
    decode_participation,
    encode_participation,
    participation_key,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def newer(values, **changes):
    record = decode_participation(values[-1])
    changed = dataclasses.replace(record, sequence=record.sequence + 1, **changes)
    return encode_participation(changed)


# By cluster: what becomes of its records, and why its head refuses it.
FAULTS = {
    1: (lambda values: values[1:], "has lost what record 1"),
    2: (lambda values: values[:-1], "has lost what record"),
    3: (lambda values: [], "has lost what record 1"),
    4: (lambda values: [*values, b"foreign"], "holds a record that cannot be read"),
    5: (lambda values: [*values, None], "holds a record that cannot be read"),
    6: (lambda values: [*values, newer(values, plan_id=bytes(16))], "under plan 0000"),
    7: (lambda values: [*values, newer(values, window=10**6)], "goes on to record"),
}
# Without what was added to them, these are whole.
ONLY_ADDED_TO = {4, 5, 6, 7}


def key_of(value):
    return b"x" if value in (b"foreign", None) else participation_key(decode_participation(value))


def plant(deployment):
    topic = deployment.names.participation
    paid = [
        [message.value() for message in deployment.read(topic, cluster)]
        for cluster in range(deployment.plan.cluster_count)
    ]
    recreate(deployment, topic)
    for cluster, values in enumerate(paid):
        change, _ = FAULTS.get(cluster, (list, ""))
        for value in change(values):
            produce(deployment, topic, value, partition=cluster, key=key_of(value))


def test_each_fault_closes_its_cluster_and_backups_open_it_again(deploy, tmp_path):
    deployment = deploy(
        cluster_count=1 + len(FAULTS),
        assignment="prefix",
        assignment_key="",
        prefixes=tuple(f"c{cluster}" for cluster in range(1 + len(FAULTS))),
        scope="client",
        **SHORT,
    )
    every = range(deployment.plan.cluster_count)
    head = deployment.start_head()
    deployment.wait_until_owned(head)
    for cluster in every:
        deployment.send(f"c{cluster}/a", deployment.update(f"c{cluster}/a", [1] * 12))
    deployment.producer().flush(30)
    deployment.eventually(
        "each client has paid",
        lambda: {c for (c, _), r in deployment.releases().items() if r.vector[-1]} == {*every},
    )
    wait_for_windows(deployment, 1, every)
    assert head.stop() == 0
    backup, now = str(tmp_path / "backup"), str(tmp_path / "now")
    assert sdp(deployment, "ledger", "export", backup).exit_code == 0
    before = deployment.releases().keys()
    plant(deployment)

    head = deployment.start_head()
    deployment.eventually("the others are refused", lambda: refused(head).keys() == FAULTS.keys())
    wait_for_windows(deployment, 2, [0])
    assert {cell for cell in deployment.releases() if cell[0]} <= before
    for cluster, (_, words) in FAULTS.items():
        assert words in refused(head)[cluster]
        assert "restore both from the same backup (sdp ledger import)" in refused(head)[cluster]
        assert head.metrics()["sdp_cluster_refused", str(cluster)] == 1
    assert head.stop() == 0
    problems = "\n".join(verify(deployment, is_fine=False))
    assert {c for c in every if f"cluster {c}" in problems} == FAULTS.keys() - {7}

    exported = sdp(deployment, "ledger", "export", now)
    assert exported.exit_code == 3
    lost = [c for c in every if f"cluster {c}: NOT IN THE BACKUP" in exported.stdout]
    assert lost == sorted(FAULTS.keys() - ONLY_ADDED_TO)
    recreate(deployment, deployment.names.ledger, deployment.names.participation)
    imported = sdp(deployment, "ledger", "import", backup, now)
    assert imported.exit_code == 0, imported.output
    head = deployment.start_head()
    deployment.wait_until_owned(head)
    wait_for_windows(deployment, 2, every)
    assert all(has_no_gap(windows(deployment, cluster)) for cluster in every)
    verify(deployment)
    newest = [deployment.read(deployment.names.ledger, c)[-1].value() for c in every]
    assert all(decode_ledger_record(value).spent_units for value in newest)
