import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.aggregation.merge import NoisySum
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

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
    total = NoisySum(2)
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
        NoisySum(2).mean_gradient(make_plan())


def test_a_short_vector_is_refused_rather_than_broadcast():
    with pytest.raises(ValueError, match="shape"):
        NoisySum(2).add(np.array([1]))


def test_memory_does_not_grow_with_the_number_of_releases():
    dimension = 20_000
    vector = np.ones(dimension + 1, np.int64)
    total = NoisySum(dimension)
    tracemalloc.start()
    for _ in range(200):
        total.add(vector)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * vector.nbytes
