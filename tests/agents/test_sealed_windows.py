from dataclasses import replace

from written_cluster import PLAN, WrittenCluster

from agents.sealed_windows import SealedWindows, SealingPoints
from schemas import LedgerKind, decode_ledger_record, release_digest


def written(**changes: object) -> WrittenCluster:
    cluster = WrittenCluster(replace(PLAN, **changes))
    for window, client in ((0, 1), (0, 2), (1, 1), (0, 3), (1, 2), (2, 1)):
        cluster.send(window, client)
    for _ in range(4):
        cluster.seal()
    return cluster


def test_each_window_is_as_its_record_has_it() -> None:
    cluster = written()
    sealed = cluster.sealed()
    records = [decode_ledger_record(data) for data in cluster.ledger]
    assert sealed.genesis == records[0]
    assert sealed.newest == records[-1]
    assert not sealed.is_closed
    assert [each.window for each in sealed.released()] == [0, 1, 2, 3]
    second = sealed.by_window[1]
    assert second.sequence == 2
    assert second.kind is LedgerKind.RELEASE
    assert second.noise_variance == records[2].noise_variance
    assert second.charge_units == records[2].charge_units
    assert second.release_digest == release_digest(cluster.releases[1])
    assert second.clip_norm == 0
    # Window 1 begins at its first update, which stands before the last of window 0.
    assert (second.begin_offset, second.next_offset) == (2, 5)
    assert sealed.digests == {release_digest(data): 1 for data in cluster.releases.values()}


def test_offsets_are_those_of_all_records() -> None:
    assert written().sealed().next_offsets == {0, 2, 5, 6}


def test_a_closed_ledger_releases_nothing_more() -> None:
    sealed = written(horizon_windows=2).sealed()
    assert sealed.is_closed
    assert [each.window for each in sealed.released()] == [0, 1]
    assert sealed.by_window[2].kind is LedgerKind.EXHAUSTED


def test_nothing_is_known_of_an_empty_ledger() -> None:
    sealed = SealedWindows()
    assert sealed.genesis is None
    assert sealed.newest is None
    assert not sealed.is_closed
    assert sealed.released() == []


def test_a_record_that_names_a_digest_again_is_counted() -> None:
    cluster = written()
    sealed = cluster.sealed()
    sealed.take(decode_ledger_record(cluster.ledger[1]))
    assert sealed.digests[release_digest(cluster.releases[0])] == 2


def test_what_was_read_after_its_window_was_sealed_is_told() -> None:
    cluster = WrittenCluster()
    for window, client in ((0, 1), (1, 1), (0, 2)):
        cluster.send(window, client)
    cluster.seal()  # goes on at offset 1, where an update of window 1 stands
    cluster.seal()  # goes on at offset 3: it had read no further
    cluster.send(1, 2)
    cluster.send(2, 1)
    cluster.send(1, 3)
    cluster.seal()
    points = SealingPoints(cluster.sealed())
    told = []
    for record in cluster.log:
        window = cluster.plan.window_of(record.timestamp_ms)
        points.read(record.offset, window)
        told.append(points.was_sealed(window))
    assert told == [False, False, False, True, False, True]
