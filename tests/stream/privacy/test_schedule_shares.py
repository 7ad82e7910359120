"""Reference: mpmath, and plain sums over every window."""

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.schedule_shares import CURVE_LEVELS, learning_rate_factor, planned_shares
from stream.privacy.schedule_spec import ScheduleSpec


def learning_rate(decay, final=0.05):
    return ScheduleSpec("learning_rate", learning_rate_decay=decay, final_learning_rate_ratio=final)


CURVES = [
    ScheduleSpec("linear", final_noise_ratio=0.25),
    ScheduleSpec("cosine", final_noise_ratio=30.0),
    ScheduleSpec("step", milestones=(1, 900), noise_ratios=(4.0, 2.0, 1.0)),
    learning_rate("cosine"),
    learning_rate("linear"),
    learning_rate("exponential"),
]


@pytest.mark.parametrize("spec", CURVES)
@pytest.mark.parametrize("horizon", [901, CURVE_LEVELS, CURVE_LEVELS + 1, 2500])
def test_the_total_is_the_sum_over_every_window(spec, horizon):
    shares = planned_shares(spec, horizon)
    weights = [shares.weight(step) for step in range(horizon)]
    assert shares.total == sum(weights)
    smallest, largest = shares.extreme_steps
    assert (weights[smallest], weights[largest]) == (min(weights), max(weights))


@given(st.floats(0.5, 0.99999), st.integers(1, 2000))
def test_the_total_of_a_decay_is_barely_above_the_sum(decay, horizon):
    shares = planned_shares(ScheduleSpec("exponential", noise_decay=decay), horizon)
    total = sum(shares.weight(step) for step in range(horizon))
    assert total <= shares.total <= total * (1 + Fraction(1, 2**90)) + horizon + 1


def test_a_very_long_decay_is_still_exact():
    decay, horizon = Fraction("0.99999999"), 2**31 - 1
    shares = planned_shares(ScheduleSpec("exponential", noise_decay=float(decay)), horizon)
    with mpmath.workdps(60):
        ratio = mpmath.mpf("0.99999999") ** 2
        total = (1 - ratio**horizon) / (1 - ratio) * mpmath.mpf(2) ** 128
        assert shares.total == pytest.approx(total, rel=1e-25)
        assert shares.weight(0) == pytest.approx(
            ratio ** (horizon - 1) * mpmath.mpf(2) ** 128, rel=1e-15
        )


@pytest.mark.parametrize("spec", [spec for spec in CURVES if spec.kind != "step"])
def test_long_curves_change_in_levels_of_equal_length(spec):
    horizon = 10**9 + 7
    shares = planned_shares(spec, horizon)
    assert len(set(shares.weights)) >= CURVE_LEVELS - 1
    lengths = {end - start for start, end in zip(shares.starts, shares.starts[1:], strict=False)}
    assert lengths == {horizon // CURVE_LEVELS, horizon // CURVE_LEVELS + 1}
    assert sorted([shares.weight(0), shares.weight(horizon - 1)]) == [
        shares.weight(step) for step in shares.extreme_steps
    ]


def test_a_wrong_total_would_be_seen():
    shares = planned_shares(CURVES[0], 2500)
    assert sum(shares.weights) != shares.total  # levels are not windows


@pytest.mark.parametrize("horizon", [2, 3, 200, CURVE_LEVELS])
@pytest.mark.parametrize(
    ("decay", "curve"),
    [
        ("linear", lambda x: 1 - x * mpmath.mpf("0.95")),
        (
            "cosine",
            lambda x: mpmath.mpf("0.05") + mpmath.mpf("0.95") * (1 + mpmath.cos(mpmath.pi * x)) / 2,
        ),
        ("exponential", lambda x: mpmath.mpf("0.05") ** x),
    ],
)
def test_the_learning_rate_follows_its_curve_to_thirty_digits(decay, curve, horizon):
    with mpmath.workdps(60):
        for step in range(horizon):
            factor = learning_rate_factor(learning_rate(decay), horizon, step)
            expected = curve(mpmath.mpf(step) / (horizon - 1))
            error = mpmath.mpf(factor.numerator) / factor.denominator - expected
            assert abs(error) < mpmath.mpf(10) ** -34


@pytest.mark.parametrize("decay", ["linear", "cosine", "exponential"])
@pytest.mark.parametrize("horizon", [1, 7, 5000])
def test_charges_are_proportional_to_the_learning_rate(decay, horizon):
    spec = learning_rate(decay)
    shares = planned_shares(spec, horizon)
    for step in range(0, horizon, 1 + horizon // 50):
        factor = learning_rate_factor(spec, horizon, step)
        assert shares.weight(step) == int(factor * shares.weight(0))


def test_the_learning_rate_stays_at_its_last_value():
    spec = learning_rate("cosine")
    last = learning_rate_factor(spec, 10, 9)
    assert float(last) == pytest.approx(0.05)
    assert learning_rate_factor(spec, 10, 10) == learning_rate_factor(spec, 10, 10**9) == last
    assert learning_rate_factor(spec, 10, 0) == 1


def test_other_kinds_leave_the_learning_rate_alone():
    assert learning_rate_factor(CURVES[0], 10, 9) == 1


def test_every_machine_has_the_same_weights():
    weights = {
        decay: planned_shares(learning_rate(decay), 4).weight(1)
        for decay in ("linear", "cosine", "exponential")
    }
    assert weights == {
        "linear": 232526284062641283366639315078374944494,
        "cosine": 259465304777215578390823138166723261237,
        "exponential": 125361095816864284507801826877277587696,
    }
