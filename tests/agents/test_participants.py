from dataclasses import replace

import numpy as np
import pytest
from written_cluster import PLAN, WrittenCluster

from agents.participants import ParticipationReader, Totals
from schemas import DELTA_KEYS, decode_participation, encode_participation
from stream.budget.client_budgets import client_key

PLAN = replace(PLAN, scope="client", horizon_windows=600)
EXPECTED = {client: client_key(PLAN.plan_id, str(client)) for client in range(3)}


@pytest.fixture(scope="module")
def values() -> list[bytes]:
    """Client 0 in every window, client 1 in every second one; two snapshots."""
    cluster = WrittenCluster(PLAN)
    for window in range(2 * DELTA_KEYS + 2):
        cluster.send(window, 0)
        if window % 2:
            cluster.send(window, 1)
        cluster.seal()
    return cluster.participation


def reader(values: list[bytes]) -> ParticipationReader:
    return ParticipationReader(PLAN.plan_id, 0, values)


def spent_before(values: list[bytes], sequence: int) -> list[int] | None:
    found = reader(values).of(sequence)
    assert found is not None
    if found.before is None:
        return None
    return [found.before.of(EXPECTED[client]) // PLAN.charge_units for client in range(3)]


def test_each_window_is_told_with_what_was_spent_before_it(values: list[bytes]) -> None:
    forward = reader(values)
    for sequence in range(1, 2 * DELTA_KEYS + 3):
        found = forward.of(sequence)
        assert found is not None
        assert found.before is not None
        window = sequence - 1
        assert found.keys == {EXPECTED[0], *([EXPECTED[1]] if window % 2 else [])}
        spent = [found.before.of(EXPECTED[client]) for client in range(3)]
        assert spent == [PLAN.charge_units * times for times in (window, window // 2, 0)]


def test_windows_may_be_passed_over(values: list[bytes]) -> None:
    assert spent_before(values, 300) == [299, 149, 0]


def test_of_what_is_compacted_away_nothing_is_told(values: list[bytes]) -> None:
    records = [decode_participation(data) for data in values]
    kept = [
        data
        for data, record in zip(values, records, strict=True)
        if record.sequence > DELTA_KEYS + 10 or record.sequence == 3
    ]
    forward = reader(kept)
    assert forward.of(1) is None
    third = forward.of(3)
    assert third is not None
    assert third.before is None
    assert forward.of(DELTA_KEYS + 10) is None
    # Until the next snapshot, who took part is known, and not what was spent before.
    assert spent_before(kept, 2 * DELTA_KEYS) is None
    assert spent_before(kept, 2 * DELTA_KEYS + 1) == [2 * DELTA_KEYS, DELTA_KEYS, 0]
    assert forward.of(2 * DELTA_KEYS + 3) is None


def test_a_snapshot_that_lacks_a_part_is_no_snapshot(values: list[bytes]) -> None:
    lacking = [data for data in values if decode_participation(data).part == 0]
    snapshots = [decode_participation(data) for data in values][DELTA_KEYS : DELTA_KEYS + 1]
    whole = snapshots[0]
    halves = [
        replace(whole, parts=2, part=part, clients=whole.clients[cut], spent=whole.spent[cut])
        for part, cut in enumerate((slice(0, 1), slice(1, None)))
    ]
    tail = [data for data in lacking if decode_participation(data).sequence > DELTA_KEYS]
    first, second = (encode_participation(half) for half in halves)
    assert spent_before([first, second, *tail], DELTA_KEYS + 1) == [DELTA_KEYS, DELTA_KEYS // 2, 0]
    assert spent_before([first, *tail], DELTA_KEYS + 1) is None
    assert spent_before([second, *tail], DELTA_KEYS + 1) is None
    assert spent_before([second, first, *tail], DELTA_KEYS + 1) is None


def test_foreign_records_are_passed_over(values: list[bytes]) -> None:
    other = replace(decode_participation(values[0]), plan_id=bytes(16))
    away = replace(decode_participation(values[0]), cluster=1)
    strange = [b"garbage", encode_participation(other), encode_participation(away)]
    assert spent_before([*strange, *values], 2) == [1, 0, 0]


def test_totals_do_not_change() -> None:
    nobody = Totals(np.empty(0, np.uint64), np.empty(0, np.uint64))
    large = 2**64 - 1
    one = nobody.after(np.array([7, large], np.uint64), 5)
    two = one.after(np.array([9, large], np.uint64), 2**62)
    assert [nobody.of(7), one.of(7), one.of(9), one.of(large)] == [0, 5, 0, 5]
    assert [two.of(7), two.of(9), two.of(large)] == [5, 2**62, 2**62 + 5]
    assert two.of(large - 1) == 0
