"""From messages to bytes, and back: who has spent what, which heads write for themselves.

What `schemas.codec` says of its functions holds for these, but that decoding reads the keys once
more, because they must ascend.
"""

from typing import Final

import numpy as np

from .framing import (
    byte_view,
    frame,
    parse,
    read_big_integer,
    split_header,
    split_vector,
    write_big_integer,
)
from .limits import accept, validate_participation
from .messages import WIRE_VERSION, MalformedMessageError, Participation, ParticipationKind
from .v1 import wire_pb2

DELTA_KEYS: Final = 256
"""How many deltas compaction keeps of a cluster; a snapshot must not be further away."""

_WIRE_KINDS: Final = {
    ParticipationKind.DELTA: wire_pb2.PARTICIPATION_KIND_DELTA,
    ParticipationKind.SNAPSHOT: wire_pb2.PARTICIPATION_KIND_SNAPSHOT,
}
_KINDS: Final = {int(number): kind for kind, number in _WIRE_KINDS.items()}
_WORD: Final = np.dtype("<u8")


def participation_key(participation: Participation) -> bytes:
    """Return the key of the record that holds ``participation``, by which it is compacted."""
    if participation.kind is ParticipationKind.DELTA:
        return b"d%d" % (participation.sequence % DELTA_KEYS)
    return b"s%d" % participation.part


def encode_participation(participation: Participation) -> bytes:
    """Return the bytes of ``participation``; ValueError if it cannot be written."""
    validate_participation(participation)
    header = wire_pb2.ParticipationHeader(
        version=WIRE_VERSION,
        plan_id=participation.plan_id,
        cluster=participation.cluster,
        sequence=participation.sequence,
        window=participation.window,
        kind=_WIRE_KINDS[participation.kind],
        charge_units=write_big_integer(participation.charge_units),
        part=participation.part,
        parts=participation.parts,
        client_count=participation.clients.size,
    )
    if participation.spent is None:
        return frame(header, participation.clients)
    return frame(header, participation.clients, participation.spent)


def decode_participation(data: bytes | memoryview | None) -> Participation:
    """Return the record whose bytes are ``data``; MalformedMessageError if there is none."""
    view = byte_view(data)
    header_view, position = split_header(view)
    header = parse(wire_pb2.ParticipationHeader, header_view)
    if header.kind not in _KINDS:
        raise MalformedMessageError("the participation's kind is unknown")
    kind, count = _KINDS[header.kind], header.client_count
    columns = 2 if kind is ParticipationKind.SNAPSHOT else 1
    start = split_vector(view, position, columns * count * _WORD.itemsize)
    words = np.frombuffer(view, _WORD, -1, start)
    participation = Participation(
        plan_id=header.plan_id,
        cluster=header.cluster,
        sequence=header.sequence,
        window=header.window,
        kind=kind,
        charge_units=read_big_integer(header.charge_units),
        part=header.part,
        parts=header.parts,
        clients=words[:count],
        spent=words[count:] if kind is ParticipationKind.SNAPSHOT else None,
    )
    return accept(participation, validate_participation)
