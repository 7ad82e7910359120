"""A head over a growing log and a clock, with crashes on either side of every commit."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas import (
    LedgerKind,
    Release,
    Update,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_update,
)
from stream.aggregation.intake import Record
from stream.cluster_head import ClusterHead, SealedCell
from stream.errors import LedgerError
from stream.ledger_chain import genesis, verify_records
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
FIRST_RECORD = encode_ledger_record(genesis(PLAN, 0, 0, 0, 0))


def one_hot(client: int, steps: int = 1) -> bytes:
    vector = np.zeros(6, np.int8)
    vector[client] = steps
    return encode_update(Update(PLAN.plan_id, CLIENTS[client], 0, vector))


class HeadMachine(RuleBasedStateMachine):
    """A head over a log that grows, with crashes on either side of every commit.

    Client i adds one grid step in coordinate i and there is no noise, so a two in a release is a
    double count. The broker's log and the ledger are what survives a crash.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = PLAN.start_ms
        self.log: list[Record] = []
        self.ledger = [FIRST_RECORD]
        self.resume_offset = 0  # as the transaction stores it with the consumer group
        self.releases: dict[int, Release] = {}
        self.passed: list[int] = []
        self.highest_spent = 0
        self.restart()

    def restart(self) -> None:
        self.head = ClusterHead(
            PLAN, 0, UnsafeNoNoise(), self.ledger, is_complete=True, max_open_windows=2
        )
        self.ends: list[tuple[int, int]] = []
        if not self.head.is_exhausted:
            assert self.head.position == self.resume_offset

    @rule(client=st.integers(0, 5), lag_ms=st.sampled_from([0, 0, 0, 50, 900, 1000, 2500]))
    def append(self, client: int, lag_ms: int) -> None:
        timestamp = self.now_ms - lag_ms
        self.log.append(Record(len(self.log), timestamp, one_hot(client)))

    @rule(client=st.integers(0, 5))
    def append_twice(self, client: int) -> None:
        self.append(client, 0)
        self.append(client, 0)

    @rule(value=st.sampled_from([None, b"garbage", one_hot(1, -128), one_hot(2, 127)]))
    def append_what_is_no_update(self, value: bytes | None) -> None:
        self.log.append(Record(len(self.log), self.now_ms, value))

    @rule(ms=st.sampled_from([1, 99, 100, 500, 1000, 3700]))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms

    @rule(size=st.integers(1, 8), overlap=st.integers(0, 3))
    def read(self, size: int, overlap: int) -> None:
        begin = max(0, self.head.position - overlap)
        outcome = self.head.offer(self.log[begin : self.head.position + size])
        assert outcome.accepted <= size

    @rule()
    def ask_for_the_end(self) -> None:
        window = self.head.needs_end_offset(self.now_ms)
        if window is not None:
            assert PLAN.window_end_ms(window) + PLAN.grace_ms <= self.now_ms
            assert PLAN.window_end_ms(window + 1) + PLAN.grace_ms > self.now_ms
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
        if cell.release is None:
            return
        assert cell.window not in self.releases
        release = decode_release(cell.release)
        self.releases[cell.window] = release
        end = next(end for window, end in self.ends if window >= cell.window)
        here = [r for r in self.log if PLAN.window_of(r.timestamp_ms) == cell.window]
        # Whatever was in the log when its end was asked for has counted; later records may have.
        must = {r.value for r in here if r.offset < end}
        may = {r.value for r in here}
        ones = [i for i, value in enumerate(release.vector[:-1].tolist()) if value == 1]
        assert set(release.vector[:-1].tolist()) <= {0, 1}
        assert release.vector[-1] == KAPPA * len(ones)
        assert {i for i in range(6) if one_hot(i) in must} <= set(ones)
        assert set(ones) <= {i for i in range(6) if one_hot(i) in may}

    @invariant()
    def charges_equal_releases(self) -> None:
        records = [decode_ledger_record(data) for data in self.ledger]
        paid = [record.window for record in records if record.kind is LedgerKind.RELEASE]
        assert paid == list(self.releases)
        assert records[-1].spent_units == PLAN.charge_units * len(paid) <= PLAN.cap_units
        assert self.head.spent_units == records[-1].spent_units

    @invariant()
    def spending_never_falls(self) -> None:
        assert self.head.spent_units >= self.highest_spent
        self.highest_spent = self.head.spent_units

    @invariant()
    def windows_pass_once_and_in_order(self) -> None:
        released = list(self.releases)
        assert released == list(range(len(released)))
        if not self.head.is_exhausted:
            assert self.passed == released
            assert self.head.next_window == len(released)

    def teardown(self) -> None:
        """Let everything be read and sealed: the ledger verifies and nothing is left open."""
        self.now_ms += 5000
        last = PLAN.window_of(self.now_ms - PLAN.grace_ms) - 1
        while self.head.next_window <= last:
            self.ask_for_the_end()
            self.read(100, 0)
            if self.head.is_ready():
                self.seal("no")
        verify_records(PLAN, 0, self.ledger, is_complete=True)
        assert len(self.releases) == min(last + 1, PLAN.windows_allowed)
        self.charges_equal_releases()


TestHeadMachine = HeadMachine.TestCase
TestHeadMachine.settings = settings(max_examples=120, stateful_step_count=50)
