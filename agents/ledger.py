"""Reads the ledgers of a plan from Kafka: what was spent, and whether all of it fits.

An auditor needs to read the topics of ledgers and releases, and that of participation where each
client has a budget of its own; where a ledger is empty, also to see whether the outbox or the
heads' consumer group have ever been used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from schemas import LedgerKind, LedgerRecord, TopicNames, decode_ledger_record
from stream.cluster_head import records_needed
from stream.errors import LedgerError
from stream.ledger_chain import verify_records
from stream.privacy.plan import PrivacyPlan

from .client_spending import ClientSpending, budgets_at, newest_participation
from .cluster_row import ClusterRow, Spending, limits_spent
from .deep_verification import DeepVerification
from .kafka_edge import Tail, read_all, read_tail
from .ledger_audit import LedgerAudit
from .ledger_reader import LedgerReader
from .ledger_report import LedgerReport, Verification
from .topics import check_mock_topics

# The newest, its link to the one before, and where the newest closed the ledger that one too.
_LEAST_RECORDS = 2


def show(config: Mapping[str, str], plan: PrivacyPlan) -> LedgerReport:
    """Return what every cluster has spent, from the newest records of its ledger.

    Raises:
        LedgerError: the topic of ledgers is missing or was made for another plan.
        KafkaException: the broker cannot be asked.
    """
    with LedgerReader(config, plan) as reader:
        reader.require_topics()
        rows = tuple(
            _newest_row(config, plan, cluster, reader) for cluster in range(plan.cluster_count)
        )
    return LedgerReport(plan.plan_id_hex, plan.delta, plan.scope, rows)


def verify(
    config: Mapping[str, str], plan: PrivacyPlan, *, unsafe_mock_broker: bool = False
) -> Verification:
    """Read all ledgers and releases from their beginning, and check that everything fits.

    Safe while the heads are running: the ends of the ledgers are asked for first, then that of
    the releases, and only then is anything read. So each release that is read has its record,
    and each record that stood before has its release, but for the newest one of a cluster. What
    clients paid is read after the ledgers, and what later windows wrote of it is left aside.

    Args:
        config: How to reach the broker.
        plan: The plan.
        unsafe_mock_broker: See `agents.workers.run_head`.

    Raises:
        LedgerError: the topics are missing or were made for another plan.
        KafkaException: the broker cannot be asked.
    """
    audit = LedgerAudit(plan)
    with LedgerReader(config, plan) as reader:
        if unsafe_mock_broker:
            check_mock_topics(config, plan)
        else:
            reader.require_topics()
        _read_all_topics(config, plan, reader, audit)
    return audit.verification()


def verify_deep(
    config: Mapping[str, str], plan: PrivacyPlan, *, is_noise_free: bool = False
) -> Verification:
    """Do all that `verify` does; recompute each sum from raw updates, and check the model too.

    Runs inside the privacy boundary, and what it returns in `Verification.deep` must stay there:
    how many updates there were, and when. Safe while heads and the global agent are running.

    Args:
        config: How to reach the broker.
        plan: The plan.
        is_noise_free: The heads add no noise (`stream.testing.UnsafeNoNoise`), so that releases
            must be exact sums. For tests.

    Raises:
        LedgerError: the topics are missing or were made for another plan.
        KafkaException: the broker cannot be asked.
    """
    audit, deep = LedgerAudit(plan), DeepVerification(config, plan, is_noise_free=is_noise_free)
    with LedgerReader(config, plan) as reader:
        reader.require_topics(is_deep=True)
        deep.begin()
        releases_end = _read_all_topics(config, plan, reader, audit, deep)
    findings = deep.findings(releases_end)
    verification = audit.verification()
    problems = [*verification.problems, *deep.problems.lines()]
    return replace(verification, problems=problems, deep=findings)


def _read_all_topics(
    config: Mapping[str, str],
    plan: PrivacyPlan,
    reader: LedgerReader,
    audit: LedgerAudit,
    deep: DeepVerification | None = None,
) -> int:
    """Let ``audit`` and ``deep`` take ledgers and releases; return the end of the releases."""
    names, clusters = TopicNames(plan.topic_prefix), range(plan.cluster_count)
    noted = [reader.noted_record(cluster) for cluster in clusters]
    ledgers = [reader.limits(names.ledger, cluster) for cluster in clusters]
    releases_begin, releases_end = reader.limits(names.releases, 0)
    for cluster, (begin, _) in enumerate(ledgers):
        audit.begin_ledger(cluster, begin, noted[cluster])
    for cluster, offset, data in reader.records(names.ledger, [begin for begin, _ in ledgers]):
        audit.take_record(cluster, data, is_settled=offset < ledgers[cluster][1])
        if deep is not None:
            deep.take_record(cluster, data)
    for cluster in filter(audit.is_empty, clusters):
        audit.take_traces(cluster, reader.traces(cluster))
    for cluster in clusters if plan.scope == "client" else ():
        audit.take_participation(cluster, read_all(config, names.participation, cluster))
    for offset, data in _releases(reader, names, releases_begin, releases_end):
        audit.take_release(data)
        if deep is not None:
            deep.take_release(offset, data)
    return releases_end


def _releases(
    reader: LedgerReader, names: TopicNames, begin: int, end: int
) -> Iterator[tuple[int, bytes | None]]:
    for _, offset, data in reader.records(names.releases, [begin]):
        if offset >= end:
            return
        yield offset, data


def _newest_row(
    config: Mapping[str, str], plan: PrivacyPlan, cluster: int, reader: LedgerReader
) -> ClusterRow:
    topic = TopicNames(plan.topic_prefix).ledger
    count = max(_LEAST_RECORDS, records_needed(plan))
    tail = read_tail(config, topic, cluster, count, bytes)
    newest, spending, refused = None, Spending(), ""
    if tail.begin > 0:
        refused = f"truncated: the records below offset {tail.begin} are gone"
    elif not tail.values:
        refused = "; ".join(reader.traces(cluster))
    else:
        try:
            newest = verify_records(plan, cluster, tail.values, is_complete=tail.is_complete)
            spending = _spending(config, plan, cluster, tail)
        except LedgerError as error:
            refused = str(error)
    return ClusterRow.of(plan, cluster, newest, spending, refused)


def _spending(
    config: Mapping[str, str], plan: PrivacyPlan, cluster: int, tail: Tail[bytes]
) -> Spending:
    """Return what was spent, from a ledger's newest records, at least one."""
    records = [decode_ledger_record(data) for data in tail.values]
    sealed = [r for r in records if r.kind in (LedgerKind.RELEASE, LedgerKind.THROTTLED)]
    throttled = sum(record.kind is LedgerKind.THROTTLED for record in sealed)
    has_limits, newest = bool(plan.sliding_caps), records[-1]
    releases = None
    if tail.is_complete or not has_limits:
        # Each record but the first, the one that closes the ledger and the throttled is one.
        releases = newest.sequence - (newest.kind is LedgerKind.EXHAUSTED) - throttled
    return Spending(
        spent_units=newest.spent_units,
        releases=releases,
        throttled=throttled,
        throttled_of=len(sealed) if has_limits else 0,
        limits=limits_spent(plan, [0, *accumulate(record.charge_units for record in sealed)]),
        clients=_clients(config, plan, cluster, records) if plan.scope == "client" else None,
    )


def _clients(
    config: Mapping[str, str], plan: PrivacyPlan, cluster: int, records: list[LedgerRecord]
) -> ClientSpending:
    values = read_all(config, TopicNames(plan.topic_prefix).participation, cluster)
    budgets = budgets_at(plan, cluster, values, *newest_participation(records))
    return ClientSpending.of(budgets, plan.charge_units)
