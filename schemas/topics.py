"""The one table of topics: names, keys, partitions, retention, timestamps, who may do what.

`sdp topics create` makes the topics from it; giving writers and readers their permissions is the
operator's. What depends on the cluster of brokers rather than on the contract (replication
factor, min.insync.replicas) is the caller's.
"""

from typing import Final

from .framing import MAX_HEADER_BYTES
from .limits import MAX_DELTA_CLIENTS, MAX_DIMENSION, MAX_STATE_ROWS
from .topic_spec import Role, TopicNames, TopicSpec

MESSAGE_OVERHEAD_BYTES: Final = MAX_HEADER_BYTES + 4096
"""What a record batch of one message has besides the coordinates, at most.

The longest header; and 4 KiB for the batch header of 61 bytes, the record's own fields, its key
of at most 128 bytes, the frame of at most 22 bytes, and headers that a tracer may add.
"""

_KAFKA_DEFAULT_MAX_MESSAGE_BYTES: Final = 1024 * 1024 + 12
# Kafka's setting is an int32.
_KAFKA_LARGEST_MAX_MESSAGE_BYTES: Final = 2**31 - 1
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS

# Kafka deletes whole closed segments, and closes one after a week by default: without this, raw
# updates could outlive their retention by that week.
_DELETED_ON_TIME: Final = (("segment.ms", str(_HOUR_MS)),)
# Nor does it compact the open segment, or by default a log of which less than half is new:
# without these, who took part could be read long after the last restart that needs it, and every
# restart would have to read it.
# A client's batch is unpacked by the broker and measured again. Else a few kilobytes of zeros,
# packed, would pass its limit on size, and no consumer could get past them.
_SIZE_IS_WHAT_IT_SAYS: Final = ("compression.type", "uncompressed")
_COMPACTED_ON_TIME: Final = (
    ("max.compaction.lag.ms", str(_HOUR_MS)),
    ("segment.ms", str(_HOUR_MS // 6)),
)


def topic_table(
    prefix: str,
    cluster_count: int,
    dimension: int,
    update_itemsize: int,
    *,
    has_participation: bool = False,
) -> tuple[TopicSpec, ...]:
    """Return the topics of one plan.

    Args:
        prefix: What the topics' names start with.
        cluster_count: The plan's number of clusters.
        dimension: How many coordinates an update has, its padding included.
        update_itemsize: Bytes of an update's coordinate: 1 or 2.
        has_participation: Whether each client has a budget of its own.

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
    # int64, the wider of the two types that a release may have; the count and the bit coordinate.
    release_bytes = _max_message_bytes((dimension + 2) * 8)
    table = (
        _updates(names, cluster_count, _max_message_bytes(dimension * update_itemsize)),
        _ledger(names, cluster_count),
        _outbox(names, cluster_count, release_bytes),
        _rejects(names, cluster_count),
        _releases(names, release_bytes),
        _model(names, _max_message_bytes(dimension * 4)),
        _model_state(names, _max_message_bytes(MAX_STATE_ROWS * dimension * 8)),
    )
    return (*table, _participation(names, cluster_count)) if has_participation else table


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
        # A head marks where each window ends, with a record that has no value.
        writers=(Role.CLIENT, Role.HEAD),
        readers=(Role.HEAD,),
        private=True,
        max_message_bytes=max_message_bytes,
        extra=(*_DELETED_ON_TIME, _SIZE_IS_WHAT_IT_SAYS),
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


def _participation(names: TopicNames, cluster_count: int) -> TopicSpec:
    return TopicSpec(
        name=names.participation,
        key="participation",
        partitions=cluster_count,
        retention_ms=None,
        # The key of a delta comes back after DELTA_KEYS windows, that of a snapshot's part with
        # the next snapshot: what is kept for ever is what a head needs to start.
        cleanup_policy="compact",
        timestamp_type="CreateTime",
        writers=(Role.HEAD,),
        readers=(Role.HEAD, Role.AUDITOR),
        private=True,
        max_message_bytes=_max_message_bytes(MAX_DELTA_CLIENTS * 8),
        extra=_COMPACTED_ON_TIME,
    )
