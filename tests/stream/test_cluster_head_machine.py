"""A head over a growing log and a clock, with crashes on either side of every commit."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from schemas import (
    LedgerKind,
    Release,
    Update,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_update,
)
from stream.aggregation.admission import Admission
from stream.aggregation.intake import Record
from stream.budget.client_budgets import ClientBudgets, client_key
from stream.budget.limits import SlidingLimits
from stream.cluster_head import ClusterHead, SealedCell
from stream.errors import LedgerError
from stream.ledger_chain import genesis, verify_records
from stream.participation_log import rebuild
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import UnsafeNoNoise

CLIENTS = [f"north/{i}" for i in range(6)]
KAPPA = 3
PLAN = PrivacyPlan(
    name="head",
    dimension=6,
    cluster_count=2,
    assignment="prefix",
    prefixes=("north", "south"),
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=KAPPA,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=4,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
# An hour touches three windows of half an hour, and pays for two of them.
LIMITED = replace(
    PLAN,
    start_ms=0,
    window_length_ms=1_800_000,
    grace_ms=180_000,
    release_delay_ms=540_000,
    hour_epsilon=5.5,
)
PER_CLIENT = replace(PLAN, scope="client", horizon_windows=2)
PER_CLIENT_LIMITED = replace(LIMITED, scope="client", hour_epsilon=6.5, horizon_windows=3)


class HeadMachine(RuleBasedStateMachine):
    """A head over a log that grows, with crashes on either side of every commit.

    Client i adds one grid step in coordinate i and there is no noise, so a two in a release is a
    double count. The broker's log, the ledger and the participation topic are what survives a
    crash.
    """

    plan: ClassVar[PrivacyPlan] = PLAN

    def __init__(self) -> None:
        super().__init__()
        self.unit = self.plan.window_length_ms // 1000
        self.now_ms = self.plan.start_ms
        self.log: list[Record] = []
        self.ledger = [encode_ledger_record(genesis(self.plan, 0, 0, 0, 0))]
        self.participation: list[bytes] = []
        self.resume_offset = 0  # as the transaction stores it with the consumer group
        self.releases: dict[int, Release] = {}
        self.passed: list[int] = []
        self.must: dict[int, set[int]] = {}
        self.highest_spent = 0
        self.restart()

    def one_hot(self, client: int, steps: int = 1) -> bytes:
        vector = np.zeros(6, np.int8)
        vector[client] = steps
        return encode_update(Update(self.plan.plan_id, CLIENTS[client], 0, vector))

    def restart(self) -> None:
        self.head = ClusterHead(
            self.plan,
            0,
            UnsafeNoNoise(),
            self.ledger,
            is_complete=True,
            max_open_windows=2,
            clients=self.budgets() if self.plan.scope == "client" else None,
        )
        self.ends: list[tuple[int, int]] = []
        if not self.head.is_exhausted:
            assert self.head.position == self.resume_offset

    def budgets(self) -> ClientBudgets:
        newest = decode_ledger_record(self.ledger[-1])
        return rebuild(
            self.plan.cap_units,
            self.participation,
            self.plan.plan_id,
            0,
            newest.sequence,
            newest.participation_digest,
        )

    @rule(client=st.integers(0, 5), lag_ms=st.sampled_from([0, 0, 0, 50, 900, 1000, 2500]))
    def append(self, client: int, lag_ms: int) -> None:
        timestamp = max(0, self.now_ms - lag_ms * self.unit)
        self.log.append(Record(len(self.log), timestamp, self.one_hot(client)))

    @rule(client=st.integers(0, 5))
    def append_twice(self, client: int) -> None:
        self.append(client, 0)
        self.append(client, 0)

    @rule(value=st.sampled_from([None, b"garbage", (1, -128), (2, 127)]))
    def append_what_is_no_update(self, value: bytes | tuple[int, int] | None) -> None:
        data = self.one_hot(*value) if isinstance(value, tuple) else value
        self.log.append(Record(len(self.log), self.now_ms, data))

    @rule(ms=st.sampled_from([1, 99, 100, 500, 1000, 3700]))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms * self.unit

    @rule(size=st.integers(1, 8), overlap=st.integers(0, 3))
    def read(self, size: int, overlap: int) -> None:
        begin = max(0, self.head.position - overlap)
        outcome = self.head.offer(self.log[begin : self.head.position + size])
        assert outcome.accepted <= size

    @rule()
    def ask_for_the_end(self) -> None:
        plan = self.plan
        window = self.head.needs_end_offset(self.now_ms)
        if window is not None:
            assert plan.window_end_ms(window) + plan.grace_ms <= self.now_ms
            assert plan.window_end_ms(window + 1) + plan.grace_ms > self.now_ms
            self.head.expect(window, len(self.log))
            self.ends.append((window, len(self.log)))
            assert self.head.needs_end_offset(self.now_ms) is None

    @rule()
    def crash(self) -> None:
        self.restart()

    @precondition(lambda self: self.head.is_ready())
    @rule(crash=st.sampled_from(["no", "no", "no", "before the commit", "after the commit"]))
    def seal(self, crash: str) -> None:
        cell = self.head.seal(self.now_ms)
        if crash == "before the commit":
            self.restart()
            return
        self.make_durable(cell)
        if crash == "after the commit":
            self.restart()
            return
        rewind = self.head.commit(cell)
        assert rewind is None or rewind == self.head.position

    @precondition(lambda self: not self.head.is_ready())
    @rule()
    def sealing_too_early_is_refused(self) -> None:
        with pytest.raises(LedgerError, match="not over"):
            self.head.seal(self.now_ms)

    def make_durable(self, cell: SealedCell) -> None:
        """What one transaction writes."""
        assert cell.resume_offset >= self.resume_offset
        self.resume_offset = cell.resume_offset
        self.passed.append(cell.window)
        if cell.ledger_record is not None:
            self.ledger.append(cell.ledger_record)
        self.participation += [value for _, value in cell.participation]
        if cell.release is None:
            return
        assert cell.window not in self.releases
        release = decode_release(cell.release)
        self.releases[cell.window] = release
        end = next(end for window, end in self.ends if window >= cell.window)
        here = [r for r in self.log if self.plan.window_of(r.timestamp_ms) == cell.window]
        # Whatever was in the log when its end was asked for has counted; later records may have.
        must = {r.value for r in here if r.offset < end}
        may = {r.value for r in here}
        ones = counted_in(release)
        assert set(release.vector[:-1].tolist()) <= {0, 1}
        assert release.vector[-1] == KAPPA * len(ones)
        self.must[cell.window] = {i for i in range(6) if self.one_hot(i) in must}
        if self.plan.scope == "cluster":
            assert self.must[cell.window] <= ones
        assert ones <= {i for i in range(6) if self.one_hot(i) in may}

    def records(self) -> list:
        return [decode_ledger_record(data) for data in self.ledger]

    def expected_kinds(self) -> list[LedgerKind]:
        """What becomes of each window, by adding up all charges anew."""
        plan, spent = self.plan, []
        kinds = [LedgerKind.GENESIS]
        for _ in self.ledger[1:]:
            charge = plan.charge_units
            if plan.scope == "cluster" and sum(spent) + charge > plan.cap_units:
                return [*kinds, LedgerKind.EXHAUSTED]
            limits = plan.sliding_caps
            fits = all(sum(spent[-(w - 1) :]) + charge <= cap for _, w, cap in limits)
            kinds.append(LedgerKind.RELEASE if fits else LedgerKind.THROTTLED)
            spent.append(charge if fits else 0)
        return kinds

    @invariant()
    def charges_equal_releases(self) -> None:
        records = self.records()
        paid = [record.window for record in records if record.kind is LedgerKind.RELEASE]
        assert paid == list(self.releases)
        total = self.plan.charge_units * len(paid)
        assert total == sum(record.charge_units for record in records)
        if self.plan.scope == "client":
            total = min(total, self.plan.cap_units)
        assert records[-1].spent_units == total <= self.plan.cap_units
        assert self.head.spent_units == records[-1].spent_units

    @invariant()
    def each_window_is_what_the_limits_make_of_it(self) -> None:
        assert [record.kind for record in self.records()] == self.expected_kinds()

    @invariant()
    def no_client_is_in_more_windows_than_its_budget_pays_for(self) -> None:
        if self.plan.scope == "client":
            allowed = self.plan.windows_allowed
            assert max(map(self.windows_of, range(6))) <= allowed

    def windows_of(self, client: int) -> int:
        return sum(client in counted_in(release) for release in self.releases.values())

    @invariant()
    def spending_never_falls(self) -> None:
        assert self.head.spent_units >= self.highest_spent
        self.highest_spent = self.head.spent_units

    @invariant()
    def windows_pass_once_and_in_order(self) -> None:
        sealed = [record.window for record in self.records()[1:]]
        assert sealed == list(range(len(sealed)))
        # Once the ledger is closed, a restart passes windows again that it says nothing of.
        if not self.head.is_exhausted:
            assert self.passed == sealed
            assert self.head.next_window == len(sealed)

    def teardown(self) -> None:
        """Let everything be read and sealed: the ledger verifies and nothing is left open."""
        plan = self.plan
        self.now_ms += 5000 * self.unit
        last = plan.window_of(self.now_ms - plan.grace_ms) - 1
        while self.head.next_window <= last:
            self.ask_for_the_end()
            self.read(100, 0)
            if self.head.is_ready():
                self.seal("no")
        verify_records(plan, 0, self.ledger, is_complete=True)
        if not plan.sliding_caps:
            allowed = plan.windows_allowed if plan.scope == "cluster" else last + 1
            assert len(self.releases) == min(last + 1, allowed)
        self.charges_equal_releases()
        self.each_window_is_what_the_limits_make_of_it()
        self.no_client_is_in_more_windows_than_its_budget_pays_for()
        if plan.scope == "client":
            self.budgets_are_what_was_used()

    def budgets_are_what_was_used(self) -> None:
        budgets = self.budgets()
        for client in range(6):
            used = self.windows_of(client)
            key = client_key(self.plan.plan_id, CLIENTS[client])
            assert budgets.spent(key) == used * self.plan.charge_units
            if self.plan.sliding_caps:
                continue  # a window that was counted on may have been throttled in the end
            # Nobody is refused while its budget could pay.
            counted = {w for w, release in self.releases.items() if client in counted_in(release)}
            missed = {w for w, clients in self.must.items() if client in clients} - counted
            assert used == self.plan.windows_allowed or not missed


def counted_in(release: Release) -> set[int]:
    return {i for i, value in enumerate(release.vector[:-1].tolist()) if value == 1}


class LimitedMachine(HeadMachine):
    plan = LIMITED


class ClientMachine(HeadMachine):
    plan = PER_CLIENT


class LimitedClientMachine(HeadMachine):
    plan = PER_CLIENT_LIMITED


SETTINGS = settings(max_examples=120, stateful_step_count=50)
TestHeadMachine = HeadMachine.TestCase
TestHeadMachine.settings = SETTINGS
TestLimitedMachine = LimitedMachine.TestCase
TestLimitedMachine.settings = settings(SETTINGS, max_examples=60)
TestClientMachine = ClientMachine.TestCase
TestClientMachine.settings = settings(SETTINGS, max_examples=60)
TestLimitedClientMachine = LimitedClientMachine.TestCase
TestLimitedClientMachine.settings = settings(SETTINGS, max_examples=40)


def test_the_limits_of_these_machines_bind():
    ((_, windows, cap),) = LIMITED.sliding_caps
    assert (windows, cap // LIMITED.charge_units) == (3, 2)
    ((_, windows, cap),) = PER_CLIENT_LIMITED.sliding_caps
    assert (windows, cap // PER_CLIENT_LIMITED.charge_units) == (3, 2)
    assert PER_CLIENT.windows_allowed == 2


def forgets_open_windows(self, clients, key, window):
    return clients.may_pay(key, self._plan.charge_units)


def forgets_the_budget(self, clients, key, window):
    return True


def forgets_charges(self, units):
    """A limit that has no memory."""


@pytest.mark.parametrize(
    ("machine", "owner", "method", "fault"),
    [
        (ClientMachine, Admission, "_can_pay", forgets_open_windows),
        (ClientMachine, Admission, "_can_pay", forgets_the_budget),
        (LimitedMachine, SlidingLimits, "push", forgets_charges),
    ],
    ids=["open windows", "budgets", "limits"],
)
def test_a_planted_fault_is_found(machine, owner, method, fault, monkeypatch):
    monkeypatch.setattr(owner, method, fault)
    search = settings(
        max_examples=1000,
        stateful_step_count=50,
        phases=[Phase.generate],  # the example need not be small
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, LedgerError)):
        run_state_machine_as_test(machine, settings=search)
