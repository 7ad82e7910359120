"""The one table of topics: names, keys, partitions, retention, timestamps, who may do what.

`sdp topics create` makes the topics from it, `sdp topics acl` the permissions. What depends on
the cluster of brokers rather than on the contract (replication factor, min.insync.replicas) is
the caller's.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from .framing import MAX_HEADER_BYTES
from .limits import MAX_DIMENSION, MAX_STATE_ROWS

MESSAGE_OVERHEAD_BYTES: Final = MAX_HEADER_BYTES + 4096
"""What a record batch of one message has besides the coordinates, at most.

The longest header; and 4 KiB for the batch header of 61 bytes, the record's own fields, its key
of at most 128 bytes, the frame of at most 22 bytes, and headers that a tracer may add.
"""

_KAFKA_DEFAULT_MAX_MESSAGE_BYTES: Final = 1024 * 1024 + 12
# Kafka's setting is an int32.
_KAFKA_LARGEST_MAX_MESSAGE_BYTES: Final = 2**31 - 1
# Kafka allows 249; the longest suffix has 12.
_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

# Kafka deletes whole closed segments, and closes one after a week by default: without this, raw
# updates could outlive their retention by that week.
_DELETED_ON_TIME: Final = (("segment.ms", str(_HOUR_MS)),)

CleanupPolicy = Literal["delete", "compact"]
TimestampType = Literal["CreateTime", "LogAppendTime"]


class Role(StrEnum):
    """Who reads or writes a topic."""

    CLIENT = "client"
    HEAD = "head"
    GLOBAL = "global"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    ANYONE = "anyone"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of one deployment's topics.

    Attributes:
        prefix: What they start with, 1 to 200 letters, digits, dots, dashes, underscores.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError("a topic prefix has 1 to 200 of: letters, digits, '.', '-', '_'")

    @property
    def updates(self) -> str:
        """Raw client updates. Private."""
        return f"{self.prefix}.updates"

    @property
    def ledger(self) -> str:
        """The chains of charges. Private."""
        return f"{self.prefix}.ledger"

    @property
    def outbox(self) -> str:
        """Releases that are paid for and not yet published. Private."""
        return f"{self.prefix}.outbox"

    @property
    def rejects(self) -> str:
        """Why updates were not counted. Private."""
        return f"{self.prefix}.rejects"

    @property
    def releases(self) -> str:
        """Noisy sums. Public."""
        return f"{self.prefix}.releases"

    @property
    def model(self) -> str:
        """Model snapshots. Public."""
        return f"{self.prefix}.model"

    @property
    def model_state(self) -> str:
        """The global agent's state. Public."""
        return f"{self.prefix}.model-state"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One row of the table.

    Attributes:
        name: The topic.
        key: What a record's key is: a client id, a cluster, or the model.
        partitions: How many; never changed once the topic exists.
        retention_ms: For how long a record is kept; None for ever. Of a compacted topic, the
            newest record of each key is kept for ever.
        cleanup_policy: Whether old records are deleted or compacted.
        timestamp_type: Whose clock stamps a record.
        writers: Who may write.
        readers: Who may read.
        private: Whether the topic is inside the privacy boundary.
        max_message_bytes: The largest record batch.
        extra: More of Kafka's settings, by its names.
    """

    name: str
    key: Literal["client_id", "cluster", "model"]
    partitions: int
    retention_ms: int | None
    cleanup_policy: CleanupPolicy
    timestamp_type: TimestampType
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]
    private: bool
    max_message_bytes: int
    extra: tuple[tuple[str, str], ...] = ()

    def config(self) -> dict[str, str]:
        """Return the topic's configuration in Kafka's names."""
        return {
            "cleanup.policy": self.cleanup_policy,
            # The broker stores a batch as it came: the writer chose the compression.
            "compression.type": "producer",
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": self.timestamp_type,
            # Or a broker's own limit on size could delete what is kept for ever.
            "retention.bytes": "-1",
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            # A replica that lags could lose committed charges, that is, forget spent budget.
            "unclean.leader.election.enable": "false",
            **dict(self.extra),
        }


def topic_table(
    prefix: str, cluster_count: int, dimension: int, update_itemsize: int
) -> tuple[TopicSpec, ...]:
    """Return the topics of one plan.

    Args:
        prefix: What the topics' names start with.
        cluster_count: The plan's number of clusters.
        dimension: The plan's dimension.
        update_itemsize: Bytes of an update's coordinate: 1 or 2.

    Raises:
        ValueError: a number is out of range, or a message would be larger than Kafka allows.
    """
    if not 1 <= cluster_count < 2**31:
        raise ValueError("cluster_count is out of range")
    if not 1 <= dimension < MAX_DIMENSION:
        raise ValueError("dimension is out of range")
    if update_itemsize not in (1, 2):
        raise ValueError("update_itemsize must be 1 or 2")
    names = TopicNames(prefix)
    # int64 and the count coordinate: the wider of the two types that a release may have.
    release_bytes = _max_message_bytes((dimension + 1) * 8)
    return (
        _updates(names, cluster_count, _max_message_bytes(dimension * update_itemsize)),
        _ledger(names, cluster_count),
        _outbox(names, cluster_count, release_bytes),
        _rejects(names, cluster_count),
        _releases(names, release_bytes),
        _model(names, _max_message_bytes(dimension * 4)),
        _model_state(names, _max_message_bytes(MAX_STATE_ROWS * dimension * 8)),
    )


def _max_message_bytes(vector_bytes: int) -> int:
    """Room for a batch of one message, and never less than Kafka gives by default."""
    needed = vector_bytes + MESSAGE_OVERHEAD_BYTES
    if needed > _KAFKA_LARGEST_MAX_MESSAGE_BYTES:
        raise ValueError(f"the dimension needs messages of {needed} bytes; Kafka has 2**31 - 1")
    return max(needed, _KAFKA_DEFAULT_MAX_MESSAGE_BYTES)


def _updates(names: TopicNames, cluster_count: int, max_message_bytes: int) -> TopicSpec:
    return TopicSpec(
        name=names.updates,
        key="client_id",
        partitions=cluster_count,
        retention_ms=_DAY_MS,
        cleanup_policy="delete",
        # A window's members are decided by this timestamp, so no client may set it.
        timestamp_type="LogAppendTime",
        writers=(Role.CLIENT,),
        readers=(Role.HEAD,),
        private=True,
        max_message_bytes=max_message_bytes,
        extra=_DELETED_ON_TIME,
    )


def _ledger(names: TopicNames, cluster_count: int) -> TopicSpec:
    return TopicSpec(
        name=names.ledger,
        key="cluster",
        partitions=cluster_count,
        retention_ms=None,
        cleanup_policy="delete",
        timestamp_type="CreateTime",
        writers=(Role.HEAD,),
        readers=(Role.HEAD, Role.AUDITOR),
        private=True,
        max_message_bytes=_KAFKA_DEFAULT_MAX_MESSAGE_BYTES,
    )


def _outbox(names: TopicNames, cluster_count: int, max_message_bytes: int) -> TopicSpec:
    return TopicSpec(
        name=names.outbox,
        key="cluster",
        partitions=cluster_count,
        retention_ms=_DAY_MS,
        cleanup_policy="delete",
        timestamp_type="CreateTime",
        writers=(Role.HEAD,),
        readers=(Role.HEAD,),
        private=True,
        max_message_bytes=max_message_bytes,
        extra=_DELETED_ON_TIME,
    )


def _rejects(names: TopicNames, cluster_count: int) -> TopicSpec:
    return TopicSpec(
        name=names.rejects,
        key="cluster",
        partitions=cluster_count,
        retention_ms=6 * _HOUR_MS,
        cleanup_policy="delete",
        timestamp_type="CreateTime",
        writers=(Role.HEAD,),
        readers=(Role.OPERATOR,),
        private=True,
        max_message_bytes=_KAFKA_DEFAULT_MAX_MESSAGE_BYTES,
        extra=_DELETED_ON_TIME,
    )


def _releases(names: TopicNames, max_message_bytes: int) -> TopicSpec:
    return TopicSpec(
        name=names.releases,
        key="cluster",
        partitions=1,
        retention_ms=None,
        cleanup_policy="delete",
        timestamp_type="LogAppendTime",
        writers=(Role.HEAD,),
        readers=(Role.GLOBAL, Role.AUDITOR, Role.ANYONE),
        private=False,
        max_message_bytes=max_message_bytes,
    )


def _model(names: TopicNames, max_message_bytes: int) -> TopicSpec:
    return TopicSpec(
        name=names.model,
        key="model",
        partitions=1,
        retention_ms=None,
        cleanup_policy="compact",
        timestamp_type="LogAppendTime",
        writers=(Role.GLOBAL,),
        readers=(Role.CLIENT, Role.ANYONE),
        private=False,
        max_message_bytes=max_message_bytes,
        # A week of history through compaction's lag. "compact,delete" would also delete the
        # newest model a week after the last release, when the budget is spent.
        extra=(("min.compaction.lag.ms", str(7 * _DAY_MS)),),
    )


def _model_state(names: TopicNames, max_message_bytes: int) -> TopicSpec:
    return TopicSpec(
        name=names.model_state,
        key="model",
        partitions=1,
        retention_ms=None,
        cleanup_policy="compact",
        timestamp_type="CreateTime",
        writers=(Role.GLOBAL,),
        readers=(Role.GLOBAL,),
        private=False,
        max_message_bytes=max_message_bytes,
    )
