"""One cluster's head, without IO: updates in, sealed cells out.

The Kafka half (`agents.cluster_head`) moves bytes; everything that decides is here. The steps of
a window are `offer` (records, in offset order), `needs_end_offset` and `expect` (once its time is
over, the log's end is asked for), `is_ready` (that end has been read), `seal` (charge, add noise,
encode; changes nothing) and `commit` (after the transaction has committed). A window is sealed by
the clock, also when it is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from schemas import (
    LedgerKind,
    LedgerRecord,
    Release,
    encode_ledger_record,
    encode_release,
    record_hash,
    release_digest,
)

from .aggregation.intake import BatchOutcome, Record, WindowIntake
from .errors import BudgetExhaustedError, LedgerError
from .ledger_chain import ledger_after, verify_records
from .privacy.event import GaussianEvent, Receipt
from .privacy.mechanism import privatize
from .privacy.noise import NoiseSource
from .privacy.plan import PrivacyPlan

_RELEASE_DTYPES: dict[str, type[np.int32 | np.int64]] = {"int32": np.int32, "int64": np.int64}


@dataclass(frozen=True, slots=True)
class SealedCell:
    """One sealed (cluster, window), ready for its transaction.

    Attributes:
        cluster: The cluster.
        window: The window.
        release: The bytes to publish after the commit, or None where nothing was released.
        ledger_record: The bytes for the ledger, or None once the ledger is closed.
        receipt: What the release was paid with; None with ``release``.
        resume_offset: The first offset that an unsealed window may still need.
    """

    cluster: int
    window: int
    release: bytes | None
    ledger_record: bytes | None
    receipt: Receipt | None
    resume_offset: int


class ClusterHead:
    """The state of one cluster between two records, rebuilt from its ledger at any time.

    Attributes:
        plan: The plan.
        cluster: The cluster.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        cluster: int,
        noise: NoiseSource,
        records: Sequence[bytes],
        *,
        is_complete: bool,
        max_open_windows: int,
    ) -> None:
        """Continue where the newest of ``records`` left off.

        Args:
            plan: The plan.
            cluster: The cluster.
            noise: Source of the releases' noise.
            records: The ledger's newest records, oldest first, at least one.
            is_complete: Whether they are the whole ledger.
            max_open_windows: How many windows may be summed at once; bounds the memory at
                8 (dimension + 1) bytes each. At least 2.

        Raises:
            LedgerError: the records cannot be trusted; the message names the remedy.
            ValueError: ``max_open_windows`` is below 2.
        """
        newest = verify_records(plan, cluster, records, is_complete=is_complete)
        self.plan = plan
        self.cluster = cluster
        self._noise = noise
        self._ledger = ledger_after(newest)
        self._newest_hash = record_hash(records[-1])
        self._intake = WindowIntake(
            plan,
            cluster,
            next_window=newest.window + 1,
            position=newest.next_offset,
            max_open_windows=max_open_windows,
        )
        if newest.kind is LedgerKind.EXHAUSTED:
            self._intake.drain()

    @property
    def position(self) -> int:
        """The next offset to offer."""
        return self._intake.position

    @property
    def next_window(self) -> int:
        """The oldest window that is not sealed."""
        return self._intake.next_window

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget is closed: windows pass without a release."""
        return self._intake.is_draining

    @property
    def spent_units(self) -> int:
        """What the cluster has spent, in units of 2^-60 zCDP."""
        return self._ledger.spent_units

    def offer(self, records: Sequence[Record]) -> BatchOutcome:
        """Take records in offset order; count each one that may be counted.

        Records below `position` have been taken already and are passed over.
        """
        return self._intake.offer(records)

    def advance(self, offset: int) -> None:
        """Note that the log holds nothing that was not offered below ``offset``."""
        self._intake.advance(offset)

    def needs_end_offset(self, now_ms: int) -> int | None:
        """Return the newest window that is over and whose end of log is unknown, or None."""
        return self._intake.needs_end_offset(now_ms)

    def expect(self, window: int, end_offset: int) -> None:
        """Note the log's end, asked for after every window up to ``window`` was over."""
        self._intake.expect(window, end_offset)

    def is_ready(self) -> bool:
        """Say whether all that can belong to the next window has been read."""
        return self._intake.is_ready()

    def seal(self, now_ms: int) -> SealedCell:
        """Charge the next window, add noise and encode; the head itself does not change.

        Calling it again, after a transaction that left nothing, draws fresh noise.

        Raises:
            LedgerError: the window is not ready.
        """
        if not self.is_ready():
            raise LedgerError(f"window {self.next_window} of cluster {self.cluster} is not over")
        if self.is_exhausted:
            resume = self._intake.resume_offset()
            return SealedCell(self.cluster, self.next_window, None, None, None, resume)
        event = GaussianEvent(self.plan.l2_sensitivity_squared, self.plan.noise_variance)
        try:
            receipt = self._ledger.charge(event)
        except BudgetExhaustedError:
            return self._cell(self._closing_record(now_ms), None, None)
        return self._released_cell(receipt, now_ms)

    def commit(self, cell: SealedCell) -> int | None:
        """Move on after ``cell``'s transaction has committed.

        Returns:
            The offset to read from again, where windows were left for another pass, else None.

        Raises:
            LedgerError: ``cell`` is not the next one.
        """
        if (cell.cluster, cell.window) != (self.cluster, self.next_window):
            raise LedgerError(
                f"window {cell.window} of cluster {cell.cluster} does not follow window "
                f"{self.next_window - 1} of cluster {self.cluster}"
            )
        if cell.receipt is None:
            self._intake.drain()
        else:
            self._ledger = self._ledger.after(cell.receipt)
        if cell.ledger_record is not None:
            self._newest_hash = record_hash(cell.ledger_record)
        return self._intake.close_window()

    def _released_cell(self, receipt: Receipt, now_ms: int) -> SealedCell:
        dtype = _RELEASE_DTYPES[self.plan.release_dtype]
        release = encode_release(
            Release(
                plan_id=self.plan.plan_id,
                cluster=self.cluster,
                window=self.next_window,
                sequence=receipt.sequence,
                charge_units=receipt.units,
                spent_units=receipt.spent_units,
                cap_units=receipt.cap_units,
                noise_variance=receipt.event.noise_variance,
                l2_sensitivity_squared=receipt.event.l2_sensitivity_squared,
                vector=privatize(self._intake.exact_sum(), receipt, self._noise, dtype),
            )
        )
        record = replace(
            self._closing_record(now_ms),
            kind=LedgerKind.RELEASE,
            charge_units=receipt.units,
            spent_units=receipt.spent_units,
            noise_variance=receipt.event.noise_variance,
            release_digest=release_digest(release),
        )
        return self._cell(record, release, receipt)

    def _cell(
        self, record: LedgerRecord, release: bytes | None, receipt: Receipt | None
    ) -> SealedCell:
        return SealedCell(
            self.cluster,
            record.window,
            release,
            encode_ledger_record(record),
            receipt,
            record.next_offset,
        )

    def _closing_record(self, now_ms: int) -> LedgerRecord:
        return LedgerRecord(
            plan_id=self.plan.plan_id,
            cluster=self.cluster,
            sequence=self._ledger.sequence + 1,
            kind=LedgerKind.EXHAUSTED,
            window=self.next_window,
            next_offset=self._intake.resume_offset(),
            charge_units=0,
            spent_units=self._ledger.spent_units,
            cap_units=self._ledger.cap_units,
            noise_variance=Fraction(0),
            l2_sensitivity_squared=self.plan.l2_sensitivity_squared,
            release_digest=b"",
            previous_hash=self._newest_hash,
            sealed_at_ms=now_ms,
        )
