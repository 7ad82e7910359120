"""Two worlds that differ in one client differ in nothing else (PRIVACY 1.6, pitfall 30)."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import (
    Update,
    decode_release,
    encode_ledger_record,
    encode_release,
    encode_update,
)
from stream.aggregation import admission
from stream.aggregation.intake import Record
from stream.aggregation.validation import Reason
from stream.aggregation.window import WindowSum
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead
from stream.ledger_chain import genesis
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
    horizon_windows=1000,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


# Clients are refused after two windows, and releases go on.
PER_CLIENT = replace(PLAN, scope="client", horizon_windows=2)


def one_hot(client: int, steps: int = 1, plan: PrivacyPlan = PLAN) -> bytes:
    vector = np.zeros(6, np.int8)
    vector[client] = steps
    return encode_update(Update(plan.plan_id, CLIENTS[client], 0, vector))


def time_in(window: int, ms: int = 500) -> int:
    return PLAN.window_end_ms(window - 1) + ms


class World:
    """A head over a script of records and clock times; one client's records may be left out.

    Attributes:
        sums: The released sum of each window.
        headers: What else its release says.
        told: How often each (client, window, reason) was refused.
        accepted: How many updates counted.
    """

    def __init__(self, max_open_windows, *, without=None, renumber=False, plan=PLAN):
        self.sums: dict[int, np.ndarray] = {}
        self.headers: list[bytes] = []
        self.told: Counter = Counter()
        self.accepted = 0
        self._head = ClusterHead(
            plan,
            0,
            UnsafeNoNoise(),
            [encode_ledger_record(genesis(plan, 0, 0, 0, 0))],
            is_complete=True,
            max_open_windows=max_open_windows,
            clients=ClientBudgets(plan.cap_units) if plan.scope == "client" else None,
        )
        self._without = without
        self._renumber = renumber
        self._log: list[Record] = []
        self._next_offset = 0

    def run(self, script):
        for step in script:
            if isinstance(step, int):
                self._reach(step)
            else:
                self._append(*step)
        return self

    def _append(self, client, timestamp, value):
        if client != self._without:
            self._log.append(Record(self._next_offset, timestamp, value))
        elif self._renumber:
            return  # the offsets of the others close up
        self._next_offset += 1

    def _reach(self, now_ms):
        self._read()
        while (window := self._head.needs_end_offset(now_ms)) is not None:
            self._head.expect(window, self._next_offset)
        while self._head.is_ready():
            cell = self._head.seal(now_ms)
            release = decode_release(cell.release)
            self.sums[cell.window] = release.vector.astype(np.int64)
            bare = replace(release, vector=np.zeros_like(release.vector))
            self.headers.append(encode_release(bare))
            if self._head.commit(cell) is not None:
                self._read()

    def _read(self):
        outcome = self._head.offer([r for r in self._log if r.offset >= self._head.position])
        self._head.advance(self._next_offset)
        self.accepted += outcome.accepted
        for rejected in outcome.rejected:
            self.told[rejected.client_id, rejected.window, rejected.rejection.reason] += 1


@st.composite
def scripts(draw, plan=PLAN):
    """Records of five clients, good and bad, in and out of order, between readings of a clock."""
    script, now = [], PLAN.start_ms
    for _ in range(draw(st.integers(1, 12))):
        for _ in range(draw(st.integers(0, 6))):
            client = draw(st.integers(0, 4))
            timestamp = max(0, now + draw(st.integers(-2500, 2500)))
            value = draw(st.sampled_from([1, 2, 100, -128, 127, None]))
            if value is None:
                data = b"garbage from someone"
                client = -1
            else:
                vector = np.zeros(6, np.int8)
                vector[client], vector[5] = value, draw(st.sampled_from([0, 1, 60]))
                data = encode_update(Update(plan.plan_id, CLIENTS[client], 0, vector))
            script.append((client, timestamp, data))
        now += draw(st.sampled_from([300, 700, 1000, 1101, 3300, 7000]))
        script.append(now)
    script.append(now + 20_000)
    return script


def assert_neighbours(script, victim, max_open_windows, renumber, plan=PLAN):
    whole = World(max_open_windows, plan=plan).run(script)
    less = World(max_open_windows, without=victim, renumber=renumber, plan=plan).run(script)
    assert whole.headers == less.headers
    # What is refused before its bytes are read names nobody.
    named = Counter({k: n for k, n in whole.told.items() if k[0] not in (CLIENTS[victim], "")})
    assert named == Counter({k: n for k, n in less.told.items() if k[0]})
    assert malformed(whole) == malformed(less)
    assert less.sums.keys() == whole.sums.keys()
    counted = 0
    for window, total in less.sums.items():
        difference = whole.sums[window] - total
        if difference.any():
            counted += 1
            assert difference[-1] == KAPPA
            assert difference[:-1].tolist() in vectors_of(script, victim, window)
        assert int((difference**2).sum()) <= PLAN.l2_sensitivity_squared
    assert whole.accepted - less.accepted == counted
    return whole


def malformed(world):
    return {key: n for key, n in world.told.items() if key[2] == "malformed"}


def vectors_of(script, client, window):
    """What a client sent in a window."""
    records = (step for step in script if not isinstance(step, int))
    return [
        np.frombuffer(data[-6:], np.int8).tolist()
        for sender, timestamp, data in records
        if sender == client and PLAN.window_of(timestamp) == window
    ]


def hostile_values(plan=PLAN):
    """What somebody may send who is not one of the clients, by what is wrong with it."""

    def update(client_id="north/hostile", vector=(1,) * 6, version=0, plan_id=None, **scale):
        numbers = vector if isinstance(vector, np.ndarray) else np.array(vector, np.int8)
        return encode_update(Update(plan_id or plan.plan_id, client_id, version, numbers, **scale))

    good = update()
    return {
        "tombstone": None,
        "empty": b"",
        "cut": good[:-1],
        "longer": good + b"x",
        "newer version": good[:3] + b"\x02" + good[4:],
        "other plan": update(plan_id=bytes(16)),
        "other dtype": update(vector=np.ones(6, np.int16)),
        "too short": update(vector=[1] * 5),
        "too long": update(vector=[1] * 7),
        "foreign": update("south/hostile"),
        "homeless": update("hostile"),
        "future model": update(version=2**64 - 1),
        "other scale": update(clip_norm=1.0),
        "forbidden": update(vector=[-128, 0, 0, 0, 0, 0]),
        "too large": update(vector=[100, 1, 0, 0, 0, 0]),
        "just within": update(vector=[60, -80, 0, 0, 0, 0]),
        "another identity": update("north/hostile-2", [0, 0, 0, -100, 0, 0]),
        "in another one's name": update(CLIENTS[5], [0, 0, 0, 0, 99, 0]),
        "good": good,
    }


@st.composite
def attacks(draw, plan=PLAN):
    """A script of clients with any number of hostile records in any places of it."""
    script, values = draw(scripts(plan)), list(hostile_values(plan).values())
    for _ in range(draw(st.integers(1, 30))):
        place = draw(st.integers(0, len(script) - 1))
        now = max([PLAN.start_ms, *(step for step in script[:place] if isinstance(step, int))])
        timestamp = draw(st.just(now) | st.integers(now - 2500, now + 2500) | st.just(2**62))
        # Minus one: nobody who is left out. Floods and replays: the same value, and so often.
        record = (-1, max(0, timestamp), draw(st.sampled_from(values)))
        script[place:place] = [record] * draw(st.sampled_from([1, 1, 2, 50]))
    return script


@settings(max_examples=150)
@given(
    script=scripts(),
    victim=st.integers(0, 4),
    max_open_windows=st.sampled_from([2, 3, 30]),
    renumber=st.booleans(),
)
def test_removing_one_client_changes_the_sums_by_its_vectors_and_nothing_else(
    script, victim, max_open_windows, renumber
):
    assert_neighbours(script, victim, max_open_windows, renumber)


@settings(max_examples=150)
@given(
    script=scripts(PER_CLIENT),
    victim=st.integers(0, 4),
    max_open_windows=st.sampled_from([2, 3, 30]),
    renumber=st.booleans(),
)
def test_nor_does_it_where_clients_have_budgets_that_end(
    script, victim, max_open_windows, renumber
):
    whole = assert_neighbours(script, victim, max_open_windows, renumber, PER_CLIENT)
    used = Counter(client for total in whole.sums.values() for client in range(5) if total[client])
    assert all(count <= 2 for count in used.values())


@settings(max_examples=100)
@given(
    data=st.data(),
    plan=st.sampled_from([PLAN, PER_CLIENT]),
    victim=st.integers(0, 4),
    max_open_windows=st.sampled_from([2, 3, 30]),
    renumber=st.booleans(),
)
def test_nor_does_it_under_attack(data, plan, victim, max_open_windows, renumber):
    assert_neighbours(data.draw(attacks(plan)), victim, max_open_windows, renumber, plan)


def test_the_attacks_are_of_every_kind():
    script = [(-1, time_in(0), value) for value in hostile_values().values()]
    world = World(2).run([*script, PLAN.window_end_ms(0) + 100])
    reasons = {reason for _, _, reason in world.told}
    # The others need a clip norm, an end of the budget, a limit, or another time.
    assert set(Reason) - reasons == {
        Reason.LATE,
        Reason.NOT_STARTED,
        Reason.EXHAUSTED,
        Reason.CLIENT_EXHAUSTED,
        Reason.THROTTLED,
    }
    assert world.accepted == 3


def test_an_update_that_is_left_for_later_does_not_decide_what_others_pay_for():
    """Out of order, client 4 has more windows than budget: which one it pays for is its own."""

    def sent(client, window):
        return client, time_in(window), one_hot(client, plan=PER_CLIENT)

    script = [
        sent(4, 0),
        sent(0, 3),  # beyond the two windows that are open
        PLAN.window_end_ms(0) + 100,
        sent(4, 2),
        sent(4, 1),
        PLAN.window_end_ms(9) + 100,
    ]
    assert_neighbours(script, 0, 2, renumber=False, plan=PER_CLIENT)


def test_a_budget_that_two_clients_share_would_be_seen(monkeypatch):
    script = []
    for window, client in enumerate((0, 0, 1)):
        script.append((client, time_in(window), one_hot(client, plan=PER_CLIENT)))
        script.append(PLAN.window_end_ms(window) + 100)
    assert_neighbours(script, 0, 2, renumber=False, plan=PER_CLIENT)
    monkeypatch.setattr(admission, "client_key", lambda plan_id, client_id: 7)
    with pytest.raises(AssertionError):
        assert_neighbours(script, 0, 2, renumber=False, plan=PER_CLIENT)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_window_that_is_full_after_two_clients_would_be_seen(victim, monkeypatch):
    script = [(client, time_in(0), one_hot(client)) for client in range(3)]
    script.append(PLAN.window_end_ms(0) + 100)
    assert_neighbours(script, victim, 2, renumber=False)
    # One by one, so that each is asked for.
    monkeypatch.setattr(WindowSum, "are_new", lambda *_: False)
    monkeypatch.setattr(WindowSum, "has", lambda self, _: self.exact_sum[-1] >= 2 * KAPPA)
    with pytest.raises(AssertionError):
        assert_neighbours(script, victim, 2, renumber=False)


def test_a_flood_cannot_push_anyone_out():
    calm = [(1, time_in(0), one_hot(1)), PLAN.window_end_ms(0) + 100]
    flood = [(0, time_in(0, ms=i % 1000), one_hot(0)) for i in range(3000)]
    whole, less = World(2).run([*flood, *calm]), World(2).run(calm)
    assert (whole.accepted, less.accepted) == (2, 1)
    assert (whole.sums[0] - less.sums[0]).tolist() == [1, 0, 0, 0, 0, 0, KAPPA]


def test_a_record_of_the_far_future_closes_nobodys_window():
    script = [
        (0, time_in(10**9), one_hot(0)),
        (1, time_in(0), one_hot(1)),
        PLAN.window_end_ms(0) + 100,
    ]
    world = World(2).run(script)
    assert list(world.sums) == [0]
    assert world.sums[0].tolist() == [0, 1, 0, 0, 0, 0, KAPPA]
    assert not world.told
