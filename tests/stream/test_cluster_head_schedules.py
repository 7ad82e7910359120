"""Schedules, rate limits and noises through the real head, to the end of the budget."""

from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from schemas import (
    LedgerKind,
    LedgerRecord,
    Update,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_update,
)
from stream import sealing
from stream.aggregation.intake import Record
from stream.cluster_head import ClusterHead, SealedCell, records_needed
from stream.errors import LedgerError
from stream.ledger_chain import genesis, verify_records
from stream.privacy.accounting import gaussian_charge_units
from stream.privacy.discrete_gaussian import DiscreteGaussian
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule import Schedule
from stream.privacy.schedule_signal import Released
from stream.privacy.schedule_spec import SCHEDULE_KEYS, ScheduleSpec
from stream.testing import UnsafeNoNoise, insecure_entropy

KAPPA = 3
PLAN = PrivacyPlan(
    name="head",
    dimension=6,
    cluster_count=1,
    assignment="prefix",
    prefixes=("north",),
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=1_200_000,  # an hour touches four of them
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=KAPPA,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=10,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
SNR = ScheduleSpec(
    "snr",
    target_snr=1.0,
    smoothing=0.5,
    min_noise_multiplier=1.2,
    max_noise_multiplier=40.0,
    saving_windows=4,
)
SPECS = {
    "constant": ScheduleSpec(),
    "exponential": ScheduleSpec("exponential", noise_decay=0.9),
    "linear": ScheduleSpec("linear", final_noise_ratio=0.25),
    "cosine": ScheduleSpec("cosine", final_noise_ratio=4.0),
    "step": ScheduleSpec("step", milestones=(2, 5), noise_ratios=(4.0, 2.5, 1.0)),
    "learning_rate": ScheduleSpec(
        "learning_rate", learning_rate_decay="cosine", final_learning_rate_ratio=0.05
    ),
    "paced": ScheduleSpec("paced"),
    "infinite": ScheduleSpec("infinite", max_noise_multiplier=20.0),
    "saving": ScheduleSpec(
        "linear", final_noise_ratio=0.5, saving_windows=5, max_noise_multiplier=20.0
    ),
}
# Two windows of four have room; the third of a run is throttled.
TWO_OF_FOUR = replace(PLAN, hour_epsilon=3.5)
LIMITED = {
    "constant": TWO_OF_FOUR,
    "paced": replace(TWO_OF_FOUR, schedule_spec=SPECS["paced"]),
    "infinite": replace(TWO_OF_FOUR, schedule_spec=SPECS["infinite"]),
    "cosine": replace(PLAN, hour_epsilon=5.5, schedule_spec=SPECS["cosine"]),
    "snr": replace(TWO_OF_FOUR, schedule_spec=SNR),
    # An hour touches two windows, and a day five.
    "two limits": replace(PLAN, window_length_ms=6 * 3_600_000, hour_epsilon=3.0, day_epsilon=3.5),
    "discrete": replace(TWO_OF_FOUR, noise="discrete_gaussian"),
}
QUIET = [[1, 0, 0, 0, 0, 0]]
LOUD = [[90, 40, 0, 0, 0, 0]] * 8  # enough to rise above the noise of any window here


class Cluster:
    """One cluster from genesis on: its head, its ledger and the cells that it sealed."""

    def __init__(self, plan: PrivacyPlan, noise=None, restarts_with: int | None = None) -> None:
        """``restarts_with``: a new head for every window, from so many records; 0 is all."""
        self.plan = plan
        self.ledger = [encode_ledger_record(genesis(plan, 0, 0, 0, 0))]
        self.cells: list[SealedCell] = []
        self._noise = noise or UnsafeNoNoise()
        self._restarts_with = restarts_with
        self._log: list[Record] = []
        self.head = self.restored(0)

    def restored(self, count: int) -> ClusterHead:
        records = self.ledger[-count:]
        return ClusterHead(
            self.plan,
            0,
            self._noise,
            records,
            is_complete=len(records) == len(self.ledger),
            max_open_windows=2,
        )

    def seal(self, *vectors: list[int]) -> SealedCell:
        """Seal the next window, with an update of each vector, and commit."""
        if self._restarts_with is not None:
            self.head = self.restored(self._restarts_with)
        window = self.head.next_window
        for i, vector in enumerate(vectors):
            update = Update(self.plan.plan_id, f"north/{i}", 0, np.array(vector, np.int8))
            moment = self.plan.window_end_ms(window) - 1
            self._log.append(Record(len(self._log), moment, encode_update(update)))
        self.head.expect(window, len(self._log))
        self.head.offer(self._log[self.head.position :])
        cell = self.head.seal(1000)
        self.head.commit(cell)
        self.cells.append(cell)
        if cell.ledger_record is not None:
            self.ledger.append(cell.ledger_record)
        return cell

    def run(self, windows: int = 400) -> list[LedgerRecord]:
        """Seal windows until the ledger is closed, or so many; return the records."""
        while not self.head.is_exhausted and len(self.cells) < windows:
            self.seal(*[[], LOUD, QUIET][len(self.cells) % 3])
        return self.records()

    def records(self) -> list[LedgerRecord]:
        return [decode_ledger_record(data) for data in self.ledger]


def charges(records: list[LedgerRecord]) -> list[int]:
    """What each sealed window cost, without genesis and the closing record."""
    kinds = (LedgerKind.RELEASE, LedgerKind.THROTTLED)
    return [record.charge_units for record in records if record.kind in kinds]


def assert_within_limits(plan: PrivacyPlan, records: list[LedgerRecord]) -> None:
    spent = charges(records)
    assert sum(spent) == records[-1].spent_units <= plan.cap_units
    for _, windows, cap in plan.sliding_caps:
        for begin in range(len(spent)):
            assert sum(spent[begin : begin + windows]) <= cap


# --- Schedules -----------------------------------------------------------------------------


def test_every_kind_of_schedule_is_run_here():
    assert {spec.kind for spec in SPECS.values()} | {"snr"} == SCHEDULE_KEYS.keys()


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_windows_are_charged_as_planned_until_the_schedule_ends(kind):
    plan = replace(PLAN, schedule_spec=SPECS[kind])
    cluster = Cluster(plan)
    records = cluster.run()
    planned = [units for _, units in islice(plan.schedule.planned(), 400)]
    assert [record.next_units for record in records] == [*planned, 0, 0]
    assert records[-1].kind is LedgerKind.EXHAUSTED
    cost = [
        gaussian_charge_units(plan.l2_sensitivity_squared, plan.schedule.noise_variance(units))
        for units in planned
    ]
    assert charges(records) == cost
    assert records[-1].spent_units == sum(cost) <= plan.cap_units
    assert verify_records(plan, 0, cluster.ledger, is_complete=True) == records[-1]
    # What is public says the same.
    told = [decode_release(cell.release) for cell in cluster.cells if cell.release]
    assert [release.charge_units for release in told] == cost
    assert [release.noise_variance for release in told] == [r.noise_variance for r in records[1:-1]]


@pytest.mark.parametrize("kind", sorted(set(SPECS) - {"infinite", "saving"}))
def test_a_schedule_of_a_horizon_spends_the_budget_within_it(kind):
    records = Cluster(replace(PLAN, schedule_spec=SPECS[kind])).run()
    assert len(charges(records)) == PLAN.horizon_windows
    assert records[-1].spent_units > 0.999_999 * PLAN.cap_units


@pytest.mark.parametrize("restarts_with", [0, 1, 3])
@pytest.mark.parametrize("kind", [*sorted(SPECS), "snr"])
def test_a_restart_after_any_window_goes_on_with_the_same_records(kind, restarts_with):
    plan = replace(PLAN, schedule_spec=SPECS.get(kind, SNR))
    live, restarted = Cluster(plan), Cluster(plan, restarts_with=restarts_with)
    live.run(40)
    restarted.run(40)
    assert live.ledger == restarted.ledger
    assert [c.release for c in live.cells] == [c.release for c in restarted.cells]


def test_a_schedule_that_plans_too_much_is_refused_by_the_ledger(monkeypatch):
    # The second line of defence: even so, nothing is released beyond the cap.
    monkeypatch.setattr(Schedule, "next_units", lambda self, *_: self.cap_units // 3)
    plan = replace(PLAN, name="greedy")
    records = Cluster(plan).run()
    assert [record.kind.name for record in records] == ["GENESIS", *["RELEASE"] * 3, "EXHAUSTED"]
    assert records[-1].spent_units <= plan.cap_units


def test_a_record_that_plans_another_charge_than_the_schedule_is_not_trusted(monkeypatch):
    honest = sealing.next_units
    monkeypatch.setattr(sealing, "next_units", lambda *args: honest(*args) - 1)
    cluster = Cluster(replace(PLAN, schedule_spec=SPECS["linear"]))
    cluster.seal()
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="plans another charge for the next window"):
        cluster.restored(0)


# --- The schedule that answers to releases -------------------------------------------------


def planned_by_release(plan: PrivacyPlan, before: LedgerRecord, cell: SealedCell) -> int:
    """What an auditor finds: nothing but the plan, the ledger and the public bytes."""
    release = decode_release(cell.release)
    assert isinstance(cell.record, LedgerRecord)
    released = Released(release.vector[: plan.coordinate_count], release.noise_variance)
    spent = release.spent_units
    units = plan.schedule.next_units(cell.record.sequence, spent, before.next_units, released)
    return min([units, *(cap for _, _, cap in plan.sliding_caps)])


def test_an_adaptive_schedule_is_a_function_of_what_was_released():
    plan = replace(PLAN, schedule_spec=SNR)
    cluster = Cluster(plan, RoundedGaussian(insecure_entropy(7)))
    told = set()
    for window in range(60):
        before = cluster.records()[-1]
        cell = cluster.seal(*[LOUD, QUIET, []][window // 2 % 3])
        if cell.release is None:
            break
        assert cell.record.next_units == planned_by_release(plan, before, cell)
        told.add(cell.record.next_units)
    assert len(told) > 5
    assert cluster.records()[-1].spent_units <= plan.cap_units
    verify_records(plan, 0, cluster.ledger, is_complete=True)


def test_a_schedule_that_looks_below_the_noise_would_be_seen(monkeypatch):
    plan = replace(PLAN, schedule_spec=SNR)
    cluster = Cluster(plan, RoundedGaussian(insecure_entropy(7)))
    before = cluster.records()[-1]
    honest = sealing.next_units

    def peeking(plan, before, record, released):
        exact = np.array(LOUD, np.int64).sum(axis=0)
        return honest(plan, before, record, replace(released, vector=exact))

    monkeypatch.setattr(sealing, "next_units", peeking)
    cell = cluster.seal(*LOUD)
    assert cell.record.next_units != planned_by_release(plan, before, cell)


def test_the_count_of_clients_is_no_signal():
    # Many clients with nothing to say: their count would pass for a strong signal.
    plan = replace(PLAN, schedule_spec=SNR, count_weight=50)
    nobody, many = Cluster(plan), Cluster(plan)
    empty, crowded = nobody.seal(), many.seal(*[[0] * 6] * 30)
    assert decode_release(crowded.release).vector[-1] == 30 * 50
    assert empty.record.next_units == crowded.record.next_units
    assert many.seal(*LOUD).record.next_units < nobody.seal(*QUIET).record.next_units


def test_an_adaptive_schedule_saves_its_budget_to_the_end():
    plan = replace(PLAN, schedule_spec=SNR)
    records = Cluster(plan).run()
    assert records[-1].kind is LedgerKind.EXHAUSTED
    assert_within_limits(plan, records)
    largest = gaussian_charge_units(1, Fraction(6, 5) ** 2)
    assert all(0 < units <= largest for units in charges(records))


# --- Rate limits ---------------------------------------------------------------------------


def expected_kinds(plan: PrivacyPlan, planned: list[int]) -> list[LedgerKind]:
    """The kinds of windows of a constant charge, by adding up every run anew."""
    kinds: list[LedgerKind] = []
    spent: list[int] = []
    for units in planned:
        fits = all(
            sum(spent[-(windows - 1) :]) + units <= cap for _, windows, cap in plan.sliding_caps
        )
        kinds.append(LedgerKind.RELEASE if fits else LedgerKind.THROTTLED)
        spent.append(units if fits else 0)
    return kinds


def test_a_window_that_a_limit_refuses_is_sealed_without_a_release_and_the_chain_goes_on():
    cluster = Cluster(TWO_OF_FOUR)
    records = cluster.run()
    kinds = [record.kind for record in records[1:-1]]
    pattern = [LedgerKind.RELEASE] * 2 + [LedgerKind.THROTTLED] * 2
    assert kinds == (pattern * 5)[: len(kinds)]
    assert kinds == expected_kinds(TWO_OF_FOUR, [PLAN.charge_units] * len(kinds))
    assert kinds.count(LedgerKind.RELEASE) == 10  # nothing of the lifetime budget is lost
    assert [record.window for record in records[1:]] == list(range(len(records) - 1))
    throttled = [cell for cell in cluster.cells if cell.kind is LedgerKind.THROTTLED]
    for cell in throttled:
        assert (cell.release, cell.receipt) == (None, None)
        assert (cell.record.charge_units, cell.record.release_digest) == (0, b"")
        assert cell.record.noise_variance == 0
    told = [decode_release(cell.release).sequence for cell in cluster.cells if cell.release]
    assert told == [r.sequence for r in records if r.kind is LedgerKind.RELEASE]
    verify_records(TWO_OF_FOUR, 0, cluster.ledger, is_complete=True)


def test_what_arrives_in_a_throttled_window_is_in_no_release():
    cluster = Cluster(TWO_OF_FOUR)
    vectors = [[i + 1, 0, 0, 0, 0, 0] for i in range(6)]
    sums = [cluster.seal(vector) for vector in vectors]
    told = [None if c.release is None else decode_release(c.release).vector[0] for c in sums]
    assert told == [1, 2, None, None, 5, 6]


@pytest.mark.parametrize("name", sorted(LIMITED))
def test_no_run_of_windows_passes_a_limit_and_releases_come_back(name):
    plan = LIMITED[name]
    cluster = Cluster(plan)
    records = cluster.run(120)
    kinds = [record.kind for record in records]
    assert LedgerKind.THROTTLED in kinds
    assert_within_limits(plan, records)
    verify_records(plan, 0, cluster.ledger, is_complete=True)
    # Whatever is refused, after a whole run without a release the next window has one.
    longest = max(windows for _, windows, _ in plan.sliding_caps)
    open_kinds = [kind for kind in kinds if kind is not LedgerKind.EXHAUSTED]
    for begin in range(1, len(open_kinds) - longest + 1):
        assert LedgerKind.RELEASE in open_kinds[begin : begin + longest]


@pytest.mark.parametrize("name", sorted(LIMITED))
def test_a_restart_from_as_many_records_as_are_needed_is_the_live_head(name):
    plan = LIMITED[name]
    live = Cluster(plan)
    restarted = Cluster(plan, restarts_with=records_needed(plan))
    assert live.run(60) == restarted.run(60)
    assert [c.release for c in live.cells] == [c.release for c in restarted.cells]


def test_fewer_records_than_the_limits_need_are_refused():
    cluster = Cluster(TWO_OF_FOUR)
    needed = records_needed(TWO_OF_FOUR)
    assert needed == 4
    for _ in range(needed - 2):
        cluster.seal()
    cluster.restored(needed - 1)  # genesis is the oldest: nothing is missing
    for _ in range(2):
        cluster.seal()
    cluster.restored(needed)
    with pytest.raises(LedgerError, match=r"rate limits need the newest 4 records .* record 2 on"):
        cluster.restored(needed - 1)


def test_a_ledger_that_broke_a_limit_is_refused():
    # Written by a head that knew no limits, under the same plan.
    generous = Cluster(TWO_OF_FOUR)
    generous.head._limits = type(generous.head._limits)((), ())
    for _ in range(3):
        generous.seal()
    with pytest.raises(LedgerError, match="breaks the hour limit"):
        generous.restored(0)


def test_a_limit_that_starts_again_at_every_restart_would_be_seen(monkeypatch):
    empty = Cluster(TWO_OF_FOUR).head._limits
    monkeypatch.setattr("stream.cluster_head._limits", lambda *_: type(empty)(empty._limits, ()))
    forgetful = Cluster(TWO_OF_FOUR, restarts_with=0)
    with pytest.raises(AssertionError):
        assert_within_limits(TWO_OF_FOUR, forgetful.run(12))


def test_pacing_gives_later_windows_what_throttled_ones_did_not_spend():
    plan = LIMITED["paced"]
    ((_, _, limit),) = plan.sliding_caps
    records = Cluster(plan).run()
    assert len(charges(records)) == plan.horizon_windows
    for record in records[: plan.horizon_windows]:
        left = plan.cap_units - record.spent_units
        share = left // (plan.horizon_windows - record.sequence)
        assert record.next_units == min(share, limit)
    # Nothing but the first throttled window makes it rise; it ends at what the limit admits.
    planned = [record.next_units for record in records[:-2]]
    assert planned[0] == pytest.approx(planned[2], rel=1e-9)
    assert planned[3:] == sorted(planned[3:])
    assert planned[3] > 1.1 * planned[2]
    assert planned[-1] == limit


def test_a_window_dearer_than_a_limit_would_be_throttled_for_ever(monkeypatch):
    # Without a signal the schedule asks for more than an hour admits in all.
    plan = replace(PLAN, hour_epsilon=3.0, schedule_spec=replace(SNR, saving_windows=2))
    ((_, _, limit),) = plan.sliding_caps
    assert gaussian_charge_units(1, Fraction(6, 5) ** 2) > limit
    honest = Cluster(plan)
    for _ in range(30):
        honest.seal()
    kinds = [record.kind for record in honest.records()]
    assert kinds[-4:].count(LedgerKind.RELEASE) >= 1
    monkeypatch.setattr(
        sealing,
        "next_units",
        lambda plan, before, record, released: plan.schedule.next_units(
            record.sequence, record.spent_units, before.next_units, released
        ),
    )
    stuck = Cluster(plan)
    for _ in range(30):
        stuck.seal()
    assert {record.kind for record in stuck.records()[-20:]} == {LedgerKind.THROTTLED}


# --- Noises --------------------------------------------------------------------------------


def test_a_discrete_gaussian_plan_releases_discrete_gaussian_noise():
    plan = replace(PLAN, noise="discrete_gaussian")
    noisy = Cluster(plan, DiscreteGaussian(insecure_entropy(5)))
    again = DiscreteGaussian(insecure_entropy(5))
    records = noisy.run()
    exact = Cluster(plan)
    exact.run()
    for mine, bare in zip(noisy.cells, exact.cells, strict=True):
        if mine.release is None:
            continue
        release = decode_release(mine.release)
        drawn = again.sample(release.noise_variance, plan.release_size)
        assert drawn.any()
        assert (release.vector - decode_release(bare.release).vector).tolist() == drawn.tolist()
    # The same charges by the stricter conversion: less of them, or more noise.
    assert len(charges(records)) == 10
    assert records[-1].spent_units <= plan.cap_units < PLAN.cap_units
    assert plan.noise_variance > PLAN.noise_variance
