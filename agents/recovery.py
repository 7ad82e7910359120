"""What a killed broker has lost of committed transactions, written again as it was.

Kafka keeps a transaction's promise only while its partitions have a leader: a coordinator that
comes back before them takes them for deleted, drops their commit markers and calls the
transaction complete (seen with a single broker under SIGKILL, Apache Kafka 4.3). One of two
partitions may then show the transaction and the other not, or none of them, although its writer
was told that it had committed.

The records are in the logs all the same. Each opening first fences, so that nothing more of an
earlier writer can arrive, then looks for such records and writes them again. What is written
whole counts, whatever became of its transaction: the writer may have been told so, and may have
published or be about to publish it.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from schemas import (
    LedgerKind,
    LedgerRecord,
    TopicNames,
    decode_participation,
    decode_release,
    participation_key,
    release_digest,
)
from stream.errors import LedgerError
from stream.ledger_chain import continuation, decode_record, readable_records, record_faults
from stream.participation_log import digest_of
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import Tail, read_tail
from .model_versions import Version, newest_version, or_none, snapshot_version, state_version
from .transactions import OutgoingRecord, TransactionalWriter

log = logging.getLogger(__name__)

# Fences and aborted attempts since the newest committed record; one or two at each opening.
_LOG_RECORDS = 100
# A model's record may be large, and at most one of them is missing.
_MODEL_RECORDS = 8


class Recovery:
    """Restores what was lost of one identity's transactions, right after its fence. Blocks."""

    def __init__(
        self, config: Mapping[str, str], names: TopicNames, writer: TransactionalWriter
    ) -> None:
        """``writer`` is fenced and has settled the partitions that are restored."""
        self._config = config
        self._names = names
        self._writer = writer

    def restore_cluster(self, plan: PrivacyPlan, cluster: int, tail: Tail[bytes]) -> Tail[bytes]:
        """Return the ledger's ``tail`` with the records that had to be restored.

        Raises:
            LedgerError: the newest record cannot be read.
            KafkaException: the broker cannot be asked, refuses, or does not decide a transaction.
        """
        logged = self._log(self._names.ledger, cluster, bytes)
        first = [] if tail.values else _first_record(plan, cluster, logged)
        tail = replace(tail, values=[*tail.values, *first])
        if not tail.values:
            return tail
        newest = decode_record(tail.values[-1], cluster)
        known = set(tail.values)
        candidates = [data for data in logged if data not in known]
        unpaid = self._lacking_participation(cluster, tail) if plan.scope == "client" else []
        is_lost = self._lacks_release(cluster, newest) or bool(unpaid)
        if not is_lost and not any((*first, *candidates)):
            return tail
        written = self._written(cluster, [newest, *unpaid, *readable_records(candidates)])
        records = continuation(plan, cluster, tail.values[-1], candidates, written.is_whole)
        values = [decode_record(data, cluster) for data in records]
        # What is written once more than needed is passed over by its readers.
        again = [newest] if is_lost and _goes_with(written, tail, newest) else []
        paid_again = unpaid if again else []
        self._write_again(
            {
                self._names.ledger: [(str(cluster).encode(), data) for data in (*first, *records)],
                self._names.outbox: [
                    (str(cluster).encode(), written.releases[record.release_digest])
                    for record in (*again, *values)
                    if record.release_digest in written.releases
                ],
                self._names.participation: [
                    pair
                    for record in (*paid_again, *values)
                    for pair in written.pairs_of(record.sequence)
                ],
            },
            cluster,
        )
        return replace(tail, values=[*tail.values, *records])

    def _written(self, cluster: int, records: Sequence[LedgerRecord]) -> "_Written":
        """Return what the logs hold of the transactions of ``records``, and nothing else."""
        digests = {record.release_digest for record in records}
        releases = self._log(
            self._names.outbox,
            cluster,
            lambda data: data if release_digest(data) in digests else b"",
        )
        sequences = {record.sequence for record in records if record.participation_digest}
        participation = self._participation(cluster, sequences) if sequences else {}
        return _Written({release_digest(data): data for data in releases if data}, participation)

    def _participation(
        self, cluster: int, sequences: Collection[int]
    ) -> dict[int, dict[bytes, bytes]]:
        """Return the participation records of these ledger records, by sequence and key."""
        sequence_of = or_none(lambda data: decode_participation(data).sequence)

        def keep(data: bytes) -> bytes:
            return data if sequence_of(data) in sequences else b""

        count = _LOG_RECORDS
        while True:
            found: dict[int, dict[bytes, bytes]] = {}
            tail = read_tail(
                self._config,
                self._names.participation,
                cluster,
                count,
                keep,
                only_committed=False,
            )
            for data in filter(None, tail.values):
                record = decode_participation(data)
                found.setdefault(record.sequence, {})[participation_key(record)] = data
            # A snapshot has as many parts as there are clients; its delta comes before them.
            has_deltas = all(
                any(key[:1] == b"d" for key in found.get(sequence, ())) for sequence in sequences
            )
            if has_deltas or tail.is_complete:
                return found
            count *= 4

    def _lacks_release(self, cluster: int, newest: LedgerRecord) -> bool:
        """Say whether the outbox ends before the release of ``newest``."""
        sequence_of = or_none(lambda data: decode_release(data).sequence)
        return bool(newest.release_digest) and self._ends_before(
            newest.sequence, self._names.outbox, cluster, sequence_of
        )

    def _lacking_participation(self, cluster: int, tail: Tail[bytes]) -> list[LedgerRecord]:
        """Return the ledger's newest records that the participation topic ends before."""
        sequence_of = or_none(lambda data: decode_participation(data).sequence)
        lacking: list[LedgerRecord] = []
        for data in reversed(tail.values):
            record = decode_record(data, cluster)
            if record.participation_digest:
                if not self._ends_before(
                    record.sequence, self._names.participation, cluster, sequence_of
                ):
                    break
                lacking.append(record)
        return lacking[::-1]

    def _ends_before(self, sequence: int, topic: str, cluster: int, sequence_of: Version) -> bool:
        shown = read_tail(self._config, topic, cluster, 1, sequence_of).values
        # Foreign bytes are no loss: the opener says what to do about them.
        return not shown or (shown[-1] is not None and shown[-1] < sequence)

    def restore_model(self, plan: PrivacyPlan) -> None:
        """Bring the newest state and the newest model to the same version.

        Raises:
            LedgerError: the state is older than the model that is public.
            KafkaException: the broker cannot be asked, or refuses.
        """
        model, state = (
            (self._names.model, snapshot_version(plan)),
            (self._names.model_state, state_version(plan)),
        )
        public, durable = (newest_version(self._config, *topic) for topic in (model, state))
        if public < durable:
            self._restore_version(*model, durable)
        is_lost = durable < public and not self._restore_version(*state, public)
        if is_lost and durable >= 0:
            raise LedgerError(
                f"version {public} of the model is public, but {state[0]} ends at version "
                f"{durable}: restore that topic from a newer backup, or start a new plan on new "
                "topics"
            )

    def _restore_version(self, topic: str, version: Version, wanted: int) -> bool:
        def keep(data: bytes) -> bytes:
            return data if version(data) == wanted else b""

        found = [data for data in self._log(topic, 0, keep, _MODEL_RECORDS) if data]
        self._write_again({topic: [(b"model", data) for data in found[-1:]]}, 0)
        return bool(found)

    def _log(
        self,
        topic: str,
        partition: int,
        keep: Callable[[bytes], bytes],
        count: int = _LOG_RECORDS,
    ) -> list[bytes]:
        """Return the newest records, whatever became of their transactions."""
        return read_tail(self._config, topic, partition, count, keep, only_committed=False).values

    def _write_again(self, lost: Mapping[str, list[tuple[bytes, bytes]]], partition: int) -> None:
        records = [
            OutgoingRecord(topic, partition, key, data)
            for topic, pairs in lost.items()
            for key, data in pairs
        ]
        if not records:
            return
        # Our commit would commit what is still open there, too.
        for topic, pairs in lost.items():
            if pairs:
                read_tail(self._config, topic, partition, 1, bytes)
        log.warning(
            "the broker has lost records of committed transactions in %s: written again as they "
            "were",
            ", ".join(topic for topic, pairs in lost.items() if pairs),
        )
        self._writer.write(records)


@dataclass(frozen=True, slots=True)
class _Written:
    """What is in the logs of a cluster beside its ledger, committed or not.

    Attributes:
        releases: The outbox, by digest.
        participation: The participation records by sequence and key.
    """

    releases: Mapping[bytes, bytes]
    participation: Mapping[int, Mapping[bytes, bytes]]

    def is_whole(self, before: LedgerRecord, record: LedgerRecord) -> bool:
        """Say whether all that the transaction of ``record`` wrote is here."""
        if record.release_digest and record.release_digest not in self.releases:
            return False
        if not record.participation_digest:
            return True
        values = [data for _, data in self.pairs_of(record.sequence)]
        return bool(values) and record.participation_digest == digest_of(
            before.participation_digest, values
        )

    def pairs_of(self, sequence: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values of a window's participation: the delta, then any parts."""
        pairs = self.participation.get(sequence, {})
        return sorted(pairs.items(), key=lambda pair: (pair[0][:1], int(pair[0][1:])))


def _first_record(plan: PrivacyPlan, cluster: int, logged: Sequence[bytes]) -> list[bytes]:
    """Return the newest record that a ledger without any committed one may begin with, if any."""
    firsts = [
        data
        for data in logged
        for record in readable_records([data])
        if record.kind is LedgerKind.GENESIS and not record_faults(plan, cluster, record)
    ]
    return firsts[-1:]


def _goes_with(written: _Written, tail: Tail[bytes], newest: LedgerRecord) -> bool:
    """Say whether what the logs hold is what ``newest`` names, as far as that can be told."""
    if len(tail.values) < 2:
        return True
    before = decode_record(tail.values[-2], newest.cluster)
    return written.is_whole(before, newest)
