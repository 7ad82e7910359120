"""What a real head of one cluster writes, without Kafka, for auditors to look at."""

from collections.abc import Callable, Sequence

import numpy as np

from agents.late_reports import LateReports
from agents.noise_fit import noise_faults
from agents.participants import ParticipationReader
from agents.sealed_windows import SealedWindow, SealedWindows
from agents.sum_audit import SumAudit
from schemas import (
    RejectRecord,
    Release,
    Update,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_reject_record,
    encode_update,
    release_digest,
)
from stream.aggregation.intake import Record
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead, SealedCell
from stream.ledger_chain import genesis
from stream.participation_log import rebuild
from stream.privacy.noise import NoiseSource
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import UnsafeNoNoise

PLAN = PrivacyPlan(
    name="written",
    dimension=6,
    cluster_count=1,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=3,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=20,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


class WrittenCluster:
    """A head, the log that it reads, and all that it wrote.

    Attributes:
        plan: The plan.
        log: The updates as the broker has them.
        ledger: The ledger's records.
        releases: The bytes of the releases, by window.
        participation: The participation topic's values.
        reports: The rejects topic's values.
        head: The head.
    """

    def __init__(
        self, plan: PrivacyPlan = PLAN, noise: NoiseSource | None = None, max_open_windows: int = 4
    ) -> None:
        self.plan = plan
        self.log: list[Record] = []
        self.ledger = [encode_ledger_record(genesis(plan, 0, 0, 0, 0))]
        self.releases: dict[int, bytes] = {}
        self.participation: list[bytes] = []
        self.reports: list[bytes] = []
        self._noise = noise or UnsafeNoNoise()
        self._max_open_windows = max_open_windows
        self.restart()

    def restart(self) -> None:
        """Go on as a new process does."""
        self.head = ClusterHead(
            self.plan,
            0,
            self._noise,
            self.ledger,
            is_complete=True,
            max_open_windows=self._max_open_windows,
            clients=self._clients(),
        )

    def update(
        self, client: int | str, vector: Sequence[int] | None = None, **more: object
    ) -> bytes:
        """Return the bytes of an update; without a vector, one grid step in one coordinate."""
        steps = np.zeros(self.plan.coordinate_count, np.dtype(self.plan.update_dtype))
        if vector is not None:
            steps[: len(vector)] = vector
        elif isinstance(client, int):
            steps[client % steps.size] = 1
        return encode_update(Update(self.plan.plan_id, str(client), 0, steps, **more))

    def send(
        self,
        window: int,
        client: int | str,
        vector: Sequence[int] | None = None,
        *,
        value: bytes | None = None,
        seen_in: int | None = -1,
    ) -> int:
        """Append an update at the window's middle, and let the head read it; return its offset.

        Args:
            window: The window.
            client: Who sends.
            vector: What is sent.
            value: The bytes, if they are no usual ones.
            seen_in: The window that a faulty head takes it to be of; None for a head that does
                not see it.
        """
        offset, length = len(self.log), self.plan.window_length_ms
        moment = self.plan.window_end_ms(window) - length // 2
        record = Record(offset, moment, self.update(client, vector) if value is None else value)
        self.log.append(record)
        if seen_in is None:
            self.head.advance(offset + 1)
        else:
            shift = 0 if seen_in == -1 else (seen_in - window) * length
            self._offer([record._replace(timestamp_ms=moment + shift)])
        return offset

    def read_again(self) -> None:
        """Let a head that was started again read what it needs of the log."""
        self._offer(self.log[self.head.position :])

    def seal(self, *, end_offset: int | None = None) -> SealedCell:
        """Seal the next window."""
        window = self.head.next_window
        now_ms = self.plan.window_end_ms(window) + self.plan.grace_ms
        self.head.expect(window, len(self.log) if end_offset is None else end_offset)
        cell = self.head.seal(now_ms)
        if self.head.commit(cell) is not None:
            self.read_again()
        if cell.ledger_record is not None:
            self.ledger.append(cell.ledger_record)
        if cell.release is not None:
            self.releases[cell.window] = cell.release
        self.participation += [value for _, value in cell.participation]
        return cell

    def sealed(self) -> SealedWindows:
        """Return what the ledger says."""
        windows = SealedWindows()
        for data in self.ledger:
            windows.take(decode_ledger_record(data))
        return windows

    def release_of(self, sealed: SealedWindow) -> Release | None:
        """Return the release that the ledger names."""
        data = self.releases.get(sealed.window)
        if data is None or release_digest(data) != sealed.release_digest:
            return None
        return decode_release(data)

    def audit(
        self,
        *,
        begin_offset: int = 0,
        log: Sequence[Record] | None = None,
        participation: Sequence[bytes] | None = None,
        has_all_reports: bool = True,
        deleted_meanwhile: int = 0,
        release_of: Callable[[SealedWindow], Release | None] | None = None,
    ) -> tuple[SumAudit, list[str]]:
        """Return a finished audit of the sums, and what it and the test of the noise found."""
        late = LateReports(self.plan, 0, most_per_window=100, is_whole=has_all_reports)
        for data in self.reports:
            late.take(data, 10**9)
        reader = None
        if self.plan.scope == "client":
            values = self.participation if participation is None else participation
            reader = ParticipationReader(self.plan.plan_id, 0, values)
        audit = SumAudit(
            self.plan,
            0,
            self.sealed(),
            begin_offset=begin_offset,
            retention_ms=86_400_000,
            late=late,
            release_of=release_of or self.release_of,
            participation=reader,
            is_noise_free=isinstance(self._noise, UnsafeNoNoise),
        )
        for record in self.log if log is None else log:
            if record.offset >= begin_offset:
                audit.offer(record.offset, record.timestamp_ms, record.value)
        audit.note_deleted(deleted_meanwhile)
        audit.finish()
        residuals = {
            (0, window): (checked.residual, checked.choices)
            for window, checked in audit.checked.items()
            if checked.residual is not None
        }
        faults = [
            f"window {window}: {fault}"
            for window, checked in sorted(audit.checked.items())
            for fault in checked.faults
        ]
        return audit, [*faults, *noise_faults(self.plan, residuals)]

    def _offer(self, records: Sequence[Record]) -> None:
        for rejected in self.head.offer(records).rejected:
            self.reports.append(
                encode_reject_record(
                    RejectRecord(
                        plan_id=self.plan.plan_id,
                        cluster=0,
                        reason=rejected.rejection.reason,
                        client_id=rejected.client_id,
                        window=rejected.window,
                        partition=0,
                        offset=rejected.offset,
                        detail=rejected.rejection.detail,
                    )
                )
            )

    def _clients(self) -> ClientBudgets | None:
        if self.plan.scope != "client":
            return None
        newest = decode_ledger_record(self.ledger[-1])
        cap, plan_id = self.plan.cap_units, self.plan.plan_id
        digest, sequence = newest.participation_digest, newest.sequence
        return rebuild(cap, self.participation, plan_id, 0, sequence, digest)
