"""What a feed gives to a role, and what it asks of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from stream.aggregation.intake import PlainRecord


class WrongTimestampsError(Exception):
    """The topic's records carry the producers' own times, so windows could be forged."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of one partition, and how far they reach.

    Attributes:
        partition: The partition.
        epoch: Which opening or seek of the partition they belong to; older ones are void.
        records: The records, in offset order; may be empty.
        end_offset: Offset below which nothing is missing, where the log's end was reached.
    """

    partition: int
    epoch: int
    records: Sequence[PlainRecord]
    end_offset: int | None


class PartitionOwner(Protocol):
    """What takes over partitions and lets go of them."""

    async def open_partition(self, partition: int, epoch: int, metadata: object) -> int | None:
        """Restore the partition; return its first offset to read, or None to leave it alone."""

    async def close_partition(self, partition: int) -> None:
        """Let go of the partition, after a running release has finished."""


def plain_records(
    messages: Sequence[Message], *, unsafe_any_timestamps: bool = False
) -> list[PlainRecord]:
    """Return what a role needs of messages without errors; all of them of one topic.

    It is done for each update, so it asks a message for nothing else.

    Raises:
        WrongTimestampsError: a record carries its producer's own time, and it is not said that
            any time will do.
    """
    if not messages:
        return []
    kinds, times = zip(*[message.timestamp() for message in messages], strict=True)
    if not unsafe_any_timestamps and kinds.count(TIMESTAMP_LOG_APPEND_TIME) < len(kinds):
        raise WrongTimestampsError(
            f"{messages[0].topic()} does not stamp records with the broker's time: set "
            "message.timestamp.type=LogAppendTime on the topic (sdp topics create does)"
        )
    # Who has no error has an offset: 0 stands for what cannot be.
    offsets = [message.offset() or 0 for message in messages]
    values = [message.value() for message in messages]
    return list(zip(offsets, times, values, strict=True))
