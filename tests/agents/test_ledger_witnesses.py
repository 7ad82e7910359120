from dataclasses import replace

import pytest
from written_cluster import PLAN, WrittenCluster

from agents.ledger_witnesses import Witnesses
from schemas import decode_ledger_record, decode_release, encode_release


@pytest.fixture
def cluster() -> WrittenCluster:
    made = WrittenCluster()
    for window in range(4):
        made.send(window, 1)
        made.send(window, 2)
        made.seal()
    return made


def faults(
    cluster: WrittenCluster,
    outbox: list[bytes] | None = None,
    *,
    offset: int | None = 8,
) -> list[str]:
    witnesses = Witnesses(0, offset)
    witnesses.take_outbox(
        cluster.plan, list(cluster.releases.values()) if outbox is None else outbox
    )
    return witnesses.faults(cluster.sealed())


def test_what_real_heads_write_is_explained(cluster: WrittenCluster) -> None:
    assert faults(cluster) == []
    assert faults(cluster, [cluster.releases[3], cluster.releases[3]]) == []  # written again
    assert faults(cluster, []) == []


def test_an_outbox_with_other_bytes_is_found(cluster: WrittenCluster) -> None:
    release = decode_release(cluster.releases[2])
    other = encode_release(replace(release, vector=release.vector + 1))
    assert faults(cluster, [cluster.releases[1], other]) == [
        "outbox of cluster 0: no ledger record names the digest of its release of window 2"
    ]


@pytest.mark.parametrize("changes", [{"cluster": 1}, {"plan_id": bytes(16)}])
def test_foreign_records_of_the_outbox_are_found(
    cluster: WrittenCluster, changes: dict[str, object]
) -> None:
    foreign = encode_release(replace(decode_release(cluster.releases[2]), **changes))
    assert faults(cluster, [b"garbage", cluster.releases[1], foreign]) == [
        "outbox of cluster 0: it holds 2 foreign records"
    ]


def test_a_release_that_two_records_name_is_found(cluster: WrittenCluster) -> None:
    witnesses = Witnesses(0, 8)
    witnesses.take_outbox(PLAN, [cluster.releases[2]])
    ledger = cluster.sealed()
    ledger.take(decode_ledger_record(cluster.ledger[3]))
    assert witnesses.faults(ledger)[0] == (
        "outbox of cluster 0: 2 ledger records name the digest of its release of window 2"
    )


@pytest.mark.parametrize(
    ("offset", "sentence"),
    [
        (8, ""),
        (6, ""),  # a window was sealed meanwhile, or a lost record was written again
        (None, ""),
        (9, "is at 9, ahead of the ledger, which ends at 8"),
        (7, "is at 7, where no record of the ledger resumes"),
    ],
)
def test_offsets_are_those_of_the_ledger(
    cluster: WrittenCluster, offset: int | None, sentence: str
) -> None:
    found = faults(cluster, offset=offset)
    assert found == ([f"offset of cluster 0: the heads' group {sentence}"] if sentence else [])


def test_a_cluster_whose_budget_is_spent_goes_on_reading() -> None:
    cluster = WrittenCluster(replace(PLAN, horizon_windows=1))
    for window in range(3):
        cluster.send(window, 1)
        cluster.seal()
    assert faults(cluster, offset=3) == []
