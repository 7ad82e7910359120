"""One release as the accountant sees it, and the permission to make it."""

from dataclasses import dataclass
from fractions import Fraction

from .accounting import gaussian_charge_units


@dataclass(frozen=True, slots=True)
class GaussianEvent:
    """Gaussian noise on integers whose neighbouring values differ by a bounded vector.

    Attributes:
        l2_sensitivity_squared: Squared L2 distance of neighbouring sums, in grid steps.
        noise_variance: Variance of the noise on each coordinate, in squared grid steps.
    """

    l2_sensitivity_squared: int
    noise_variance: Fraction

    @property
    def units(self) -> int:
        """What the event costs, in units of 2^-60 zCDP, rounded up."""
        return gaussian_charge_units(self.l2_sensitivity_squared, self.noise_variance)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a ledger has admitted one event: it pays for one release, once.

    Made by `stream.budget.Ledger.charge` alone.

    Attributes:
        sequence: Number of the charge in its ledger; goes into the release.
        event: What was paid for.
        units: What it cost, in units of 2^-60 zCDP.
        spent_units: The ledger's total with this charge.
        cap_units: The ledger's cap.
    """

    sequence: int
    event: GaussianEvent
    units: int
    spent_units: int
    cap_units: int
