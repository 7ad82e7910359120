"""Server optimizers: a model's weights and a gradient in, the next weights out.

Post-processing of released values, in float64. An optimizer is a value: what it remembers
between steps (its slots) is an argument and a result, so that a step can be computed,
published, and only then kept. Where the learning rate changes, each step has its own optimizer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray


class Optimizer(Protocol):
    """One step of minimisation, without memory of its own."""

    @property
    def name(self) -> str:
        """What a stored state calls this optimizer."""

    @property
    def slot_count(self) -> int:
        """Number of vectors that it remembers from step to step."""

    def step(
        self,
        weights: NDArray[np.float64],
        slots: NDArray[np.float64],
        gradient: NDArray[np.float64],
        step_number: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights and slots after one step; the arguments are left as they are.

        The result may be infinite or NaN where float64 does not reach: the caller looks.

        Args:
            weights: Shape ``(dimension,)``.
            slots: Shape ``(slot_count, dimension)``; zeros before the first step.
            gradient: Shape ``(dimension,)``; the step goes against it.
            step_number: Number of this step, from 1.
        """


@dataclass(frozen=True, slots=True)
class Sgd:
    """Gradient descent, with a heavy ball where ``momentum`` is above zero.

    ``v' = momentum v + g`` and ``w' = w - learning_rate v'``, which for a constant learning
    rate is ``w' = w - learning_rate g + momentum (w - w_before)``.

    References:
        Polyak (1964), Some methods of speeding up the convergence of iteration methods.
    """

    name: ClassVar[str] = "sgd"
    learning_rate: float
    momentum: float

    def __post_init__(self) -> None:
        """Refuse numbers that cannot make a step."""
        _require_positive("learning_rate", self.learning_rate)
        _require_fraction("momentum", self.momentum)

    @property
    def slot_count(self) -> int:
        """One, the velocity; none without momentum."""
        return 1 if self.momentum > 0 else 0

    def step(
        self,
        weights: NDArray[np.float64],
        slots: NDArray[np.float64],
        gradient: NDArray[np.float64],
        step_number: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights and slots after one step (see `Optimizer.step`)."""
        _check_step(self, weights, slots, gradient, step_number)
        with np.errstate(all="ignore"):
            if self.slot_count == 0:
                return weights - self.learning_rate * gradient, slots.copy()
            velocity = self.momentum * slots[0] + gradient
            return weights - self.learning_rate * velocity, velocity[np.newaxis]


@dataclass(frozen=True, slots=True)
class Adam:
    """Adaptive moments with bias correction: slots are the first and the second moment.

    References:
        Kingma & Ba (2015), Algorithm 1. https://arxiv.org/abs/1412.6980
    """

    name: ClassVar[str] = "adam"
    slot_count: ClassVar[int] = 2
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float

    def __post_init__(self) -> None:
        """Refuse numbers that cannot make a step."""
        _require_positive("learning_rate", self.learning_rate)
        _require_fraction("beta1", self.beta1)
        _require_fraction("beta2", self.beta2)
        _require_positive("epsilon", self.epsilon)

    def step(
        self,
        weights: NDArray[np.float64],
        slots: NDArray[np.float64],
        gradient: NDArray[np.float64],
        step_number: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights and slots after one step (see `Optimizer.step`)."""
        _check_step(self, weights, slots, gradient, step_number)
        with np.errstate(all="ignore"):
            first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
            second = self.beta2 * slots[1] + (1 - self.beta2) * gradient**2
            first_unbiased = first / (1 - self.beta1**step_number)
            second_unbiased = second / (1 - self.beta2**step_number)
            change = self.learning_rate * first_unbiased / (np.sqrt(second_unbiased) + self.epsilon)
            return weights - change, np.stack((first, second))


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}: it must be a number above 0")


def _require_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}: it must be at least 0 and below 1")


def _check_step(
    optimizer: Optimizer,
    weights: NDArray[np.float64],
    slots: NDArray[np.float64],
    gradient: NDArray[np.float64],
    step_number: int,
) -> None:
    # Broadcasting would turn a wrong shape into a wrong model without a word.
    if gradient.shape != weights.shape or weights.ndim != 1:
        raise ValueError(f"gradient of shape {gradient.shape} for weights {weights.shape}")
    if slots.shape != (optimizer.slot_count, weights.size):
        raise ValueError(
            f"{optimizer.name} remembers {optimizer.slot_count} vectors of "
            f"{weights.size}, not {slots.shape}"
        )
    if step_number < 1:
        raise ValueError(f"step_number is {step_number}: steps are numbered from 1")
