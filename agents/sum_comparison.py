"""Compares one release with the sum that was recomputed from its updates."""

from dataclasses import dataclass, field

import numpy as np

from schemas import Release
from stream.privacy.plan import PrivacyPlan

from .counted_updates import WindowTotal
from .noise_fit import Residual
from .participants import Participants
from .sealed_windows import SealedWindow


@dataclass(frozen=True, slots=True)
class Checked:
    """What the comparison of one window has shown. Secret.

    Attributes:
        counted: How many updates are in the sum.
        excused: How many that were reported late are not.
        residual: What is left for a test of the noise; None where there must be none.
        choices: Among how many candidates the residual is the one of the least energy.
        faults: What does not fit.
    """

    counted: int
    excused: int
    residual: Residual | None = None
    choices: int = 1
    faults: tuple[str, ...] = ()


@dataclass(slots=True)
class OpenWindow:
    """A window whose updates are being read. Secret.

    Attributes:
        sealed: What the ledger says of it.
        total: The sum of its updates so far.
        participants: Who took part, where each client has a budget of its own.
        could_pay: How many valid updates are not counted though their clients could pay.
        is_unknown: Whether there is an update of a client of whom that cannot be told.
    """

    sealed: SealedWindow
    total: WindowTotal
    participants: Participants | None = None
    could_pay: int = field(default=0, init=False)
    is_unknown: bool = field(default=False, init=False)

    def leave_out(self, key: int, cap_units: int) -> None:
        """Take a valid update of a client that did not take part."""
        before = self.participants.before if self.participants else None
        if before is None:
            self.is_unknown = True
        else:
            self.could_pay += before.of(key) + self.sealed.charge_units <= cap_units

    def participation_faults(self, cap_units: int) -> list[str]:
        """Return how who took part is not who sent a valid update and could pay."""
        if self.participants is None:
            return []
        faults = []
        if absent := self.total.absent(self.participants.keys):
            faults.append(f"{absent} clients are charged for it that sent no valid update")
        if self.could_pay:
            faults.append(f"{self.could_pay} clients that could pay for it are left out")
        before, room = self.participants.before, cap_units - self.sealed.charge_units
        beyond = sum(before.of(key) > room for key in self.participants.keys) if before else 0
        if beyond:
            faults.append(f"{beyond} clients are counted beyond their own cap")
        return faults


def compare_exactly(plan: PrivacyPlan, total: WindowTotal, release: Release) -> Checked:
    """Compare a release without noise, to the last coordinate.

    Args:
        plan: The plan.
        total: The sum of the window's updates.
        release: The release.
    """
    limits = np.iinfo(release.vector.dtype)
    candidates = [np.clip(each, limits.min, limits.max) for each in total.candidates()]
    for index, candidate in enumerate(candidates):
        if np.array_equal(candidate, release.vector):
            return Checked(*_split(total, index))
    different = int(np.count_nonzero(release.vector != candidates[0]))
    found = int(release.vector[plan.coordinate_count]) / plan.count_weight
    fault = (
        f"it counts {found:g} clients, and {total.counted} of them sent a valid update; "
        f"{different} of {release.vector.size} coordinates are not those of their sum"
    )
    return Checked(*_split(total, 0), faults=(fault,))


def compare_nearly(total: WindowTotal, release: Release, sealed: SealedWindow) -> Checked:
    """Compare a release with noise: return what a test of the noise needs.

    Args:
        total: The sum of the window's updates.
        release: The release.
        sealed: What the ledger says of it.
    """
    residuals = [
        Residual.of(release.vector, candidate, sealed.noise_variance)
        for candidate in total.candidates()
    ]
    best = min(range(len(residuals)), key=lambda index: residuals[index].energy)
    return Checked(*_split(total, best), residuals[best], len(residuals))


def _split(total: WindowTotal, candidate: int) -> tuple[int, int]:
    """Return how many updates are in a candidate for the sum, and how many are not."""
    return (total.counted + total.late, 0) if candidate else (total.counted, total.late)
