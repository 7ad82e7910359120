"""Ledgers into a file, and back into topics that were made again.

No tool of Kafka's writes a topic of binary records to a file and back. What is written back must
be all of a ledger, in its order, into an empty partition: a head trusts nothing less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from schemas import MalformedMessageError, TopicNames, decode_participation, participation_key
from stream.errors import LedgerError
from stream.privacy.plan import PrivacyPlan

from .backup_file import BackupWriter, Chain, ClusterRecords, read_backup
from .client_spending import budgets_at
from .kafka_edge import LogEnds, read_all
from .ledger_reader import LedgerReader
from .partition import head_identity, read_traces
from .settings import Settings
from .takeover_checks import Traces
from .topics import topics_of

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Exported:
    """What a backup has of one cluster.

    Attributes:
        cluster: The cluster.
        records: How many records of its ledger.
        left_out: How many records of its topics are not in it, since they are not its own.
        problem: Why nothing of the cluster is in it; empty if its ledger is whole.
    """

    cluster: int
    records: int = 0
    left_out: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has done for one cluster.

    Attributes:
        cluster: The cluster.
        records: How many records its ledger has now.
        file: The backup that they are from.
        is_changed: Whether they were written; else they were there already.
    """

    cluster: int
    records: int
    file: Path
    is_changed: bool


def export_ledgers(
    settings: Settings, config: Mapping[str, str], plan: PrivacyPlan, path: Path
) -> list[Exported]:
    """Write each ledger that is whole to a new file; safe while heads are running.

    Records that do not belong to the chain, foreign bytes for example, are left out: the chain
    must be whole without them, and go as far as all else says that it went.

    Raises:
        LedgerError: the topics are missing.
        FileExistsError: the file is there already.
        KafkaException: the broker cannot be asked.
    """
    written = []
    ends = LogEnds(config, settings.request_timeout_s)
    with LedgerReader(config, plan) as reader, BackupWriter(path, plan) as backup:
        reader.require_topics()
        _wait_for_leaders(reader, plan)
        for cluster in range(plan.cluster_count):
            try:
                records, left_out = _read(config, plan, ends, cluster)
            except LedgerError as error:
                written.append(Exported(cluster, problem=f"NOT IN THE BACKUP: {error}"))
                continue
            backup.write(records)
            written.append(Exported(cluster, len(records.ledger), left_out))
    return written


def import_ledgers(
    settings: Settings, config: Mapping[str, str], plan: PrivacyPlan, paths: Sequence[Path]
) -> list[Imported]:
    """Write backups into topics that were made again; heads that run are fenced off.

    Of several backups the one that has more of a cluster's ledger counts for that cluster. One
    that is exactly as in its backup is left as it is, so that an import which was broken off may
    be repeated.

    Raises:
        LedgerError: a backup cannot be trusted, or is older than what is public, or lacks a
            cluster; or the topics are not empty. Of the cluster that it names nothing was
            written.
        KafkaException: the broker cannot be asked, or refuses.
    """
    best = _longest(plan, paths)
    with LedgerReader(config, plan) as reader:
        reader.require_topics()
        _wait_for_leaders(reader, plan)
    ends = LogEnds(config, settings.request_timeout_s)
    for cluster, (chain, _) in best.items():
        _check_whole(chain, read_traces(config, ends, plan, cluster))
    written = []
    for path in paths:
        for records in read_backup(path, plan):
            if best[records.cluster][1] == path:
                is_changed = _restore(settings, config, plan, ends, records)
                written.append(Imported(records.cluster, len(records.ledger), path, is_changed))
    return sorted(written, key=lambda each: each.cluster)


def _wait_for_leaders(reader: LedgerReader, plan: PrivacyPlan) -> None:
    """Wait until all partitions answer: their topics may have been made a moment ago."""
    names = TopicNames(plan.topic_prefix)
    topics = [names.ledger, names.outbox]
    if plan.scope == "client":
        topics.append(names.participation)
    for topic in topics:
        for cluster in range(plan.cluster_count):
            reader.limits(topic, cluster)
    reader.limits(names.releases, 0)


def _read(
    config: Mapping[str, str], plan: PrivacyPlan, ends: LogEnds, cluster: int
) -> tuple[ClusterRecords, int]:
    """Return a cluster's own records, and how many others its topics hold."""
    names, records, left_out = TopicNames(plan.topic_prefix), ClusterRecords(cluster), 0
    # First, since the ledger may grow while it is read.
    traces = read_traces(config, ends, plan, cluster)
    chain = Chain(plan, cluster)
    for data in read_all(config, names.ledger, cluster):
        if chain.take(data):
            left_out += 1
        else:
            records.ledger.append(data)
    _check_begin(ends, names.ledger, cluster)
    _check_whole(chain, traces)
    if plan.scope == "client":
        for data in read_all(config, names.participation, cluster):
            sequence = _sequence(plan, cluster, data)
            if sequence is None:
                left_out += 1
            elif sequence <= chain.participation[0]:
                records.participation.append(data)
        budgets_at(plan, cluster, records.participation, *chain.participation)
    return records, left_out


def _check_whole(chain: Chain, traces: Traces) -> None:
    """Raise `LedgerError` unless a chain goes as far as all else says that its ledger went."""
    if chain.newest is None:
        traces.check_empty()
    else:
        traces.check_not_older(chain.newest)


def _check_begin(ends: LogEnds, topic: str, cluster: int) -> None:
    begin = ends.begin_offset(topic, cluster)
    if begin > 0:
        raise LedgerError(
            f"the ledger of cluster {cluster} was truncated: its records below offset {begin} are "
            f"gone. Delete the topic {topic}, make it again (sdp topics create), and import a "
            "backup (sdp ledger import)"
        )


def _longest(plan: PrivacyPlan, paths: Sequence[Path]) -> dict[int, tuple[Chain, Path]]:
    """Return the backup that has most of each cluster's ledger, all of them being sound."""
    best: dict[int, tuple[Chain, Path]] = {}
    for path in paths:
        for records in read_backup(path, plan):
            chain = _checked(plan, records)
            known = best.get(records.cluster)
            if known is None or chain.count > known[0].count:
                best[records.cluster] = chain, path
    if missing := set(range(plan.cluster_count)) ^ best.keys():
        raise LedgerError(
            f"the clusters {', '.join(map(str, sorted(missing)))} are in no backup, or not in the "
            "plan: give all backups that together have every cluster"
        )
    return best


def _sequence(plan: PrivacyPlan, cluster: int, data: bytes) -> int | None:
    """Return which ledger record a participation record goes with; None for foreign bytes."""
    try:
        record = decode_participation(data)
    except MalformedMessageError:
        return None
    is_ours = (record.plan_id, record.cluster) == (plan.plan_id, cluster)
    return record.sequence if is_ours else None


def _checked(plan: PrivacyPlan, records: ClusterRecords) -> Chain:
    """Return the chain of a backup's ledger, after making sure that a head would trust it."""
    chain = Chain(plan, records.cluster)
    for data in records.ledger:
        if fault := chain.take(data):
            raise LedgerError(f"the backup of cluster {records.cluster} cannot be used: {fault}")
    if plan.scope == "client":
        budgets_at(plan, records.cluster, records.participation, *chain.participation)
    return chain


def _restore(
    settings: Settings,
    config: Mapping[str, str],
    plan: PrivacyPlan,
    ends: LogEnds,
    records: ClusterRecords,
) -> bool:
    """Write a cluster's records in one transaction; return False where they are there already."""
    names, cluster = TopicNames(plan.topic_prefix), records.cluster
    _check_begin(ends, names.ledger, cluster)
    wanted = {names.ledger: [(str(cluster).encode(), data) for data in records.ledger]}
    if plan.scope == "client":
        wanted[names.participation] = [
            (participation_key(decode_participation(data)), data) for data in records.participation
        ]
    producer = _producer(settings, config, plan, cluster)
    producer.init_transactions(settings.request_timeout_s)
    found = {topic: list(read_all(config, topic, cluster)) for topic in wanted}
    if all(found[topic] == [data for _, data in pairs] for topic, pairs in wanted.items()):
        return False
    for topic, values in found.items():
        if values:
            raise LedgerError(
                f"{topic} holds {len(values)} records of cluster {cluster}, and not those of the "
                "backup: delete the topic, make it again (sdp topics create), and import once more"
            )
    producer.begin_transaction()
    for topic, pairs in wanted.items():
        for key, data in pairs:
            _produce(producer, topic, cluster, key, data)
    producer.commit_transaction(settings.transaction_timeout_ms / 1000)
    return True


def _producer(
    settings: Settings, config: Mapping[str, str], plan: PrivacyPlan, cluster: int
) -> Producer:
    return Producer(
        {
            **config,
            "transactional.id": head_identity(plan, cluster),
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "compression.type": "zstd",
            "message.max.bytes": max(spec.max_message_bytes for spec in topics_of(plan)),
            "allow.auto.create.topics": False,
        }
    )


def _produce(producer: Producer, topic: str, partition: int, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition=partition)
        except BufferError:
            producer.poll(_POLL_S)  # the queue is full of what was produced before
        else:
            return
