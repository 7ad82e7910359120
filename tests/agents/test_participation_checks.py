"""Planted faults in what clients paid, found by the audit beside the ledger that charged."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from agents.ledger_audit import LedgerAudit
from agents.ledger_report import Verification
from schemas import (
    Participation,
    ParticipationKind,
    Update,
    decode_ledger_record,
    decode_participation,
    encode_ledger_record,
    encode_participation,
    encode_update,
    record_hash,
)
from stream.aggregation.intake import Record
from stream.budget.client_budgets import ClientBudgets, client_key
from stream.cluster_head import ClusterHead
from stream.ledger_chain import genesis
from stream.participation_log import SNAPSHOT_INTERVAL, digest_of
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.testing import insecure_entropy

ALLOWED = 5
PLAN = PrivacyPlan(
    name="paid",
    dimension=5,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=3.0,
    delta=1e-3,
    horizon_windows=ALLOWED,
    optimizer=OptimizerSpec("sgd", learning_rate=0.1),
    normalizer="expected_clients",
    scope="client",
)
CHARGE = PLAN.charge_units


@dataclass
class Stream:
    """What the head of cluster 0 has written."""

    ledger: list[bytes] = field(default_factory=list)
    participation: list[bytes] = field(default_factory=list)
    releases: list[bytes] = field(default_factory=list)

    def change(self, number: int, **changes: object) -> None:
        record = dataclasses.replace(decode_participation(self.participation[number]), **changes)
        self.participation[number] = encode_participation(record)

    def compact(self) -> None:
        """Keep what compaction surely keeps: the newest snapshot, its delta, all deltas since."""
        records = [decode_participation(data) for data in self.participation]
        newest = max(r.sequence for r in records if r.kind is ParticipationKind.SNAPSHOT)
        self.participation = [
            data
            for record, data in zip(records, self.participation, strict=True)
            if record.sequence >= newest
        ]


def who_sends(window: int) -> list[str]:
    """ "always" sends in each window, "seldom" in every third one."""
    return ["always", *(["seldom"] if window % 3 == 0 else [])]


def write(windows: int) -> Stream:
    """Let a real head seal windows of one or two clients."""
    stream = Stream([encode_ledger_record(genesis(PLAN, 0, 0, 0, 0))])
    head = ClusterHead(
        PLAN,
        0,
        RoundedGaussian(insecure_entropy(1)),
        stream.ledger,
        is_complete=True,
        max_open_windows=2,
        clients=ClientBudgets(PLAN.cap_units),
    )
    offset = 0
    for window in range(windows):
        begin_ms = PLAN.window_end_ms(window - 1)
        for client in who_sends(window):
            update = Update(PLAN.plan_id, client, 0, np.ones(5, np.int8))
            head.offer([Record(offset, begin_ms + 1, encode_update(update))])
            offset += 1
        head.expect(window, offset)
        cell = head.seal(begin_ms + 1100)
        head.commit(cell)
        assert cell.ledger_record is not None
        assert cell.release is not None
        stream.ledger.append(cell.ledger_record)
        stream.participation += [value for _, value in cell.participation]
        stream.releases.append(cell.release)
    return stream


def audit(stream: Stream, *, with_participation: bool = True) -> Verification:
    found = LedgerAudit(PLAN)
    found.begin_ledger(0, 0)
    for data in stream.ledger:
        found.take_record(0, data)
    if with_participation:
        found.take_participation(0, stream.participation)
    for data in stream.releases:
        found.take_release(data)
    return found.verification()


def test_releases_go_on_after_the_budgets_and_the_most_that_a_client_lost_is_the_cap() -> None:
    found = audit(write(12))
    assert found.problems == []
    assert found.cells_released == 12
    (row,) = found.clusters
    assert row.spending.clients is not None
    assert row.spending.clients.clients == 2
    assert row.spending.clients.largest_units == ALLOWED * CHARGE
    assert row.spending.clients.median_units == 4 * CHARGE
    assert row.spending.clients.at_cap == 1
    assert row.level == ""
    assert found.epsilon == row.epsilon == pytest.approx(3.0, abs=1e-5)
    assert found.epsilon_independent == pytest.approx(found.epsilon, abs=2e-6)
    # What a client that took part in everything has spent stops at the cap, too.
    assert row.spending.spent_units == PLAN.cap_units


def test_epsilon_is_that_of_the_client_that_spent_most_not_of_all_releases() -> None:
    few = audit(write(2))
    assert few.clusters[0].counted_units == 2 * CHARGE
    assert few.epsilon == PLAN.privacy_filter.epsilon(2 * CHARGE, PLAN.delta)


def test_a_stream_that_compaction_went_over_verifies() -> None:
    stream = write(SNAPSHOT_INTERVAL + 3)
    stream.compact()
    assert len(stream.participation) == 5
    assert audit(stream).problems == []


def test_what_a_later_window_wrote_meanwhile_is_left_aside() -> None:
    stream = write(7)
    stream.ledger.pop()
    stream.releases.pop()
    assert audit(stream).problems == []


def forge_snapshot(stream: Stream) -> None:
    """A snapshot after compaction that forgets half a window of each client."""
    stream.compact()
    record = decode_participation(stream.participation[1])
    assert record.spent is not None
    stream.change(1, spent=record.spent - np.uint64(CHARGE // 2))


def rebuild_digests(stream: Stream) -> None:
    """Let the ledger name the digests of what the participation topic holds."""
    digest, values = b"", {}
    for data in stream.participation:
        values.setdefault(decode_participation(data).sequence, []).append(data)
    for number in range(1, len(stream.ledger)):
        digest = digest_of(digest, values[number]) if number in values else digest
        record = decode_ledger_record(stream.ledger[number])
        record = dataclasses.replace(
            record,
            participation_digest=digest or bytes(32),
            previous_hash=record_hash(stream.ledger[number - 1]),
        )
        stream.ledger[number] = encode_ledger_record(record)


def charge_less_and_vouch_for_it(stream: Stream) -> None:
    stream.change(3, charge_units=CHARGE - 1)
    rebuild_digests(stream)


def forge_snapshot_and_vouch_for_it(stream: Stream) -> None:
    forge_snapshot(stream)
    rebuild_digests(stream)


def leave_out(client: str) -> Callable[[Stream], None]:
    def plant(stream: Stream) -> None:
        record = decode_participation(stream.participation[0])
        key = np.uint64(client_key(PLAN.plan_id, client))
        stream.change(0, clients=record.clients[record.clients != key])

    return plant


PLANTED: dict[str, tuple[int, Callable[[Stream], object], str]] = {
    "a delta removed": (
        6,
        lambda s: s.participation.pop(2),
        "has lost what record 3 or a later one wrote",
    ),
    "the newest delta removed": (
        6,
        lambda s: s.participation.pop(),
        "has lost what record 6 or a later one wrote",
    ),
    "all removed": (6, lambda s: s.participation.clear(), "has lost what record 1"),
    "a client left out": (6, leave_out("seldom"), "is not what ledger record 6 names"),
    "bytes that are no record": (
        6,
        lambda s: s.participation.insert(2, b"garbage"),
        "holds a record that cannot be read",
    ),
    "a delta of another plan": (
        6,
        lambda s: s.change(2, plan_id=bytes(16)),
        "holds a record of cluster 0 under plan",
    ),
    "clients that paid less than the release cost": (
        4,
        charge_less_and_vouch_for_it,
        f"record 4 charges {CHARGE} units, but its clients paid {CHARGE - 1}",
    ),
    "a snapshot that was forged": (
        SNAPSHOT_INTERVAL + 2,
        forge_snapshot,
        f"is not what ledger record {SNAPSHOT_INTERVAL + 2} names",
    ),
    "a snapshot that was forged by whoever writes the ledger": (
        SNAPSHOT_INTERVAL + 2,
        forge_snapshot_and_vouch_for_it,
        "a client's total is not what some of the releases cost",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_forgery_is_found(name: str) -> None:
    windows, plant, sentence = PLANTED[name]
    stream = write(windows)
    plant(stream)
    found = audit(stream)
    assert any(sentence in problem for problem in found.problems), found.problems
    assert found.clusters[0].state.value == "refused"


def test_a_ledger_without_its_participation_topic_is_a_problem() -> None:
    problems = audit(write(3), with_participation=False).problems
    assert any("has lost what record 1" in problem for problem in problems)


def test_a_ledger_that_only_began_needs_none() -> None:
    found = audit(write(0))
    assert found.problems == []
    assert found.epsilon == found.epsilon_independent == 0


def test_nothing_begun_costs_nothing() -> None:
    assert LedgerAudit(PLAN).verification().verified


def test_the_participation_of_a_window_says_who_and_nothing_else() -> None:
    record: Participation = decode_participation(write(1).participation[0])
    assert set(record.clients.tolist()) == {
        client_key(PLAN.plan_id, client) for client in ("always", "seldom")
    }
