"""Scope ``client``: each client has a budget of its own, and releases have no end."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import (
    LedgerKind,
    Update,
    decode_ledger_record,
    decode_participation,
    decode_release,
    encode_ledger_record,
    encode_release,
    encode_update,
)
from stream.aggregation.admission import Admission
from stream.aggregation.intake import Record
from stream.budget.client_budgets import ClientBudgets, client_key
from stream.cluster_head import ClusterHead, SealedCell
from stream.errors import LedgerError
from stream.ledger_chain import genesis, verify_records
from stream.participation_log import SNAPSHOT_INTERVAL, digest_of, rebuild
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.sealing import Sealing
from stream.testing import UnsafeNoNoise

KAPPA = 3
PLAN = PrivacyPlan(
    name="head",
    dimension=6,
    cluster_count=1,
    assignment="prefix",
    prefixes=("north",),
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=1_200_000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=KAPPA,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
    scope="client",
)
ALLOWED = 3
# Two windows of four have room.
THROTTLED = replace(PLAN, horizon_windows=10, hour_epsilon=3.5)


class Cluster:
    """One cluster, its topics, and a count of its own of who was in which sum.

    Client i adds one grid step in coordinate i, and there is no noise: a release tells who is in
    it.
    """

    def __init__(self, plan: PrivacyPlan = PLAN, head_type: type[ClusterHead] = ClusterHead):
        self.plan = plan
        self.ledger = [encode_ledger_record(genesis(plan, 0, 0, 0, 0))]
        self.participation: list[tuple[bytes, bytes]] = []
        self.cells: list[SealedCell] = []
        self.told: list[str] = []
        self.used: Counter[int] = Counter()
        self._head_type = head_type
        self._log: list[Record] = []
        self.head = self.restored()

    def budgets(self) -> ClientBudgets:
        newest = decode_ledger_record(self.ledger[-1])
        values = [value for _, value in self.participation]
        digest = newest.participation_digest
        cap = self.plan.cap_units
        return rebuild(cap, values, self.plan.plan_id, 0, newest.sequence, digest)

    def restored(self) -> ClusterHead:
        return self._head_type(
            self.plan,
            0,
            UnsafeNoNoise(),
            self.ledger,
            is_complete=True,
            max_open_windows=30,
            clients=self.budgets(),
        )

    def restart(self) -> None:
        """Go on as a new process does; what was read but not sealed is read again."""
        self.head = self.restored()
        self.told.clear()

    def compact(self) -> None:
        """Leave the newest record of each key, as Kafka may."""
        newest = {key: index for index, (key, _) in enumerate(self.participation)}
        self.participation = [self.participation[index] for index in sorted(newest.values())]

    def offer(self, *clients: int, windows_ahead: int = 0, steps: int = 1) -> int:
        """Let clients' updates arrive in the next window, or in a later one; say who counted."""
        moment = self.plan.window_end_ms(self.head.next_window + windows_ahead) - 1
        for client in clients:
            vector = np.zeros(6, np.int8)
            vector[client] = steps
            data = encode_update(Update(self.plan.plan_id, f"north/{client}", 0, vector))
            self._log.append(Record(len(self._log), moment, data))
        return self.read()

    def read(self) -> int:
        outcome = self.head.offer(self._log[self.head.position :])
        self.told += [str(rejected.rejection.reason) for rejected in outcome.rejected]
        return outcome.accepted

    def seal(self, *clients: int) -> SealedCell:
        """Seal the next window, after these updates have arrived."""
        self.offer(*clients)
        self.head.expect(self.head.next_window, len(self._log))
        cell = self.head.seal(1000)
        self.head.commit(cell)
        self.cells.append(cell)
        self.ledger.append(cell.ledger_record)
        self.participation += cell.participation
        self.used.update(members(cell))
        return cell

    def spent(self, client: int) -> int:
        return self.budgets().spent(client_key(self.plan.plan_id, f"north/{client}"))


def members(cell: SealedCell) -> list[int]:
    """Who is in a release."""
    if cell.release is None:
        return []
    vector = decode_release(cell.release).vector.tolist()
    assert set(vector[:-1]) <= {0, 1}
    assert vector[-1] == KAPPA * sum(vector[:-1])
    return [client for client in range(6) if vector[client]]


def header(cell: SealedCell) -> bytes:
    """The bytes of a release whose vector is blotted out."""
    release = decode_release(cell.release)
    return encode_release(replace(release, vector=np.zeros_like(release.vector)))


def test_the_plan_of_these_tests_pays_for_three_windows_of_a_client():
    assert PLAN.windows_allowed == ALLOWED
    assert PLAN.cap_units // PLAN.charge_units == ALLOWED


# --- Who pays ------------------------------------------------------------------------------


def test_a_client_pays_for_the_windows_that_used_its_update_and_for_no_other():
    cluster = Cluster()
    for clients in ([0, 1], [0], [], [0, 2], [2]):
        cluster.seal(*clients)
    windows = [cluster.spent(client) // PLAN.charge_units for client in range(6)]
    assert windows == [3, 1, 2, 0, 0, 0]
    assert all(cluster.spent(client) % PLAN.charge_units == 0 for client in range(6))


def test_a_client_whose_budget_is_spent_is_refused_and_the_others_are_not():
    cluster = Cluster()
    for _ in range(ALLOWED):
        cluster.seal(0)
    assert members(cluster.seal(0, 1)) == [1]
    assert cluster.told == ["client_exhausted"]
    assert cluster.spent(0) == ALLOWED * PLAN.charge_units <= PLAN.cap_units


def test_releases_go_on_beyond_the_horizon():
    cluster = Cluster()
    kinds = {cluster.seal(window % 6).kind for window in range(6 * ALLOWED + 10)}
    assert kinds == {LedgerKind.RELEASE}
    assert not cluster.head.is_exhausted
    assert set(cluster.used.values()) == {ALLOWED}
    newest = verify_records(PLAN, 0, cluster.ledger, is_complete=True)
    # What a client that was always there would have spent, which ends at its cap.
    assert newest.spent_units == PLAN.cap_units
    assert newest.next_units == PLAN.schedule.first_units()


def test_a_refused_update_costs_its_client_nothing():
    cluster = Cluster()
    cluster.offer(0, steps=-128)
    cluster.offer(0, steps=127)
    assert cluster.told == ["forbidden_value", "norm_too_large"]
    assert members(cluster.seal()) == []
    assert cluster.spent(0) == 0


def test_a_client_that_sends_twice_counts_once_and_pays_once():
    cluster = Cluster()
    assert members(cluster.seal(0, 0, 1, 0)) == [0, 1]
    assert cluster.told == ["duplicate"] * 2
    assert cluster.spent(0) == PLAN.charge_units


def test_a_late_update_costs_its_client_nothing():
    cluster = Cluster()
    cluster.seal()
    cluster.offer(0, windows_ahead=-1)
    assert cluster.told == ["late"]
    cluster.seal()
    assert cluster.spent(0) == 0


# --- Windows that are open together --------------------------------------------------------


def test_a_client_with_budget_for_one_window_enters_one_of_two_open_ones():
    cluster = Cluster()
    for _ in range(ALLOWED - 1):
        cluster.seal(0)
    assert cluster.offer(0) == 1
    assert cluster.offer(0, windows_ahead=1) == 0
    assert cluster.told == ["client_exhausted"]
    assert [members(cluster.seal()), members(cluster.seal())] == [[0], []]
    assert cluster.spent(0) == ALLOWED * PLAN.charge_units


def test_it_may_be_the_later_window_that_came_first():
    cluster = Cluster()
    for _ in range(ALLOWED - 1):
        cluster.seal(0)
    assert cluster.offer(0, windows_ahead=1) == 1
    assert cluster.offer(0, 1) == 1
    assert [members(cluster.seal()), members(cluster.seal())] == [[1], [0]]


def test_a_client_with_budget_for_two_windows_enters_both():
    cluster = Cluster()
    for _ in range(ALLOWED - 2):
        cluster.seal(0)
    assert [cluster.offer(0, windows_ahead=ahead) for ahead in range(3)] == [1, 1, 0]
    assert [members(cluster.seal()) for _ in range(3)] == [[0], [0], []]


def test_a_head_that_forgets_open_windows_charges_nobody_past_the_cap(monkeypatch):
    # The second line of defence: no cell is made that somebody cannot pay for.
    def forgetful(self, clients, key, window):
        return clients.may_pay(key, self._plan.charge_units)

    monkeypatch.setattr(Admission, "_can_pay", forgetful)
    cluster = Cluster()
    for _ in range(ALLOWED - 1):
        cluster.seal(0)
    assert cluster.offer(0) == 1
    assert cluster.offer(0, windows_ahead=1) == 1
    cluster.seal()
    with pytest.raises(LedgerError, match="would take a client past its cap"):
        cluster.seal()
    assert cluster.spent(0) == ALLOWED * PLAN.charge_units


# --- What is public ------------------------------------------------------------------------


def headers(with_client: bool, head_type: type[ClusterHead] = ClusterHead) -> list[bytes]:
    """Of eight windows, in each of which client 0 tries to take part or is not there at all."""
    cluster = Cluster(head_type=head_type)
    for window in range(8):
        others = [1] if window % 4 == 0 else []
        cluster.seal(*([0] if with_client else []), *others)
    return [header(cell) for cell in cluster.cells]


def test_no_header_tells_whether_a_client_took_part_or_was_refused():
    assert headers(with_client=True) == headers(with_client=False)
    spent = [decode_release(data).spent_units for data in headers(with_client=True)]
    charge, cap = PLAN.charge_units, PLAN.cap_units
    assert spent == [charge, 2 * charge, 3 * charge, *[cap] * 5]


def test_a_head_that_releases_only_for_somebody_would_be_seen():
    class Gate(ClusterHead):
        def seal(self, now_ms):
            cell = super().seal(now_ms)
            if self._intake.client_keys().size:
                return cell
            release = replace(decode_release(cell.release), charge_units=1)
            return replace(cell, release=encode_release(release))

    assert headers(True, Gate) != headers(False, Gate)


def test_the_ledger_and_the_headers_depend_on_the_number_of_windows_alone():
    busy, idle = Cluster(), Cluster()
    for window in range(10):
        busy.seal(*range(window % 7))
        idle.seal()
    secret = {"release_digest": b"", "previous_hash": b"", "participation_digest": b""}
    for mine, other in zip(busy.ledger, idle.ledger, strict=True):
        ours, theirs = decode_ledger_record(mine), decode_ledger_record(other)
        same_offset = replace(ours, next_offset=theirs.next_offset)
        assert replace(same_offset, **secret) == replace(theirs, **secret)
    assert [header(cell) for cell in busy.cells] == [header(cell) for cell in idle.cells]


# --- Restart -------------------------------------------------------------------------------


scripts = st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=7), st.booleans()), max_size=14)


@settings(max_examples=60)
@given(script=scripts, is_throttled=st.booleans())
def test_a_restart_after_any_window_goes_on_as_the_live_head(script, is_throttled):
    plan = THROTTLED if is_throttled else PLAN
    live, restarted = Cluster(plan), Cluster(plan)
    for clients, restarts in script:
        if restarts:
            restarted.restart()
        cells = [cluster.seal(*clients) for cluster in (live, restarted)]
        mine, other = ((c.release, c.ledger_record, c.participation) for c in cells)
        assert mine == other
    snapshots = [cluster.budgets().snapshot() for cluster in (live, restarted)]
    assert np.array_equal(snapshots[0], snapshots[1])
    assert all(count <= plan.windows_allowed for count in live.used.values())
    assert {client: live.spent(client) for client in range(6)} == {
        client: live.used[client] * plan.charge_units for client in range(6)
    }


def test_a_restart_between_two_open_windows_lets_nobody_in_twice():
    cluster = Cluster()
    for _ in range(ALLOWED - 1):
        cluster.seal(0)
    cluster.offer(0, windows_ahead=1)
    cluster.seal(0, 1)
    cluster.restart()
    cluster.read()
    assert members(cluster.seal(0)) == [0]
    assert members(cluster.seal(0)) == []
    assert cluster.used[0] == ALLOWED


def test_a_restart_that_forgets_who_took_part_would_be_seen():
    cluster = Cluster()
    for _ in range(ALLOWED):
        cluster.seal(0)
    cluster.participation.clear()
    with pytest.raises(LedgerError, match="has lost what record 1 or a later one wrote"):
        cluster.restart()


def test_sealing_changes_nobodys_budget_until_it_is_committed():
    cluster = Cluster()
    for _ in range(ALLOWED - 1):
        cluster.seal(0)
    cluster.offer(0)
    cluster.head.expect(cluster.head.next_window, 10)
    cluster.head.advance(10)
    first, second = cluster.head.seal(1000), cluster.head.seal(1000)
    assert first.participation == second.participation
    key = client_key(PLAN.plan_id, "north/0")
    assert first.clients.spent(key) == ALLOWED * PLAN.charge_units
    cluster.head.commit(second)
    assert second.clients.exhausted_count(PLAN.charge_units) == 1


def test_budgets_are_for_plans_that_ask_for_them_and_of_their_cap():
    records = [encode_ledger_record(genesis(PLAN, 0, 0, 0, 0))]
    of_cluster = replace(PLAN, scope="cluster")
    theirs = [encode_ledger_record(genesis(of_cluster, 0, 0, 0, 0))]
    options = {"is_complete": True, "max_open_windows": 2}
    for plan, ledger, clients in (
        (PLAN, records, None),
        (PLAN, records, ClientBudgets(PLAN.cap_units + 1)),
        (of_cluster, theirs, ClientBudgets(of_cluster.cap_units)),
    ):
        with pytest.raises(ValueError, match="clients' budgets, of the plan's cap"):
            ClusterHead(plan, 0, UnsafeNoNoise(), ledger, clients=clients, **options)


# --- The participation topic ---------------------------------------------------------------


def test_each_ledger_record_names_the_digest_of_what_its_window_wrote():
    cluster = Cluster(THROTTLED)
    digest = b""
    for window in range(12):
        cell = cluster.seal(window % 6, (window + 1) % 6)
        digest = digest_of(digest, [value for _, value in cell.participation])
        assert cell.record.participation_digest == digest
        (delta,) = (decode_participation(value) for _, value in cell.participation)
        assert (delta.sequence, delta.window) == (cell.record.sequence, window)
        keys = {client_key(THROTTLED.plan_id, f"north/{client}") for client in members(cell)}
        assert set(delta.clients.tolist()) == keys
        assert delta.charge_units == cell.record.charge_units


def test_a_throttled_window_charges_nobody():
    cluster = Cluster(THROTTLED)
    kinds = [cluster.seal(0).kind for _ in range(8)]
    assert kinds.count(LedgerKind.THROTTLED) == 4
    assert cluster.spent(0) == 4 * THROTTLED.charge_units
    assert cluster.told == ["throttled"] * 4
    newest = verify_records(THROTTLED, 0, cluster.ledger, is_complete=True)
    assert newest.spent_units == 4 * THROTTLED.charge_units


def counted(plan, reads_ahead):
    """Who counts, window by window, if the head reads so far ahead of what it seals."""
    cluster = Cluster(plan)
    for early in range(reads_ahead):
        cluster.offer(0, windows_ahead=early)
    for _ in range(16):
        cluster.offer(0, windows_ahead=reads_ahead)
        cluster.seal()
    return [members(cell) for cell in cluster.cells]


# A client can pay for seven windows, and the limit lets every third one pass without a charge.
TIGHT = replace(PLAN, horizon_windows=7, hour_epsilon=4.5, window_length_ms=1_800_000)


@pytest.mark.parametrize("reads_ahead", [1, 2])
def test_who_counts_does_not_depend_on_how_far_the_head_has_read(reads_ahead):
    expected = counted(TIGHT, 0)
    assert sum(map(len, expected)) == 7
    assert expected[:6] == [[0], [0], [], [0], [0], []]
    assert counted(TIGHT, reads_ahead) == expected


def test_a_head_that_owes_for_windows_that_will_be_held_back_is_noticed(monkeypatch):
    monkeypatch.setattr(ClusterHead, "_forecast", lambda _: None)
    assert counted(TIGHT, 2) != counted(TIGHT, 0)


def test_a_record_that_names_nobody_where_it_must_is_not_trusted(monkeypatch):
    monkeypatch.setattr(Sealing, "participation", lambda self, clients, *_: ((), b"", clients))
    cluster = Cluster()
    cluster.offer(0)
    cluster.head.expect(0, 1)
    cell = cluster.head.seal(0)
    with pytest.raises(LedgerError, match="names who took part, or does not, against the plan"):
        verify_records(PLAN, 0, [*cluster.ledger, cell.ledger_record], is_complete=True)


def test_every_256th_window_writes_what_everybody_has_spent_and_compaction_may_take_the_rest():
    cluster = Cluster()
    for window in range(SNAPSHOT_INTERVAL + 5):
        cluster.seal(*([window // 50] if window % 50 < 2 else []))
        if window in (SNAPSHOT_INTERVAL - 2, SNAPSHOT_INTERVAL - 1, SNAPSHOT_INTERVAL):
            cluster.compact()
            cluster.restart()
    written = [len(cell.participation) for cell in cluster.cells]
    assert written == [*[1] * (SNAPSHOT_INTERVAL - 1), 2, *[1] * 5]
    assert len(dict(cluster.participation)) == SNAPSHOT_INTERVAL + 1
    assert [cluster.spent(c) // PLAN.charge_units for c in range(6)] == [2] * 6
    assert verify_records(PLAN, 0, cluster.ledger, is_complete=True).sequence == 261
