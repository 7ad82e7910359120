import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.aggregation.merge import NoisySum
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.rotation import rotate

INT64 = st.integers(-(2**63), 2**63 - 1)
VECTORS = st.lists(
    st.tuples(INT64, INT64, INT64).map(lambda values: np.array(values, np.int64)), max_size=6
)


def make_plan(normalizer: str = "expected_clients", minimum_count: int = 0) -> PrivacyPlan:
    return PrivacyPlan(
        name="merge",
        dimension=2,
        cluster_count=4,
        assignment="hash",
        assignment_key="public",
        expected_clients=100,
        start_ms=0,
        window_length_ms=1000,
        grace_ms=100,
        release_delay_ms=200,
        l2_clip_norm=3.0,
        grid_l2_bound=1000,
        count_weight=10,
        update_dtype="int16",
        epsilon=8.0,
        delta=1e-6,
        horizon_windows=100,
        optimizer=OptimizerSpec("sgd", 0.5),
        normalizer=normalizer,
        minimum_count=minimum_count,
    )


def summed(*vectors: np.ndarray) -> NoisySum:
    total = NoisySum(3)
    for vector in vectors:
        total.add(vector)
    return total


def bits(total: NoisySum) -> tuple[bytes, float, int]:
    if total.cell_count == 0:
        return b"", 0.0, 0
    mean = total.mean_gradient(make_plan())
    return mean.gradient.tobytes(), mean.noisy_count, total.cell_count


@given(VECTORS, VECTORS, VECTORS)
def test_merging_is_associative_and_commutative_to_the_last_bit(first, second, third):
    a, b, c = summed(*first), summed(*second), summed(*third)
    one_by_one = summed(*third, *first, *second)
    assert bits(a.merged_with(b).merged_with(c)) == bits(one_by_one)
    assert bits(c.merged_with(b.merged_with(a))) == bits(one_by_one)


CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=10)
NORMS = st.sampled_from([0.1, 0.3, 1 / 3, 7.0])
SCALED = st.lists(
    st.tuples(NORMS, INT64, INT64, INT64, INT64).map(
        lambda values: (values[0], np.array(values[1:], np.int64))
    ),
    min_size=1,
    max_size=8,
)


def adaptive_plan(**changes: object) -> PrivacyPlan:
    return replace(make_plan(), clipping=CLIPPING, **changes)


def scaled(*cells: tuple[float, np.ndarray]) -> NoisySum:
    total = NoisySum(4)
    for clip_norm, vector in cells:
        total.add(vector, clip_norm)
    return total


@given(SCALED, st.data())
def test_with_several_clip_norms_order_and_grouping_do_not_change_a_bit(cells, data):
    shuffled = data.draw(st.permutations(cells))
    cut = data.draw(st.integers(0, len(cells)))
    grouped = scaled(*shuffled[cut:]).merged_with(scaled(*shuffled[:cut]))
    first, second = (t.mean_gradient(adaptive_plan()) for t in (scaled(*cells), grouped))
    assert first.gradient.tobytes() == second.gradient.tobytes()
    assert first.noisy_count == second.noisy_count
    assert grouped.cell_count == len(cells)
    assert grouped.norm_count == len({clip_norm for clip_norm, _ in cells})


@given(SCALED)
def test_a_mean_weighs_each_cell_by_its_own_grid_step(cells):
    plan = adaptive_plan()
    mean = scaled(*cells).mean_gradient(plan)
    scale = Fraction(plan.client_scale) * plan.expected_clients * len(cells) / plan.cluster_count
    for i in range(2):
        exact = sum(Fraction(norm) * int(vector[i]) for norm, vector in cells) / scale
        largest = sum(Fraction(norm) * abs(int(vector[i])) for norm, vector in cells) / scale
        assert abs(Fraction(float(mean.gradient[i])) - exact) <= largest * Fraction(1, 2**49)
    assert mean.noisy_count == sum(int(vector[2]) for _, vector in cells) / plan.count_weight


def test_grid_steps_of_two_clip_norms_are_not_added():
    plan = adaptive_plan()
    cells = (2.0, np.array([100, 0, 10, 0])), (1.0, np.array([300, 0, 10, 0]))
    found = scaled(*cells).mean_gradient(plan).gradient[0]
    # Two of four clusters: 50 clients.
    assert found == pytest.approx((2.0 * 100 + 1.0 * 300) / plan.client_scale / 50)
    assert found != pytest.approx(1.5 * (100 + 300) / plan.client_scale / 50)


def test_the_clip_bits_are_no_part_of_the_mean():
    plan = adaptive_plan(normalizer="noisy_count", minimum_count=1)
    means = [scaled((3.0, np.array([10, 20, 30, b]))).mean_gradient(plan) for b in (0, 10**6)]
    assert means[0].gradient.tolist() == means[1].gradient.tolist()
    assert means[0].noisy_count == means[1].noisy_count == 3
    assert means[0].gradient.tolist() == [x * plan.grid_step / 3 for x in (10.0, 20.0)]


@pytest.mark.parametrize("clipping", [None, CLIPPING])
def test_a_rotated_mean_is_turned_back(clipping):
    plan = replace(make_plan(), dimension=5, rotation="hadamard", clipping=clipping)
    gradient = np.array([1.0, -2.0, 0.0, 5.0, 0.25])
    grid = np.rint(rotate(gradient, plan.plan_id) / plan.grid_step).astype(np.int64)
    total = NoisySum(plan.release_size)
    clip_norm = 0.0 if clipping is None else plan.l2_clip_norm
    extra = np.array([25 * plan.count_weight, 99][: plan.release_size - 8])
    total.add(np.concatenate([25 * grid, extra]), clip_norm)
    mean = total.mean_gradient(plan)
    # Rounding moves each of 8 coordinates by at most half a grid step.
    assert np.linalg.norm(mean.gradient - gradient) <= np.sqrt(8) / 2 * plan.grid_step
    assert mean.gradient.shape == (5,)
    assert mean.noisy_count == 25


def test_merging_changes_neither_part():
    a, b = summed(np.array([1, 2, 3])), summed(np.array([4, 5, 6]))
    before = bits(a), bits(b)
    assert bits(a.merged_with(b)) == bits(summed(np.array([5, 7, 9]), np.array([0, 0, 0])))
    assert (bits(a), bits(b)) == before


@given(VECTORS.filter(bool))
def test_no_sum_of_int64_wraps(vectors):
    plan = make_plan()
    mean = summed(*vectors).mean_gradient(plan)
    exact = [sum(int(vector[i]) for vector in vectors) for i in range(3)]
    divisor = plan.expected_clients * len(vectors) / plan.cluster_count
    expected = [float(value) * plan.grid_step / divisor for value in exact[:2]]
    assert mean.gradient.tolist() == expected
    assert mean.noisy_count == exact[2] / plan.count_weight


def test_int32_releases_are_summed_in_int64():
    largest = np.full(3, 2**31 - 1, np.int32)
    total = summed(largest, largest, largest)
    plan = make_plan()
    assert total.mean_gradient(plan).noisy_count == 3 * (2**31 - 1) / plan.count_weight


def test_the_expected_count_is_that_of_the_cells_in_the_sum():
    plan = make_plan()
    vector = np.array([1000, -1000, 0])
    alone = summed(vector).mean_gradient(plan).gradient
    # 100 clients in 4 clusters: 25 of them are behind one cell.
    step = Fraction(plan.l2_clip_norm) / Fraction(plan.client_scale)
    assert alone[0] == pytest.approx(float(1000 * step / 25), rel=1e-12)
    assert alone[1] == -alone[0]
    assert summed(*[vector] * 4).mean_gradient(plan).gradient.tolist() == alone.tolist()


def test_the_noisy_count_divides_above_its_floor_only():
    plan = make_plan("noisy_count", minimum_count=5)
    for count, divisor in ((200, 20), (70, 7), (40, 5), (0, 5), (-300, 5)):
        mean = summed(np.array([1000, 0, count])).mean_gradient(plan)
        assert mean.noisy_count == count / 10
        assert mean.gradient[0] == pytest.approx(1000 * plan.grid_step / divisor, rel=1e-12)


def test_the_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no release"):
        NoisySum(3).mean_gradient(make_plan())


def test_a_short_vector_is_refused_rather_than_broadcast():
    with pytest.raises(ValueError, match="shape"):
        NoisySum(3).add(np.array([1]))


def test_memory_does_not_grow_with_the_number_of_releases():
    vector = np.ones(20_001, np.int64)
    total = NoisySum(vector.size)
    tracemalloc.start()
    for _ in range(200):
        total.add(vector)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * vector.nbytes
