"""Checks one cluster's ledger, record by record, without Kafka.

The rules of the chain are those that the head writes by (`stream.ledger_chain`). What a charge
must be, and what the charges sum to, is worked out here once more and in another way, so that a
mistake there does not vouch for itself.
"""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from schemas import (
    ClipState,
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    decode_ledger_record,
    record_hash,
)
from stream.ledger_chain import link_faults, record_faults
from stream.privacy.plan import PrivacyPlan

from .cluster_row import Spending, limits_spent
from .planning_checks import limit_faults

_MOST_PROBLEMS = 100


class Problems:
    """What was found wrong, one sentence each; a long list is counted, not kept."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lines: list[str] = []
        self._count = 0

    def add(self, line: str) -> None:
        """Take note of a problem."""
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            self._lines.append(line)

    def lines(self) -> list[str]:
        """Return the problems, oldest first."""
        more = self._count - len(self._lines)
        return [*self._lines, f"and {more} more"] if more else list(self._lines)


@dataclass(frozen=True, slots=True)
class PaidCell:
    """What a ledger says of one release.

    Attributes:
        sequence: Number of the record.
        charge_units: What the release cost.
        spent_units: What its cluster had spent, this charge included.
        noise_variance: Of the noise, in squared grid steps.
        release_digest: SHA-256 of the release's bytes.
        planned_units: What was planned for it; 0 if that is not known.
        next_units: What is planned for the next window.
        clip_before: The state of adaptive clipping before it; None where it is not adaptive.
        clip: That state after it.
    """

    sequence: int
    charge_units: int
    spent_units: int
    noise_variance: Fraction
    release_digest: bytes
    planned_units: int
    next_units: int
    clip_before: ClipState | None
    clip: ClipState | None


def is_least_charge(
    charge_units: int, l2_sensitivity_squared: int, noise_variance: Fraction
) -> bool:
    """Say whether a charge is the least whole number that is not below the true cost.

    The cost of a Gaussian release is sensitivity^2 / (2 variance) zCDP (PRIVACY 1.5), in units
    of 2^-60; the comparison is one of integers.
    """
    cost = l2_sensitivity_squared * noise_variance.denominator << 60
    unit = 2 * noise_variance.numerator
    return (charge_units - 1) * unit < cost <= charge_units * unit


class ClusterAudit:
    """One cluster's ledger, offered from its beginning. Keeps a few hundred bytes a release.

    Attributes:
        newest: The newest record that could be read; None before one.
        participation: The number and the digest of the newest record that says who took part.
        cells: What was paid for, by window.
        pending_windows: The windows whose release may still be waiting for its publication.
        events: How often each (sensitivity^2, variance) was released.
        first_fault: The first thing that does not fit; empty if everything does.
    """

    def __init__(self, plan: PrivacyPlan, cluster: int, problems: Problems) -> None:
        """Begin with an empty ledger; what does not fit goes to ``problems``."""
        self.newest: LedgerRecord | None = None
        self.participation = (0, b"")
        self.cells: dict[int, PaidCell] = {}
        self.pending_windows: set[int] = set()
        self.events: Counter[tuple[int, Fraction]] = Counter()
        self.first_fault = ""
        self._plan = plan
        self._cluster = cluster
        self._problems = problems
        self._newest_hash = b""
        self._noted_record: int | None = None
        self._highest_spent = 0
        # What the sealed windows up to each one have cost; how many of them are throttled.
        self._totals = [0]
        self._throttled = 0
        # Equal variances are one object, so that a million releases keep one of them.
        self._variances: dict[Fraction, Fraction] = {}

    @property
    def spending(self) -> Spending:
        """What was spent: the sum of the charges, or more if a record says more."""
        return Spending(
            spent_units=max(self._total_units(), self._highest_spent),
            releases=sum(self.events.values()),
            throttled=self._throttled,
            throttled_of=len(self._totals) - 1 if self._plan.sliding_caps else 0,
            limits=limits_spent(self._plan, self._totals),
        )

    def charge_of(self, sequence: int) -> int | None:
        """Return what the ledger charged for a record's window, None for no such window."""
        # Each record but the first and the one that closes the ledger seals one window.
        if not 1 <= sequence < len(self._totals):
            return None
        return self._totals[sequence] - self._totals[sequence - 1]

    def fault(self, text: str) -> None:
        """Take note that something in this ledger does not fit."""
        self.first_fault = self.first_fault or text
        self._problems.add(f"ledger of cluster {self._cluster}: {text}")

    def begin(self, begin_offset: int, noted_record: int | None) -> None:
        """Note the first offset that the broker still has, and a record that must be there."""
        self._noted_record = noted_record
        if begin_offset > 0:
            self.fault(f"truncated: the records below offset {begin_offset} are gone")

    def take(self, data: bytes | None, *, is_settled: bool) -> None:
        """Check the next record.

        Args:
            data: Its bytes.
            is_settled: Whether it was there before the topic of releases was looked at, so that
                all but the newest such release must be on that topic.
        """
        try:
            record = decode_ledger_record(data)
        except MalformedMessageError as error:
            after = "at the start" if self.newest is None else f"after {self.newest.sequence}"
            self.fault(f"the record {after} cannot be read: {error}")
            self._newest_hash = record_hash(data or b"")
            return
        for fault in self._faults(record):
            self.fault(fault)
        if record.plan_id != self._plan.plan_id or record.cluster != self._cluster:
            return  # not ours: our own records go on as if it were not there
        before = self.newest
        self.newest, self._newest_hash = record, record_hash(data or b"")
        self._highest_spent = max(self._highest_spent, record.spent_units)
        if record.kind in (LedgerKind.RELEASE, LedgerKind.THROTTLED):
            self._totals.append(self._totals[-1] + record.charge_units)
            self._throttled += record.kind is LedgerKind.THROTTLED
            self.participation = record.sequence, record.participation_digest
        if record.kind is LedgerKind.RELEASE:
            self._take_release(before, record, is_settled=is_settled)

    def finish(self) -> None:
        """Check what can be said only of the whole ledger."""
        newest, noted = self.newest, self._noted_record
        if newest is not None and noted is not None and newest.sequence < noted:
            self.fault(
                f"it ends at record {newest.sequence}, but the heads' group has committed an "
                f"offset with record {noted}: it is older than what was spent"
            )
        if self.newest is not None and self.newest.spent_units != self._total_units():
            self.fault(
                f"record {self.newest.sequence} says that {self.newest.spent_units} units are "
                f"spent, but the charges sum to {self._total_units()}"
            )

    def _total_units(self) -> int:
        total = self._totals[-1]
        # Beyond the cap nobody can have spent: each client's own budget ends there.
        return min(total, self._plan.cap_units) if self._plan.scope == "client" else total

    def _faults(self, record: LedgerRecord) -> list[str]:
        faults = record_faults(self._plan, self._cluster, record)
        if not faults and record.kind is LedgerKind.RELEASE and not self._is_right_charge(record):
            faults.append(f"record {record.sequence} charges less or more than its noise costs")
        if self.newest is not None:
            faults += link_faults(self._plan, self.newest, self._newest_hash, record)
            return faults + limit_faults(self._plan, self.newest, record, self._totals)
        if record.kind is not LedgerKind.GENESIS:
            faults.append(f"it begins with record {record.sequence}: the start is missing")
        return faults

    def _is_right_charge(self, record: LedgerRecord) -> bool:
        clipping = self._plan.clipping
        bit_reach = clipping.bit_weight // 2 if clipping else 0
        squares = (self._plan.grid_l2_bound**2, self._plan.count_weight**2, bit_reach**2)
        return is_least_charge(record.charge_units, sum(squares), record.noise_variance)

    def _take_release(
        self, before: LedgerRecord | None, record: LedgerRecord, *, is_settled: bool
    ) -> None:
        if record.window in self.cells:
            self.fault(f"record {record.sequence} pays for window {record.window} once more")
        variance = self._variances.setdefault(record.noise_variance, record.noise_variance)
        self.events[record.l2_sensitivity_squared, variance] += 1
        if is_settled:
            self.pending_windows.clear()
        self.pending_windows.add(record.window)
        self.cells[record.window] = PaidCell(
            sequence=record.sequence,
            charge_units=record.charge_units,
            spent_units=record.spent_units,
            noise_variance=variance,
            release_digest=record.release_digest,
            planned_units=before.next_units if before else 0,
            next_units=record.next_units,
            clip_before=before.clip if before else None,
            clip=record.clip,
        )
