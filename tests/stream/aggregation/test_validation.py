from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import Update, decode_update, encode_update
from stream.aggregation.validation import Reason, check_update, squared_norm
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="validation",
    dimension=4,
    cluster_count=2,
    assignment="prefix",
    prefixes=("north", "south"),
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
WIDE = replace(PLAN, update_dtype="int16", grid_l2_bound=40_000)


def update(vector, plan=PLAN, /, **changes):
    vector = np.asarray(vector, plan.update_dtype)
    return replace(Update(plan.plan_id, "north/a", 3, vector), **changes)


def reason(made, plan=PLAN, cluster=0, window=3, clip_norm=0.0):
    rejection = check_update(made, plan, cluster, window, clip_norm)
    return None if rejection is None else rejection.reason


def test_a_good_update_is_accepted():
    assert check_update(update([1, -2, 3, -4]), PLAN, 0, 3, 0.0) is None


def test_a_zero_update_is_accepted():
    assert reason(update([0, 0, 0, 0])) is None


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (update([1, 2, 3, 4], plan_id=bytes(16)), Reason.WRONG_PLAN),
        (update([1, 2, 3, 4], vector=np.ones(4, np.int16)), Reason.WRONG_DTYPE),
        (update([1, 2, 3]), Reason.WRONG_DIMENSION),
        (update([1, 2, 3, 4, 0]), Reason.WRONG_DIMENSION),
        (update([1, 2, 3, 4], client_id="west/a"), Reason.UNKNOWN_CLUSTER),
        (update([1, 2, 3, 4], client_id="south/a"), Reason.FOREIGN_CLUSTER),
        (update([1, 2, 3, 4], model_version=4), Reason.FUTURE_MODEL),
        (update([1, 2, 3, 4], model_version=2**64 - 1), Reason.FUTURE_MODEL),
        (update([1, 2, 3, 4], clip_norm=1.0), Reason.WRONG_SCALE),
        (update([0, -128, 0, 0]), Reason.FORBIDDEN_VALUE),
        (update([100, 1, 0, 0]), Reason.NORM_TOO_LARGE),
    ],
)
def test_a_bad_update_is_refused_for_one_reason(made, why):
    rejection = check_update(made, PLAN, 0, 3, 0.0)
    assert rejection is not None
    assert rejection.reason is why
    assert rejection.detail
    assert "\n" not in rejection.detail


def test_every_reason_of_an_updates_content_has_a_case_above():
    # The others are about bytes, time and the cluster's state: tests of the intake.
    elsewhere = {"malformed", "duplicate", "late", "not_started", "exhausted", "client_exhausted"}
    elsewhere |= {"throttled"}
    above = {"wrong_plan", "wrong_dtype", "wrong_dimension", "unknown_cluster"}
    above |= {"foreign_cluster", "future_model", "wrong_scale"}
    above |= {"forbidden_value", "norm_too_large"}
    assert {str(reason) for reason in Reason} == above | elsewhere


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_model_of_this_window_or_older_is_accepted(version):
    assert reason(update([1, 2, 3, 4], model_version=version)) is None


def test_in_the_first_window_there_is_only_the_first_model():
    assert reason(update([1, 2, 3, 4], model_version=0), window=0) is None
    assert reason(update([1, 2, 3, 4], model_version=1), window=0) is Reason.FUTURE_MODEL


@pytest.mark.parametrize("vector", [[100, 0, 0, 0], [-100, 0, 0, 0], [60, -80, 0, 0], [50] * 4])
def test_a_norm_of_exactly_the_bound_is_accepted(vector):
    assert reason(update(vector)) is None


@pytest.mark.parametrize("vector", [[100, 0, 0, -1], [101, 0, 0, 0], [50, 50, 50, 51], [127] * 4])
def test_a_norm_just_above_the_bound_is_refused(vector):
    assert reason(update(vector)) is Reason.NORM_TOO_LARGE


def test_the_most_negative_int16_is_refused_and_its_neighbour_is_not():
    assert reason(update([-32768, 0, 0, 0], WIDE), WIDE) is Reason.FORBIDDEN_VALUE
    assert reason(update([-32767, 0, 0, 0], WIDE), WIDE) is None


def test_the_most_negative_int8_is_legal_as_int16():
    assert reason(update([-128, 0, 0, 0], WIDE), WIDE) is None


@pytest.mark.parametrize(
    ("dtype", "value", "size", "wrapped"),
    [
        (np.int8, 127, 65_536, np.int8),
        (np.int8, 16, 1, np.int8),  # 256 wraps to 0
        (np.int16, 256, 1, np.int16),  # 65536 wraps to 0
        (np.int16, 256, 65_536, np.int32),  # 2^32 wraps to 0
        (np.int16, -32_768, 4, np.int32),  # 2^32 wraps to 0
    ],
)
def test_a_norm_that_wraps_in_a_narrow_type_is_exact_here(dtype, value, size, wrapped):
    vector = np.full(size, value, dtype)
    narrow = vector.astype(wrapped)
    assert int(np.dot(narrow, narrow)) != value**2 * size
    assert squared_norm(vector) == value**2 * size


def test_a_norm_that_wraps_to_nothing_is_not_accepted():
    plan = replace(WIDE, dimension=65_536, grid_l2_bound=5_000)
    vector = np.full(65_536, 256, np.int16)
    assert np.dot(vector, vector) == 0
    assert np.dot(vector.astype(np.int32), vector.astype(np.int32)) == 0
    assert reason(update(vector, plan), plan) is Reason.NORM_TOO_LARGE


def python_norm(vector):
    return sum(int(value) ** 2 for value in vector)


@given(data=st.binary(max_size=400))
def test_the_norm_of_any_int8_vector_is_that_of_python(data):
    vector = np.frombuffer(data, np.int8)
    assert squared_norm(vector) == python_norm(vector)


@given(data=st.binary(max_size=400).map(lambda data: data[: len(data) // 2 * 2]))
def test_the_norm_of_any_int16_vector_is_that_of_python(data):
    vector = np.frombuffer(data, np.int16)
    assert squared_norm(vector) == python_norm(vector)


@settings(max_examples=30)
@given(
    size=st.sampled_from([65_535, 65_536, 65_537, 131_072, 131_073]),
    pattern=st.lists(st.sampled_from([-32_768, -32_767, -1, 0, 1, 32_767]), min_size=1, max_size=7),
    dtype=st.sampled_from([np.int8, np.int16]),
)
def test_the_norm_is_exact_around_the_size_of_a_block(size, pattern, dtype):
    limits = np.iinfo(dtype)
    vector = np.resize(np.clip(pattern, limits.min, limits.max).astype(dtype), size)
    assert squared_norm(vector) == python_norm(vector.tolist())


def test_the_longest_vector_of_the_largest_values_is_exact():
    size = 3_000_001
    assert squared_norm(np.full(size, -32_768, np.int16)) == size * 2**30


def test_the_norm_of_an_unaligned_view_is_exact():
    made = update([1, 2, 3, -4], WIDE)
    shifted = memoryview(b"\0" + encode_update(made))[1:]
    for decoded in (decode_update(shifted), decode_update(encode_update(made))):
        assert squared_norm(decoded.vector) == 30
        assert reason(decoded, WIDE) is None


@settings(max_examples=200)
@given(vector=st.lists(st.integers(-128, 127), min_size=4, max_size=4))
def test_whatever_is_accepted_is_within_the_bound_and_symmetric(vector):
    legal = python_norm(vector) <= 100**2 and min(vector) >= -127
    assert (reason(update(vector)) is None) == legal


# --- Scales --------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 0.3, 1e-300])
def test_an_update_of_the_scale_in_force_is_accepted(clip_norm):
    assert reason(update([1, 2, 3, 4], clip_norm=clip_norm), clip_norm=clip_norm) is None


@pytest.mark.parametrize(
    ("told", "in_force"), [(0.0, 1.0), (1.0, 0.0), (np.nextafter(0.3, 1), 0.3), (0.15, 0.3)]
)
def test_an_update_of_another_scale_is_refused_however_near(told, in_force):
    made = update([1, 2, 3, 4], clip_norm=float(told))
    assert reason(made, clip_norm=in_force) is Reason.WRONG_SCALE


def test_a_rotated_update_has_the_padded_length_and_no_other():
    plan = replace(PLAN, dimension=3, rotation="hadamard")
    assert reason(update([1, 2, 3, 4], plan), plan) is None
    assert reason(update([1, 2, 3], plan), plan) is Reason.WRONG_DIMENSION
