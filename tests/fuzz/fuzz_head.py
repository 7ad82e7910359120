"""What is fuzzed of a head: one update's check, and all that a cluster's partition may hold."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from fuzz_plans import ADAPTIVE, PER_CLIENT, PLAN, SHORT, WIDE, Choices

from schemas import (
    MalformedMessageError,
    RejectRecord,
    Update,
    decode_release,
    decode_update,
    encode_ledger_record,
    encode_reject_record,
    encode_update,
)
from stream.aggregation.intake import Record, RejectedUpdate
from stream.aggregation.validation import check_update
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead
from stream.ledger_chain import genesis
from stream.privacy.plan import PrivacyPlan
from stream.testing import UnsafeNoNoise

HONEST = "north/honest"
HONEST_VECTOR = (5, -6, 7)
_CLIP_NORMS = (0.0, 1.0, 1.25)
_HEAD_PLANS = (PLAN, PER_CLIENT, SHORT, ADAPTIVE)
_MOST_STEPS = 30

# A record is (timestamp, value), a whole number is what the clock shows next.
Step = tuple[int, bytes | None] | int


def check(data: bytes) -> None:
    """A decoded update is accepted if and only if a slow reading of the plan accepts it."""
    try:
        update = decode_update(data)
    except MalformedMessageError:
        return
    for plan in (PLAN, ADAPTIVE, WIDE):
        for clip_norm in _CLIP_NORMS:
            rejection = check_update(update, plan, 0, 3, clip_norm)
            assert (rejection is None) == is_fine(update, plan, 3, clip_norm), rejection


def is_fine(update: Update, plan: PrivacyPlan, window: int, clip_norm: float) -> bool:
    """Say what `check_update` must say of cluster 0, in Python's integers."""
    numbers = [int(number) for number in update.vector]
    return (
        update.plan_id == plan.plan_id
        and update.vector.dtype == np.dtype(plan.update_dtype)
        and len(numbers) == plan.coordinate_count
        and update.client_id.split("/")[0] == "north"
        and update.model_version <= window
        and update.clip_norm == clip_norm
        and all(-plan.coordinate_limit <= number for number in numbers)
        and sum(number**2 for number in numbers) <= plan.grid_l2_bound**2
    )


def head(data: bytes) -> None:
    """Whatever else is in the partition, an honest update adds its own vector and no more."""
    choices = Choices(data)
    plan = _HEAD_PLANS[choices.number(1) % len(_HEAD_PLANS)]
    place = choices.number(1)
    steps = _script(plan, choices)
    place %= len(steps)
    moment = max([plan.start_ms, *(step for step in steps[:place] if isinstance(step, int))])
    honest = moment, update_bytes(plan, HONEST, HONEST_VECTOR)
    offset = sum(not isinstance(step, int) for step in steps[:place])
    whole = World(plan, offset).run([*steps[:place], honest, *steps[place:]])
    if plan is PLAN:
        # With the honest one's; and that is more than another world could tell.
        _assert_sums_are_right(whole)
        return
    is_forged = any(_client(step[1]) == HONEST for step in steps if isinstance(step, tuple))
    # Where clipping adapts, what is released decides what is accepted later.
    if plan is ADAPTIVE or is_forged:
        return
    less = World(plan, offset).run([*steps[:place], None, *steps[place:]])
    window = plan.window_of(moment)
    if window in whole.sums:
        expected = np.array([*HONEST_VECTOR, plan.count_weight])
        assert (whole.sums[window] - less.sums[window]).tolist() == expected.tolist()
        less.sums[window] += expected
    assert {w: s.tolist() for w, s in whole.sums.items()} == {
        w: s.tolist() for w, s in less.sums.items()
    }
    assert whole.refused == less.refused


def update_bytes(
    plan: PrivacyPlan, client_id: str, vector: tuple[int, ...], clip_norm: float = 0.0
) -> bytes:
    numbers = np.array(vector, np.dtype(plan.update_dtype))
    return encode_update(Update(plan.plan_id, client_id, 0, numbers, clip_norm, clip_norm > 1))


def _client(value: bytes | None) -> str:
    try:
        return decode_update(value).client_id
    except MalformedMessageError:
        return ""


def _script(plan: PrivacyPlan, choices: Choices) -> list[Step]:
    """Records and readings of the clock, of which the last one ends the honest one's window."""
    steps: list[Step] = []
    now, scale = plan.start_ms, plan.window_length_ms // 1000
    while not choices.are_over and len(steps) < _MOST_STEPS:
        action = choices.number(1) % 8
        if action == 0:
            now += choices.number(2) % 2500 * scale
            steps.append(now)
        elif action == 1:
            steps.append((choices.signed(8), choices.sized_piece()))
        elif action == 2:
            steps.append((now + choices.signed(2) * scale, None))
        elif action == 3 and steps:
            steps.append(steps[choices.number(1) % len(steps)])
        else:
            moment = now + choices.signed(2) // 16 * scale
            steps.append((moment, _likely_update(plan, choices)))
    return [*steps, now + 1100 * scale]


def _likely_update(plan: PrivacyPlan, choices: Choices) -> bytes:
    """An update such as a client might send, of any vector; perhaps with one byte changed."""
    client, at, change = choices.number(1), choices.number(1), choices.number(1)
    clip_norm = _CLIP_NORMS[client % 3] if plan is ADAPTIVE else 0.0
    vector = tuple(choices.signed(1) for _ in range(plan.coordinate_count))
    value = bytearray(update_bytes(plan, f"north/{client % 4}", vector, clip_norm))
    value[at % len(value)] ^= change if client > 127 else 0
    return bytes(value)


@dataclass
class World:
    """A head over a script.

    Attributes:
        sums: The released sum of each window.
        refused: How often each (client, window, reason) was refused, but for the honest one.
        expected: By window, the vector that each client should count with.
    """

    plan: PrivacyPlan
    honest_offset: int
    sums: dict[int, np.ndarray] = field(default_factory=dict)
    refused: Counter = field(default_factory=Counter)
    expected: dict[int, dict[str, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._head = ClusterHead(
            self.plan,
            0,
            UnsafeNoNoise(),
            [encode_ledger_record(genesis(self.plan, 0, 0, 0, 0))],
            is_complete=True,
            max_open_windows=3,
            clients=ClientBudgets(self.plan.cap_units) if self.plan is PER_CLIENT else None,
        )
        self._log: list[Record] = []
        self._end = 0

    def run(self, steps: list[Step | None]) -> "World":
        """Play the script; None is a record that is missing."""
        for step in steps:
            if isinstance(step, int):
                self._reach(step)
            else:
                self._append(step)
        return self

    def _append(self, record: tuple[int, bytes | None] | None) -> None:
        if record is not None:
            self._log.append(Record(self._end, *record))
            self._expect(*record)
        self._end += 1

    def _expect(self, timestamp_ms: int, value: bytes | None) -> None:
        window = self.plan.window_of(timestamp_ms)
        try:
            update = decode_update(value)
        except MalformedMessageError:
            return
        if window >= self._head.next_window and is_fine(update, self.plan, window, 0.0):
            clients = self.expected.setdefault(window, {})
            clients.setdefault(update.client_id, update.vector.tolist())

    def _reach(self, now_ms: int) -> None:
        self._read()
        while (window := self._head.needs_end_offset(now_ms)) is not None:
            self._head.expect(window, self._end)
        while self._head.is_ready():
            cell = self._head.seal(now_ms)
            if cell.release is not None:
                vector = decode_release(cell.release).vector
                self.sums[cell.window] = vector.astype(np.int64)
            if self._head.commit(cell) is not None:
                self._read()

    def _read(self) -> None:
        outcome = self._head.offer([r for r in self._log if r.offset >= self._head.position])
        self._head.advance(self._end)
        for rejected in outcome.rejected:
            encode_reject_record(_reject_record(self.plan, rejected))
            if rejected.offset != self.honest_offset:
                key = rejected.client_id, rejected.window, rejected.rejection.reason
                self.refused[key] += 1


def _reject_record(plan: PrivacyPlan, rejected: RejectedUpdate) -> RejectRecord:
    """What the head writes down of it: that must be possible for any record."""
    rejection = rejected.rejection
    return RejectRecord(
        plan_id=plan.plan_id,
        cluster=0,
        reason=rejection.reason,
        client_id=rejected.client_id,
        window=rejected.window,
        partition=0,
        offset=rejected.offset,
        detail=rejection.detail,
    )


def _assert_sums_are_right(world: World) -> None:
    for window, found in world.sums.items():
        clients = world.expected.get(window, {})
        columns = zip(*clients.values(), strict=True) if clients else [()] * PLAN.dimension
        right = [sum(column) for column in columns]
        assert found.tolist() == [*right, PLAN.count_weight * len(clients)]


TARGETS = {"check": check, "head": head}
