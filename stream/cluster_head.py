"""One cluster's head, without IO: updates in, sealed cells out.

The Kafka half (`agents.cluster_head`) moves bytes; everything that decides is here. The steps of
a window are `offer` (records, in offset order), `needs_end_offset` and `expect` (once its time is
over, the log's end is marked), `is_ready` (that end has been read), `begin_seal` (its sum is
final), `seal` (charge, add noise, encode) and `commit` (after the transaction has committed). A
window is sealed by the clock, also when it is empty.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from schemas import (
    LedgerKind,
    LedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
    record_hash,
)

from .aggregation.intake import BatchOutcome, PlainRecord, WindowIntake
from .budget.client_budgets import ClientBudgets
from .budget.limits import Forecast, RateLimit, SlidingLimits
from .errors import BudgetExhaustedError, LedgerError
from .ledger_chain import ledger_after, verify_records
from .privacy.event import GaussianEvent, Receipt
from .privacy.mechanism import privatize
from .privacy.noise import NoiseSource
from .privacy.noise_kernel import Kernel
from .privacy.plan import PrivacyPlan
from .sealing import SealedCell as SealedCell
from .sealing import Sealing

_RELEASE_DTYPES: dict[str, type[np.int32 | np.int64]] = {"int32": np.int32, "int64": np.int64}
_NOBODY = np.empty(0, np.uint64)


def records_needed(plan: PrivacyPlan) -> int:
    """Return how many of a ledger's newest records a head needs at least to go on."""
    return max((windows for _, windows, _ in plan.sliding_caps), default=1)


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
        clients: ClientBudgets | None = None,
        kernel: Kernel = "numpy",
    ) -> None:
        """Continue where the newest of ``records`` left off.

        Args:
            plan: The plan.
            cluster: The cluster.
            noise: Source of the releases' noise, of the plan's kind.
            records: The ledger's newest records, oldest first: all, or `records_needed`.
            is_complete: Whether they are the whole ledger.
            max_open_windows: How many windows may be summed at once; bounds the memory at
                12 bytes for each coordinate of a release. At least 2.
            clients: What each client has spent, where the plan's scope is ``client``.
            kernel: What adds the vectors up; they differ in speed alone.

        Raises:
            LedgerError: the records cannot be trusted; the message names the remedy.
            ValueError: ``max_open_windows`` is below 2, or ``clients`` are not what the plan
                needs.
            ImportError: ``kernel`` is ``"numba"``, and numba is not installed.
        """
        clients_cap = None if clients is None else clients.cap_units
        if clients_cap != (plan.cap_units if plan.scope == "client" else None):
            raise ValueError(
                "clients' budgets, of the plan's cap, are for scope = \"client\", and needed there"
            )
        newest = verify_records(plan, cluster, records, is_complete=is_complete)
        self.plan = plan
        self.cluster = cluster
        self._noise = noise
        self._ledger = ledger_after(plan, newest)
        self._newest = newest
        self._newest_hash = record_hash(records[-1])
        self._clients = clients
        self._limits = _limits(plan, records)
        self._intake = WindowIntake(
            plan,
            cluster,
            next_window=newest.window + 1,
            position=newest.next_offset,
            max_open_windows=max_open_windows,
            clip=newest.clip,
            clients=clients,
            forecast=self._forecast(),
            kernel=kernel,
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
    def sequence(self) -> int:
        """The number of the ledger's newest record."""
        return self._newest.sequence

    @property
    def spent_units(self) -> int:
        """What the cluster has spent, in units of 2^-60 zCDP."""
        return self._ledger.spent_units

    def offer(self, records: Sequence[PlainRecord]) -> BatchOutcome:
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

    def begin_seal(self) -> int:
        """Take nothing more into the next window, so that `seal` may run beside `offer`.

        Returns:
            The offset that the windows after it have to be read from.

        Raises:
            LedgerError: the window is not ready.
        """
        if not self.is_ready():
            raise LedgerError(f"window {self.next_window} of cluster {self.cluster} is not over")
        return self._intake.begin_seal()

    def seal(self, now_ms: int) -> SealedCell:
        """Charge the next window, add noise and encode; the books do not change before `commit`.

        Calling it again, after a transaction that left nothing, draws fresh noise. After
        `begin_seal` it may run in another thread than `offer`.

        Raises:
            LedgerError: the window is not ready.
        """
        resume = self.begin_seal()
        if self.is_exhausted:
            return SealedCell(self.cluster, self.next_window, None, None, None, None, resume)
        sealing = Sealing(self.plan, self._newest, self._newest_hash, resume, now_ms)
        planned = self._newest.next_units
        if not planned:
            return _cell(sealing.closing_record())
        event = GaussianEvent(
            self.plan.l2_sensitivity_squared, self.plan.schedule.noise_variance(planned)
        )
        if self._limits.refusing(event.units) is not None:
            return self._throttled(sealing)
        try:
            receipt = self._ledger.charge(event)
        except BudgetExhaustedError:
            return _cell(sealing.closing_record())
        return self._released(sealing, receipt)

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
        if cell.receipt is not None:
            self._ledger = self._ledger.after(cell.receipt)
        elif cell.kind is LedgerKind.THROTTLED:
            self._ledger = self._ledger.after_no_release()
        else:
            self._intake.drain()
        if cell.record is not None and cell.ledger_record is not None:
            self._newest, self._newest_hash = cell.record, record_hash(cell.ledger_record)
        if not self.is_exhausted:
            self._limits.push(cell.receipt.units if cell.receipt else 0)
            self._clients = cell.clients
        return self._intake.close_window(self._newest.clip, self._clients, self._forecast())

    def _forecast(self) -> Forecast | None:
        if self._clients is None or not self.plan.sliding_caps:
            return None
        return Forecast(self._limits, self.plan.charge_units)

    def _released(self, sealing: Sealing, receipt: Receipt) -> SealedCell:
        dtype = _RELEASE_DTYPES[self.plan.release_dtype]
        vector = privatize(self._intake.exact_sum(), receipt, self._noise, dtype)
        release = sealing.release(receipt, vector)
        record = sealing.released_record(receipt, vector, release)
        keys = self._intake.client_keys()
        cell = self._paid_by_clients(sealing, record, keys, release, receipt)
        limits = np.iinfo(dtype)
        at_an_end = (vector == limits.min) | (vector == limits.max)
        return replace(cell, saturated=int(np.count_nonzero(at_an_end)))

    def _throttled(self, sealing: Sealing) -> SealedCell:
        record = sealing.throttled_record()
        return self._paid_by_clients(sealing, record, _NOBODY, None, None)

    def _paid_by_clients(
        self,
        sealing: Sealing,
        record: LedgerRecord,
        keys: NDArray[np.uint64],
        release: bytes | None,
        receipt: Receipt | None,
    ) -> SealedCell:
        units = 0 if receipt is None else receipt.units
        participation, digest, clients = sealing.participation(self._clients, keys, units)
        cell = _cell(replace(record, participation_digest=digest))
        return replace(
            cell, release=release, receipt=receipt, participation=participation, clients=clients
        )


def _cell(record: LedgerRecord) -> SealedCell:
    return SealedCell(
        cluster=record.cluster,
        window=record.window,
        kind=record.kind,
        release=None,
        ledger_record=encode_ledger_record(record),
        receipt=None,
        resume_offset=record.next_offset,
        record=record,
    )


def _limits(plan: PrivacyPlan, records: Sequence[bytes]) -> SlidingLimits:
    limits = tuple(RateLimit(*cap) for cap in plan.sliding_caps)
    if not limits:
        return SlidingLimits((), ())
    needed = records_needed(plan)
    newest = [decode_ledger_record(data) for data in records[-needed:]]
    if len(newest) < needed and newest[0].kind is not LedgerKind.GENESIS:
        raise LedgerError(
            f"the rate limits need the newest {needed} records of the ledger of cluster "
            f"{newest[0].cluster}, and it was read from record {newest[0].sequence} on"
        )
    charges = [
        record.charge_units
        for record in newest
        if record.kind in (LedgerKind.RELEASE, LedgerKind.THROTTLED)
    ]
    return SlidingLimits(limits, charges)
