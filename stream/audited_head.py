"""A real cluster head in process, run by an auditor who knows every input.

Updates go in as bytes and releases come out as bytes, through everything that production runs
between the two: decoding, validation, the sum, the ledger's charge, noise, encoding. Because the
auditor knows what the sum must be and sees each draw of noise, some faults show at the first
release, without statistics; those are `Findings`. `stream.audit` measures the rest.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from schemas import Release, decode_release, encode_ledger_record

from .aggregation.intake import Record
from .budget.client_budgets import ClientBudgets
from .cluster_head import ClusterHead, SealedCell
from .errors import StreamError
from .ledger_chain import genesis, verify_records
from .participation_log import rebuild
from .privacy.accounting import gaussian_charge_units
from .privacy.keystream import Entropy
from .privacy.noise import NoiseSource
from .privacy.plan import PrivacyPlan
from .privacy.schedule_signal import Released

MakeNoise = Callable[[Entropy], NoiseSource]

# AES-256: a release whose noise drew less than a key's worth of entropy reuses one.
_KEY_BYTES = 32
# A head that does not get past a window would release it for ever.
_MOST_RELEASES = 4


@dataclass(slots=True)
class Findings:
    """Faults that need no statistics, and how often each was seen.

    Attributes:
        faults: What is wrong, with the number of times.
    """

    faults: Counter[str] = field(default_factory=Counter)
    _residuals: set[bytes] = field(default_factory=set)

    def require(self, is_met: bool, fault: str) -> None:
        """Note ``fault`` unless the claim holds."""
        if not is_met:
            self.faults[fault] += 1

    def require_new(self, residual: NDArray[np.int64]) -> None:
        """Note a fault if a release was seen whose noise is ``residual`` or its negative."""
        digests = [hashlib.sha256(part.tobytes()).digest() for part in (residual, -residual)]
        self.require(
            not self._residuals.intersection(digests), "the noise of an earlier release was reused"
        )
        self._residuals.add(digests[0])


class _Witness:
    """The noise source under audit; keeps what it drew for the release at hand."""

    def __init__(self, make_noise: MakeNoise, entropy: Entropy) -> None:
        self._entropy = entropy
        self.begin()
        self._noise = make_noise(self._counted)

    def begin(self) -> None:
        """Forget the last release."""
        self.draws: list[tuple[Fraction, NDArray[np.int64]]] = []
        self.entropy_bytes = 0

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        """Return the source's noise, and keep a copy."""
        noise = self._noise.sample(variance, size)
        self.draws.append((variance, noise.copy()))
        return noise

    def _counted(self, size: int) -> bytes:
        self.entropy_bytes += size
        return self._entropy(size)


class AuditedHead:
    """Heads of cluster 0, one after another: each spends its plan's whole budget.

    With the scope ``client`` it is the client's budget that a head spends, of a client that takes
    part in every window. The plan must have no sliding limits: every window is released.

    Attributes:
        windows: Number of windows run.
        updates: Number of updates offered.
        spent_units: What the ledgers of all heads say was spent, in units of 2^-60 zCDP.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        make_noise: MakeNoise,
        entropy: Entropy,
        findings: Findings,
        *,
        has_one_life: bool = False,
    ) -> None:
        """Make the first head.

        Args:
            plan: The plan, of one cluster.
            make_noise: Gives the heads' noise from ``entropy``.
            entropy: Where random bytes come from.
            findings: Where faults go.
            has_one_life: Whether the first head goes on when its budget is spent.
        """
        self.windows = 0
        self.updates = 0
        self.spent_units = 0
        self._plan = plan
        self._findings = findings
        self._witness = _Witness(make_noise, entropy)
        self._has_one_life = has_one_life
        self._begin()

    def release(
        self, updates: Sequence[bytes], exact_sum: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Run one window over ``updates``; return what is released, shape ``(release_size,)``.

        The mean of all releases, where a broken head makes several; zeros where it makes none.

        Args:
            updates: Bytes as clients send them, in the order of the log.
            exact_sum: What the head must make of them, shape ``(release_size,)``.
        """
        if self._is_spent() and not self._has_one_life:
            self.finish()
            self._begin()
        self.windows += 1
        self.updates += len(updates)
        try:
            releases = self._run(updates, exact_sum)
        except (StreamError, TypeError, ValueError) as error:
            self._findings.require(False, f"the head fails: {error}")
            self._begin()
            releases = []
        self._findings.require(len(releases) > 0, "a window was not released")
        self._findings.require(len(releases) < 2, "a window was released twice")
        if not releases:
            return np.zeros(exact_sum.size)
        mean: NDArray[np.float64] = np.stack(releases).mean(axis=0)
        return mean

    def finish(self) -> None:
        """Close the books of the head at hand: verify its ledger, add up what it spent."""
        try:
            newest = verify_records(self._plan, 0, self._records, is_complete=True)
            if self._plan.scope == "client":
                digest = newest.participation_digest
                values, plan = self._participation, self._plan
                rebuild(plan.cap_units, values, plan.plan_id, 0, newest.sequence, digest)
        except StreamError as error:
            self._findings.require(False, str(error))
            self.spent_units += self._head.spent_units
        else:
            self.spent_units += newest.spent_units

    def _begin(self) -> None:
        self._offset = 0
        self._step = 0
        self._planned_units = self._plan.schedule.first_units()
        self._participation: list[bytes] = []
        self._records = [encode_ledger_record(genesis(self._plan, 0, 0, 0, self._plan.start_ms))]
        has_clients = self._plan.scope == "client"
        self._head = ClusterHead(
            self._plan,
            0,
            self._witness,
            self._records,
            is_complete=True,
            max_open_windows=2,
            clients=ClientBudgets(self._plan.cap_units) if has_clients else None,
        )

    def _is_spent(self) -> bool:
        if not self._planned_units:
            return True
        plan = self._plan
        variance = plan.schedule.noise_variance(self._planned_units)
        charge_units = gaussian_charge_units(plan.l2_sensitivity_squared, variance)
        return self._head.spent_units + charge_units > plan.cap_units

    def _run(
        self, updates: Sequence[bytes], exact_sum: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        head, window = self._head, self._head.next_window
        appended_ms = self._plan.window_end_ms(window) - 1
        first, self._offset = self._offset, self._offset + len(updates)
        head.offer([Record(first + i, appended_ms, data) for i, data in enumerate(updates)])
        now_ms = self._plan.window_end_ms(window) + self._plan.grace_ms
        while (over := head.needs_end_offset(now_ms)) is not None:
            head.expect(over, self._offset)
        releases: list[NDArray[np.int64]] = []
        while head.is_ready() and len(releases) < _MOST_RELEASES:
            self._witness.begin()
            cell = head.seal(now_ms)
            head.commit(cell)
            if cell.ledger_record is not None:
                self._records.append(cell.ledger_record)
            self._participation += [value for _, value in cell.participation]
            if cell.release is None:
                break
            releases.append(self._checked(cell, cell.release, window, exact_sum))
        if releases:
            self._plan_next(releases[-1])
        return releases

    def _plan_next(self, vector: NDArray[np.int64]) -> None:
        """Work out what the schedule makes of the newest release, without asking the head."""
        self._step += 1
        plan, planned = self._plan, self._planned_units
        spent = 0 if plan.scope == "client" else self._head.spent_units
        variance = plan.schedule.noise_variance(planned) if planned else Fraction(1)
        released = Released(vector[: plan.coordinate_count], variance)
        self._planned_units = plan.schedule.next_units(self._step, spent, planned, released)

    def _checked(
        self, cell: SealedCell, data: bytes, window: int, exact_sum: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the released vector, after comparing it with what is known of it."""
        release, require = decode_release(data), self._findings.require
        vector = release.vector.astype(np.int64)
        require(release.window == cell.window == window, "a release names another window")
        plan = self._plan
        bit_reach = plan.clipping.bit_weight // 2 if plan.clipping else 0
        require(
            release.l2_sensitivity_squared
            == plan.grid_l2_bound**2 + plan.count_weight**2 + bit_reach**2,
            "the charged sensitivity is not that of a client's vector and its count",
        )
        require(
            self._planned_units > 0
            and release.noise_variance == plan.schedule.noise_variance(self._planned_units),
            "a release has other noise than the schedule plans for it",
        )
        require(len(self._witness.draws) == 1, "a release has not one draw of noise")
        require(self._witness.entropy_bytes >= _KEY_BYTES, "noise did not come from fresh entropy")
        for variance, noise in self._witness.draws[:1]:
            self._check_noise(release, exact_sum, variance, noise)
        self._findings.require_new(vector - exact_sum)
        return vector

    def _check_noise(
        self,
        release: Release,
        exact_sum: NDArray[np.int64],
        variance: Fraction,
        noise: NDArray[np.int64],
    ) -> None:
        require, limits = self._findings.require, np.iinfo(release.vector.dtype)
        require(variance == release.noise_variance, "noise has another variance than was charged")
        is_whole = noise.dtype == np.int64 and noise.shape == exact_sum.shape
        require(is_whole, "noise is not one int64 for each coordinate")
        if is_whole:
            expected = np.clip(exact_sum + noise, limits.min, limits.max)
            require(
                np.array_equal(release.vector, expected),
                "a release is not the exact sum plus the noise that was drawn",
            )
