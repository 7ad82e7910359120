from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_cluster import PLAN

from agents.counted_updates import WindowTotal, refusal
from schemas import Update
from stream.aggregation.validation import check_update
from stream.aggregation.vector_sum import VectorAdder
from stream.aggregation.window import WindowSum
from stream.privacy.adaptive_clipping import ClippingSpec

PLAN = replace(PLAN, cluster_count=2)
HERE = next(str(client) for client in range(99) if PLAN.cluster_of(str(client)) == 0)
AWAY = next(str(client) for client in range(99) if PLAN.cluster_of(str(client)) == 1)


def make(vector: list[int], dtype: str = "int8", **changes: object) -> Update:
    update = Update(PLAN.plan_id, HERE, 0, np.array(vector, dtype))
    return replace(update, **changes)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (make([60, 80, 0, 0, 0, 0]), None),
        (make([60, 80, 1, 0, 0, 0]), "norm_too_large"),
        (make([-128, 0, 0, 0, 0, 0]), "forbidden_value"),
        (make([0] * 6, "int16"), "wrong_dtype"),
        (make([0] * 7), "wrong_dimension"),
        (make([0] * 6, plan_id=bytes(16)), "wrong_plan"),
        (make([0] * 6, client_id=AWAY), "foreign_cluster"),
        (make([0] * 6, model_version=4), "future_model"),
        (make([0] * 6, clip_norm=1.0), "wrong_scale"),
    ],
)
def test_an_update_counts_or_is_refused_for_one_reason(update: Update, reason: str | None) -> None:
    assert refusal(PLAN, 0, 3, 0.0, update) == reason


def test_squares_do_not_wrap() -> None:
    plan = replace(PLAN, dimension=70_000, update_dtype="int16", grid_l2_bound=32_767)
    vector = np.full(70_000, 32_767, np.int16)
    update = Update(plan.plan_id, HERE, 0, vector)
    assert refusal(plan, 0, 0, 0.0, update) == "norm_too_large"


@given(
    vector=st.lists(st.integers(-128, 127), min_size=5, max_size=7),
    version=st.integers(0, 5),
    client=st.sampled_from([HERE, AWAY]),
    clip_norm=st.sampled_from([0.0, 0.5]),
)
def test_heads_refuse_for_the_same_reason(
    vector: list[int], version: int, client: str, clip_norm: float
) -> None:
    update = make(vector, client_id=client, model_version=version, clip_norm=clip_norm)
    head = check_update(update, PLAN, 0, 2, 0.0)
    assert refusal(PLAN, 0, 2, 0.0, update) == (head.reason if head else None)


def test_a_total_is_the_sum_of_a_head() -> None:
    spec = ClippingSpec(target_quantile=0.5, learning_rate=0.5, bit_weight=4, epoch_windows=3)
    plan = replace(PLAN, clipping=spec)
    total, head = WindowTotal(plan), WindowSum(plan, VectorAdder(plan), 0)
    for number in range(5):
        update = make(
            [number, -number, 100, -100, 0, 1], client_id=str(number), is_below_clip=number > 1
        )
        total.add(update, is_late=False)
        head.vectors.add(update.vector)
        head.count(np.array([number], np.int32), int(update.is_below_clip))
    (candidate,) = total.candidates()
    assert candidate.tolist() == head.exact_sum.tolist()
    assert total.counted == 5
    assert total.has("3")
    assert not total.has("5")


def test_a_total_of_nobody_is_zeros() -> None:
    (candidate,) = WindowTotal(PLAN).candidates()
    assert candidate.tolist() == [0] * 7


def test_an_update_that_was_reported_late_may_be_in_the_sum_or_not() -> None:
    total = WindowTotal(PLAN)
    total.add(make([1, 0, 0, 0, 0, 0]), is_late=False)
    total.add(make([0, 2, 0, 0, 0, 0], client_id="late"), is_late=True)
    without, whole = total.candidates()
    assert without.tolist() == [1, 0, 0, 0, 0, 0, 3]
    assert whole.tolist() == [1, 2, 0, 0, 0, 0, 6]
    assert (total.counted, total.late) == (1, 1)
    assert total.has("late")


def test_who_is_absent_is_counted() -> None:
    total = WindowTotal(PLAN)
    total.keys |= {1, 2}
    assert total.absent({1, 2, 3}) == 1
