import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.optimizer import Adam, Optimizer, Sgd

NUMBERS = st.floats(-100, 100)
GRADIENTS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=8)
FRACTIONS = st.floats(0, 0.999)
RATES = st.floats(1e-4, 10)
EVERY_OPTIMIZER = [Sgd(0.5, 0.0), Sgd(0.5, 0.9), Adam(0.1, 0.9, 0.999, 1e-8)]


def run(optimizer: Optimizer, gradients: list[tuple[float, ...]]) -> list[list[float]]:
    weights = np.zeros(len(gradients[0]))
    slots = np.zeros((optimizer.slot_count, weights.size))
    history = []
    for number, gradient in enumerate(gradients, start=1):
        weights, slots = optimizer.step(weights, slots, np.array(gradient), number)
        history.append(weights.tolist())
    return history


def polyak_1964(gradients: list[float], rate: float, momentum: float) -> list[float]:
    """Heavy ball as printed: the ball's last move, not a velocity, is what carries on."""
    before = now = 0.0
    history = []
    for gradient in gradients:
        before, now = now, now - rate * gradient + momentum * (now - before)
        history.append(now)
    return history


def kingma_ba_2015(
    gradients: list[float], rate: float, beta1: float, beta2: float, epsilon: float
) -> list[float]:
    """Algorithm 1, with the moments as the weighted sums that its section 3 unrolls them to."""
    theta = 0.0
    history = []
    for t in range(1, len(gradients) + 1):
        m = (1 - beta1) * math.fsum(beta1 ** (t - i) * gradients[i - 1] for i in range(1, t + 1))
        v = (1 - beta2) * math.fsum(
            beta2 ** (t - i) * gradients[i - 1] ** 2 for i in range(1, t + 1)
        )
        theta -= rate * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + epsilon)
        history.append(theta)
    return history


@given(GRADIENTS, RATES, FRACTIONS)
def test_sgd_agrees_with_polyaks_formula(gradients, rate, momentum):
    history = run(Sgd(rate, momentum), gradients)
    for coordinate in range(3):
        expected = polyak_1964([g[coordinate] for g in gradients], rate, momentum)
        actual = [weights[coordinate] for weights in history]
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(GRADIENTS, RATES, FRACTIONS, FRACTIONS)
def test_adam_agrees_with_kingma_and_bas_formulas(gradients, rate, beta1, beta2):
    history = run(Adam(rate, beta1, beta2, 1e-3), gradients)
    for coordinate in range(3):
        expected = kingma_ba_2015([g[coordinate] for g in gradients], rate, beta1, beta2, 1e-3)
        actual = [weights[coordinate] for weights in history]
        assert actual == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_the_first_step_of_adam_has_the_size_of_the_learning_rate():
    [weights] = run(Adam(0.25, 0.9, 0.999, 1e-12), [(3.0, -1e-3, 0.0)])
    assert weights == pytest.approx([-0.25, 0.25, 0.0], rel=1e-8)


def test_sgd_without_momentum_remembers_nothing():
    assert Sgd(0.5, 0.0).slot_count == 0
    assert run(Sgd(0.5, 0.0), [(1.0,), (1.0,)]) == [[-0.5], [-1.0]]


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER)
def test_a_step_leaves_its_arguments_as_they_are(optimizer):
    weights, gradient = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    slots = np.ones((optimizer.slot_count, 2))
    for array in (weights, slots, gradient):
        array.flags.writeable = False
    new_weights, new_slots = optimizer.step(weights, slots, gradient, 1)
    assert new_weights.dtype == new_slots.dtype == np.float64
    assert new_slots.shape == slots.shape
    assert not np.shares_memory(new_slots, slots)


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER)
def test_a_step_beyond_float64_is_not_finite_and_makes_no_noise(optimizer):
    slots = np.zeros((optimizer.slot_count, 1))
    weights, _ = optimizer.step(np.array([1e308]), slots, np.array([np.inf]), 1)
    assert not np.isfinite(weights).any()


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER)
def test_a_wrong_shape_is_refused_rather_than_broadcast(optimizer):
    weights, slots = np.zeros(3), np.zeros((optimizer.slot_count, 3))
    with pytest.raises(ValueError, match="gradient of shape"):
        optimizer.step(weights, slots, np.zeros(1), 1)
    with pytest.raises(ValueError, match="remembers"):
        optimizer.step(weights, np.zeros((optimizer.slot_count + 1, 3)), np.zeros(3), 1)
    with pytest.raises(ValueError, match="numbered from 1"):
        optimizer.step(weights, slots, np.zeros(3), 0)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("learning_rate", lambda: Sgd(0.0, 0.0)),
        ("learning_rate", lambda: Sgd(math.inf, 0.0)),
        ("momentum", lambda: Sgd(1.0, 1.0)),
        ("momentum", lambda: Sgd(1.0, math.nan)),
        ("learning_rate", lambda: Adam(-1.0, 0.9, 0.999, 1e-8)),
        ("beta1", lambda: Adam(1.0, -0.1, 0.999, 1e-8)),
        ("beta2", lambda: Adam(1.0, 0.9, 1.0, 1e-8)),
        ("epsilon", lambda: Adam(1.0, 0.9, 0.999, 0.0)),
    ],
)
def test_a_number_that_cannot_make_a_step_is_refused_by_name(name, make):
    with pytest.raises(ValueError, match=name):
        make()
