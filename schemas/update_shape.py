"""What all updates of one plan have in common, byte by byte, so that most need no parser."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .framing import flat, vector_start
from .messages import WIRE_VERSION
from .v1 import wire_pb2
from .vectors import UPDATE_VECTOR

_HEADER_TAG: Final = 0x0A
_CLIENT_TAG: Final = b"\x2a"
# Header lengths of one byte. Longer ones, of client ids beyond 90 bytes or so, are parsed.
_LONGEST_HEADER: Final = 0x7F
_BEFORE_HEADER: Final = 2
# Each one is looked for among all that are left, so their number must not be up to senders.
_MOST_GROUPS: Final = 16
LONGEST_HEAD: Final = _BEFORE_HEADER + _LONGEST_HEADER + 6
"""The most bytes before the vector of an update that needs no parser."""


class UpdateGroup(NamedTuple):
    """Updates of the plan's shape, whose headers differ in the client alone.

    Attributes:
        places: Where they are among those that were looked at, in order.
        clients: The bytes of each one's ``client_id``, at least one; perhaps no UTF-8. Shape
            ``(n, length)``.
        rest: The bytes of all header fields after ``client_id``; perhaps not canonical.
    """

    places: Sequence[int]
    clients: NDArray[np.uint8]
    rest: bytes


class UpdateShape:
    """The version, the plan, the vector's type and its length, as they stand in each update."""

    def __init__(self, plan_id: bytes, vector_dtype: np.dtype[np.int8 | np.int16], size: int):
        """Set up.

        Args:
            plan_id: The plan's identity, 16 bytes.
            vector_dtype: The type of the coordinates.
            size: How many there are.
        """
        header = wire_pb2.UpdateHeader(
            version=WIRE_VERSION,
            plan_id=plan_id,
            vector_type=UPDATE_VECTOR.wire_type(np.zeros(1, vector_dtype)),
            dimension=size,
        )
        fixed = flat(header) + _CLIENT_TAG
        self._vector_start = vector_start(size * vector_dtype.itemsize)
        self._after_header = len(self._vector_start) + size * vector_dtype.itemsize
        self._client_at = _BEFORE_HEADER + len(fixed) + 1
        # By the position after the header: everything before the client's length.
        self._start_by_end = [
            bytes((_HEADER_TAG, end - _BEFORE_HEADER)) + fixed
            for end in range(_BEFORE_HEADER, _BEFORE_HEADER + _LONGEST_HEADER + 1)
        ]

    def rest_of(self, value: bytes) -> bytes | None:
        """Return what `UpdateGroup.rest` is of an update, or None where it has another shape."""
        for group in self.groups(np.frombuffer(value, np.uint8)[np.newaxis], len(value)):
            return group.rest
        return None

    def groups(self, heads: NDArray[np.uint8], length: int) -> Iterator[UpdateGroup]:
        """Find those of some messages of one length that have the shape, grouped by ``rest``.

        Args:
            heads: Shape ``(n, width)``; in each row the beginning of a message, `LONGEST_HEAD`
                bytes or all of it.
            length: The length of each message.

        Guarantee: if ``rest`` is that of an update that `decode_update` has accepted, and a
        client of the group is a client id, then it accepts that client's update as well.

        What has the shape is left out only where a message is one of very many kinds.
        """
        end = length - self._after_header
        if self._client_at < end <= _BEFORE_HEADER + _LONGEST_HEADER:
            start = end + len(self._vector_start)
            yield from self._groups(np.ascontiguousarray(heads[:, :start]), end)

    def _groups(self, heads: NDArray[np.uint8], end: int) -> Iterator[UpdateGroup]:
        """Group what stands before the vectors, a row each; their headers reach to ``end``."""
        places: Sequence[int] = range(len(heads))
        begin, fixed = self._client_at, self._start_by_end[end - _BEFORE_HEADER]
        for _ in range(_MOST_GROUPS):
            if not len(heads):
                return
            first = heads[0].tobytes()
            client_end = begin + first[begin - 1]
            if begin < client_end <= end and first == (
                fixed + first[begin - 1 : end] + self._vector_start
            ):
                are_same = heads == heads[0]
                are_same[:, begin:client_end] = True
                # Mostly they are all alike, and that is quicker to see.
                are_all = bool(are_same.all())
                are_taken = are_same.all(axis=1) if not are_all else are_same[:, 0]
                clients = heads[:, begin:client_end]
                yield UpdateGroup(
                    places if are_all else list(compress(places, are_taken.tolist())),
                    clients if are_all else clients[are_taken],
                    first[client_end:end],
                )
                if are_all:
                    return
            else:
                are_taken = self._are_bad(heads, fixed, end)
            places = list(compress(places, (~are_taken).tolist()))
            heads = heads[~are_taken]

    def _are_bad(self, heads: NDArray[np.uint8], fixed: bytes, end: int) -> NDArray[np.bool_]:
        """Say which have another shape: all of them at once, for there may be many."""
        begin = self._client_at
        lengths = heads[:, begin - 1]
        are_bad: NDArray[np.bool_] = (heads[:, : begin - 1] != np.frombuffer(fixed, np.uint8)).any(
            axis=1
        )
        are_bad |= (heads[:, end:] != np.frombuffer(self._vector_start, np.uint8)).any(axis=1)
        are_bad |= (lengths == 0) | (lengths > end - begin)
        return are_bad
