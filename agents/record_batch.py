"""What a feed gives to a role, and what it asks of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stream.aggregation.intake import PlainRecord


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
