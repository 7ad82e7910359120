import dataclasses
import json
import math

import pytest

from agents.plan_report import cautions, describe, report
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec


def make_plan(**changes: object) -> PrivacyPlan:
    plan = PrivacyPlan(
        name="report",
        dimension=400,
        cluster_count=4,
        assignment="hash",
        assignment_key="public",
        expected_clients=1000,
        start_ms=0,
        window_length_ms=60_000,
        grace_ms=1000,
        release_delay_ms=5000,
        l2_clip_norm=2.0,
        grid_l2_bound=500,
        count_weight=50,
        update_dtype="int8",
        epsilon=4.0,
        delta=1e-6,
        horizon_windows=1000,
        optimizer=OptimizerSpec("sgd", learning_rate=0.1),
        normalizer="expected_clients",
    )
    return dataclasses.replace(plan, **changes)


def test_the_report_holds_what_scripts_are_promised() -> None:
    plan = make_plan()
    found = report(plan)
    assert found["plan_id"] == plan.plan_id_hex
    assert found["epsilon"] == 4.0
    assert found["delta"] == 1e-6
    assert found["windows"] == plan.windows_allowed >= 1000
    assert found["noise_multiplier"] == plan.noise_multiplier
    assert found["rho_cap"] == plan.cap_units / 2**60
    assert found["guarantee"] == plan.guarantee


def test_the_report_is_json() -> None:
    found = report(make_plan())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_noise_of_the_mean_is_what_the_global_agent_will_see() -> None:
    found = report(make_plan())
    # The sum of four clusters' noises, in gradient units, over the number of clients.
    one = found["noise_stddev_grid_steps"] * found["grid_step"]
    assert found["noise_stddev"] == pytest.approx(one)
    assert found["mean_noise_stddev"] == pytest.approx(math.sqrt(4 * one**2) / 1000)
    whole = math.sqrt(400 * found["mean_noise_stddev"] ** 2)
    assert found["noise_to_signal"] == pytest.approx(whole / 2.0)


def test_the_noise_of_the_count_is_in_clients() -> None:
    found = report(make_plan())
    assert found["noisy_count_stddev_clients"] == pytest.approx(
        2 * found["noise_stddev_grid_steps"] / 50
    )


def test_one_release_of_the_whole_budget_costs_the_whole_budget() -> None:
    found = report(make_plan(horizon_windows=1))
    assert found["windows"] == 1
    assert found["rho_per_window"] == pytest.approx(found["rho_cap"], rel=1e-9)


def test_zcdp_alone_would_report_a_larger_epsilon() -> None:
    found = report(make_plan())
    assert 4.0 < found["epsilon_by_zcdp"] < 4.0 * 1.1


def test_sizes_are_those_of_the_vectors() -> None:
    found = report(make_plan(update_dtype="int16"))
    assert found["update_vector_bytes"] == 800
    assert found["release_vector_bytes"] == 401 * int(found["release_dtype"][3:]) // 8
    assert found["updates_bytes_per_window"] == 800_000


def test_topics_carry_the_plans_prefix() -> None:
    assert "fraud.releases" in report(make_plan(topic_prefix="fraud"))["topics"]


def test_a_sound_plan_needs_no_caution() -> None:
    assert cautions(make_plan()) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"delta": 2e-4}, "delta = 0.0002"),
        ({"epsilon": 20.0}, "epsilon = 20"),
        ({"grid_l2_bound": 700, "count_weight": 70}, "int8 ends at 127"),
        ({"grid_l2_bound": 60, "count_weight": 6}, "raise grid_l2_bound"),
        ({"count_weight": 400}, "count_weight"),
        ({"expected_clients": 10}, "times the largest"),
        (
            {"normalizer": "noisy_count", "minimum_count": 1, "expected_clients": 100},
            "noisy count is off",
        ),
        (
            {"dimension": 100_000_000, "grid_l2_bound": 50_000, "count_weight": 5000},
            "no topics can be made",
        ),
    ],
)
def test_what_is_likely_a_mistake_is_said(changes: dict[str, object], word: str) -> None:
    plan = make_plan(**changes)
    assert any(word in caution for caution in cautions(plan)), cautions(plan)
    assert report(plan)["cautions"] == cautions(plan)


def test_a_bound_at_the_edge_of_the_dtype_raises_no_caution() -> None:
    # 30 sqrt(400) = 600
    assert cautions(make_plan(grid_l2_bound=600, count_weight=60)) == []


def test_the_text_begins_with_the_guarantee_and_ends_with_the_cautions() -> None:
    plan = make_plan(delta=2e-4)
    text = describe(plan)
    assert " ".join(text.split("\n\n")[0].split()) == plan.guarantee
    assert plan.plan_id_hex in text
    assert "caution: delta" in text.splitlines()[-2] + text.splitlines()[-1]
    assert all(len(line) <= 120 for line in text.splitlines())
