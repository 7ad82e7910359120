"""Planted faults in what a ledger plans, found by the audit that reads it with its releases."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from agents.ledger_audit import LedgerAudit
from agents.ledger_report import Verification
from schemas import (
    LedgerKind,
    LedgerRecord,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_release,
    record_hash,
    release_digest,
)
from stream.cluster_head import ClusterHead
from stream.ledger_chain import genesis
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.noise import noise_source
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec
from stream.testing import insecure_entropy

WINDOWS = 12
SNR = ScheduleSpec(
    "snr",
    target_snr=0.02,
    smoothing=0.5,
    min_noise_multiplier=2.0,
    max_noise_multiplier=50.0,
    saving_windows=5,
)
CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.3, bit_weight=20, epoch_windows=4)


def make_plan(**changes: object) -> PrivacyPlan:
    plan = PrivacyPlan(
        name="planned",
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
        horizon_windows=WINDOWS,
        optimizer=OptimizerSpec("sgd", learning_rate=0.1),
        normalizer="expected_clients",
    )
    return dataclasses.replace(plan, **changes)


@dataclass
class Stream:
    """What the head of cluster 0 has written."""

    plan: PrivacyPlan
    ledger: list[bytes] = field(default_factory=list)
    releases: list[bytes] = field(default_factory=list)

    def record(self, number: int) -> LedgerRecord:
        return decode_ledger_record(self.ledger[number])

    def kinds(self) -> list[LedgerKind]:
        return [decode_ledger_record(data).kind for data in self.ledger]

    def change(self, number: int, **changes: object) -> None:
        """Forge a record, and chain it and what follows anew."""
        for index in range(number, len(self.ledger)):
            record = self.record(index)
            if index == number:
                record = dataclasses.replace(record, **changes)
            if index:
                previous = record_hash(self.ledger[index - 1])
                record = dataclasses.replace(record, previous_hash=previous)
            self.ledger[index] = encode_ledger_record(record)

    def change_clip(self, number: int, **changes: object) -> None:
        clip = self.record(number).clip
        assert clip is not None
        self.change(number, clip=dataclasses.replace(clip, **changes))

    def change_release(self, number: int, **changes: object) -> None:
        """Forge a release and the record that pays for it."""
        data = encode_release(dataclasses.replace(decode_release(self.releases[number]), **changes))
        self.releases[number] = data
        sequence = decode_release(data).sequence
        self.change(sequence, release_digest=release_digest(data))


def write(plan: PrivacyPlan, windows: int = WINDOWS) -> Stream:
    """Let a real head seal empty windows."""
    noise = noise_source(plan.noise, insecure_entropy(1))
    stream = Stream(plan, [encode_ledger_record(genesis(plan, 0, 0, 0, 0))])
    head = ClusterHead(plan, 0, noise, stream.ledger, is_complete=True, max_open_windows=2)
    for window in range(windows):
        head.expect(window, 0)
        cell = head.seal(plan.window_end_ms(window) + 100)
        head.commit(cell)
        if cell.ledger_record is not None:
            stream.ledger.append(cell.ledger_record)
        if cell.release is not None:
            stream.releases.append(cell.release)
    return stream


def audit(stream: Stream) -> Verification:
    found = LedgerAudit(stream.plan)
    found.begin_ledger(0, 0)
    for data in stream.ledger:
        found.take_record(0, data)
    for data in stream.releases:
        found.take_release(data)
    return found.verification()


def throttling_plan(**changes: object) -> PrivacyPlan:
    """A plan whose hour, of three windows, pays for some of its twelve windows only."""
    plan = make_plan(window_length_ms=1_800_000, **changes)
    return dataclasses.replace(plan, hour_epsilon=0.9)


PLANS: dict[str, Callable[[], PrivacyPlan]] = {
    "exponential": lambda: make_plan(schedule_spec=ScheduleSpec("exponential", noise_decay=0.9)),
    "cosine": lambda: make_plan(schedule_spec=ScheduleSpec("cosine", final_noise_ratio=0.25)),
    "step": lambda: make_plan(
        schedule_spec=ScheduleSpec("step", milestones=(3, 6), noise_ratios=(4.0, 2.0, 1.0))
    ),
    "paced": lambda: make_plan(schedule_spec=ScheduleSpec("paced")),
    "infinite": lambda: make_plan(schedule_spec=ScheduleSpec("infinite", saving_windows=9)),
    "snr": lambda: make_plan(schedule_spec=SNR),
    "discrete": lambda: make_plan(noise="discrete_gaussian"),
    "adaptive clipping": lambda: make_plan(clipping=CLIPPING),
    "limited": throttling_plan,
    "limited and paced": lambda: throttling_plan(schedule_spec=ScheduleSpec("paced")),
    "limited snr with clipping": lambda: throttling_plan(schedule_spec=SNR, clipping=CLIPPING),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_a_real_head_writes_under_any_plan_verifies(name: str) -> None:
    found = audit(write(PLANS[name](), WINDOWS + 3))
    assert found.problems == []
    assert 0 < found.epsilon <= 3.0
    assert found.epsilon_independent == pytest.approx(found.epsilon, abs=2e-6)


def test_discrete_noise_is_converted_by_zcdp_and_costs_more_than_rounded_noise_of_its_size() -> (
    None
):
    discrete = write(make_plan(noise="discrete_gaussian"), windows=4)
    found = audit(discrete)
    assert found.filter == "zcdp"
    assert "by the zCDP bound's best order" in found.as_text()
    rounded = audit(write(make_plan(), windows=4))
    assert rounded.filter == "gdp"
    # With equal budgets, zCDP pays for less: its windows have more noise, and cost the same.
    assert found.epsilon == pytest.approx(rounded.epsilon, rel=0.1)
    assert discrete.record(1).charge_units < write(make_plan(), 1).record(1).charge_units


def test_throttled_windows_are_counted_and_what_they_left_is_planned_for_later_ones() -> None:
    stream = write(throttling_plan(schedule_spec=ScheduleSpec("paced")))
    throttled = stream.kinds().count(LedgerKind.THROTTLED)
    assert 0 < throttled < WINDOWS
    (row,) = audit(stream).clusters
    assert (row.spending.throttled, row.spending.throttled_of) == (throttled, WINDOWS)
    assert row.spending.releases == WINDOWS - throttled
    (limit,) = row.spending.limits
    assert (limit.name, limit.windows) == ("hour", 3)
    assert limit.spent_units <= limit.cap_units == stream.plan.sliding_caps[0][2]


def forge_release_of_a_throttled_window(stream: Stream) -> None:
    """What a head without limits would have done: it releases, and the limit is broken."""
    free = write(dataclasses.replace(stream.plan, hour_epsilon=0.0))
    for index, data in enumerate(free.releases):
        release = dataclasses.replace(decode_release(data), plan_id=stream.plan.plan_id)
        free.releases[index] = encode_release(release)
    for number in range(len(free.ledger)):
        free.change(number, plan_id=stream.plan.plan_id)
        record = free.record(number)
        if record.release_digest:
            digest = release_digest(free.releases[number - 1])
            free.change(number, release_digest=digest)
    stream.ledger, stream.releases = free.ledger, free.releases


def swap_coordinates_and_keep_the_plan(stream: Stream) -> None:
    """The release that the record pays for, with a vector of another length."""
    vector = decode_release(stream.releases[4]).vector * 3
    stream.change_release(4, vector=vector.astype(np.int32))


PLANTED: dict[str, tuple[str, Callable[[Stream], object], str]] = {
    "a limit broken": ("limited", forge_release_of_a_throttled_window, "breaks the hour limit"),
    "throttled for nothing": (
        "discrete",
        lambda s: s.change(
            4,
            kind=LedgerKind.THROTTLED,
            charge_units=0,
            noise_variance=s.record(0).noise_variance,
            release_digest=b"",
        ),
        "record 4 throttles a window though no limit was reached",
    ),
    "another first charge": (
        "exponential",
        lambda s: s.change(0, next_units=s.record(0).next_units + 1),
        "record 0 does not begin as the plan says",
    ),
    "another next charge": (
        "exponential",
        lambda s: s.change(4, next_units=s.record(4).next_units + 1),
        "record 4 plans another charge for the next window than the schedule",
    ),
    "noise of another window": (
        "step",
        lambda s: s.change(5, next_units=s.record(2).next_units),
        "record 6 has other noise than was planned for it",
    ),
    "another charge than the vector asks for": (
        "snr",
        lambda s: s.change(4, next_units=s.record(4).next_units + 1),
        "release of cluster 0, window 3: the ledger plans another next charge",
    ),
    "a vector that asks for another charge": (
        "snr",
        swap_coordinates_and_keep_the_plan,
        "release of cluster 0, window 4: the ledger plans another next charge",
    ),
    "another charge after a throttled window": (
        "limited snr with clipping",
        lambda s: s.change(
            s.kinds().index(LedgerKind.THROTTLED),
            next_units=s.record(s.kinds().index(LedgerKind.THROTTLED)).next_units + 1,
        ),
        "plans another charge for the next window than the schedule",
    ),
    "another clip norm at the start": (
        "adaptive clipping",
        lambda s: s.change_clip(0, norm=2.0),
        "record 0 does not begin as the plan says",
    ),
    "a forged clip state": (
        "adaptive clipping",
        lambda s: s.change_clip(3, bit_total=s.record(3).clip.bit_total + 1),
        "window 2: the ledger's clip norm is not what this vector makes of it",
    ),
    "a forged next norm": (
        "adaptive clipping",
        lambda s: s.change_clip(2, next_norm=s.record(2).clip.next_norm * (1 + 1e-15)),
        "window 1: the ledger's clip norm is not what this vector makes of it",
    ),
    "a clip norm that is announced otherwise": (
        "adaptive clipping",
        lambda s: s.change_release(2, next_clip_norm=1.5),
        "window 2: it announces another clip norm than the ledger",
    ),
    "a clip norm that changes without a release": (
        "limited snr with clipping",
        lambda s: s.change_clip(s.kinds().index(LedgerKind.THROTTLED), bit_total=77),
        "adapts the clip norm without a release",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_plan_is_found(name: str) -> None:
    plan, plant, sentence = PLANTED[name]
    stream = write(PLANS[plan]())
    assert audit(stream).verified
    plant(stream)
    problems = audit(stream).problems
    assert any(sentence in problem for problem in problems), problems


def test_the_charge_of_a_plan_with_clip_bits_covers_them() -> None:
    plan = make_plan(clipping=CLIPPING)
    stream = write(plan, windows=1)
    units = stream.record(1).charge_units
    without_bits = plan.grid_l2_bound**2 + plan.count_weight**2
    assert units == pytest.approx(
        (without_bits + 100) * 2**60 / (2 * stream.record(1).noise_variance), rel=1e-9
    )
    forged = units * without_bits // (without_bits + 100)
    stream.change(1, charge_units=forged, spent_units=forged)
    assert not audit(stream).verified


def test_a_wrong_sensitivity_of_the_plan_itself_does_not_vouch_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        PrivacyPlan,
        "l2_sensitivity_squared",
        property(lambda plan: plan.grid_l2_bound**2 + plan.count_weight**2),
    )
    problems = audit(write(make_plan(clipping=CLIPPING), windows=1)).problems
    assert any("charges less or more than its noise costs" in problem for problem in problems)
