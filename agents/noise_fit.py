"""Whether what a release has beside its updates' sum is the noise that the ledger says.

A residual is a release minus the recomputed sum. Two things are looked at: its energy (the sum of
squares), which may be too large or too small, and its projection on the recomputed sum, which
shows a sum that was scaled or left out. Each cell is tested, and all of them together.

Guarantee: residuals that are the ledger's noise are found fault with, with a probability of at
most `FALSE_ALARM` in a whole verification, at any time that does not depend on the noise. The
bounds hold at every variance and size:

- Both kinds of noise R are sub-Gaussian. The discrete Gaussian of parameter s2 has that as its
  proxy; rounding adds 1/12 to it and a factor of 1 + |t| eta to E exp(t R), where eta is hardly
  more than exp(-2 pi^2 s2) / pi (Poisson summation). So E exp(l R^2) is at most
  (1 - 2 l s2)^(-1/2), the same factor aside: the energy's upper tail is that of Chernoff's bound
  for a chi-square.
- For both, E exp(-l R^2) is at most theta(v) / sqrt(2 pi s2), where v = s2 / (1 + 2 l s2) and
  theta(v) is the sum over all integers k of exp(-k^2 / (2 v)): likewise the lower tail.
- Later sums may depend on earlier noise, through the model. With T the sum over cells of
  <R, sum> / s2 and V that of |sum|^2 / s2, the mixture over l ~ N(0, 1) of exp(l T - l^2 V / 2) is
  a supermartingale, so |T| beyond sqrt(2 (V + 1) (log(1 / p) + log(V + 1) / 2)) has a probability
  of at most p. (de la Pena, Lai, Shao (2009), Self-normalized processes.)
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stream.privacy.plan import PrivacyPlan

FALSE_ALARM = 1e-9
"""How often, at most, a verification finds fault with noise that is as it should be."""

# Beyond so many standard deviations of an integer type's end no noise is clamped.
_ROOM = 64
_BESIDE = "what is released beside the sum of the updates"
_LEAST_X = 2.0**-4
_ROUNDING = 1 / 12


@dataclass(frozen=True, slots=True)
class Residual:
    """What is needed of one cell's residual; a few numbers of it, and no vector.

    Attributes:
        size: How many coordinates it has.
        variance: What the ledger says of the noise.
        energy: Sum of the coordinates' squares.
        product: Inner product with the recomputed sum.
        sum_energy: Sum of the squares of the recomputed sum.
        sum_size: Sum of the absolute values of the recomputed sum.
    """

    size: int
    variance: float
    energy: float
    product: float
    sum_energy: float
    sum_size: float

    @classmethod
    def of(
        cls, released: NDArray[np.integer], exact_sum: NDArray[np.int64], variance: Fraction
    ) -> "Residual":
        """Return the residual of a release.

        Coordinates whose sum is about as large as the release's type can hold are left out:
        there, the noise is clamped.
        """
        limits, room = np.iinfo(released.dtype), _ROOM * (math.isqrt(math.ceil(variance)) + 1)
        is_free = (exact_sum < limits.max - room) & (exact_sum > limits.min + room)
        if not is_free.all():
            released, exact_sum = released[is_free], exact_sum[is_free]
        total = exact_sum.astype(np.float64)
        rest = (released - exact_sum).astype(np.float64)
        return cls(
            size=rest.size,
            variance=float(variance),
            energy=float(rest @ rest),
            product=float(rest @ total),
            sum_energy=float(total @ total),
            sum_size=float(np.abs(total).sum()),
        )


class NoiseFit:
    """Tests residuals against the plan's kind of noise."""

    def __init__(self, plan: PrivacyPlan, cells: int) -> None:
        """Share the false alarms out among the tests of ``cells`` cells."""
        self._is_rounded = plan.noise == "rounded_gaussian"
        # The energy's two ends and the projection, of each cell and of all together.
        self._level = math.log(FALSE_ALARM / (3 * (cells + 1)))

    def fault(self, residuals: Sequence[Residual], log_choices: float = 0.0) -> str:
        """Return what is wrong with residuals taken together, empty if nothing is.

        Args:
            residuals: Of one cell or of several.
            log_choices: The logarithm of the number of such lists among which this one has the
                least energy.
        """
        ratio = energy_ratio(residuals)
        percent = f"{100 * ratio:.4g} % of the energy of the ledger's noise"
        if self._log_large(residuals) < self._level:
            return f"{_BESIDE} has {percent}: too much"
        if self._log_small(residuals) + log_choices < self._level:
            return f"{_BESIDE} has {percent}: too little"
        if self._log_projection(residuals) + log_choices < self._level:
            product = sum(each.product / each.variance for each in residuals)
            energy = sum(each.sum_energy / each.variance for each in residuals)
            return (
                f"{1 + product / energy:.4g} times the sum of the updates is released, which no "
                "such noise explains"
            )
        return ""

    def _proxy(self, residual: Residual) -> tuple[float, float]:
        """Return the variance proxy of the noise, and eta."""
        if not self._is_rounded:
            return residual.variance, 0.0
        eta = -math.log1p(-math.exp(-2 * math.pi**2 * residual.variance)) / math.pi
        return residual.variance + _ROUNDING, eta

    def _log_large(self, residuals: Sequence[Residual]) -> float:
        """Return a bound of the logarithm of the probability of so much energy, or more."""
        size = sum(each.size for each in residuals)
        scaled = sum(each.energy / self._proxy(each)[0] for each in residuals)
        if scaled <= size:
            return 0.0
        x = scaled / size
        bound = -size / 2 * (x - 1 - math.log(x))
        for each in residuals:
            proxy, eta = self._proxy(each)
            bound += each.size * eta * math.sqrt((x - 1) / proxy)  # E|Z| < 1, of a normal Z
        return bound

    def _log_small(self, residuals: Sequence[Residual]) -> float:
        """Return a bound of the logarithm of the probability of so little energy, or less."""
        size = sum(each.size for each in residuals)
        scaled = sum(each.energy / each.variance for each in residuals)
        if scaled >= size:
            return 0.0
        # Any x is allowed; this one is best unless the noise is a fraction of a grid step.
        x = max(scaled / size, min(1.0, _LEAST_X / max(each.variance for each in residuals)))
        bound = (1 / x - 1) / 2 * scaled
        for each in residuals:
            at_most = _log_theta(each.variance * x)
            bound += each.size * (at_most - math.log(2 * math.pi * each.variance) / 2)
        return bound

    def _log_projection(self, residuals: Sequence[Residual]) -> float:
        """Return a bound of the log-probability of so large a projection, on either side."""
        spread = product = slack = 0.0
        for each in residuals:
            proxy, eta = self._proxy(each)
            spread += each.sum_energy / proxy
            product += each.product / proxy
            slack += each.sum_size / proxy * eta
        beyond = max(0.0, abs(product) - slack)
        # The slack depends on the sign of l, so half of the mixture has to do.
        halved = math.log(2) if slack else 0.0
        return math.log1p(spread) / 2 + halved - beyond**2 / (2 * (spread + 1))


def noise_faults(
    plan: PrivacyPlan, residuals: Mapping[tuple[int, int], tuple[Residual, int]]
) -> Iterator[str]:
    """Yield what is wrong with what releases have beside the sums of their updates.

    Args:
        plan: The plan.
        residuals: By cluster and window; each with the number of candidates among which it is
            the one of the least energy.
    """
    fit = NoiseFit(plan, len(residuals))
    for (cluster, window), (residual, choices) in residuals.items():
        if fault := fit.fault([residual], math.log(choices)):
            yield f"sum of cluster {cluster}, window {window}: {fault}"
    together = [residual for residual, _ in residuals.values()]
    log_choices = sum(math.log(choices) for _, choices in residuals.values())
    if together and (fault := fit.fault(together, log_choices)):
        yield f"sums of all {len(together)} windows together: {fault}"


def energy_ratio(residuals: Sequence[Residual]) -> float:
    """Return the energy of all residuals over what the ledger's noise has on average."""
    size = sum(each.size for each in residuals)
    return sum(each.energy / each.variance for each in residuals) / size if size else 1.0


def _log_theta(v: float) -> float:
    """Return log(sum over all integers k of exp(-k^2 / (2 v)))."""
    if v < 1 / (2 * math.pi):
        return math.log1p(2 * sum(math.exp(-(k**2) / (2 * v)) for k in range(1, 8)))
    tail = 2 * sum(math.exp(-2 * math.pi**2 * v * k**2) for k in range(1, 8))
    return math.log(2 * math.pi * v) / 2 + math.log1p(tail)
