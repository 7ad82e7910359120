from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schemas import (
    LedgerKind,
    Release,
    Update,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_update,
    release_digest,
)
from stream.aggregation.intake import Record
from stream.cluster_head import ClusterHead, SealedCell
from stream.errors import LedgerError
from stream.ledger_chain import genesis, verify_records
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import UnsafeNoNoise, insecure_entropy

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


def time_in(window: int, ms: int = 500) -> int:
    return PLAN.window_end_ms(window - 1) + ms


def log_of(*cells: tuple[int, int]) -> list[Record]:
    """One-hot updates of (window, client), in this order."""
    return [Record(i, time_in(window), one_hot(client)) for i, (window, client) in enumerate(cells)]


def make_head(*records: bytes, noise=None, max_open_windows=4, plan=PLAN, is_complete=True):
    return ClusterHead(
        plan,
        0,
        noise or UnsafeNoNoise(),
        records or [FIRST_RECORD],
        is_complete=is_complete,
        max_open_windows=max_open_windows,
    )


def make_ready(head: ClusterHead, log: list[Record]) -> None:
    """Read all of the log after the next window is over."""
    head.expect(head.next_window, len(log))
    head.offer(log[head.position :])
    head.advance(len(log))


def seal_next(head: ClusterHead, log: list[Record]) -> SealedCell:
    """Seal the next window, after all of the log, and commit."""
    make_ready(head, log)
    cell = head.seal(1000)
    head.commit(cell)
    return cell


def vector_of(cell: SealedCell) -> list[int]:
    return decode_release(cell.release).vector.tolist()


def paid_out() -> tuple[ClusterHead, list[bytes]]:
    """A head that has spent its budget and closed its ledger, and that ledger."""
    head, ledger = make_head(), [FIRST_RECORD]
    while not head.is_exhausted:
        ledger.append(seal_next(head, []).ledger_record)
    return head, ledger


# --- One window ----------------------------------------------------------------------------


def test_one_grid_step_a_client_becomes_zeros_and_ones():
    head = make_head()
    log = log_of((0, 0), (0, 3), (0, 5), (1, 1), (0, 3))
    assert vector_of(seal_next(head, log)) == [1, 0, 0, 1, 0, 1, 3 * KAPPA]
    assert vector_of(seal_next(head, log)) == [0, 1, 0, 0, 0, 0, KAPPA]


def test_an_empty_window_is_released_and_charged_like_any_other():
    head = make_head()
    empty = seal_next(head, [])
    full = seal_next(head, log_of((1, 0)))
    assert vector_of(empty) == [0] * 7
    charges = [decode_release(cell.release).charge_units for cell in (empty, full)]
    assert charges == [PLAN.charge_units] * 2
    assert head.spent_units == 2 * PLAN.charge_units


def test_a_release_says_what_it_cost_and_how_noisy_it_is():
    head = make_head()
    seal_next(head, [])
    release = decode_release(seal_next(head, []).release)
    assert isinstance(release, Release)
    assert (release.plan_id, release.cluster, release.window) == (PLAN.plan_id, 0, 1)
    assert release.sequence == 2
    assert release.charge_units == PLAN.charge_units
    assert release.spent_units == 2 * PLAN.charge_units
    assert release.cap_units == PLAN.cap_units
    assert release.noise_variance == PLAN.noise_variance
    assert release.l2_sensitivity_squared == 100**2 + KAPPA**2
    assert release.vector.dtype == np.dtype(PLAN.release_dtype)


def test_the_ledger_record_of_a_release_matches_it():
    head = make_head()
    make_ready(head, log_of((0, 0), (1, 1)))
    cell = head.seal(12_345)
    record = decode_ledger_record(cell.ledger_record)
    release = decode_release(cell.release)
    assert record.kind is LedgerKind.RELEASE
    assert record.release_digest == release_digest(cell.release)
    assert record.noise_variance == release.noise_variance
    assert (record.window, record.sequence) == (release.window, release.sequence)
    assert (record.charge_units, record.spent_units) == (release.charge_units, release.spent_units)
    assert record.next_offset == cell.resume_offset == 1
    assert record.sealed_at_ms == 12_345


def test_the_noise_is_added_to_the_sum_with_the_variance_of_the_plan():
    noisy, exact = make_head(noise=RoundedGaussian(insecure_entropy(3))), make_head()
    log = log_of((0, 0), (0, 1))
    released = np.array(vector_of(seal_next(noisy, log)))
    drawn = RoundedGaussian(insecure_entropy(3)).sample(PLAN.noise_variance, 7)
    assert drawn.any()
    assert (released - vector_of(seal_next(exact, log))).tolist() == drawn.tolist()


def test_a_wide_plan_releases_wide_integers():
    plan = replace(PLAN, expected_clients=10**9)
    assert plan.release_dtype == "int64"
    head = make_head(encode_ledger_record(genesis(plan, 0, 0, 0, 0)), plan=plan)
    assert decode_release(seal_next(head, []).release).vector.dtype == np.int64


def test_a_sum_past_the_release_s_type_stays_at_its_end_and_the_cell_says_so():
    # A release is int32 as long as 64 times the expected clients fit: here a 512th does not.
    plan = replace(PLAN, expected_clients=1, count_weight=1 << 22, epsilon=100.0)
    assert plan.release_dtype == "int32"
    updates = (
        Update(plan.plan_id, f"north/{i}", 0, np.arange(6, dtype=np.int8)) for i in range(512)
    )
    log = [Record(i, time_in(0), encode_update(update)) for i, update in enumerate(updates)]
    for clients, saturated in ((511, 0), (512, 1)):
        head = make_head(encode_ledger_record(genesis(plan, 0, 0, 0, 0)), plan=plan)
        cell = seal_next(head, log[:clients])
        count = min(clients << 22, 2**31 - 1)
        assert vector_of(cell) == [0, *(clients * n for n in range(1, 6)), count]
        assert cell.saturated == saturated


# --- The steps of a window -----------------------------------------------------------------


def test_a_window_is_sealed_only_after_its_time_and_its_end_of_the_log():
    head = make_head()
    head.offer(log_of((0, 0)))
    with pytest.raises(LedgerError, match="window 0 of cluster 0 is not over"):
        head.seal(0)
    end = PLAN.window_end_ms(0)
    assert head.needs_end_offset(end + 99) is None
    assert head.needs_end_offset(end + 100) == 0
    head.expect(0, 2)
    with pytest.raises(LedgerError, match="not over"):
        head.seal(0)
    head.advance(2)
    assert head.is_ready()
    assert vector_of(head.seal(0)) == [1, 0, 0, 0, 0, 0, KAPPA]


def test_sealing_changes_nothing_and_sealing_again_draws_fresh_noise_for_the_same_charge():
    head = make_head(noise=RoundedGaussian(insecure_entropy(1)))
    make_ready(head, log_of((0, 0)))
    first, second = head.seal(0), head.seal(0)
    assert (head.next_window, head.spent_units) == (0, 0)
    assert vector_of(first) != vector_of(second)
    ours, theirs = (decode_ledger_record(cell.ledger_record) for cell in (first, second))
    assert ours.release_digest != theirs.release_digest
    assert replace(ours, release_digest=theirs.release_digest) == theirs
    head.commit(second)
    assert head.spent_units == PLAN.charge_units


def test_cells_are_committed_in_order_and_once():
    head = make_head()
    make_ready(head, [])
    cell = head.seal(0)
    head.commit(cell)
    with pytest.raises(LedgerError, match="window 0 of cluster 0 does not follow window 0"):
        head.commit(cell)
    make_ready(head, [])
    later = head.seal(0)
    with pytest.raises(LedgerError, match="window 1 of cluster 0 does not follow window -1"):
        make_head().commit(later)


def test_a_cell_of_another_cluster_is_not_committed():
    other = ClusterHead(
        PLAN,
        1,
        UnsafeNoNoise(),
        [encode_ledger_record(genesis(PLAN, 1, 0, 0, 0))],
        is_complete=True,
        max_open_windows=2,
    )
    make_ready(other, [])
    with pytest.raises(LedgerError, match="window 0 of cluster 1 does not follow"):
        make_head().commit(other.seal(0))


def test_a_cell_that_was_paid_from_another_ledger_is_not_committed():
    head = make_head()
    seal_next(head, [])
    stranger = make_head(encode_ledger_record(genesis(PLAN, 0, 1, 0, 0)))
    make_ready(stranger, [])
    with pytest.raises(LedgerError, match="receipt 1 does not follow 1"):
        head.commit(stranger.seal(0))


def test_what_is_read_after_a_commit_is_late():
    head = make_head()
    seal_next(head, [])
    outcome = head.offer([Record(0, time_in(0), one_hot(0)), Record(1, time_in(1), one_hot(0))])
    assert outcome.accepted == 1
    assert [rejected.rejection.reason for rejected in outcome.rejected] == ["late"]


# --- Restart -------------------------------------------------------------------------------


@pytest.mark.parametrize("restart_after", [0, 1, 2, 3])
def test_a_head_that_is_restored_goes_on_as_if_nothing_had_happened(restart_after):
    log = log_of((0, 0), (1, 1), (0, 2), (2, 3), (1, 4), (3, 5), (3, 0))
    undisturbed, ledger = make_head(), [FIRST_RECORD]
    expected = [seal_next(undisturbed, log) for _ in range(4)]
    head = make_head()
    for window in range(4):
        if window == restart_after:
            head = make_head(*ledger)
        cell = seal_next(head, log)
        assert cell == expected[window]
        ledger.append(cell.ledger_record)
    newest = verify_records(PLAN, 0, ledger, is_complete=True)
    assert newest.spent_units == 4 * PLAN.charge_units == head.spent_units


def test_a_head_can_be_restored_from_its_newest_record_alone():
    log = log_of((0, 0), (1, 1))
    cell = seal_next(make_head(), log)
    head = make_head(cell.ledger_record, is_complete=False)
    assert (head.next_window, head.position, head.spent_units) == (1, 1, PLAN.charge_units)
    assert vector_of(seal_next(head, log)) == [0, 1, 0, 0, 0, 0, KAPPA]


def test_a_crash_between_sealing_and_committing_charges_once_and_draws_anew():
    entropy = insecure_entropy(1)
    log = log_of((0, 0))
    before = make_head(noise=RoundedGaussian(entropy))
    make_ready(before, log)
    lost = before.seal(0)
    after = make_head(noise=RoundedGaussian(entropy))
    cell = seal_next(after, log)
    assert vector_of(cell) != vector_of(lost)
    assert after.spent_units == PLAN.charge_units
    assert decode_ledger_record(cell.ledger_record).sequence == 1


def test_a_head_refuses_a_ledger_that_it_cannot_trust():
    with pytest.raises(LedgerError, match="belongs to plan"):
        make_head(encode_ledger_record(genesis(replace(PLAN, name="x"), 0, 0, 0, 0)))
    with pytest.raises(LedgerError, match="belongs to cluster 1"):
        make_head(encode_ledger_record(genesis(PLAN, 1, 0, 0, 0)))
    later = seal_next(make_head(), []).ledger_record
    with pytest.raises(LedgerError, match="the start is missing"):
        make_head(later)


def test_a_head_needs_memory_for_two_windows():
    with pytest.raises(ValueError, match="at least 2"):
        make_head(max_open_windows=1)


# --- A spent budget ------------------------------------------------------------------------


def test_the_ledger_is_closed_once_and_nothing_is_released_after():
    head, ledger = make_head(), [FIRST_RECORD]
    cells = [seal_next(head, log_of((window, 0))) for window in range(8)]
    ledger += [cell.ledger_record for cell in cells if cell.ledger_record is not None]
    kinds = [decode_ledger_record(record).kind.name for record in ledger]
    assert kinds == ["GENESIS", *["RELEASE"] * 4, "EXHAUSTED"]
    assert [cell.release is not None for cell in cells] == [True] * 4 + [False] * 4
    assert [cell.window for cell in cells] == list(range(8))
    assert verify_records(PLAN, 0, ledger, is_complete=True).spent_units <= PLAN.cap_units


def test_a_spent_budget_drains_updates_and_passes_windows_without_a_record():
    head, _ = paid_out()
    outcome = head.offer([Record(0, time_in(9), one_hot(0)), Record(1, time_in(0), b"garbage")])
    assert outcome.accepted == 0
    assert [rejected.rejection.reason for rejected in outcome.rejected] == ["exhausted"] * 2
    window = head.next_window
    head.expect(window, 2)
    cell = head.seal(0)
    assert (cell.release, cell.ledger_record, cell.receipt) == (None, None, None)
    assert (cell.window, cell.resume_offset) == (window, 2)
    head.commit(cell)
    assert head.next_window == window + 1


def test_a_spent_budget_stays_spent_after_a_restart():
    head, ledger = paid_out()
    again = make_head(*ledger)
    assert again.is_exhausted
    assert again.spent_units == head.spent_units == 4 * PLAN.charge_units
    assert again.next_window == head.next_window
    for window in range(3):
        assert seal_next(again, log_of((5 + window, 0))).release is None


def test_the_last_release_may_be_sealed_anew_but_not_exceeded():
    head = make_head()
    for _ in range(3):
        seal_next(head, [])
    make_ready(head, [])
    assert head.seal(0).release is not None
    head.commit(head.seal(0))
    make_ready(head, [])
    assert head.seal(0).release is None
    assert not head.is_exhausted  # until that is durable
    assert head.seal(0).receipt is None


def test_the_plan_of_these_tests_pays_for_four_windows():
    assert PLAN.windows_allowed == 4
    assert PLAN.noise_variance > Fraction(1)


# --- Adaptive clipping ---------------------------------------------------------------------

ADAPTIVE = replace(
    PLAN,
    horizon_windows=20,
    clipping=ClippingSpec(target_quantile=0.5, learning_rate=0.5, bit_weight=20, epoch_windows=4),
)


def run_adaptive(*, restarts: bool) -> tuple[list[bytes], list[Release], list[str]]:
    """Twelve windows of three clients, all of them below the norm, and one of an older scale."""
    ledger = [encode_ledger_record(genesis(ADAPTIVE, 0, 0, 0, 0))]
    head, log, told, releases = make_head(*ledger, plan=ADAPTIVE), [], [], []
    norm_by_window = {0: ADAPTIVE.l2_clip_norm}
    for window in range(12):
        if restarts:
            head = make_head(*ledger, plan=ADAPTIVE)
        norm = norm_by_window[max(first for first in norm_by_window if first <= window)]
        for client, scale in enumerate([norm, norm, norm, 2.0]):
            vector = np.zeros(6, np.int8)
            vector[client] = 1
            update = Update(ADAPTIVE.plan_id, CLIENTS[client], 0, vector, scale, True)
            log.append(Record(len(log), time_in(window), encode_update(update)))
        head.expect(window, len(log))
        outcome = head.offer(log[head.position :])
        told += [str(rejected.rejection.reason) for rejected in outcome.rejected]
        cell = head.seal(1000)
        head.commit(cell)
        ledger.append(cell.ledger_record)
        releases.append(decode_release(cell.release))
        if releases[-1].next_clip_norm:
            norm_by_window[releases[-1].next_clip_window] = releases[-1].next_clip_norm
    return ledger, releases, told


def test_the_clip_norm_follows_the_released_bits_from_epoch_to_epoch():
    ledger, releases, told = run_adaptive(restarts=False)
    assert told == ["wrong_scale"] * 12
    for release in releases:
        assert release.vector.tolist() == [1, 1, 1, 0, 0, 0, 3 * KAPPA, 3 * 10]
        assert release.l2_sensitivity_squared == 100**2 + KAPPA**2 + 10**2
    norms = [release.clip_norm for release in releases]
    assert norms == [norms[0]] * 4 + [norms[4]] * 4 + [norms[8]] * 4
    # All three were below the norm, and half of them are to be: each epoch takes a step down.
    assert norms[4] / norms[0] == pytest.approx(np.exp(-0.5 * 0.5))
    assert norms[8] / norms[4] == pytest.approx(np.exp(-0.5 * 0.5))
    # A norm is public a whole window before the first window that it is for.
    announced = [(r.window, r.next_clip_window) for r in releases if r.next_clip_norm]
    assert announced == [(w, w // 4 * 4 + 4) for w in range(12) if w % 4]
    verify_records(ADAPTIVE, 0, ledger, is_complete=True)


def test_a_restart_knows_the_clip_norm_that_was_announced():
    live, restarted = run_adaptive(restarts=False), run_adaptive(restarts=True)
    assert live[0] == restarted[0]
    assert live[2] == restarted[2]
