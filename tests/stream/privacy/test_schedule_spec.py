from dataclasses import fields

import pytest

from stream.errors import PlanError
from stream.privacy.schedule_spec import (
    COMMON_SCHEDULE_KEYS,
    SCHEDULE_EXAMPLES,
    SCHEDULE_KEYS,
    ScheduleSpec,
)

COMPLETE = {
    "constant": {},
    "exponential": {"noise_decay": 0.995},
    "linear": {"final_noise_ratio": 0.25},
    "cosine": {"final_noise_ratio": 4},
    "step": {"milestones": (100, 200), "noise_ratios": (4, 2, 1)},
    "learning_rate": {"learning_rate_decay": "cosine", "final_learning_rate_ratio": 0.05},
    "paced": {},
    "infinite": {},
    "snr": {
        "target_snr": 1,
        "smoothing": 0.9,
        "min_noise_multiplier": 5,
        "max_noise_multiplier": 100,
    },
}
OWN_KEYS = [(kind, key) for kind, keys in SCHEDULE_KEYS.items() for key in keys]


def test_the_default_is_constant():
    assert ScheduleSpec() == ScheduleSpec("constant")


@pytest.mark.parametrize("kind", SCHEDULE_KEYS)
def test_every_kind_can_be_written(kind):
    spec = ScheduleSpec(kind, **COMPLETE[kind])
    assert {name for name in COMPLETE[kind] if name not in COMMON_SCHEDULE_KEYS} == set(
        SCHEDULE_KEYS[kind]
    )
    assert hash(spec) == hash(ScheduleSpec(kind, **COMPLETE[kind]))


@pytest.mark.parametrize(("kind", "key"), OWN_KEYS)
def test_a_number_of_another_kind_is_refused(kind, key):
    others = [name for name, keys in SCHEDULE_KEYS.items() if key not in keys]
    for other in others:
        with pytest.raises(PlanError, match=rf"{key} has no effect with kind = '{other}': remove"):
            ScheduleSpec(other, **{**COMPLETE[other], key: COMPLETE[kind][key]})


@pytest.mark.parametrize(
    ("kind", "key"), [pair for pair in OWN_KEYS if pair[1] not in ("smoothing", "milestones")]
)
def test_a_number_that_a_kind_needs_is_asked_for(kind, key):
    rest = {name: value for name, value in COMPLETE[kind].items() if name != key}
    with pytest.raises(PlanError, match=rf"'{kind}' needs {key}: write for example {key} = "):
        ScheduleSpec(kind, **rest)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("staircase", {}, "kind is 'staircase': write one of \"constant\""),
        ("exponential", {"noise_decay": 1.0}, "noise_decay is 1.0: write"),
        ("exponential", {"noise_decay": -0.5}, "noise_decay is -0.5: write"),
        ("exponential", {"noise_decay": float("nan")}, "noise_decay is nan: write"),
        ("exponential", {"noise_decay": True}, "noise_decay is True: write a number"),
        ("linear", {"final_noise_ratio": 1e7}, "final_noise_ratio: .* is not from 1e-06"),
        ("linear", {"final_noise_ratio": float("inf")}, "final_noise_ratio: inf"),
        ("cosine", {"final_noise_ratio": -1.0}, "final_noise_ratio: -1.0"),
        ("step", {"milestones": (0, 200)}, "milestones must be"),
        ("step", {"milestones": (200, 200)}, "milestones must be"),
        ("step", {"milestones": (True, 200)}, "milestones must be"),
        ("step", {"milestones": tuple(range(1, 1002))}, "at most 1000 increasing"),
        ("step", {"milestones": (5,)}, "noise_ratios has 3 numbers: write 2"),
        ("step", {"noise_ratios": (1.0, 0.0, 2.0)}, "noise_ratios: 0.0 is not from"),
        ("step", {"noise_ratios": (1.0, "2", 2.0)}, "noise_ratios: '2' is no number"),
        ("learning_rate", {"learning_rate_decay": "warm"}, "learning_rate_decay is 'warm'"),
        ("learning_rate", {"final_learning_rate_ratio": 1.5}, "number from 1e-06 to 1"),
        ("learning_rate", {"final_learning_rate_ratio": 1e-9}, "number from 1e-06 to 1"),
        ("snr", {"target_snr": -1.0}, "target_snr is -1.0: write a finite"),
        ("snr", {"smoothing": 1.0}, "smoothing is 1.0: write"),
        ("snr", {"min_noise_multiplier": 100.0}, "below max_noise_multiplier, 100.0"),
        ("snr", {"max_noise_multiplier": 0.0}, "needs max_noise_multiplier"),
        ("paced", {"saving_windows": -1}, "saving_windows is -1: write a whole number"),
        ("paced", {"saving_windows": 2.0}, "saving_windows is 2.0: write a whole number"),
        ("infinite", {"max_noise_multiplier": -1.0}, "max_noise_multiplier is -1.0: write"),
        ("infinite", {"max_noise_multiplier": 1e10}, "above 0 and at most 1e.09"),
    ],
)
def test_numbers_that_make_no_schedule_are_refused(kind, changes, message):
    with pytest.raises(PlanError, match=message):
        ScheduleSpec(kind, **{**COMPLETE.get(kind, {}), **changes})


def test_whole_numbers_and_floats_are_one_schedule():
    first = ScheduleSpec("step", milestones=(9,), noise_ratios=(2, 1), max_noise_multiplier=50)
    second = ScheduleSpec(
        "step", milestones=(9,), noise_ratios=(2.0, 1.0), max_noise_multiplier=50.0
    )
    assert repr(first) == repr(second)


def test_every_key_has_an_example():
    assert set(SCHEDULE_EXAMPLES) == {item.name for item in fields(ScheduleSpec)} - {"kind"}
