"""The bytes around a vector: two tags, two lengths, one small header.

A message with a vector is ``0A <length> <header> 12 <length> <vector>`` and nothing more; where
the vector is empty, nothing follows the header, as a protobuf writer has it. It is read by hand,
because a protobuf parser would copy the vector. What is generated code's work is the header, or
a whole flat message; neither is longer than `MAX_HEADER_BYTES`, so no bytes make a reader do
work that grows with a vector.
"""

from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from .messages import WIRE_VERSION, MalformedMessageError

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_BIG_INTEGER_BYTES: Final = 32

_HEADER_TAG: Final = b"\x0a"
_VECTOR_TAG: Final = b"\x12"
_VERSION_TAG: Final = 0x08
_MAX_VARINT_BYTES: Final = 10
# What the header of a message that we write starts with, while versions have one byte.
_OUR_VERSION: Final = bytes((_VERSION_TAG, WIRE_VERSION))

ParsedT = TypeVar("ParsedT", bound=Message)


def write_varint(value: int) -> bytes:
    """Return ``value`` >= 0 as a minimal varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_varint(view: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read the minimal varint at ``position``.

    Returns:
        The value, and the position after it.

    Raises:
        MalformedMessageError: it is cut off, too long, or not minimal.
    """
    # The header of most messages is short: one byte, on the hot path.
    if position < len(view) and (first := view[position]) < 0x80:
        return first, position + 1
    value = shift = 0
    for end in range(position, min(position + _MAX_VARINT_BYTES, len(view))):
        byte = view[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                raise MalformedMessageError("a varint is not minimal")
            return value, end + 1
        shift += 7
    raise MalformedMessageError("a varint is cut off or too long")


def byte_view(data: bytes | memoryview | None) -> memoryview:
    """Return a read-only view of a record's value.

    Raises:
        MalformedMessageError: there is no value (a tombstone).
    """
    if data is None:
        raise MalformedMessageError("the record has no value")
    view = memoryview(data)
    return view if view.readonly else view.toreadonly()


def frame(header: Message, *pieces: NDArray[np.generic]) -> bytes:
    """Return the bytes of a message with a vector, whose contiguous pieces are copied once.

    Raises:
        ValueError: the header is too long.
    """
    header_bytes = flat(header)
    return b"".join(
        (
            _HEADER_TAG,
            write_varint(len(header_bytes)),
            header_bytes,
            vector_start(sum(piece.nbytes for piece in pieces)),
            *(np.ascontiguousarray(piece).data for piece in pieces),
        )
    )


# The vectors of a plan have one or two sizes; foreign ones cannot make this grow.
@lru_cache(maxsize=16)
def vector_start(size: int) -> bytes:
    """Return what stands between the header and a vector of ``size`` bytes."""
    # Like any field with its default value, an empty vector is absent.
    return _VECTOR_TAG + write_varint(size) if size else b""


def flat(message: Message) -> bytes:
    """Return the canonical bytes of a header or of a flat message.

    Raises:
        ValueError: it is too long.
    """
    data = message.SerializeToString(deterministic=True)
    if len(data) > MAX_HEADER_BYTES:
        raise ValueError(f"{len(data)} bytes are more than a header may have")
    return data


def split_header(view: memoryview) -> tuple[memoryview, int]:
    """Find the header of a message with a vector.

    Returns:
        The header, and the position after it.

    Raises:
        MalformedMessageError: there is no whole header of a legal length.
    """
    if not view or view[0] != _HEADER_TAG[0]:
        raise MalformedMessageError("the message does not start with a header")
    length, start = read_varint(view, 1)
    end = start + length
    if length > MAX_HEADER_BYTES or end > len(view):
        raise MalformedMessageError("the header's declared length is not true")
    return view[start:end], end


def split_vector(view: memoryview, position: int, expected_bytes: int) -> int:
    """Check that the rest of a message is a vector of ``expected_bytes``.

    Returns:
        The position of the first coordinate.

    Raises:
        MalformedMessageError: the rest is anything else.
    """
    # The header has said what must stand here, so there is nothing to parse: compare.
    expected = vector_start(expected_bytes)
    start = position + len(expected)
    if view[position:start] != expected or len(view) - start != expected_bytes:
        raise MalformedMessageError("the rest is not a vector of the length that the header says")
    return start


def parse(kind: type[ParsedT], view: memoryview) -> ParsedT:
    """Parse a header or a flat message, accepting its canonical form only.

    Raises:
        MalformedMessageError: a newer version, or not the bytes that we would have written.
    """
    if len(view) > MAX_HEADER_BYTES:
        raise MalformedMessageError("the message is longer than any of its kind")
    data = bytes(view)
    if not data.startswith(_OUR_VERSION):
        _refuse_version(data)
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise MalformedMessageError(f"not a {kind.DESCRIPTOR.name}") from error
    # Unknown fields would survive the round trip and hide a second encoding of equal values.
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        raise MalformedMessageError(f"not a {kind.DESCRIPTOR.name} in canonical form")
    return message


def _refuse_version(data: bytes) -> None:
    """Say what is wrong with a version that is not ours."""
    if not data or data[0] != _VERSION_TAG:
        raise MalformedMessageError("the message does not start with its wire version")
    version, _ = read_varint(data, 1)
    if version > WIRE_VERSION:
        raise MalformedMessageError(
            f"wire version {version} is newer than this program understands ({WIRE_VERSION}): "
            "upgrade sdp"
        )
    raise MalformedMessageError(f"there is no wire version {version}")


def write_big_integer(value: int) -> bytes:
    """Return ``value`` as unsigned big-endian bytes without leading zeros; zero is empty.

    Raises:
        ValueError: it is negative or has more than 256 bits.
    """
    size = (value.bit_length() + 7) // 8
    if value < 0 or size > MAX_BIG_INTEGER_BYTES:
        raise ValueError("a big integer must be at least 0 and below 2**256")
    return value.to_bytes(size, "big")


def read_big_integer(data: bytes) -> int:
    """Return the integer that `write_big_integer` wrote.

    Raises:
        MalformedMessageError: it has a leading zero byte or is too long.
    """
    if len(data) > MAX_BIG_INTEGER_BYTES or data.startswith(b"\x00"):
        raise MalformedMessageError("a big integer is too long or not minimal")
    return int.from_bytes(data, "big")


def read_fraction(numerator: bytes, denominator: bytes) -> Fraction:
    """Return the fraction of two big integers.

    Raises:
        MalformedMessageError: it is not in lowest terms, or its denominator is 0.
    """
    over, under = read_big_integer(numerator), read_big_integer(denominator)
    # gcd(0, 0) is 0 and gcd(n, 0) is n, so 1/0 is the only bad pair that the gcd lets through.
    if gcd(over, under) != 1 or under == 0:
        raise MalformedMessageError("a fraction is not in lowest terms")
    return Fraction(over, under)
