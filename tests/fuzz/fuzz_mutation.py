"""Mutations that know what they change: most mutated bytes would fail at the first check.

Half of the time libFuzzer's own mutations are used as they are.
"""

from collections.abc import Callable

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from schemas import MalformedMessageError
from schemas.framing import byte_view, split_header, write_varint

# (bytes, most bytes) -> bytes, as libFuzzer does it
Mutate = Callable[[bytes, int], bytes]
# (bytes, most bytes, seed) -> bytes, as libFuzzer asks for it
Mutator = Callable[[bytes, int, int], bytes]

_INTEGERS = (0, 1, 2, 3, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_DOUBLES = (0.0, -0.0, 1.0, 1.25, 5e-324, 1.7e308, float("inf"), float("nan"), -1.0)
_TEXTS = ("", "a", "north/1", "\u00e9" * 65, "a" * 128, "a" * 129)
_TOML_VALUES = (
    *("0", "-0.0", "1", "-1", "2.5", "1e-9", "1e308", "nan", "inf", "-inf", "true", '""', '"x"'),
    *("2147483647", "9223372036854775807", "9" * 30, "[]", "[1, 2]", "[1.5, 1.0]", "{}"),
    *("9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59", "2026-12-01"),
    *('"int16"', '"prefix"', '"client"', '"hadamard"', '"snr"', '"cosine"', '"noisy_count"'),
)
_INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, 7),
}
_ITEM_BYTES = {1: 1, 2: 2, 3: 4, 4: 8, 5: 4, 6: 8}


def message_mutator(kind: type[Message], has_vector: bool, mutate: Mutate) -> Mutator:
    """Change a field of a header, and keep the lengths around it true."""

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        choose = np.random.default_rng(seed)
        if choose.random() < 0.5 or (parts := _parts(kind, has_vector, data)) is None:
            return mutate(data, max_size)
        header, vector = parts
        _change_field(header, choose, mutate)
        if vector and choose.random() < 0.3:
            vector = mutate(vector, len(vector) + 8)
        if hasattr(header, "dimension") and choose.random() < 0.7:
            # The length that the header declares is true, so that what follows it is reached.
            rows = max(1, getattr(header, "rows", 1))
            header.dimension = len(vector) // (_ITEM_BYTES.get(header.vector_type, 1) * rows)
        changed = _joined(header, vector, has_vector)
        return changed if len(changed) <= max_size else mutate(data, max_size)

    return mutator


def toml_mutator(mutate: Mutate) -> Mutator:
    """Give a key another value, remove a line, or say it twice."""

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        choose = np.random.default_rng(seed)
        lines = data.split(b"\n")
        if choose.random() < 0.3:
            return mutate(data, max_size)
        place = int(choose.integers(len(lines)))
        key, sign, _ = lines[place].partition(b" = ")
        action = choose.random()
        if sign and action < 0.8:
            lines[place] = key + sign + str(choose.choice(_TOML_VALUES)).encode()
        elif action < 0.9:
            del lines[place]
        else:
            lines.insert(int(choose.integers(len(lines))), lines[place])
        return b"\n".join(lines)[:max_size]

    return mutator


def _parts(kind: type[Message], has_vector: bool, data: bytes) -> tuple[Message, bytes] | None:
    """A header as anybody would parse it, and what stands behind the vector's tag and length."""
    try:
        if not has_vector:
            return kind.FromString(data), b""
        header, end = split_header(byte_view(data))
        size = len(data) - end
        behind = end + 1 + len(write_varint(size))
        return kind.FromString(bytes(header)), data[behind:]
    except (DecodeError, MalformedMessageError):
        return None


def _joined(header: Message, vector: bytes, has_vector: bool) -> bytes:
    flat = header.SerializeToString(deterministic=True)
    if not has_vector:
        return flat
    tail = b"\x12" + write_varint(len(vector)) + vector if vector else b""
    return b"\x0a" + write_varint(len(flat)) + flat + tail


def _change_field(message: Message, choose: np.random.Generator, mutate: Mutate) -> None:
    field = message.DESCRIPTOR.fields[int(choose.integers(len(message.DESCRIPTOR.fields)))]
    if field.is_repeated:
        _change_list(message, field, choose, mutate)
    elif field.message_type is not None:
        if choose.random() < 0.3:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
            _change_field(getattr(message, field.name), choose, mutate)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), choose, mutate))


def _change_list(
    message: Message, field: FieldDescriptor, choose: np.random.Generator, mutate: Mutate
) -> None:
    items = getattr(message, field.name)
    if items and choose.random() < 0.3:
        del items[int(choose.integers(len(items)))]
    elif field.message_type is not None:
        added = items.add()
        if len(items) > 1:
            added.CopyFrom(items[-2])
        _change_field(added, choose, mutate)
    else:
        items.append(_value(field, 0, choose, mutate))


def _value(
    field: FieldDescriptor, old: object, choose: np.random.Generator, mutate: Mutate
) -> object:
    if field.cpp_type in _INTEGER_RANGES:
        least, most = _INTEGER_RANGES[field.cpp_type]
        number = int(old) + int(choose.integers(-2, 3)) if choose.random() < 0.3 else None
        if number is None:
            number = _INTEGERS[int(choose.integers(len(_INTEGERS)))] - int(choose.integers(2))
        return min(most, max(least, number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return _DOUBLES[int(choose.integers(len(_DOUBLES)))]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return bool(choose.integers(2))
    if isinstance(old, str):
        return _TEXTS[int(choose.integers(len(_TEXTS)))]
    changed = mutate(bytes(old), 40)
    return bytes(int(choose.integers(34))) if choose.random() < 0.2 else changed
