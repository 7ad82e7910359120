from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from written_cluster import PLAN, WrittenCluster

from agents.sum_audit import DELETED, NOT_ON_RECORD, NOT_PUBLIC, OUT_OF_ORDER, UNREAD
from schemas import (
    Update,
    decode_ledger_record,
    encode_ledger_record,
    encode_update,
    encode_update_batch,
)
from stream.aggregation.window import WindowSum
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import PrivacyPlan

CLIENT_PLAN = replace(PLAN, scope="client", horizon_windows=3)


def written(windows: int = 4, **changes: object) -> WrittenCluster:
    """Three clients in each window, in an order of its own, and some updates to refuse."""
    cluster = WrittenCluster(replace(PLAN, **changes))
    for window in range(windows):
        for client in range(3):
            cluster.send(window, (client + window) % 6)
        cluster.send(window, window % 6)  # once more
        cluster.send(window, 7, value=b"no update")
        cluster.seal()
    return cluster


def balance(cluster: WrittenCluster, audit) -> None:
    counts = audit.counts
    explained = counts.counted + counts.excused + counts.waiting + counts.unchecked
    assert counts.read == len(cluster.log) == explained + sum(counts.refused.values())


def test_what_a_real_head_sums_is_found_right() -> None:
    cluster = written()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.unchecked == {}
    assert list(audit.checked) == [0, 1, 2, 3]
    assert audit.counts.counted == 12
    assert audit.counts.refused == Counter(duplicate=4, malformed=4)
    balance(cluster, audit)


def test_each_update_of_a_batch_is_one_of_its_window() -> None:
    cluster = WrittenCluster()
    one_hot = np.eye(6, dtype=np.int8)
    updates = [cluster.update(client, one_hot[client]) for client in (0, 1, 1, 2)]
    cluster.send(0, 3)
    cluster.send(0, 0, value=encode_update_batch([*updates, b"no update"]))
    cluster.send(0, 0, value=b"\x08\x01no batch")
    cluster.send(0, 2)
    cluster.seal()
    late = [cluster.update(client, one_hot[client]) for client in (4, 5)]
    cluster.send(0, 0, value=encode_update_batch(late))
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.checked[0].counted == 4
    assert audit.counts.refused == Counter(duplicate=2, malformed=2)
    assert audit.counts.excused == 2
    assert audit.counts.read == 10


def test_a_window_without_updates_is_zeros() -> None:
    cluster = WrittenCluster()
    cluster.seal()
    cluster.send(1, 1)
    cluster.seal()
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert [checked.counted for checked in audit.checked.values()] == [0, 1, 0]


def test_every_refusal_of_the_head_is_one_of_the_auditor() -> None:
    cluster = WrittenCluster()
    plan = cluster.plan
    vector = np.zeros(6, np.int8)
    for value in (
        b"no update",
        encode_update(Update(bytes(16), "1", 0, vector)),
        encode_update(Update(plan.plan_id, "1", 0, vector.astype(np.int16))),
        encode_update(Update(plan.plan_id, "1", 0, vector[:5])),
        encode_update(Update(plan.plan_id, "1", 1, vector)),
        cluster.update(1, clip_norm=1.0),
        cluster.update(1, [-128]),
        cluster.update(1, [100, 1]),
        cluster.update(1, [100]),
        cluster.update(1, [1]),
    ):
        cluster.send(0, 1, value=value)
    cluster.send(-1, 1)
    cluster.send(5, 1)
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    reasons = "malformed wrong_plan wrong_dtype wrong_dimension future_model wrong_scale"
    reasons += " forbidden_value norm_too_large duplicate not_started"
    assert audit.counts.refused == Counter(reasons.split())
    assert audit.counts.counted == audit.counts.waiting == 1
    balance(cluster, audit)


def test_updates_of_another_cluster_do_not_count() -> None:
    cluster = WrittenCluster(replace(PLAN, cluster_count=2))
    away = [client for client in range(20) if cluster.plan.cluster_of(str(client)) == 1]
    for client in range(20):
        cluster.send(0, client)
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.refused == {"foreign_cluster": len(away)}


def test_a_client_that_no_prefix_matches_does_not_count() -> None:
    plan = replace(PLAN, assignment="prefix", assignment_key="", prefixes=("north",))
    cluster = WrittenCluster(plan)
    cluster.send(0, "north/1")
    cluster.send(0, "south/1")
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.refused == {"unknown_cluster": 1}


def test_updates_of_windows_that_are_not_sealed_wait() -> None:
    cluster = written(2)
    cluster.send(2, 1)
    cluster.send(3, 1)
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.waiting == 2


def test_updates_may_lie_behind_the_first_ones_of_the_next_window() -> None:
    cluster = WrittenCluster()
    for window, client in ((0, 1), (1, 1), (0, 2), (0, 3), (2, 1), (1, 2)):
        cluster.send(window, client)
    for _ in range(3):
        cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert [checked.counted for checked in audit.checked.values()] == [3, 2, 1]


def test_windows_that_a_head_left_for_a_second_pass_are_found_right() -> None:
    cluster = WrittenCluster(max_open_windows=2)
    for window in range(6):
        cluster.send(window, window)
        cluster.send(window, window + 1)
    for _ in range(6):
        cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.counted == 12


def test_after_the_end_of_the_budget_nobody_counts() -> None:
    cluster = WrittenCluster(replace(PLAN, horizon_windows=2))
    for window in range(5):
        cluster.send(window, 1)
        cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.refused == {"exhausted": 3}
    assert list(audit.checked) == [0, 1]


def test_throttled_windows_have_nobody() -> None:
    plan = replace(PLAN, window_length_ms=1_200_000, horizon_windows=10, hour_epsilon=3.5)
    cluster = WrittenCluster(plan)
    for window in range(6):
        cluster.send(window, 1)
        cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    throttled = audit.counts.refused["throttled"]
    assert throttled == 6 - len(cluster.releases) > 0
    balance(cluster, audit)


def test_the_clip_bits_and_the_norms_of_windows_are_checked() -> None:
    spec = ClippingSpec(target_quantile=0.5, learning_rate=0.5, bit_weight=4, epoch_windows=3)
    plan = replace(PLAN, clipping=spec, horizon_windows=12)
    cluster = WrittenCluster(plan)
    norms = set()
    for window in range(8):
        newest = decode_ledger_record(cluster.ledger[-1]).clip
        norm = newest.next_norm or newest.norm if window % 3 == 0 else newest.norm
        norms.add(norm)
        for client in range(4):
            value = cluster.update(client, clip_norm=norm, is_below_clip=client > 0)
            cluster.send(window, client, value=value)
        cluster.send(window, 5, value=cluster.update(5, clip_norm=norm + 1))
        cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.refused == {"wrong_scale": 8}
    assert len(norms) > 2
    # A wrong bit is in the last coordinate alone.
    other = cluster.update(1, clip_norm=plan.l2_clip_norm, is_below_clip=False)
    cluster.log[1] = cluster.log[1]._replace(value=other)
    _, faults = cluster.audit()
    assert faults == [
        "window 0: it counts 4 clients, and 4 of them sent a valid update; 1 of 8 coordinates are "
        "not those of their sum"
    ]


def missing(cluster: WrittenCluster) -> None:
    cluster.send(1, 4, seen_in=None)


def of_the_next_window(cluster: WrittenCluster) -> None:
    cluster.send(1, 4, seen_in=2)


def invalid(cluster: WrittenCluster) -> None:
    offset = cluster.send(1, 4)
    cluster.log[offset] = cluster.log[offset]._replace(value=cluster.update(4, [127, 127]))


def other_steps(cluster: WrittenCluster) -> None:
    offset = cluster.send(1, 4)
    cluster.log[offset] = cluster.log[offset]._replace(value=cluster.update(4, [1, 1]))


PLANTED: dict[str, tuple[Callable[[WrittenCluster], None], list[str]]] = {
    "an update that is missing": (missing, ["window 1: it counts 1 clients, and 2 of them"]),
    "an update of a neighbour window": (
        of_the_next_window,
        [
            "window 1: 1 valid updates came in time by the broker's clock, are not counted",
            "window 2: it counts 2 clients, and 1 of",
        ],
    ),
    "an update that is not valid": (invalid, ["window 1: it counts 2 clients, and 1 of them"]),
    "another update than was sent": (
        other_steps,
        ["window 1: it counts 2 clients, and 2 of them sent a valid update; 3 of 7 coordinates"],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_of_a_sum_is_found(name: str) -> None:
    plant, sentences = PLANTED[name]
    cluster = WrittenCluster()
    cluster.send(0, 1)
    cluster.seal()
    cluster.send(1, 2)
    plant(cluster)
    cluster.send(1, 2)
    cluster.seal()
    cluster.send(2, 3)
    cluster.seal()
    cluster.seal()
    _, faults = cluster.audit()
    assert len(faults) == len(sentences)
    for fault, sentence in zip(faults, sentences, strict=True):
        assert fault.startswith(sentence)


def test_a_client_that_is_counted_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowSum, "has", lambda *_: False)
    cluster = WrittenCluster()
    cluster.send(0, 1)
    cluster.send(0, 1)
    cluster.seal()
    _, faults = cluster.audit()
    assert faults == [
        "window 0: it counts 2 clients, and 1 of them sent a valid update; 2 of 7 coordinates are "
        "not those of their sum"
    ]


def test_a_release_that_is_not_there_leaves_its_window_unchecked() -> None:
    cluster = written()
    del cluster.releases[3]
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.unchecked == {3: NOT_PUBLIC}
    balance(cluster, audit)


def test_windows_whose_updates_are_deleted_are_named_and_not_judged() -> None:
    cluster = written()
    # The second window's first update is gone.
    audit, faults = cluster.audit(begin_offset=6)
    assert faults == []
    assert audit.unchecked == {0: DELETED, 1: DELETED}
    assert list(audit.checked) == [2, 3]
    assert audit.counts.unchecked == 4
    # All of its updates are there, and none of the first one's.
    audit, faults = cluster.audit(begin_offset=5)
    assert audit.unchecked == {0: DELETED}
    assert faults == []


def test_windows_whose_updates_are_deleted_meanwhile_are_not_judged() -> None:
    cluster = written()
    audit, faults = cluster.audit(log=cluster.log[7:], deleted_meanwhile=7)
    assert faults == []
    assert audit.unchecked == {0: DELETED, 1: DELETED}


def test_a_head_that_was_down_past_retention_is_named() -> None:
    cluster = written()
    cluster.head.advance(7)
    record = decode_ledger_record(cluster.ledger[1])
    late = replace(record, sealed_at_ms=record.sealed_at_ms + 86_500_000)
    cluster.ledger[1] = encode_ledger_record(late)
    audit, _ = cluster.audit(begin_offset=7)
    assert audit.unchecked == {0: UNREAD, 1: DELETED}


def test_an_update_that_came_late_and_was_reported_is_excused() -> None:
    cluster = written(2)
    offset = cluster.send(1, 5)
    cluster.send(2, 1)
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.excused == 1
    balance(cluster, audit)
    # Without the report, it is one that a head has lost.
    cluster.reports = [report for report in cluster.reports if b"late" not in report]
    audit, faults = cluster.audit()
    assert faults == [
        "window 1: 1 valid updates came in time by the broker's clock, are not counted, and no "
        "head has reported them late"
    ]
    # Unless reports are deleted, or the head may not have come to read it.
    assert cluster.audit(has_all_reports=False)[1] == []
    cluster = written(2)
    cluster.send(1, 5, seen_in=None)
    audit, faults = cluster.audit()
    assert faults == []
    assert (offset, audit.counts.waiting) == (len(cluster.log) - 1, 1)


def test_an_update_that_counts_and_is_read_again_is_not_late() -> None:
    cluster = WrittenCluster()
    for window, client in ((0, 1), (1, 1), (0, 2)):
        cluster.send(window, client)
    cluster.seal()
    cluster.restart()
    cluster.read_again()
    assert any(b"late" in report for report in cluster.reports)
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.counted == 3
    assert audit.counts.excused == 0
    # The same report, of an update that does not count.
    cluster = WrittenCluster()
    cluster.send(0, 1)
    cluster.send(1, 1)
    offset = cluster.send(0, 2, seen_in=None)
    cluster.seal()
    cluster.restart()
    cluster.read_again()
    assert offset == 2
    cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.excused == 1


def test_a_clock_that_was_set_back_leaves_its_windows_unchecked() -> None:
    cluster = WrittenCluster()
    for window in range(4):
        cluster.send(window, 1)
    cluster.send(0, 2)
    for _ in range(4):
        cluster.seal()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.unchecked == {0: OUT_OF_ORDER}
    balance(cluster, audit)


def clients_written() -> WrittenCluster:
    """Client 1 sends always and can pay for 3 windows; client 2 sends in every second one."""
    cluster = WrittenCluster(CLIENT_PLAN)
    for window in range(6):
        cluster.send(window, 1)
        if window % 2:
            cluster.send(window, 2)
        cluster.seal()
    return cluster


def test_clients_with_budgets_of_their_own_are_counted_until_they_are_spent() -> None:
    cluster = clients_written()
    audit, faults = cluster.audit()
    assert faults == []
    assert audit.counts.refused == {"client_exhausted": 3}
    assert [checked.counted for checked in audit.checked.values()] == [1, 2, 1, 1, 0, 1]
    balance(cluster, audit)


def test_a_client_that_is_counted_beyond_its_cap_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A head that takes each client's cap for a larger one, at the price of the true one.
    assert CLIENT_PLAN.charge_units <= CLIENT_PLAN.schedule.first_units()
    monkeypatch.setattr(PrivacyPlan, "cap_units", property(lambda _: 2**62))
    cheat = WrittenCluster(CLIENT_PLAN)
    for window in range(6):
        cheat.send(window, 1)
        cheat.seal()
    monkeypatch.undo()
    _, faults = cheat.audit()
    assert faults == [
        f"window {window}: 1 clients are counted beyond their own cap" for window in (3, 4, 5)
    ]


def test_a_client_that_could_pay_and_is_left_out_is_found() -> None:
    cluster = WrittenCluster(CLIENT_PLAN)
    cluster.send(0, 1)
    cluster.send(0, 2, seen_in=None)
    cluster.send(0, 3)
    cluster.seal()
    _, faults = cluster.audit()
    assert faults == ["window 0: 1 clients that could pay for it are left out"]


def test_a_client_that_pays_without_an_update_is_found() -> None:
    cluster = WrittenCluster(CLIENT_PLAN)
    cluster.send(0, 1)
    cluster.send(0, 2)
    cluster.seal()
    cluster.log[1] = cluster.log[1]._replace(value=b"")
    _, faults = cluster.audit()
    assert faults == [
        "window 0: it counts 2 clients, and 1 of them sent a valid update; 2 of 7 coordinates are "
        "not those of their sum",
        "window 0: 1 clients are charged for it that sent no valid update",
    ]


def test_who_took_part_and_is_compacted_away_is_not_guessed() -> None:
    cluster = clients_written()
    # Window 0 has none; of the others, what was spent before is unknown, which matters where
    # somebody was refused.
    audit, faults = cluster.audit(participation=cluster.participation[1:])
    assert faults == []
    assert audit.unchecked == {
        0: NOT_ON_RECORD,
        3: NOT_ON_RECORD,
        4: NOT_ON_RECORD,
        5: NOT_ON_RECORD,
    }
    assert list(audit.checked) == [1, 2]
    balance(cluster, audit)
