import math
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import ClipNorm, ClipState, Release
from stream.clip_progress import (
    announced_clip_norms,
    clip_after,
    clip_norm_in_force,
    clip_norm_of,
    first_clip,
    first_clip_norms,
    first_unknown_window,
    is_in_scale,
    next_clip_window,
)
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

KAPPA = 10
BIT_WEIGHT = 8
FIXED = PrivacyPlan(
    name="clip",
    dimension=2,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=100,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=200,
    l2_clip_norm=3.0,
    grid_l2_bound=1000,
    count_weight=KAPPA,
    update_dtype="int16",
    epsilon=8.0,
    delta=1e-6,
    horizon_windows=100,
    optimizer=OptimizerSpec("sgd", 0.5),
    normalizer="expected_clients",
)
PLAN = replace(
    FIXED,
    clipping=ClippingSpec(
        target_quantile=0.7, learning_rate=0.3, bit_weight=BIT_WEIGHT, epoch_windows=5
    ),
)
# Place 2 of an epoch of 5 fixes the next norm.


def with_epoch(windows: int, plan: PrivacyPlan = PLAN, **changes: float) -> PrivacyPlan:
    return replace(plan, clipping=replace(plan.clipping, epoch_windows=windows, **changes))


def released(below: int, above: int) -> np.ndarray:
    """What a window without noise releases for clients below and above their clip norm."""
    count, bits = KAPPA * (below + above), BIT_WEIGHT // 2 * (below - above)
    return np.array([5, -5, count, bits], np.int32)


def history(plan: PrivacyPlan, first: int, vectors: list[np.ndarray | None]) -> list[ClipState]:
    """The state before the first window, then after each."""
    states = [first_clip(plan, first)]
    for window, vector in enumerate(vectors, start=first):
        states.append(clip_after(plan, states[-1], window, vector))
    return states


def exp_of(exponent: Fraction) -> Fraction:
    """e to a small power, by its series, to far more than 53 bits."""
    term = total = Fraction(1)
    for n in range(1, 80):
        term = term * exponent / n
        total += term
    return total


# --- The rule of Andrew et al. --------------------------------------------------------------


@pytest.mark.parametrize(("below", "above"), [(7, 3), (0, 4), (4, 0), (1, 0), (55, 45)])
def test_the_next_norm_is_that_of_the_formula_of_andrew_et_al(below, above):
    state = history(PLAN, 0, [released(below, above)] * 3)[-1]
    share = below / (below + above)
    assert state.next_norm == pytest.approx(3.0 * math.exp(-0.3 * (share - 0.7)), rel=1e-14)
    assert (state.norm, state.bit_total, state.count_total) == (3.0, 0, 0)


def test_at_the_target_quantile_the_norm_stays():
    assert history(PLAN, 0, [released(7, 3)] * 3)[-1].next_norm == pytest.approx(3.0, rel=1e-15)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(1e-3, 10))
def test_the_exponential_is_correctly_rounded_on_every_machine(below, above, rate):
    plan = with_epoch(3, learning_rate=rate)
    vector = np.array([0, 0, KAPPA * (below + above + 1), BIT_WEIGHT // 2 * (below - above)])
    found = clip_after(plan, ClipState(1.0, 1.0, 0, 0), 0, vector).next_norm
    clients = float(below + above + 1)
    share = min(1.0, max(0.0, int(vector[-1]) / (BIT_WEIGHT * clients) + 0.5))
    assert found == float(exp_of(Fraction(-rate * (share - 0.7))))


@given(
    st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1)
)
def test_no_noise_moves_the_norm_further_than_one_step(count, bits, other):
    vector = np.array([other, -other, count, bits], np.int32)
    found = clip_after(with_epoch(3), ClipState(3.0, 3.0, 0, 0), 0, vector).next_norm
    assert 3.0 * math.exp(-0.3 * 0.3) * (1 - 1e-15) <= found <= 3.0 * math.exp(0.3 * 0.7)
    if count <= 0:
        assert found == 3.0
    without = np.array([0, 0, count, bits], np.int32)
    assert found == clip_after(with_epoch(3), ClipState(3.0, 3.0, 0, 0), 0, without).next_norm


@pytest.mark.parametrize("l2_clip_norm", [3.0, 1e-200, 1e-306, 1e200, 1e305])
@pytest.mark.parametrize("clients", [(1, 0), (0, 1)])
def test_a_norm_stays_finite_and_near_the_plans_for_ever(l2_clip_norm, clients):
    plan = replace(with_epoch(3, learning_rate=10.0), l2_clip_norm=l2_clip_norm)
    state = history(plan, 0, [released(*clients)] * 60)[-1]
    assert sys.float_info.min <= state.norm < math.inf
    assert 0.99e-9 <= state.norm / l2_clip_norm <= 1.01e9
    assert state.norm != l2_clip_norm


def test_a_total_that_no_record_can_hold_stays_at_its_end():
    huge = np.array([0, 0, 2**63 - 1, -(2**63)], np.int64)
    states = history(PLAN, 0, [huge, huge])
    assert [s.count_total for s in states] == [0, 2**63 - 1, 2**63 - 1]
    assert [s.bit_total for s in states] == [0, -(2**63) + 1, -(2**63) + 1]
    assert clip_after(PLAN, states[-1], 2, huge).next_norm == pytest.approx(3 * math.exp(0.21))


# --- Epochs ---------------------------------------------------------------------------------


def test_an_epoch_counts_up_to_the_window_that_fixes_the_next_norm_and_then_no_more():
    vectors = [released(1, 2), released(3, 0), released(0, 1), released(9, 9), released(0, 9)]
    states = history(PLAN, 0, [*vectors, released(1, 0)])
    counts = [s.count_total // KAPPA for s in states]
    bits = [s.bit_total // (BIT_WEIGHT // 2) for s in states]
    assert counts == [0, 3, 6, 0, 0, 0, 1]
    assert bits == [0, -1, 2, 0, 0, 0, 1]
    wanted = 3.0 * math.exp(-0.3 * (4 / 7 - 0.7))
    assert [s.next_norm > 0 for s in states] == [True, False, False, True, True, True, False]
    assert states[3].next_norm == states[6].norm == pytest.approx(wanted, rel=1e-14)
    assert [s.norm for s in states[:6]] == [3.0] * 6


def test_with_the_shortest_epoch_the_first_window_decides_alone():
    plan = with_epoch(3)
    one = history(plan, 0, [released(1, 0), released(0, 9), released(0, 9)])[-1]
    other = history(plan, 0, [released(1, 0), None, released(9, 0)])[-1]
    assert one == other


def test_what_is_counted_was_released_at_the_norm_that_it_corrects():
    """An unknown quantile of 2: whoever is asked at another norm answers otherwise."""
    plan = with_epoch(3, learning_rate=2.0)
    state, window = first_clip(plan, 0), 0
    for _ in range(40):
        for _ in range(3):
            norm = clip_norm_of(plan, state, window - 1, window)
            share = 1 / (1 + (2 / norm) ** 4)  # of norms that are log-logistic about 2
            below = round(1000 * share)
            state = clip_after(plan, state, window, released(below, 1000 - below))
            window += 1
    assert 1 / (1 + (2 / state.norm) ** 4) == pytest.approx(0.7, abs=0.002)


@given(
    length=st.integers(3, 7),
    first=st.integers(0, 15),
    is_released=st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_norms_are_known_two_windows_ahead_and_come_as_they_were_told(length, first, is_released):
    plan = with_epoch(length)
    vectors = [released(n % 5, n % 3 + 1) if there else None for n, there in enumerate(is_released)]
    told: dict[int, float] = {}
    for sealed, state in enumerate(history(plan, first, vectors), start=first - 1):
        unknown = first_unknown_window(plan, state, sealed)
        assert unknown > sealed + 2
        for window in range(sealed + 1, unknown):
            norm = clip_norm_of(plan, state, sealed, window)
            assert told.setdefault(window, norm) == norm
        assert clip_norm_of(plan, state, sealed, unknown) is None
        assert clip_norm_of(plan, state, sealed, unknown + 10 * length) is None
        if sealed >= first:
            assert state.norm == told.get(sealed, state.norm)


@given(
    length=st.integers(3, 7),
    first=st.integers(0, 15),
    is_released=st.lists(st.booleans(), min_size=1, max_size=60),
)
def test_no_norm_takes_force_that_no_release_has_announced(length, first, is_released):
    plan = with_epoch(length)
    vectors = [released(1, 5) if there else None for there in is_released]
    announced = {plan.l2_clip_norm}
    states = history(plan, first, vectors)
    for window, (vector, state) in enumerate(zip(vectors, states[1:], strict=True), start=first):
        assert state.norm in announced, window
        if vector is not None and state.next_norm:
            announced.add(state.next_norm)


def test_a_window_without_a_release_where_the_norm_is_fixed_leaves_it():
    states = history(PLAN, 0, [released(0, 5), released(0, 5), None, released(0, 5), None])
    assert states[3] == ClipState(3.0, 3.0, 0, 0)
    assert clip_after(PLAN, states[-1], 5, released(1, 0)).norm == 3.0


def test_a_window_without_a_release_counts_nothing():
    assert history(PLAN, 0, [released(2, 1), None])[-1] == ClipState(3.0, 0.0, 4, 30)


@pytest.mark.parametrize(
    ("first_window", "next_norm"), [(0, 3.0), (1, 0), (2, 0), (3, 3.0), (4, 3.0), (5, 3.0), (6, 0)]
)
def test_a_ledger_that_begins_past_the_fixing_window_keeps_the_norm(first_window, next_norm):
    assert first_clip(PLAN, first_window) == ClipState(3.0, next_norm, 0, 0)


def test_a_ledger_that_begins_at_the_fixing_window_fixes_by_it_alone():
    state = history(PLAN, 7, [released(0, 1)])[-1]
    assert state.next_norm == pytest.approx(3.0 * math.exp(0.3 * 0.7), rel=1e-14)


def test_without_adaptive_clipping_there_is_no_state_and_no_norm():
    assert first_clip(FIXED, 0) is None
    assert clip_after(FIXED, None, 0, None) is None
    assert clip_norm_of(FIXED, ClipState(1.0, 0, 0, 0), 0, 1) == 0.0
    assert first_clip_norms(FIXED) == ()
    assert announced_clip_norms(FIXED, release(FIXED)) == ()


# --- What releases and models tell ----------------------------------------------------------


def release(plan: PrivacyPlan = PLAN, **changes: object) -> Release:
    fields: dict[str, object] = {
        "plan_id": plan.plan_id,
        "cluster": 1,
        "window": 8,
        "sequence": 9,
        "charge_units": 1,
        "spent_units": 1,
        "cap_units": 2,
        "noise_variance": Fraction(1),
        "l2_sensitivity_squared": 1,
        "vector": np.zeros(plan.release_size, np.int32),
    }
    return Release(**(fields | changes))


def test_a_release_announces_the_norm_of_its_epoch_and_the_next_one_if_it_is_fixed():
    assert announced_clip_norms(PLAN, release(clip_norm=2.5)) == (ClipNorm(1, 5, 2.5),)
    both = release(clip_norm=2.5, next_clip_norm=2.25, next_clip_window=10)
    assert announced_clip_norms(PLAN, both) == (ClipNorm(1, 5, 2.5), ClipNorm(1, 10, 2.25))


@pytest.mark.parametrize(
    ("plan", "changes", "is_right"),
    [
        (FIXED, {}, True),
        (FIXED, {"clip_norm": 3.0}, False),
        (FIXED, {"clip_norm": math.nan}, False),
        (PLAN, {}, False),
        (PLAN, {"clip_norm": 2.5}, True),
        (PLAN, {"clip_norm": -2.5}, False),
        (PLAN, {"clip_norm": math.inf}, False),
        (PLAN, {"clip_norm": math.nan}, False),
        (PLAN, {"clip_norm": 2.5, "next_clip_norm": 2.0, "next_clip_window": 10}, True),
        (PLAN, {"clip_norm": 2.5, "next_clip_norm": 2.0, "next_clip_window": 9}, False),
        (PLAN, {"clip_norm": 2.5, "next_clip_norm": 2.0, "next_clip_window": 15}, False),
        (PLAN, {"clip_norm": 2.5, "next_clip_norm": math.nan, "next_clip_window": 10}, False),
        (PLAN, {"clip_norm": 2.5, "next_clip_norm": -1.0, "next_clip_window": 10}, False),
        (PLAN, {"clip_norm": 2.5, "next_clip_window": 10}, False),
    ],
)
def test_a_releases_scale_is_such_as_the_plan_has_it(plan, changes, is_right):
    assert is_in_scale(plan, release(plan, **changes)) is is_right


def test_before_the_first_release_every_cluster_has_the_plans_norm():
    assert first_clip_norms(PLAN) == (ClipNorm(0, 0, 3.0), ClipNorm(1, 0, 3.0))


NORMS = (
    ClipNorm(0, 5, 1.0),
    ClipNorm(1, 5, 2.0),
    ClipNorm(1, 10, 3.0),
    ClipNorm(3, 10, 4.0),
    ClipNorm(3, 15, 5.0),
)


@pytest.mark.parametrize(
    ("cluster", "window", "norm"),
    [
        (0, 5, 1.0),
        (0, 99, 1.0),  # nothing newer is known
        (0, 0, 1.0),  # a clock that goes slow
        (1, -1, 2.0),
        (1, 9, 2.0),
        (1, 10, 3.0),
        (1, 10**12, 3.0),
        (3, 9, 4.0),
        (3, 15, 5.0),
        (2, 10, None),
        (4, 10, None),
    ],
)
def test_the_norm_in_force_is_the_newest_that_has_begun(cluster, window, norm):
    assert clip_norm_in_force(NORMS, cluster, window) == norm


def test_no_norms_tell_nothing():
    assert clip_norm_in_force((), 0, 0) is None


@pytest.mark.parametrize(("window", "following"), [(0, 5), (4, 5), (5, 10), (9, 10)])
def test_the_next_norm_begins_with_the_next_epoch(window, following):
    assert next_clip_window(PLAN, window) == following
