"""What an auditor who knows every input sees without statistics."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

import stream.audited_head
from schemas import Update, decode_release, encode_release, encode_update
from stream.audited_head import AuditedHead, Findings
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead
from stream.errors import LedgerError
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_spec import ScheduleSpec
from stream.testing import insecure_entropy

PLAN = PrivacyPlan(
    name="watched",
    dimension=8,
    cluster_count=1,
    assignment="prefix",
    prefixes=("audit",),
    expected_clients=4,
    start_ms=5000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=7,
    update_dtype="int8",
    epsilon=4.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
VECTOR = np.arange(8, dtype=np.int8)
UPDATE = encode_update(Update(PLAN.plan_id, "audit/0", 0, VECTOR))
EXACT = np.append(VECTOR.astype(np.int64), 7)


def watch(make_noise=RoundedGaussian, plan=PLAN, **options) -> tuple[AuditedHead, Findings]:
    findings = Findings()
    return AuditedHead(plan, make_noise, insecure_entropy(1), findings, **options), findings


def release(audited: AuditedHead, windows: int = 1) -> None:
    for _ in range(windows):
        audited.release([UPDATE], EXACT)


def test_a_sound_head_raises_no_finding_over_several_lives():
    audited, findings = watch()
    release(audited, 7)
    audited.finish()
    assert not findings.faults
    assert (audited.windows, audited.updates) == (7, 7)
    assert audited.spent_units == 7 * PLAN.charge_units > 2 * PLAN.cap_units


def test_what_is_released_is_the_heads_own_sum_and_the_sources_own_noise():
    audited, _ = watch()
    released = audited.release([UPDATE, UPDATE, b"garbage"], EXACT)
    keyed = insecure_entropy(1)
    noise = RoundedGaussian(keyed).sample(PLAN.noise_variance, 9)
    assert released.tolist() == (EXACT + noise).tolist()


def test_a_sum_that_is_not_as_it_must_be_is_a_finding():
    audited, findings = watch()
    audited.release([UPDATE], np.append(VECTOR.astype(np.int64), 14))
    assert findings.faults == {"a release is not the exact sum plus the noise that was drawn": 1}


def test_noise_of_another_variance_than_was_charged_is_a_finding(monkeypatch):
    def privatize(exact_sum, receipt, noise, dtype):
        smaller = receipt.event.noise_variance * Fraction(1, 4)
        return (exact_sum + noise.sample(smaller, exact_sum.size)).astype(dtype)

    monkeypatch.setattr("stream.cluster_head.privatize", privatize)
    audited, findings = watch()
    release(audited)
    assert findings.faults == {"noise has another variance than was charged": 1}


@pytest.mark.parametrize("draws", [0, 2])
def test_noise_that_is_drawn_twice_or_never_is_a_finding(draws, monkeypatch):
    def privatize(exact_sum, receipt, noise, dtype):
        for _ in range(draws):
            noise.sample(receipt.event.noise_variance, exact_sum.size)
        return exact_sum.astype(dtype)

    monkeypatch.setattr("stream.cluster_head.privatize", privatize)
    audited, findings = watch()
    release(audited)
    assert findings.faults["a release has not one draw of noise"] == 1


def test_a_key_that_serves_a_second_release_is_a_finding():
    class OneKey:
        def __init__(self, entropy):
            self._rng = np.random.default_rng(list(entropy(48)))

        def sample(self, variance, size):
            return self._rng.integers(-1000, 1000, size)

    audited, findings = watch(OneKey)
    release(audited, 3)
    assert findings.faults == {"noise did not come from fresh entropy": 3}


@pytest.mark.parametrize("sign", [1, -1])
def test_noise_that_was_seen_before_is_a_finding_at_any_distance(sign):
    findings = Findings()
    residuals = np.random.default_rng(1).integers(-100, 100, (50, 9))
    for residual in residuals:
        findings.require_new(residual)
    assert not findings.faults
    findings.require_new(sign * residuals[3])
    assert findings.faults == {"the noise of an earlier release was reused": 1}


def changed_head(**changes):
    """A head whose releases say something else than they should."""

    class Changed(ClusterHead):
        def seal(self, now_ms):
            cell = super().seal(now_ms)
            lying = dataclasses.replace(decode_release(cell.release), **changes)
            return dataclasses.replace(cell, release=encode_release(lying))

    return Changed


def test_a_release_of_another_window_is_a_finding(monkeypatch):
    monkeypatch.setattr(stream.audited_head, "ClusterHead", changed_head(window=9))
    audited, findings = watch()
    release(audited)
    assert findings.faults == {"a release names another window": 1}


def test_a_charge_for_less_than_a_clients_reach_is_a_finding(monkeypatch):
    changed = changed_head(l2_sensitivity_squared=PLAN.grid_l2_bound**2)
    monkeypatch.setattr(stream.audited_head, "ClusterHead", changed)
    audited, findings = watch()
    release(audited)
    assert list(findings.faults) == [
        "the charged sensitivity is not that of a client's vector and its count"
    ]


def test_a_ledger_that_does_not_add_up_is_a_finding(monkeypatch):
    class Forgets(ClusterHead):
        def commit(self, cell):
            before = self._ledger
            rewind = super().commit(cell)
            self._ledger = before
            return rewind

    monkeypatch.setattr(stream.audited_head, "ClusterHead", Forgets)
    audited, findings = watch()
    release(audited, 3)
    audited.finish()
    (fault,) = findings.faults
    assert "cannot be trusted" in fault
    assert "does not add up" in fault


def test_a_head_that_fails_or_stays_silent_is_a_finding_and_the_next_one_goes_on(monkeypatch):
    class Fails(ClusterHead):
        def seal(self, now_ms):
            raise LedgerError("no")

    monkeypatch.setattr(stream.audited_head, "ClusterHead", Fails)
    audited, findings = watch()
    assert not audited.release([UPDATE], EXACT).any()
    assert findings.faults == {"the head fails: no": 1, "a window was not released": 1}
    monkeypatch.undo()
    audited._begin()
    release(audited)
    assert sum(findings.faults.values()) == 2


# --- Other plans ---------------------------------------------------------------------------

SNR = ScheduleSpec(
    "snr",
    target_snr=0.02,
    smoothing=0.5,
    min_noise_multiplier=0.3,
    max_noise_multiplier=50.0,
    saving_windows=5,
)
SCHEDULES = (
    ScheduleSpec("exponential", noise_decay=0.8),
    ScheduleSpec("step", milestones=(2,), noise_ratios=(3.0, 1.0)),
    ScheduleSpec("paced"),
    ScheduleSpec("infinite"),
    SNR,
)


def own(plan: PrivacyPlan) -> list[bytes]:
    """The client's update under another plan."""
    is_adaptive = plan.clipping is not None
    return [
        encode_update(
            Update(
                plan_id=plan.plan_id,
                client_id="audit/0",
                model_version=0,
                vector=VECTOR,
                clip_norm=plan.l2_clip_norm if is_adaptive else 0.0,
                is_below_clip=is_adaptive,
            )
        )
    ]


@pytest.mark.parametrize("spec", SCHEDULES, ids=lambda spec: spec.kind)
def test_a_schedule_is_followed_over_several_lives_without_a_finding(spec):
    plan = dataclasses.replace(PLAN, schedule_spec=spec)
    audited, findings = watch(plan=plan)
    for _ in range(8):
        audited.release(own(plan), EXACT)
    audited.finish()
    assert not findings.faults
    assert audited.windows == 8


@pytest.mark.parametrize("spec", [ScheduleSpec("paced"), SNR], ids=lambda spec: spec.kind)
def test_a_head_that_releases_with_less_noise_than_the_schedule_plans_is_a_finding(
    spec, monkeypatch
):
    class Generous(ClusterHead):
        def seal(self, now_ms):
            if self.next_window == 1:
                larger = self._newest.next_units * 5 // 4
                self._newest = dataclasses.replace(self._newest, next_units=larger)
            return super().seal(now_ms)

    plan = dataclasses.replace(PLAN, schedule_spec=spec)
    monkeypatch.setattr(stream.audited_head, "ClusterHead", Generous)
    audited, findings = watch(plan=plan)
    for _ in range(2):
        audited.release(own(plan), EXACT)
    assert findings.faults == {"a release has other noise than the schedule plans for it": 1}


def test_a_clip_bit_is_a_coordinate_of_the_sum_and_of_the_sensitivity(monkeypatch):
    clipping = ClippingSpec(
        target_quantile=0.5, learning_rate=0.2, bit_weight=8, epoch_windows=1000
    )
    plan = dataclasses.replace(PLAN, clipping=clipping)
    audited, findings = watch(plan=plan)
    audited.release(own(plan), np.append(EXACT, 4))
    assert not findings.faults
    without = PLAN.grid_l2_bound**2 + PLAN.count_weight**2
    monkeypatch.setattr(
        stream.audited_head, "ClusterHead", changed_head(l2_sensitivity_squared=without)
    )
    audited, findings = watch(plan=plan)
    audited.release(own(plan), np.append(EXACT, 4))
    assert list(findings.faults) == [
        "the charged sensitivity is not that of a client's vector and its count"
    ]


CLIENTS = dataclasses.replace(PLAN, scope="client")


def test_a_client_that_is_at_its_cap_is_in_no_release_of_a_head_that_goes_on():
    audited, findings = watch(plan=CLIENTS, has_one_life=True)
    for window in range(5):
        audited.release(own(CLIENTS), EXACT * (window < 3))
    audited.finish()
    assert not findings.faults
    assert len(audited._records) == 6


def test_a_client_that_is_charged_too_little_is_a_finding(monkeypatch):
    after = ClientBudgets.after
    monkeypatch.setattr(
        ClientBudgets, "after", lambda budgets, keys, units: after(budgets, keys, units // 2)
    )
    audited, findings = watch(plan=CLIENTS, has_one_life=True)
    for window in range(4):
        audited.release(own(CLIENTS), EXACT * (window < 3))
    assert findings.faults == {"a release is not the exact sum plus the noise that was drawn": 1}


def test_a_participation_record_that_was_not_written_is_a_finding(monkeypatch):
    class Silent(ClusterHead):
        def seal(self, now_ms):
            return dataclasses.replace(super().seal(now_ms), participation=())

    monkeypatch.setattr(stream.audited_head, "ClusterHead", Silent)
    audited, findings = watch(plan=CLIENTS)
    audited.release(own(CLIENTS), EXACT)
    audited.finish()
    (fault,) = findings.faults
    assert "has lost what record 1" in fault
