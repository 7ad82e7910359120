"""Adaptive clipping: the clip norm follows a quantile of the clients' gradient norms."""

from dataclasses import dataclass

from .plan_checks import require, require_range, set_float

# One step multiplies the norm by less than e^10, which no hunt for a quantile needs.
_LARGEST_LEARNING_RATE = 10.0


@dataclass(frozen=True, slots=True)
class ClippingSpec:
    """The [clipping] table of a plan.

    Attributes:
        target_quantile: Part of the clients whose gradient is to lie within the clip norm, in
            (0, 1).
        learning_rate: Step of the clip norm's logarithm, above 0 and at most 10.
        bit_weight: Integer weight kappa_b of the bit coordinate, in grid steps; even, so that
            half of it is an integer.
        epoch_windows: Number of windows that share one clip norm, at least 3.
    """

    target_quantile: float
    learning_rate: float
    bit_weight: int
    epoch_windows: int

    def __post_init__(self) -> None:
        """Refuse numbers that adapt nothing."""
        set_float(self, "target_quantile", "[clipping] target_quantile")
        set_float(self, "learning_rate", "[clipping] learning_rate")
        require(
            0 < self.target_quantile < 1,
            f"[clipping] target_quantile is {self.target_quantile}: write a number above 0 and "
            "below 1, such as 0.5",
        )
        require(
            0 < self.learning_rate <= _LARGEST_LEARNING_RATE,
            f"[clipping] learning_rate is {self.learning_rate}: write a number above 0 and at "
            f"most {_LARGEST_LEARNING_RATE:g}, such as 0.2",
        )
        require_range("[clipping] bit_weight", self.bit_weight, 2, 2**30)
        require(
            self.bit_weight % 2 == 0,
            f"[clipping] bit_weight is {self.bit_weight}: write an even number",
        )
        require_range("[clipping] epoch_windows", self.epoch_windows, 3, 2**31 - 1)
