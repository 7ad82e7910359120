"""One sealed window, ready for its transaction, and the records that say so."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from schemas import LedgerKind, LedgerRecord, Release, encode_release, release_digest

from .budget.client_budgets import ClientBudgets
from .clip_progress import clip_after, next_clip_window
from .ledger_chain import next_units
from .participation_log import digest_of, records_for
from .privacy.event import Receipt
from .privacy.plan import PrivacyPlan
from .privacy.schedule_signal import Released


@dataclass(frozen=True, slots=True)
class SealedCell:
    """One sealed (cluster, window), ready for its transaction.

    Attributes:
        cluster: The cluster.
        window: The window.
        kind: What the ledger says of the window; None once the ledger is closed.
        release: The bytes to publish after the commit, or None where nothing was released.
        ledger_record: The bytes for the ledger, or None once the ledger is closed.
        receipt: What the release was paid with; None with ``release``.
        resume_offset: The first offset that an unsealed window may still need.
        record: The ledger record as a value; None with ``ledger_record``.
        participation: Keys and values for the participation topic, to be written in order.
        clients: Each client's budget after the window, where each has one; secret.
        saturated: How many coordinates of the release stand at an end of its type, past which
            their sums may have been: far more clients than the plan expects.
    """

    cluster: int
    window: int
    kind: LedgerKind | None
    release: bytes | None
    ledger_record: bytes | None
    receipt: Receipt | None
    resume_offset: int
    record: LedgerRecord | None = None
    participation: tuple[tuple[bytes, bytes], ...] = ()
    clients: ClientBudgets | None = None
    saturated: int = 0


@dataclass(frozen=True, slots=True)
class Sealing:
    """What the records of the next window are made of.

    Attributes:
        plan: The plan.
        before: The newest ledger record.
        before_hash: The hash of its bytes.
        resume_offset: The first offset that a later window may still need.
        now_ms: The head's clock.
    """

    plan: PrivacyPlan
    before: LedgerRecord
    before_hash: bytes
    resume_offset: int
    now_ms: int

    @property
    def window(self) -> int:
        """The window that is sealed."""
        return self.before.window + 1

    def release(self, receipt: Receipt, vector: NDArray[np.int32 | np.int64]) -> bytes:
        """Return the bytes of the window's release."""
        plan, before = self.plan, self.before
        clip = clip_after(plan, before.clip, self.window, vector)
        scale: dict[str, float] = {}
        if before.clip is not None and clip is not None:
            scale["clip_norm"] = clip.norm
            if clip.next_norm:
                scale["next_clip_norm"] = clip.next_norm
        return encode_release(
            Release(
                plan_id=plan.plan_id,
                cluster=before.cluster,
                window=self.window,
                sequence=receipt.sequence,
                charge_units=receipt.units,
                spent_units=receipt.spent_units,
                cap_units=receipt.cap_units,
                noise_variance=receipt.event.noise_variance,
                l2_sensitivity_squared=receipt.event.l2_sensitivity_squared,
                vector=vector,
                next_clip_window=next_clip_window(plan, self.window) if len(scale) == 2 else 0,
                **scale,
            )
        )

    def released_record(
        self, receipt: Receipt, vector: NDArray[np.int32 | np.int64], release: bytes
    ) -> LedgerRecord:
        """Return the ledger record of a release, without what clients paid."""
        plan = self.plan
        record = replace(
            self._record(LedgerKind.RELEASE),
            charge_units=receipt.units,
            spent_units=receipt.spent_units,
            noise_variance=receipt.event.noise_variance,
            release_digest=release_digest(release),
            clip=clip_after(plan, self.before.clip, self.window, vector),
        )
        released = Released(vector[: plan.coordinate_count], receipt.event.noise_variance)
        return replace(record, next_units=next_units(plan, self.before, record, released))

    def throttled_record(self) -> LedgerRecord:
        """Return the ledger record of a window that a rate limit left without a release."""
        record = replace(
            self._record(LedgerKind.THROTTLED),
            clip=clip_after(self.plan, self.before.clip, self.window, None),
        )
        return replace(record, next_units=next_units(self.plan, self.before, record, None))

    def closing_record(self) -> LedgerRecord:
        """Return the record that closes the ledger: nothing is released any more."""
        return self._record(LedgerKind.EXHAUSTED)

    def participation(
        self, clients: ClientBudgets | None, keys: NDArray[np.uint64], units: int
    ) -> tuple[tuple[tuple[bytes, bytes], ...], bytes, ClientBudgets | None]:
        """Return the participation records, their digest and the clients' budgets after them."""
        if clients is None:
            return (), b"", None
        after, plan = clients.after(keys, units), self.plan
        written = records_for(
            plan.plan_id,
            self.before.cluster,
            self.before.sequence + 1,
            self.window,
            after,
            keys,
            units,
        )
        digest = digest_of(self.before.participation_digest, [value for _, value in written])
        return tuple(written), digest, after

    def _record(self, kind: LedgerKind) -> LedgerRecord:
        before = self.before
        return replace(
            before,
            sequence=before.sequence + 1,
            kind=kind,
            window=self.window,
            next_offset=self.resume_offset,
            charge_units=0,
            noise_variance=Fraction(0),
            release_digest=b"",
            previous_hash=self.before_hash,
            sealed_at_ms=self.now_ms,
            next_units=0,
            participation_digest=b"",
        )
