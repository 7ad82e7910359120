"""What each field may be is tested with `PrivacyPlan`, which everybody makes: `test_plan`."""

import math
from dataclasses import fields, replace

import pytest

from stream.errors import PlanError
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.plan_fields import COORDINATE_LIMITS, NOISES, ROTATIONS, SCOPES, PlanFields
from stream.privacy.schedule_spec import ScheduleSpec

FIELDS = PlanFields(
    name="fields",
    dimension=20,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1,
    grid_l2_bound=256,
    count_weight=25,
    update_dtype="int8",
    epsilon=8,
    delta=1e-5,
    horizon_windows=8,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


def test_a_plan_has_no_field_but_these():
    assert [item.name for item in fields(PrivacyPlan)] == [item.name for item in fields(PlanFields)]


def test_what_need_not_be_written_is_as_it_was_before_it_could_be():
    assert (FIELDS.noise, FIELDS.scope, FIELDS.rotation) == (NOISES[0], SCOPES[0], ROTATIONS[0])
    assert (FIELDS.hour_epsilon, FIELDS.day_epsilon, FIELDS.clipping) == (0.0, 0.0, None)
    assert FIELDS.schedule_spec == ScheduleSpec()


def test_whole_numbers_become_floats_where_floats_are_meant():
    made = replace(FIELDS, hour_epsilon=1, day_epsilon=2)
    values = (made.l2_clip_norm, made.epsilon, made.delta, made.hour_epsilon, made.day_epsilon)
    assert {type(value) for value in values} == {float}


@pytest.mark.parametrize("dtype", sorted(COORDINATE_LIMITS))
@pytest.mark.parametrize(("dimension", "padded"), [(1, 1), (2, 2), (3, 4), (20, 32), (32, 32)])
def test_the_largest_bound_is_the_norm_of_all_coordinates_at_their_limit(dtype, dimension, padded):
    limit = COORDINATE_LIMITS[dtype]
    for rotation, count in (("none", dimension), ("hadamard", padded)):
        largest = math.isqrt(limit**2 * count)
        changes = {"dimension": dimension, "update_dtype": dtype, "rotation": rotation}
        made = replace(FIELDS, **changes, grid_l2_bound=largest)
        assert made.coordinate_count == count
        with pytest.raises(PlanError, match=f"grid_l2_bound is .* from 1 to {largest}$"):
            replace(made, grid_l2_bound=largest + 1)


def test_what_a_client_pays_alike_has_no_schedule_but_may_have_limits():
    made = replace(FIELDS, scope="client", hour_epsilon=1.0)
    assert made.scope == "client"
    for spec in (ScheduleSpec("paced"), ScheduleSpec(saving_windows=3)):
        with pytest.raises(PlanError, match=r"remove \[schedule\]"):
            replace(made, schedule_spec=spec)
