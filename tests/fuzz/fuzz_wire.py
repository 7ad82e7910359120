"""What is fuzzed of the wire contract: each target takes any bytes, and raises for a fault."""

import tracemalloc
import zlib
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import schemas
from schemas import MalformedMessageError
from schemas.framing import (
    byte_view,
    parse,
    read_big_integer,
    read_fraction,
    read_varint,
    split_header,
    split_vector,
    write_big_integer,
    write_varint,
)
from schemas.limits import MAX_DETAIL_BYTES
from schemas.v1 import wire_pb2

# What is parsed by generated code, and whether a vector may follow it.
HEADERS = {
    "update": (wire_pb2.UpdateHeader, True),
    "release": (wire_pb2.ReleaseHeader, True),
    "ledger_record": (wire_pb2.LedgerRecord, False),
    "model_snapshot": (wire_pb2.ModelSnapshotHeader, True),
    "model_state": (wire_pb2.ModelStateHeader, True),
    "reject_record": (wire_pb2.RejectRecord, False),
    "participation": (wire_pb2.ParticipationHeader, True),
}
# A message of n bytes may take so much while it is decoded. Two bytes of a header can be an
# empty clip norm, which is some 200 bytes as an object and in its place of the order.
_SPARE_BYTES = 1 << 20
_BYTES_A_BYTE = 256
# Measuring memory is slow: one input of so many is measured, always the same ones.
_MEASURED_OF = 64


def decoder(kind: str, data: bytes) -> None:
    """Any bytes are malformed, or the one encoding of the message that they decode to."""
    decode = getattr(schemas, f"decode_{kind}")
    if zlib.crc32(data) % _MEASURED_OF == 0:
        assert_memory_is_linear(decode, data)
    try:
        message = decode(data)
    except MalformedMessageError as error:
        # It becomes the detail of a reject record, and a line of a log.
        if len(str(error).encode()) > MAX_DETAIL_BYTES:
            raise AssertionError("the error's text has no bound") from error
        return
    encode = getattr(schemas, f"encode_{kind}")
    # So decoding what was encoded gives the same message again.
    assert encode(message) == data, "these bytes are a second encoding of their message"
    unaligned = memoryview(b"\0" + data)[1:]
    assert encode(decode(unaligned)) == data, "a view that is not aligned reads otherwise"


def assert_memory_is_linear(decode: Callable[[bytes], object], data: bytes) -> None:
    """A length that the bytes declare is never allocated, whatever becomes of them."""
    tracemalloc.start()
    try:
        decode(data)
    except MalformedMessageError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= _SPARE_BYTES + _BYTES_A_BYTE * len(data), f"{peak} bytes for {len(data)}"


def framing(data: bytes) -> None:
    """What is read by hand is exactly what would have been written."""
    view = byte_view(data)
    position = data[0] if data else 0
    if found := _or_malformed(partial(read_varint, view, position)):
        value, end = found
        assert write_varint(value) == data[position:end]
    if found := _or_malformed(partial(split_header, view)):
        header, end = found
        assert b"\x0a" + write_varint(len(header)) + header + view[end:] == data
        expected = len(data) - end - 2
        if expected > 0 and (start := _or_malformed(partial(split_vector, view, end, expected))):
            assert write_varint(expected) == data[end + 1 : start]
    for kind, _ in HEADERS.values():
        if message := _or_malformed(partial(parse, kind, view)):
            assert message.SerializeToString(deterministic=True) == data
    _numbers(data)


def update_batch(data: bytes) -> None:
    """A batch is the one encoding of its updates, and what is none is an update by itself."""
    if zlib.crc32(data) % _MEASURED_OF == 0:
        assert_memory_is_linear(schemas.decode_update_batch, data)
    updates = _or_malformed(partial(schemas.decode_update_batch, data))
    if updates is not None and updates != [data]:
        assert schemas.encode_update_batch(updates) == data
    assert updates != [data] or data[:1] != b"\x08"


def _numbers(data: bytes) -> None:
    value = _or_malformed(partial(read_big_integer, data))
    assert value is None or write_big_integer(value) == data
    over, under = data[: len(data) // 2], data[len(data) // 2 :]
    fraction = _or_malformed(partial(read_fraction, over, under))
    if isinstance(fraction, Fraction):
        assert write_big_integer(fraction.numerator) == over
        assert write_big_integer(fraction.denominator) == under


def _or_malformed(read: Callable[[], object]) -> object:
    try:
        return read()
    except MalformedMessageError:
        return None


TARGETS = {
    **{f"decode_{kind}": partial(decoder, kind) for kind in HEADERS},
    "framing": framing,
    "update_batch": update_batch,
}
