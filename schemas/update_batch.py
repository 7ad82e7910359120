"""Many updates in one message: what a gateway sends that collects from many devices.

``08 01`` and then, for each update, ``12 <length> <update>``: a protobuf writer's
``{uint32 version = 1; repeated bytes updates = 2;}``. An update by itself begins with another
byte, so a reader knows from the first one which of both it has.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .framing import read_varint, write_varint
from .messages import WIRE_VERSION, MalformedMessageError

_START: Final = bytes((0x08, WIRE_VERSION))
_UPDATE_TAG: Final = 0x12
BATCH_OVERHEAD_BYTES: Final = 8
"""Most bytes that an update takes in a batch beside its own, the first one's two included."""


class EqualUpdates(NamedTuple):
    """The updates of some batches, all of one length.

    Attributes:
        rows: Shape ``(n, width)``; each row ends with an update.
        length: The length of each update.
        counts: How many of them each batch has.
    """

    rows: NDArray[np.uint8]
    length: int
    counts: list[int]


def encode_update_batch(updates: Sequence[bytes]) -> bytes:
    """Return the bytes of a batch of encoded updates; ValueError where there is none in it."""
    if not updates:
        raise ValueError("a batch has at least one update")
    pieces = [_START]
    for update in updates:
        if not update:
            raise ValueError("an update has at least one byte")
        pieces += (bytes((_UPDATE_TAG,)) + write_varint(len(update)), update)
    return b"".join(pieces)


def decode_update_batch(data: bytes) -> list[bytes]:
    """Return the bytes of each update of a message, which is a batch or an update by itself.

    What they are is not looked at: a batch with one bad update is none the worse for others.

    Raises:
        MalformedMessageError: it begins like a batch and is none.
    """
    if data[:1] != _START[:1]:
        return [data]
    if not data.startswith(_START):
        raise MalformedMessageError("this is no batch of updates of the wire version 1")
    updates, position, end = [], len(_START), len(data)
    before, length = b"", 0
    while position < end:
        # Most are as long as the one before, and then what stands before them is the same.
        if not before or not data.startswith(before, position):
            length, start = _read_length(data, position)
            before = data[position:start]
        start = position + len(before)
        position = start + length
        if position > end:
            raise MalformedMessageError("an update's declared length is not true")
        updates.append(data[start:position])
    if not updates:
        raise MalformedMessageError("a batch has at least one update")
    return updates


def equal_updates(batches: Sequence[bytes]) -> EqualUpdates | None:
    """Return the updates of some batches, or None where not all have the length of the first one.

    Guarantee: they are those of `decode_update_batch`, in their order.
    """
    first = batches[0]
    if len(first) <= len(_START) or not first.startswith(_START):
        return None
    try:
        length, begin = _read_length(first, len(_START))
    except MalformedMessageError:
        return None
    width = begin - len(_START) + length
    sizes = [len(batch) - len(_START) for batch in batches]
    if any(size <= 0 or size % width for size in sizes):
        return None
    if not all(batch.startswith(first[:begin]) for batch in batches):
        return None
    joined = b"".join([memoryview(batch)[len(_START) :] for batch in batches])
    rows = np.frombuffer(joined, np.uint8).reshape(-1, width)
    before = width - length
    # Each row begins like the first one, so each ends where a parser would say.
    if (rows[:, :before] != rows[0, :before]).any():
        return None
    return EqualUpdates(rows, length, [size // width for size in sizes])


def _read_length(data: bytes, position: int) -> tuple[int, int]:
    """Return the length of the update whose tag stands at ``position``, and where it begins."""
    if data[position] != _UPDATE_TAG:
        raise MalformedMessageError("something else than an update stands in the batch")
    length, start = read_varint(data, position + 1)
    if length == 0:
        raise MalformedMessageError("an update's declared length is not true")
    return length, start
