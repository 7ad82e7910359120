"""Taking over a cluster: fence, read the ledger, check it against what is public, republish.

These are the numbered steps of DESIGN, "on getting a partition"; each blocks and runs off the
event loop. Nothing here guesses: whatever does not fit together raises `LedgerError`, and the
cluster stays closed until a person has looked.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas import LedgerKind, LedgerRecord, TopicNames, encode_ledger_record
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead, SealedCell, records_needed
from stream.errors import LedgerError
from stream.ledger_chain import decode_record, genesis
from stream.participation_log import rebuild
from stream.privacy.noise import NoiseSource
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, Tail, now_ms, read_all, read_tail
from .protocol_steps import Step, Watcher, nobody
from .public_charges import newest_public_charge
from .recovery import Recovery
from .settings import Settings
from .takeover_checks import Traces, Unpublished
from .topic_ids import Topics
from .transactions import OutgoingRecord, TransactionalWriter

log = logging.getLogger(__name__)

# So many links of the chain are checked at each start; `sdp ledger verify` checks all of them.
_LINKS_CHECKED = 100
# A head's clock may disagree with the broker's by so much.
_CLOCK_SKEW_MS = 60_000
# What it takes to remember that a client has been counted in a window, as measured, and some more.
_CLIENT_BYTES = 128


@dataclass(frozen=True, slots=True)
class OpenedCluster:
    """A cluster that was taken over.

    Attributes:
        head: Its state.
        writer: Its fenced producer.
        newest: The newest record of its ledger.
        unpublished: The newest release, to be published again, or the end of the budget; None
            if there is neither.
        lost_records: Updates that the broker deleted before they were read.
    """

    head: ClusterHead
    writer: TransactionalWriter
    newest: LedgerRecord
    unpublished: Unpublished | None
    lost_records: int


def group_of(plan: PrivacyPlan) -> str:
    """Return the consumer group that all heads of a plan share."""
    return f"sdp-head-{plan.plan_id_hex}"


def head_identity(plan: PrivacyPlan, cluster: int) -> str:
    """Return the transactional id of the one producer that may write for a cluster."""
    return f"sdp-head-{plan.plan_id_hex}-{cluster}"


def read_traces(
    config: Mapping[str, str], ends: LogEnds, plan: PrivacyPlan, cluster: int
) -> Traces:
    """Read what was written along with a cluster's ledger, or because of it.

    Raises:
        KafkaException: the broker cannot be asked.
    """
    names = TopicNames(plan.topic_prefix)
    return Traces(
        names=names,
        plan=plan,
        cluster=cluster,
        outbox=read_tail(config, names.outbox, cluster, 1, bytes),
        released=newest_public_charge(config, names, plan, cluster),
        committed=ends.committed(group_of(plan), names.updates, cluster),
    )


class ClusterOpener:
    """Opens clusters of one plan. Blocks; safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        plan: PrivacyPlan,
        config: Mapping[str, str],
        noise: NoiseSource,
        max_message_bytes: int,
        *,
        topics: Topics | None = None,
        unsafe_mock_broker: bool = False,
        watch: Watcher = nobody,
    ) -> None:
        """Set up; the broker is first asked by `open`.

        ``topics``: What must be there, or no cluster is opened.
        ``unsafe_mock_broker``: librdkafka's mock shows aborted records, so none are made there.
        """
        self._topics = topics
        self._settles = not unsafe_mock_broker
        self._watch = watch
        self._settings = settings
        self._plan = plan
        self._config = config
        self._noise = noise
        self._max_message_bytes = max_message_bytes
        self._names = TopicNames(plan.topic_prefix)
        self._ends = LogEnds(config, settings.request_timeout_s)
        self._own = [self._names.ledger, self._names.outbox]
        if plan.scope == "client":
            self._own.append(self._names.participation)

    def open(self, cluster: int) -> OpenedCluster:
        """Take over ``cluster``.

        Raises:
            LedgerError: the ledger is missing, broken, foreign, or older than what is public.
            FencedError: another head took over meanwhile.
            KafkaException: the broker cannot be asked.
        """
        if self._topics is not None:
            self._topics.require()
        writer = TransactionalWriter(
            self._config,
            head_identity(self._plan, cluster),
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            request_timeout_s=self._settings.request_timeout_s,
            max_message_bytes=self._max_message_bytes,
            watch=self._watch,
        )
        own = [(topic, cluster) for topic in self._own] if self._settles else []
        writer.fence(own)
        try:
            return self._open(cluster, writer)
        except LedgerError:
            # What was read before and after another head took over need not fit together: only
            # who is still in charge may refuse the cluster.
            if own:
                writer.settle(own)
            raise

    def _open(self, cluster: int, writer: TransactionalWriter) -> OpenedCluster:
        tail = self._read_ledger(cluster, writer)
        traces = read_traces(self._config, self._ends, self._plan, cluster)
        if not tail.values:
            traces.check_empty()
            self._watch(Step.GENESIS)
            tail = self._begin(cluster, writer)
        head = ClusterHead(
            self._plan,
            cluster,
            self._noise,
            tail.values,
            is_complete=tail.is_complete,
            max_open_windows=self._max_open_windows(),
            clients=self._clients(cluster, tail.values),
            kernel=self._settings.kernel,
        )
        newest = decode_record(tail.values[-1], cluster)
        traces.check_not_older(newest)
        unpublished = traces.unpublished(tail.values)
        lost = self._skip_deleted(head, newest)
        self._watch(Step.CONSUME)
        return OpenedCluster(head, writer, newest, unpublished, lost)

    def _read_ledger(self, cluster: int, writer: TransactionalWriter) -> Tail[bytes]:
        """Read the newest records, and restore what a broker has lost of them."""
        self._watch(Step.READ_STATE)
        count = max(_LINKS_CHECKED, records_needed(self._plan))
        tail = read_tail(self._config, self._names.ledger, cluster, count, bytes)
        if tail.begin > 0:
            raise LedgerError(
                f"the ledger of cluster {cluster} was truncated: its records below offset "
                f"{tail.begin} are gone. Restore the topic {self._names.ledger} from a backup "
                "(sdp ledger import), or start a new plan on new topics."
            )
        if not self._settles:
            return tail
        self._watch(Step.RESTORE)
        recovery = Recovery(self._config, self._names, writer)
        return recovery.restore_cluster(self._plan, cluster, tail)

    def _begin(self, cluster: int, writer: TransactionalWriter) -> Tail[bytes]:
        """Write the first record of a ledger that was never there before."""
        moment_ms = now_ms()
        first = max(0, self._plan.window_of(moment_ms))
        begin_ms = self._plan.window_end_ms(first) - self._plan.window_length_ms
        offset = self._ends.offset_at(self._names.updates, cluster, begin_ms)
        record = encode_ledger_record(genesis(self._plan, cluster, first, offset, moment_ms))
        writer.write([OutgoingRecord(self._names.ledger, cluster, str(cluster).encode(), record)])
        log.info("cluster %d begins its ledger with window %d", cluster, first)
        return Tail([record], begin=0, end=1, is_complete=True)

    def _clients(self, cluster: int, records: Sequence[bytes]) -> ClientBudgets | None:
        """Return what each client has spent, where each has a budget of its own."""
        if self._plan.scope != "client":
            return None
        newest = decode_record(records[-1], cluster)
        if newest.kind is LedgerKind.EXHAUSTED and len(records) > 1:
            newest = decode_record(records[-2], cluster)  # a closing record charges nobody
        return rebuild(
            self._plan.cap_units,
            read_all(self._config, self._names.participation, cluster),
            self._plan.plan_id,
            cluster,
            newest.sequence,
            newest.participation_digest,
        )

    def _skip_deleted(self, head: ClusterHead, newest: LedgerRecord) -> int:
        """Move past updates that the broker has deleted; return how many there were."""
        topic, cluster = self._names.updates, head.cluster
        begin, end = (
            ask(topic, cluster) for ask in (self._ends.begin_offset, self._ends.end_offset)
        )
        if head.position > end or self._is_made_again(head, newest):
            raise LedgerError(
                f"the ledger of cluster {cluster} has read updates up to offset {head.position}, "
                f"but {topic} has others there: it was deleted and made again. Start a new plan "
                "on new topics."
            )
        lost = max(0, begin - head.position)
        if lost:
            # How many is for the operator's metrics: logs may leave the boundary.
            log.error(
                "cluster %d: the broker deleted updates before they were read; their windows are "
                "released without them (sdp_updates_lost_total says how many)",
                cluster,
            )
            head.advance(begin)
        return lost

    def _is_made_again(self, head: ClusterHead, newest: LedgerRecord) -> bool:
        """Say whether what was read must have been appended after it was read."""
        if not self._settles or newest.kind is LedgerKind.GENESIS:
            return False
        after_ms = newest.sealed_at_ms + _CLOCK_SKEW_MS
        return self._ends.offset_at(self._names.updates, head.cluster, after_ms) < head.position

    def _max_open_windows(self) -> int:
        clients = -(-self._plan.expected_clients // self._plan.cluster_count)
        # A sum, and what has outgrown its type: `stream.aggregation.vector_sum`.
        window_bytes = 12 * self._plan.release_size + _CLIENT_BYTES * clients
        return max(2, (self._settings.window_memory_mib << 20) // window_bytes)


def outgoing(names: TopicNames, cell: SealedCell) -> list[OutgoingRecord]:
    """Return the records that make ``cell`` durable; none of them is public."""
    key = str(cell.cluster).encode()
    records = []
    if cell.ledger_record is not None:
        records.append(OutgoingRecord(names.ledger, cell.cluster, key, cell.ledger_record))
    if cell.release is not None:
        records.append(OutgoingRecord(names.outbox, cell.cluster, key, cell.release))
    return records + [
        OutgoingRecord(names.participation, cell.cluster, each, data)
        for each, data in cell.participation
    ]
