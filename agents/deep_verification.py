"""Reads what a deep verification needs besides ledgers and releases, and brings it together.

It runs inside the privacy boundary: it reads raw updates.

Safe while heads and the global agent are running, by the order of reading. What ledger records
must explain (the outbox, committed offsets, the model's state) is read first, then the ledgers,
then what must explain ledger records: the releases, and the updates up to an end that is asked
for after the ledgers were read.
"""

from collections.abc import Iterable, Mapping

from schemas import (
    MalformedMessageError,
    Release,
    TopicNames,
    decode_ledger_record,
    decode_release,
    release_digest,
)
from stream.privacy.plan import PrivacyPlan

from .deep_report import ClusterDepth, DeepFindings, unchecked_runs
from .kafka_edge import LogEnds, now_ms, read_all
from .late_reports import LateReports
from .ledger_checks import Problems
from .ledger_witnesses import Witnesses
from .log_reader import LogReader
from .model_audit import ModelAudit
from .model_versions import newest_state, newest_version, snapshot_version
from .noise_fit import FALSE_ALARM, Residual, energy_ratio, noise_faults
from .participants import ParticipationReader
from .partition import group_of
from .publisher import REPORTS_PER_WINDOW
from .sealed_windows import SealedWindow, SealedWindows
from .sum_audit import SumAudit
from .topics import topics_of

_REQUEST_TIMEOUT_S = 30.0


class DeepVerification:
    """A deep verification in progress. Blocks.

    Call `begin`, then read the ledgers (`take_record`), then the releases (`take_release`), then
    call `findings`. Memory is a few hundred bytes a window, besides the sums of a few windows.

    Attributes:
        problems: What does not fit.
    """

    def __init__(
        self, config: Mapping[str, str], plan: PrivacyPlan, *, is_noise_free: bool = False
    ) -> None:
        """Ask nothing yet."""
        self.problems = Problems()
        self._config = config
        self._plan = plan
        self._is_noise_free = is_noise_free
        self._names = TopicNames(plan.topic_prefix)
        specs = {spec.name: spec for spec in topics_of(plan)}
        self._retention_ms = specs[self._names.updates].retention_ms or 0
        lag_ms = int(specs[self._names.model].config()["min.compaction.lag.ms"])
        self._model = ModelAudit(plan, self.problems, now_ms=now_ms(), compaction_lag_ms=lag_ms)
        self._ledgers = [SealedWindows() for _ in range(plan.cluster_count)]
        self._witnesses: list[Witnesses] = []
        self._release_offsets: dict[bytes, int] = {}
        self._ends = LogEnds(config, _REQUEST_TIMEOUT_S)

    def begin(self) -> None:
        """Read what ledger records must explain."""
        names, version = self._names, snapshot_version(self._plan)
        public = newest_version(self._config, names.model, version)
        stored = newest_state(self._config, names.model_state, self._plan)
        self._model.take_state(stored.state, least_version=public)
        self._witnesses = [self._witness(cluster) for cluster in range(self._plan.cluster_count)]

    def take_record(self, cluster: int, data: bytes | None) -> None:
        """Note the next record of a ledger."""
        try:
            record = decode_ledger_record(data)
        except MalformedMessageError:
            return  # the audit of the ledgers says so
        if record.plan_id == self._plan.plan_id and record.cluster == cluster:
            self._ledgers[cluster].take(record)

    def take_release(self, offset: int, data: bytes | None) -> None:
        """Note where the bytes of a release stand first."""
        self._release_offsets.setdefault(release_digest(data or b""), offset)

    def findings(self, releases_end: int) -> DeepFindings:
        """Read updates and models, compare, and return what it all has shown.

        Args:
            releases_end: The end of the releases that were read.
        """
        rows: list[ClusterDepth] = []
        residuals: dict[tuple[int, int], tuple[Residual, int]] = {}
        for witnesses, ledger in zip(self._witnesses, self._ledgers, strict=True):
            self._note(witnesses.faults(ledger))
            audit = self._audit_sums(witnesses.cluster, ledger)
            rows.append(self._row(witnesses, ledger, audit))
            for window, checked in sorted(audit.checked.items()):
                where = f"sum of cluster {witnesses.cluster}, window {window}"
                self._note([f"{where}: {fault}" for fault in checked.faults])
                if checked.residual is not None:
                    residuals[witnesses.cluster, window] = checked.residual, checked.choices
        self._note(noise_faults(self._plan, residuals))
        self._read_models()
        self._model.take_limits(releases_end, [_released_through(each) for each in self._ledgers])
        together = [residual for residual, _ in residuals.values()]
        return DeepFindings(
            is_noise_free=self._is_noise_free,
            false_alarm_probability=0.0 if self._is_noise_free else FALSE_ALARM,
            noise_energy=energy_ratio(together) if together else None,
            clusters=tuple(rows),
            model=self._model.finish(),
        )

    def _note(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.problems.add(problem)

    def _witness(self, cluster: int) -> Witnesses:
        group, topic = group_of(self._plan), self._names.updates
        witnesses = Witnesses(cluster, self._ends.committed_offset(group, topic, cluster))
        witnesses.take_outbox(self._plan, read_all(self._config, self._names.outbox, cluster))
        return witnesses

    def _audit_sums(self, cluster: int, ledger: SealedWindows) -> SumAudit:
        names = self._names
        with (
            # As the heads do, who do not let a client's transaction stop them.
            LogReader(self._config, names.updates, cluster, "read_uncommitted") as updates,
            LogReader(self._config, names.releases, 0, prefetch_kib=1024) as releases,
        ):
            begin, end = updates.limits()
            audit = SumAudit(
                self._plan,
                cluster,
                ledger,
                begin_offset=begin,
                retention_ms=self._retention_ms,
                late=self._late_reports(cluster),
                release_of=lambda sealed: self._release(releases, sealed),
                participation=self._participation(cluster),
                is_noise_free=self._is_noise_free,
            )
            first = ledger.genesis.next_offset if ledger.genesis else 0
            for record in updates.records(max(begin, first), end):
                audit.offer(record.offset, record.timestamp_ms, record.value)
            # What was deleted while it was read may be missing.
            audit.note_deleted(updates.limits()[0])
            audit.finish()
        return audit

    def _late_reports(self, cluster: int) -> LateReports:
        with LogReader(self._config, self._names.rejects, cluster) as rejects:
            begin, end = rejects.limits()
            reports = LateReports(
                self._plan, cluster, most_per_window=REPORTS_PER_WINDOW, is_whole=begin == 0
            )
            for record in rejects.records(begin, end):
                reports.take(record.value, record.timestamp_ms)
        return reports

    def _participation(self, cluster: int) -> ParticipationReader | None:
        if self._plan.scope != "client":
            return None
        values = read_all(self._config, self._names.participation, cluster)
        return ParticipationReader(self._plan.plan_id, cluster, values)

    def _release(self, releases: LogReader, sealed: SealedWindow) -> Release | None:
        offset = self._release_offsets.get(sealed.release_digest)
        found = None if offset is None else releases.at(offset)
        if found is None or release_digest(found.value or b"") != sealed.release_digest:
            return None
        try:
            return decode_release(found.value)
        except MalformedMessageError:
            return None

    def _read_models(self) -> None:
        with LogReader(self._config, self._names.model, 0) as models:
            for record in models.records(*models.limits()):
                self._model.take_model(record.value, record.timestamp_ms)

    def _row(self, witnesses: Witnesses, ledger: SealedWindows, audit: SumAudit) -> ClusterDepth:
        counts = audit.counts
        released = [sealed.window for sealed in ledger.released()]
        return ClusterDepth(
            cluster=witnesses.cluster,
            sums_checked=len(audit.checked),
            sums_unchecked=tuple(unchecked_runs(audit.unchecked, released)),
            updates_read=counts.read,
            updates_counted=counts.counted,
            updates_refused=dict(sorted(counts.refused.items())),
            updates_excused=counts.excused,
            updates_waiting=counts.waiting,
            updates_unchecked=counts.unchecked,
            outbox_records=len(witnesses.releases),
            committed_offset=witnesses.committed_offset,
        )


def _released_through(ledger: SealedWindows) -> int:
    released = ledger.released()
    return released[-1].window if released else -1
