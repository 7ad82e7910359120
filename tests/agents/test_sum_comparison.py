from dataclasses import replace

import numpy as np
import pytest
from written_cluster import PLAN, WrittenCluster

from agents.counted_updates import WindowTotal
from agents.participants import Participants, Totals
from agents.sealed_windows import SealedWindow
from agents.sum_comparison import OpenWindow, compare_exactly, compare_nearly
from schemas import Release, decode_release, decode_update

UNITS = PLAN.charge_units


@pytest.fixture(scope="module")
def cluster() -> WrittenCluster:
    made = WrittenCluster()
    for client in range(3):
        made.send(0, client)
    made.seal()
    return made


def total(cluster: WrittenCluster, *late: int, left_out: int = 0) -> WindowTotal:
    made = WindowTotal(PLAN)
    for record in cluster.log[left_out:]:
        made.add(decode_update(record.value), is_late=record.offset in late)
    return made


def release(cluster: WrittenCluster) -> Release:
    return decode_release(cluster.releases[0])


def test_the_sum_itself_is_found_right(cluster: WrittenCluster) -> None:
    found = compare_exactly(PLAN, total(cluster), release(cluster))
    assert (found.counted, found.excused, found.faults) == (3, 0, ())


def test_what_was_reported_late_may_count_or_not(cluster: WrittenCluster) -> None:
    counted = compare_exactly(PLAN, total(cluster, 1), release(cluster))
    assert (counted.counted, counted.excused, counted.faults) == (3, 0, ())
    extra = total(cluster)
    extra.add(decode_update(cluster.update(4)), is_late=True)
    excused = compare_exactly(PLAN, extra, release(cluster))
    assert (excused.counted, excused.excused, excused.faults) == (3, 1, ())


def test_a_wrong_sum_is_described(cluster: WrittenCluster) -> None:
    found = compare_exactly(PLAN, total(cluster, left_out=1), release(cluster))
    assert found.faults == (
        "it counts 3 clients, and 2 of them sent a valid update; 2 of 7 coordinates are not those "
        "of their sum",
    )


def test_sums_beyond_the_type_of_a_release_are_clamped(cluster: WrittenCluster) -> None:
    made = WindowTotal(PLAN)
    vector = np.zeros(7, np.int32)
    clamped = replace(release(cluster), vector=vector)
    limits = np.iinfo(np.int32)
    made.add(decode_update(cluster.update(0, [1])), is_late=False)
    made._sum[:2] = 2**40, -(2**40)
    vector[:] = limits.max, limits.min, 0, 0, 0, 0, 3
    assert compare_exactly(PLAN, made, clamped).faults == ()


def test_with_noise_the_likelier_candidate_is_taken(cluster: WrittenCluster) -> None:
    (sealed,) = cluster.sealed().released()
    counted = compare_nearly(total(cluster, 1), release(cluster), sealed)
    assert counted.residual is not None
    assert (counted.counted, counted.excused, counted.choices) == (3, 0, 2)
    assert counted.residual.energy == 0
    alone = compare_nearly(total(cluster), release(cluster), sealed)
    assert (alone.counted, alone.choices) == (3, 1)


def opened(sealed: SealedWindow, keys: set[int], spent: dict[int, int] | None) -> OpenWindow:
    before = None
    if spent is not None:
        keys_array = np.array(sorted(spent), np.uint64)
        before = Totals(keys_array, np.array([spent[key] for key in sorted(spent)], np.uint64))
    return OpenWindow(sealed, WindowTotal(PLAN), Participants(frozenset(keys), before))


def test_who_is_left_out_must_be_at_the_cap(cluster: WrittenCluster) -> None:
    (sealed,) = cluster.sealed().released()
    window = opened(sealed, {1}, {1: UNITS, 2: 2 * UNITS, 3: 2 * UNITS + 1})
    window.total.keys.add(1)
    for key in (3, 4, 2):
        window.leave_out(key, 3 * UNITS)
    assert window.participation_faults(3 * UNITS) == [
        "2 clients that could pay for it are left out"
    ]
    assert not window.is_unknown


def test_who_takes_part_must_have_sent_and_must_be_below_the_cap(cluster: WrittenCluster) -> None:
    (sealed,) = cluster.sealed().released()
    window = opened(sealed, {1, 2}, {1: 2 * UNITS + 1, 2: UNITS})
    window.total.keys.add(1)
    assert window.participation_faults(3 * UNITS) == [
        "1 clients are charged for it that sent no valid update",
        "1 clients are counted beyond their own cap",
    ]


def test_without_what_was_spent_before_nothing_is_guessed(cluster: WrittenCluster) -> None:
    (sealed,) = cluster.sealed().released()
    window = opened(sealed, {1}, None)
    window.total.keys.add(1)
    window.leave_out(2, 3 * UNITS)
    assert window.is_unknown
    assert window.participation_faults(3 * UNITS) == []
    assert OpenWindow(sealed, WindowTotal(PLAN)).participation_faults(1) == []
