"""Ledgers into a file and back, on real Kafka, with the command that operators use."""

import pytest
from durable_head import DurableHead
from topic_faults import produce, recreate, sdp, truncate, verify, wait_until_led

pytestmark = pytest.mark.integration

SHORT = {"window_length_ms": 100, "grace_ms": 0, "release_delay_ms": 0}


@pytest.fixture(params=["cluster", "client"])
def deployment(deploy, request):
    """Two clusters, of which one has released and the other never had a head."""
    made = deploy(**SHORT, scope=request.param)
    wait_until_led(made)
    return made


@pytest.fixture
def head(deployment):
    head = DurableHead(deployment)
    head.open()
    for _ in range(3):
        head.release(is_public=True)
    return head


@pytest.fixture
def files(tmp_path):
    return [str(tmp_path / name) for name in ("first", "second", "third")]


def state_topics(deployment):
    names = deployment.names
    is_paid = deployment.plan.scope == "client"
    return [names.ledger, *([names.participation] if is_paid else [])]


def contents(deployment):
    return [
        [(m.key(), m.value()) for m in deployment.read(topic, cluster)]
        for topic in state_topics(deployment)
        for cluster in range(2)
    ]


def test_an_import_restores_byte_for_byte_what_an_export_saw(deployment, head, files):
    exported = sdp(deployment, "ledger", "export", files[0])
    assert exported.exit_code == 0
    assert exported.stdout.splitlines() == [
        f"cluster {cluster}: {records} records, 0 foreign ones left out"
        for cluster, records in ((0, 4), (1, 0))
    ]
    before = contents(deployment)
    recreate(deployment, *state_topics(deployment))
    imported = sdp(deployment, "ledger", "import", files[0])
    assert imported.exit_code == 0, imported.output
    assert f"cluster 0: 4 records restored from {files[0]}" in imported.stdout
    assert contents(deployment) == before
    again = sdp(deployment, "ledger", "import", files[0])
    assert (again.exit_code, contents(deployment)) == (0, before)
    assert "cluster 0: 4 records were there already" in again.stdout
    verify(deployment)
    assert head.open().newest.sequence == 3
    head.release(is_public=True)
    verify(deployment)


def test_a_head_that_runs_while_its_ledger_is_imported_is_fenced_off(deployment, head, files):
    assert sdp(deployment, "ledger", "export", files[0]).exit_code == 0
    recreate(deployment, *state_topics(deployment))
    assert sdp(deployment, "ledger", "import", files[0]).exit_code == 0
    with pytest.raises(Exception, match=r"fenced|epoch"):
        head.release()
    verify(deployment)


def test_topics_that_are_not_empty_are_left_alone(deployment, head, files):
    assert sdp(deployment, "ledger", "export", files[0]).exit_code == 0
    head.release(is_public=True)
    assert sdp(deployment, "ledger", "export", files[1]).exit_code == 0
    before = contents(deployment)
    older = sdp(deployment, "ledger", "import", files[0])
    assert older.exit_code == 2
    assert "the ledger is older than what was spent" in older.stderr
    produce(deployment, deployment.names.ledger, b"foreign")
    newer = sdp(deployment, "ledger", "import", *files[:2])
    assert newer.exit_code == 2
    assert "delete the topic, make it again" in newer.stderr
    assert [each[:5] for each in contents(deployment)][:1] == before[:1]


def test_foreign_bytes_are_left_out_and_a_ledger_that_is_not_whole_is_named(
    deployment, head, files
):
    names, is_paid = deployment.names, deployment.plan.scope == "client"
    produce(deployment, names.ledger, b"foreign", None)
    if is_paid:
        produce(deployment, names.participation, b"foreign")
    exported = sdp(deployment, "ledger", "export", files[0])
    assert exported.exit_code == 0
    assert f"cluster 0: 4 records, {2 + is_paid} foreign ones left out" in exported.stdout

    truncate(deployment, names.ledger, 0)
    lost = sdp(deployment, "ledger", "export", files[1])
    assert lost.exit_code == 3
    assert "cluster 0: NOT IN THE BACKUP: the ledger of cluster 0 was truncated" in lost.stdout
    alone = sdp(deployment, "ledger", "import", files[1])
    assert alone.exit_code == 2
    assert "the clusters 0 are in no backup" in alone.stderr
    cut = sdp(deployment, "ledger", "import", *files[:2])
    assert cut.exit_code == 2
    assert "was truncated" in cut.stderr
    recreate(deployment, *state_topics(deployment))
    assert sdp(deployment, "ledger", "import", *files[:2]).exit_code == 0
    verify(deployment)


def test_what_clients_paid_must_fit_the_ledger(deploy, files):
    deployment = deploy(**SHORT, scope="client")
    wait_until_led(deployment)
    head = DurableHead(deployment)
    head.open()
    head.release(is_public=True)
    recreate(deployment, deployment.names.participation)
    lost = sdp(deployment, "ledger", "export", files[0])
    assert lost.exit_code == 3
    assert "has lost what record 1" in lost.stdout


def test_a_file_that_is_there_is_not_written_over(deployment, files):
    assert sdp(deployment, "ledger", "export", files[0]).exit_code == 0
    again = sdp(deployment, "ledger", "export", files[0])
    assert again.exit_code == 2
    assert "File exists" in again.stderr
