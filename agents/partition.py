"""Taking over a cluster: fence, read the ledger, check it against what is public, republish.

These are the numbered steps of DESIGN, "on getting a partition"; each blocks and runs off the
event loop. Nothing here guesses: whatever does not fit together raises `LedgerError`, and the
cluster stays closed until a person has looked.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas import (
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    TopicNames,
    decode_release,
    encode_ledger_record,
    release_digest,
)
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead, records_needed
from stream.errors import LedgerError
from stream.ledger_chain import decode_record, genesis
from stream.participation_log import rebuild
from stream.privacy.noise import NoiseSource
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, Tail, now_ms, read_all, read_tail
from .protocol_steps import Step, Watcher, nobody
from .public_charges import PublicCharge, newest_public_charge
from .recovery import Recovery
from .settings import Settings
from .transactions import OutgoingRecord, TransactionalWriter

log = logging.getLogger(__name__)

# So many links of the chain are checked at each start; `sdp ledger verify` checks all of them.
_LINKS_CHECKED = 100


@dataclass(frozen=True, slots=True)
class Unpublished:
    """What has committed and shows at the time that the plan says, not before.

    Attributes:
        window: The window.
        data: The release, which must be seen to be public, again if need be; None for a window
            without one.
        notice: What the log says of it then; empty for nothing.
    """

    window: int
    data: bytes | None
    notice: str = ""


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
        unsafe_mock_broker: bool = False,
        watch: Watcher = nobody,
    ) -> None:
        """Set up; the broker is first asked by `open`.

        ``unsafe_mock_broker``: librdkafka's mock shows aborted records, so none are made there.
        """
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
            KafkaException: the broker cannot be asked.
        """
        writer = TransactionalWriter(
            self._config,
            f"sdp-head-{self._plan.plan_id_hex}-{cluster}",
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            request_timeout_s=self._settings.request_timeout_s,
            max_message_bytes=self._max_message_bytes,
            watch=self._watch,
        )
        writer.fence([(topic, cluster) for topic in self._own] if self._settles else ())
        self._watch(Step.READ_STATE)
        count = max(_LINKS_CHECKED, records_needed(self._plan))
        tail = read_tail(self._config, self._names.ledger, cluster, count, bytes)
        if tail.begin > 0:
            raise LedgerError(
                f"the ledger of cluster {cluster} was truncated: its records below offset "
                f"{tail.begin} are gone. Restore the topic {self._names.ledger} from a backup, "
                "or start a new plan on new topics."
            )
        if tail.values and self._settles:
            self._watch(Step.RESTORE)
            tail = Recovery(self._config, self._names, writer).restore_cluster(
                self._plan, cluster, tail
            )
        outbox = read_tail(self._config, self._names.outbox, cluster, 1, bytes)
        released = newest_public_charge(self._config, self._names, self._plan, cluster)
        if not tail.values:
            self._watch(Step.GENESIS)
            tail = self._begin(cluster, writer, outbox, released)
        head = ClusterHead(
            self._plan,
            cluster,
            self._noise,
            tail.values,
            is_complete=tail.is_complete,
            max_open_windows=self._max_open_windows(),
            clients=self._clients(cluster, tail.values),
        )
        newest = decode_record(tail.values[-1], cluster)
        self._check_against_public(cluster, newest, released)
        unpublished = self._unpublished(cluster, newest, outbox, released)
        self._watch(Step.CONSUME)
        return OpenedCluster(head, writer, newest, unpublished, self._skip_deleted(head))

    def _begin(
        self,
        cluster: int,
        writer: TransactionalWriter,
        outbox: Tail[bytes],
        released: PublicCharge | None,
    ) -> Tail[bytes]:
        """Write the first record of a ledger that was never there before."""
        traces = []
        if outbox.values or outbox.begin > 0:
            traces.append(f"{self._names.outbox} has been written to")
        if released is not None:
            traces.append(f"{self._names.releases} holds releases of this cluster")
        committed = self._ends.committed_offset(group_of(self._plan), self._names.updates, cluster)
        if committed is not None:
            traces.append("the consumer group has committed an offset")
        if traces:
            raise LedgerError(
                f"the ledger of cluster {cluster} is empty, though it must have existed: "
                f"{'; '.join(traces)}. Restore the topic {self._names.ledger} from a backup, or "
                "start a new plan on new topics."
            )
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

    def _check_against_public(
        self, cluster: int, newest: LedgerRecord, released: PublicCharge | None
    ) -> None:
        if released is not None and (
            released.sequence > newest.sequence or released.spent_units > newest.spent_units
        ):
            raise LedgerError(
                f"the ledger of cluster {cluster} ends at record {newest.sequence}, but a release "
                f"of record {released.sequence} is public: the ledger is older than what was "
                f"spent. Restore the topic {self._names.ledger} from a newer backup, or start a "
                "new plan on new topics."
            )

    def _unpublished(
        self, cluster: int, newest: LedgerRecord, outbox: Tail[bytes], released: PublicCharge | None
    ) -> Unpublished | None:
        """Return the release that the newest record paid for, to be published (again)."""
        # The last release was public before the record that closes the ledger was written.
        is_over = newest.kind is LedgerKind.EXHAUSTED
        end = Unpublished(newest.window, None) if is_over else None
        if not outbox.values:
            if newest.kind is LedgerKind.RELEASE and (
                released is None or released.sequence < newest.sequence
            ):
                # Safe, since nothing is drawn again: the charge stays, the release is lost.
                log.error(
                    "cluster %d: the outbox has lost the release of window %d before it was "
                    "published; its charge stays spent",
                    cluster,
                    newest.window,
                )
            return end
        data = outbox.values[-1]
        try:
            release = decode_release(data)
        except MalformedMessageError as error:
            raise LedgerError(
                f"the outbox of cluster {cluster} holds foreign bytes ({error}): find their "
                f"writer, and delete the records of {self._names.outbox}"
            ) from error
        if release.sequence > newest.sequence:
            raise LedgerError(
                f"the outbox of cluster {cluster} holds the release of record "
                f"{release.sequence}, but the ledger ends at {newest.sequence}: the ledger is "
                f"older. Restore the topic {self._names.ledger} from a newer backup, or start a "
                "new plan on new topics."
            )
        if newest.kind is LedgerKind.RELEASE and (
            release.sequence == newest.sequence and release_digest(data) != newest.release_digest
        ):
            raise LedgerError(
                f"the outbox of cluster {cluster} does not hold the bytes that record "
                f"{newest.sequence} of the ledger paid for. Nothing is published; find who wrote "
                f"to {self._names.outbox}."
            )
        return end or Unpublished(release.window, data)

    def _skip_deleted(self, head: ClusterHead) -> int:
        begin = self._ends.begin_offset(self._names.updates, head.cluster)
        end = self._ends.end_offset(self._names.updates, head.cluster)
        if head.position > end:
            raise LedgerError(
                f"the ledger of cluster {head.cluster} has read further than "
                f"{self._names.updates} goes: it was deleted and made again. Start a new plan on "
                "new topics."
            )
        lost = max(0, begin - head.position)
        if lost:
            # How many is for the operator's metrics: logs may leave the boundary.
            log.error(
                "cluster %d: the broker deleted updates before they were read; their windows are "
                "released without them (sdp_updates_lost_total says how many)",
                head.cluster,
            )
            head.advance(begin)
        return lost

    def _max_open_windows(self) -> int:
        window_bytes = 8 * self._plan.release_size
        return max(2, (self._settings.window_memory_mib << 20) // window_bytes)
