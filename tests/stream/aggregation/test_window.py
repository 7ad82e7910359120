from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Update
from stream.aggregation.client_numbers import ClientNumbers
from stream.aggregation.vector_sum import VectorAdder
from stream.aggregation.window import WindowSum
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="window",
    dimension=3,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=1000,
    count_weight=7,
    update_dtype="int16",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
ADAPTIVE = replace(PLAN, clipping=ClippingSpec(0.5, 0.2, bit_weight=20, epoch_windows=3))
VECTORS = st.lists(st.integers(-32767, 32767), min_size=3, max_size=3)


def update(client_id: str, vector: np.ndarray, **changes: object) -> Update:
    return replace(Update(PLAN.plan_id, client_id, 0, vector), **changes)


def window_of(plan: PrivacyPlan, first_offset: int) -> WindowSum:
    return WindowSum(plan, VectorAdder(plan), first_offset)


NUMBERS = ClientNumbers()


def numbers_of(*client_ids: str) -> np.ndarray:
    return NUMBERS.add([each.encode() for each in client_ids])


def add(total: WindowSum, counted: Update) -> None:
    total.vectors.add(counted.vector)
    total.count(numbers_of(counted.client_id), int(counted.is_below_clip))


def test_an_empty_window_is_all_zeros():
    total = window_of(PLAN, 42)
    assert total.first_offset == 42
    assert total.exact_sum.tolist() == [0, 0, 0, 0]
    assert total.exact_sum.dtype == np.int64
    assert not total.has(0)


def test_the_last_coordinate_is_the_weighted_count():
    total = window_of(PLAN, 0)
    add(total, update("a", np.array([1, -2, 3], np.int16)))
    add(total, update("b", np.array([10, 20, -30], np.int16)))
    assert total.exact_sum.tolist() == [11, 18, -27, 14]
    number_a, number_b, number_c = numbers_of("a", "b", "c").tolist()
    assert total.has(number_a)
    assert total.has(number_b)
    assert not total.has(number_c)
    assert not total.has(10**6)


def test_clients_are_new_once_and_one_of_each():
    total = window_of(PLAN, 0)
    numbers = np.array([4, 2, 5000], np.int32)
    assert total.are_new(numbers)
    assert not total.are_new(numbers[[0, 1, 0]])
    total.count(numbers[1:], 0)
    assert total.are_new(numbers[:1])
    assert not total.are_new(numbers)
    assert not total.are_new(numbers[2:])


def test_who_is_counted_stays_so_under_other_numbers():
    total = window_of(PLAN, 0)
    total.count(np.array([1, 4], np.int32), 0)
    members = total.members(9000)
    assert np.flatnonzero(members).tolist() == [1, 4]
    are_kept = members.copy()
    are_kept[2] = True
    total.keep(are_kept)
    assert [number for number in range(9000) if total.has(number)] == [0, 2]
    assert total.exact_sum.tolist() == [0, 0, 0, 14]


@given(vectors=st.lists(VECTORS, max_size=12), order=st.randoms())
def test_the_order_of_updates_does_not_matter(vectors, order):
    updates = [(str(i), np.array(v, np.int16)) for i, v in enumerate(vectors)]
    forward, shuffled = window_of(PLAN, 0), window_of(PLAN, 0)
    for client_id, vector in updates:
        add(forward, update(client_id, vector))
    order.shuffle(updates)
    for client_id, vector in updates:
        add(shuffled, update(client_id, vector))
    assert np.array_equal(forward.exact_sum, shuffled.exact_sum)
    assert forward.exact_sum.tolist() == [
        *(sum(v[i] for v in vectors) for i in range(3)),
        7 * len(vectors),
    ]


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_sums_do_not_wrap_in_the_type_of_an_update(dtype):
    total = window_of(PLAN, 0)
    largest = np.iinfo(dtype).max
    for i in range(1000):
        add(total, update(str(i), np.full(3, -largest, dtype)))
    assert total.exact_sum.tolist() == [-1000 * largest] * 3 + [7000]


def test_a_read_only_and_unaligned_vector_is_counted():
    data = b"\0" + np.array([1, 2, 3], "<i2").tobytes()
    vector = np.frombuffer(data, "<i2", offset=1)
    assert not vector.flags.writeable
    total = window_of(PLAN, 0)
    add(total, update("a", vector))
    assert total.exact_sum.tolist() == [1, 2, 3, 7]


def test_a_clip_bit_moves_its_own_coordinate_by_half_its_weight_either_way():
    total = window_of(ADAPTIVE, 0)
    bits = [True, True, False, True]
    for i, is_below in enumerate(bits):
        vector = np.array([i, 0, 0], np.int16)
        add(total, update(str(i), vector, clip_norm=1.0, is_below_clip=is_below))
    assert total.exact_sum.tolist() == [6, 0, 0, 4 * 7, 3 * 10 - 10]


@given(vectors=st.lists(VECTORS, min_size=1, max_size=5), data=st.data())
def test_one_client_is_never_farther_from_nobody_than_the_sensitivity(vectors, data):
    with_it, without = window_of(ADAPTIVE, 0), window_of(ADAPTIVE, 0)
    for i, vector in enumerate(vectors):
        other = update(str(i), np.array(vector, np.int16), clip_norm=1.0)
        add(with_it, other)
        add(without, other)
    vector = np.array([600, -800, 0], np.int16)  # a norm of exactly the bound
    bit = data.draw(st.booleans())
    add(with_it, update("victim", vector, clip_norm=1.0, is_below_clip=bit))
    apart = with_it.exact_sum - without.exact_sum
    assert int(apart @ apart) == ADAPTIVE.l2_sensitivity_squared
    # A sensitivity that forgot the bit, or the count, would be too small.
    assert int(apart @ apart) > ADAPTIVE.grid_l2_bound**2 + ADAPTIVE.count_weight**2


def test_a_rotated_update_has_the_padded_length():
    plan = replace(PLAN, rotation="hadamard")
    total = window_of(plan, 0)
    add(total, update("a", np.array([1, 2, 3, 4], np.int16)))
    assert total.exact_sum.tolist() == [1, 2, 3, 4, 7]
