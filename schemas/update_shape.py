"""What all updates of one plan have in common, byte by byte, so that most need no parser."""

from typing import Final, NamedTuple

import numpy as np

from .framing import flat, vector_start
from .messages import WIRE_VERSION
from .v1 import wire_pb2
from .vectors import UPDATE_VECTOR

_HEADER_TAG: Final = 0x0A
_CLIENT_TAG: Final = b"\x2a"
# Header lengths of one byte. Longer ones, of client ids beyond 90 bytes or so, are parsed.
_LONGEST_HEADER: Final = 0x7F
_BEFORE_HEADER: Final = 2


class UpdateParts(NamedTuple):
    """An update of the plan's shape, taken apart.

    Attributes:
        client: The bytes of its ``client_id``, at least one; perhaps no UTF-8.
        rest: The bytes of all header fields after ``client_id``; perhaps not canonical.
        start: Where its vector begins; it ends with the message.
    """

    client: bytes
    rest: bytes
    start: int


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

    def split(self, value: bytes) -> UpdateParts | None:
        """Take an update apart, or return None where it has another shape.

        Guarantee: if ``rest`` is that of an update that `decode_update` has accepted, and
        ``client`` is a client id, then it accepts this one as well.
        """
        end = len(value) - self._after_header
        begin = self._client_at
        if not begin < end <= _BEFORE_HEADER + _LONGEST_HEADER:
            return None
        client_end = begin + value[begin - 1]
        if (
            not begin < client_end <= end
            or not value.startswith(self._start_by_end[end - _BEFORE_HEADER])
            or not value.startswith(self._vector_start, end)
        ):
            return None
        return UpdateParts(
            value[begin:client_end], value[client_end:end], end + len(self._vector_start)
        )
