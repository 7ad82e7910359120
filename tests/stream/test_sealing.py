from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schemas import (
    ClipState,
    LedgerKind,
    ParticipationKind,
    decode_participation,
    decode_release,
    encode_ledger_record,
    record_hash,
    release_digest,
)
from stream.budget import Ledger
from stream.budget.client_budgets import ClientBudgets
from stream.clip_progress import clip_after, next_clip_window
from stream.errors import LedgerError
from stream.ledger_chain import genesis, ledger_after, link_faults, record_faults
from stream.participation_log import digest_of
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.event import GaussianEvent, Receipt
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_signal import Released
from stream.privacy.schedule_spec import ScheduleSpec
from stream.sealing import Sealing

PLAN = PrivacyPlan(
    name="sealing",
    dimension=3,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.5,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=8,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
ADAPTIVE = replace(PLAN, clipping=ClippingSpec(0.5, 0.2, bit_weight=20, epoch_windows=4))
PER_CLIENT = replace(PLAN, scope="client")
SNR = replace(
    PLAN,
    rotation="hadamard",
    schedule_spec=ScheduleSpec(
        "snr",
        target_snr=1.0,
        min_noise_multiplier=1.0,
        max_noise_multiplier=100.0,
        saving_windows=3,
    ),
)
CLUSTER = 1


def sealing_of(plan: PrivacyPlan, window: int = 0, clip: ClipState | None = None) -> Sealing:
    """The sealing of ``window`` as the first one of a ledger."""
    before = genesis(plan, CLUSTER, window, 50, 1000)
    if clip is not None:
        before = replace(before, clip=clip)
    return Sealing(plan, before, record_hash(encode_ledger_record(before)), 70, 2000)


def paid(sealing: Sealing) -> Receipt:
    plan, before = sealing.plan, sealing.before
    variance = plan.schedule.noise_variance(before.next_units)
    return ledger_after(plan, before).charge(GaussianEvent(plan.l2_sensitivity_squared, variance))


def vector_of(plan: PrivacyPlan, *last: int) -> np.ndarray:
    """A release's vector: ones, and then ``last``."""
    vector = np.ones(plan.release_size, np.int32)
    vector[vector.size - len(last) :] = last
    return vector


def test_a_release_carries_its_receipt_and_no_scale_where_there_is_none():
    sealing = sealing_of(PLAN, window=6)
    receipt, vector = paid(sealing), vector_of(PLAN, 40)
    release = decode_release(sealing.release(receipt, vector))
    assert (release.plan_id, release.cluster, release.window) == (PLAN.plan_id, CLUSTER, 6)
    assert (release.sequence, release.charge_units) == (1, receipt.units)
    assert (release.spent_units, release.cap_units) == (receipt.spent_units, PLAN.cap_units)
    assert release.noise_variance == receipt.event.noise_variance
    assert release.vector.tolist() == [1, 1, 1, 40]
    assert (release.clip_norm, release.next_clip_norm, release.next_clip_window) == (0.0, 0.0, 0)


@pytest.mark.parametrize("plan", [PLAN, ADAPTIVE, SNR], ids=["plain", "adaptive", "snr"])
def test_the_record_of_a_release_follows_and_vouches_for_it(plan):
    sealing = sealing_of(plan)
    receipt, vector = paid(sealing), vector_of(plan, 7, 9)
    release = sealing.release(receipt, vector)
    record = sealing.released_record(receipt, vector, release)
    assert record_faults(plan, CLUSTER, record) == []
    assert link_faults(plan, sealing.before, sealing.before_hash, record) == []
    assert record.release_digest == release_digest(release)
    assert (record.next_offset, record.sealed_at_ms) == (70, 2000)


def test_the_next_charge_answers_to_the_gradient_coordinates_alone():
    # Rotated, a release has four of them, then the count.
    sealing = sealing_of(SNR)
    receipt = paid(sealing)
    quiet, crowded, loud = (
        np.array(values, np.int32)
        for values in ([1, 1, 1, 1, 0], [1, 1, 1, 1, 10**6], [500, 1, 1, 1, 0])
    )
    units = [sealing.released_record(receipt, v, b"").next_units for v in (quiet, crowded, loud)]
    assert units[0] == units[1] > units[2] > 0
    released = Released(loud[:4], receipt.event.noise_variance)
    first = sealing.before.next_units
    assert units[2] == SNR.schedule.next_units(1, receipt.spent_units, first, released)


def test_a_throttled_record_costs_nothing_and_keeps_what_was_planned():
    for plan in (PLAN, SNR, ADAPTIVE):
        sealing = sealing_of(plan)
        record = sealing.throttled_record()
        assert record_faults(plan, CLUSTER, record) == []
        assert link_faults(plan, sealing.before, sealing.before_hash, record) == []
        assert (record.kind, record.charge_units) == (LedgerKind.THROTTLED, 0)
        assert (record.noise_variance, record.release_digest) == (Fraction(0), b"")
        assert record.next_units == sealing.before.next_units


def test_a_closing_record_plans_nothing_and_keeps_the_total():
    sealing = sealing_of(PLAN)
    spent = replace(sealing.before, spent_units=5)
    record = replace(sealing, before=spent).closing_record()
    assert (record.kind, record.spent_units, record.next_units) == (LedgerKind.EXHAUSTED, 5, 0)
    assert (record.window, record.sequence) == (0, 1)


# --- Adaptive clipping ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "clip", "norms"),
    [
        # Epochs of four windows; the release of their second one fixes the next norm.
        (4, ClipState(1.5, 3.0, 0, 0), (3.0, 0.0, 0)),
        (6, ClipState(1.5, 3.0, 0, 0), (1.5, 3.0, 8)),
        (7, ClipState(1.5, 3.0, 0, 0), (1.5, 3.0, 8)),
    ],
)
def test_a_release_says_the_norm_of_its_window_and_the_next_one_once_it_is_fixed(
    window, clip, norms
):
    sealing = sealing_of(ADAPTIVE, window, clip)
    release = decode_release(sealing.release(paid(sealing), vector_of(ADAPTIVE, 100, 0)))
    assert (release.clip_norm, release.next_clip_norm, release.next_clip_window) == norms


def test_the_release_that_fixes_the_next_norm_announces_it():
    sealing = sealing_of(ADAPTIVE, 5, ClipState(1.5, 0.0, 0, 0))
    receipt = paid(sealing)
    # Ten clients, all of them within the norm: it is too large.
    vector = vector_of(ADAPTIVE, 100, 100)
    data = sealing.release(receipt, vector)
    release = decode_release(data)
    assert release.clip_norm == 1.5
    assert 0 < release.next_clip_norm < 1.5
    assert release.next_clip_window == next_clip_window(ADAPTIVE, 5) == 8
    record = sealing.released_record(receipt, vector, data)
    assert record.clip == clip_after(ADAPTIVE, sealing.before.clip, 5, vector)
    assert record.clip.next_norm == release.next_clip_norm
    # Throttled, it fixes the norm that it has.
    assert sealing.throttled_record().clip == ClipState(1.5, 1.5, 0, 0)


# --- Clients' budgets ----------------------------------------------------------------------


def test_without_budgets_of_clients_nothing_is_said_of_who_took_part():
    assert sealing_of(PLAN).participation(None, np.array([3], np.uint64), 5) == ((), b"", None)


def test_those_who_took_part_are_charged_in_a_copy_and_named_in_the_records():
    sealing, budgets = sealing_of(PER_CLIENT), ClientBudgets(PER_CLIENT.cap_units)
    keys = np.array([3, 8], np.uint64)
    written, digest, after = sealing.participation(budgets, keys, 5)
    assert (budgets.spent(3), after.spent(3), after.spent(8)) == (0, 5, 5)
    ((_, value),) = written
    delta = decode_participation(value)
    assert delta.kind is ParticipationKind.DELTA
    assert (delta.sequence, delta.window, delta.charge_units) == (1, 0, 5)
    assert delta.clients.tolist() == [3, 8]
    assert digest == digest_of(b"", [value])


def test_the_digest_goes_on_from_that_of_the_record_before():
    sealing = sealing_of(PER_CLIENT)
    later = replace(sealing, before=replace(sealing.before, participation_digest=bytes([1]) * 32))
    arguments = ClientBudgets(PER_CLIENT.cap_units), np.array([3], np.uint64), 5
    assert sealing.participation(*arguments)[1] != later.participation(*arguments)[1]


def test_nobody_is_charged_where_somebody_cannot_pay():
    budgets = ClientBudgets(PER_CLIENT.cap_units)
    budgets.charge(np.array([3], np.uint64), PER_CLIENT.cap_units)
    with pytest.raises(LedgerError, match="past its cap"):
        sealing_of(PER_CLIENT).participation(budgets, np.array([3, 8], np.uint64), 1)
    assert budgets.spent(8) == 0


def test_a_receipt_is_of_the_ledger_that_the_newest_record_stands_for():
    sealing = sealing_of(PLAN)
    assert paid(sealing) == Ledger(PLAN.cap_units).charge(
        GaussianEvent(PLAN.l2_sensitivity_squared, PLAN.noise_variance)
    )
