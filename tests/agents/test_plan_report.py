import dataclasses
import json
import math

import pytest

from agents.plan_comparison import comparison, comparison_lines
from agents.plan_report import cautions, describe, report
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec


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


def test_other_accountings_of_the_same_windows_stand_beside_it() -> None:
    plan = make_plan()
    assert report(plan)["comparison"] == comparison(plan)
    assert "\n".join(["", *comparison_lines(plan)]) in describe(plan)


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


def test_a_budget_without_an_end_has_no_number_of_windows() -> None:
    plan = make_plan(schedule_spec=ScheduleSpec("infinite"))
    found = report(plan)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["windows"] is found["budget_lasts_s"] is None
    assert "no fixed number of windows" in describe(plan)


def test_noise_filter_scope_and_rotation_are_said() -> None:
    plan = make_plan(noise="discrete_gaussian", scope="client", rotation="hadamard")
    found = report(plan)
    assert (found["noise"], found["filter"]) == ("discrete_gaussian", "zcdp")
    assert (found["scope"], found["rotation"]) == ("client", "hadamard")
    assert "sdp.participation" in found["topics"]
    assert "sdp.participation" not in report(make_plan())["topics"]
    text = describe(plan)
    assert "discrete_gaussian; charges become epsilon by zcdp" in text
    assert "budget of a client" in text
    assert "in which a client takes part; releases go on for ever" in text


def test_rotated_updates_are_as_long_as_the_next_power_of_two() -> None:
    found = report(make_plan(rotation="hadamard"))
    assert found["update_vector_bytes"] == 512
    assert found["release_vector_bytes"] == 513 * int(found["release_dtype"][3:]) // 8


CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=100, epoch_windows=10)


def test_adaptive_clipping_is_said_with_how_well_an_epoch_tells_its_quantile() -> None:
    plan = make_plan(clipping=CLIPPING)
    found = report(plan)
    assert found["clipping"] == {
        "target_quantile": 0.5,
        "learning_rate": 0.2,
        "bit_weight": 100,
        "epoch_windows": 10,
    }
    # Ten windows of 250 clients: the bits' mean has sigma sqrt(10) / (100 * 10 * 250).
    share = math.sqrt(10 * plan.noise_variance) / (100 * 2500)
    assert f"tell that share to {100 * share:.2g} % of the clients" in describe(plan)
    assert found["release_vector_bytes"] == 402 * int(found["release_dtype"][3:]) // 8


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"bit_weight": 600}, "adapting the clip norm takes"),
        ({"bit_weight": 2, "epoch_windows": 3}, "an epoch tells the clients"),
    ],
)
def test_clip_bits_that_weigh_too_much_or_too_little_are_cautioned(
    changes: dict[str, int], word: str
) -> None:
    plan = make_plan(clipping=dataclasses.replace(CLIPPING, **changes))
    assert any(word in caution for caution in cautions(plan)), cautions(plan)
    assert cautions(make_plan(clipping=CLIPPING)) == []
