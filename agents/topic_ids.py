"""The topics that a worker cannot do without: whether they are there, and which ones they are."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, OffsetSpec

from schemas import TopicNames
from stream.errors import LedgerError
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, known_offset

# Until then a broker may not have heard of a topic that is there.
_PATIENCE_S = 5.0
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """What the broker has of a worker's topics.

    Attributes:
        ids: The id of each one that is there, by name.
        begins: The first offset of each partition of which nothing may ever be missing; empty
            where their topic is not there.
    """

    ids: Mapping[str, str]
    begins: tuple[int, ...] = ()


class Topics:
    """The topics that a worker cannot do without. Blocks; safe to use from several threads.

    Attributes:
        names: Their names.
    """

    def __init__(
        self, ends: LogEnds, names: Sequence[str], whole: Sequence[tuple[str, int]] = ()
    ) -> None:
        """Set up; the broker is first asked by `look`.

        Args:
            ends: Asks the broker.
            names: The topics.
            whole: Partitions of them of which nothing may ever be missing.
        """
        self._ends = ends
        self.names = tuple(names)
        self._whole = [Partition(*where) for where in whole]

    def look(self) -> TopicsSeen:
        """Return what is there now.

        Raises:
            KafkaException: the broker cannot be asked.
        """
        ids = self._ends.ask(self._ids)
        is_there = bool(self._whole) and all(where.topic in ids for where in self._whole)
        return TopicsSeen(ids, self._ends.ask(self._begins) if is_there else ())

    def missing(self) -> tuple[str, ...]:
        """Return the names of those that are not there, and do not come within some seconds.

        Raises:
            KafkaException: the broker cannot be asked.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            ids = self._ends.ask(self._ids)
            gone = tuple(name for name in self.names if name not in ids)
            if not gone or time.monotonic() > deadline:
                return gone
            time.sleep(_RETRY_S)

    def require(self) -> None:
        """Make sure that all are there.

        Raises:
            LedgerError: some are not; the message says which, and what to do.
            KafkaException: the broker cannot be asked.
        """
        if gone := self.missing():
            raise LedgerError(gone_text(gone))

    def _ids(self, admin: AdminClient, timeout_s: float) -> dict[str, str]:
        asked = admin.describe_topics(TopicCollection(list(self.names)), request_timeout=timeout_s)
        ids = {}
        for name, future in asked.items():
            try:
                ids[name] = str(future.result(2 * timeout_s).topic_id)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return ids

    def _begins(self, admin: AdminClient, timeout_s: float) -> tuple[int, ...]:
        asked = admin.list_offsets(
            dict.fromkeys(self._whole, OffsetSpec.earliest()),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=timeout_s,
        )
        return tuple(
            known_offset(asked[where].result(2 * timeout_s).offset) for where in self._whole
        )


def head_topics(ends: LogEnds, plan: PrivacyPlan) -> Topics:
    """Return what a head of ``plan`` cannot do without."""
    names = TopicNames(plan.topic_prefix)
    needed = [names.updates, names.ledger, names.outbox, names.releases]
    if plan.scope == "client":
        needed.append(names.participation)
    whole = [(names.ledger, cluster) for cluster in range(plan.cluster_count)]
    return Topics(ends, needed, whole)


def global_topics(ends: LogEnds, plan: PrivacyPlan) -> Topics:
    """Return what a global agent of ``plan`` cannot do without."""
    names = TopicNames(plan.topic_prefix)
    return Topics(ends, [names.releases, names.model, names.model_state])


def gone_text(gone: Sequence[str]) -> str:
    """Say which topics are gone, and what to do."""
    names = ", ".join(gone)
    return (
        f"deleted: {names}. Stop all workers of the plan, make the topics again (sdp topics "
        "create --plan FILE), restore what they held from a backup (deploy/README, What to do "
        "when), and start the workers; or start a new plan on new topics"
    )
