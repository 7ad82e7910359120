"""From messages to bytes, and back: what clients and heads write.

Each ``encode_*`` raises ValueError for a message that could not be decoded again. Each
``decode_*`` takes any bytes, or the None of a tombstone, and returns the one message that
encodes to exactly these bytes, or raises MalformedMessageError and nothing else. A decoded
vector is a read-only view of the bytes that were given: it is not copied, it keeps them alive,
and it may be unaligned.
"""

from hashlib import sha256
from typing import Final

from .framing import (
    byte_view,
    flat,
    frame,
    parse,
    read_big_integer,
    read_fraction,
    split_header,
    write_big_integer,
)
from .limits import (
    accept,
    validate_ledger_record,
    validate_reject_record,
    validate_release,
    validate_update,
)
from .messages import (
    WIRE_VERSION,
    ClipState,
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    RejectRecord,
    Release,
    Update,
)
from .v1 import wire_pb2
from .vectors import RELEASE_VECTOR, UPDATE_VECTOR

_WIRE_KINDS: Final = {
    LedgerKind.GENESIS: wire_pb2.LEDGER_KIND_GENESIS,
    LedgerKind.RELEASE: wire_pb2.LEDGER_KIND_RELEASE,
    LedgerKind.EXHAUSTED: wire_pb2.LEDGER_KIND_EXHAUSTED,
    LedgerKind.THROTTLED: wire_pb2.LEDGER_KIND_THROTTLED,
}
_KINDS: Final = {int(number): kind for kind, number in _WIRE_KINDS.items()}


def release_digest(data: bytes) -> bytes:
    """Return what a ledger record says of the release whose bytes are ``data``: SHA-256."""
    return sha256(data).digest()


def record_hash(data: bytes) -> bytes:
    """Return what the next ledger record says of the one whose bytes are ``data``: SHA-256."""
    return sha256(data).digest()


def encode_update(update: Update) -> bytes:
    """Return the bytes of ``update``; ValueError if it cannot be written."""
    validate_update(update)
    header = wire_pb2.UpdateHeader(
        version=WIRE_VERSION,
        plan_id=update.plan_id,
        vector_type=UPDATE_VECTOR.wire_type(update.vector),
        dimension=update.vector.size,
        client_id=update.client_id,
        model_version=update.model_version,
        clip_norm=update.clip_norm,
        is_below_clip=update.is_below_clip,
    )
    return frame(header, update.vector)


def decode_update(data: bytes | memoryview | None) -> Update:
    """Return the update whose bytes are ``data``; MalformedMessageError if there is none."""
    view = byte_view(data)
    header_view, position = split_header(view)
    header = parse(wire_pb2.UpdateHeader, header_view)
    update = Update(
        plan_id=header.plan_id,
        client_id=header.client_id,
        model_version=header.model_version,
        vector=UPDATE_VECTOR.take(view, position, header),
        clip_norm=header.clip_norm,
        is_below_clip=header.is_below_clip,
    )
    return accept(update, validate_update)


def encode_release(release: Release) -> bytes:
    """Return the bytes of ``release``; ValueError if it cannot be written."""
    validate_release(release)
    header = wire_pb2.ReleaseHeader(
        version=WIRE_VERSION,
        plan_id=release.plan_id,
        vector_type=RELEASE_VECTOR.wire_type(release.vector),
        dimension=release.vector.size,
        cluster=release.cluster,
        window=release.window,
        sequence=release.sequence,
        charge_units=write_big_integer(release.charge_units),
        spent_units=write_big_integer(release.spent_units),
        cap_units=write_big_integer(release.cap_units),
        noise_variance_numerator=write_big_integer(release.noise_variance.numerator),
        noise_variance_denominator=write_big_integer(release.noise_variance.denominator),
        l2_sensitivity_squared=release.l2_sensitivity_squared,
        clip_norm=release.clip_norm,
        next_clip_norm=release.next_clip_norm,
        next_clip_window=release.next_clip_window,
    )
    return frame(header, release.vector)


def decode_release(data: bytes | memoryview | None) -> Release:
    """Return the release whose bytes are ``data``; MalformedMessageError if there is none."""
    view = byte_view(data)
    header_view, position = split_header(view)
    header = parse(wire_pb2.ReleaseHeader, header_view)
    release = Release(
        plan_id=header.plan_id,
        cluster=header.cluster,
        window=header.window,
        sequence=header.sequence,
        charge_units=read_big_integer(header.charge_units),
        spent_units=read_big_integer(header.spent_units),
        cap_units=read_big_integer(header.cap_units),
        noise_variance=read_fraction(
            header.noise_variance_numerator, header.noise_variance_denominator
        ),
        l2_sensitivity_squared=header.l2_sensitivity_squared,
        vector=RELEASE_VECTOR.take(view, position, header),
        clip_norm=header.clip_norm,
        next_clip_norm=header.next_clip_norm,
        next_clip_window=header.next_clip_window,
    )
    return accept(release, validate_release)


def encode_ledger_record(record: LedgerRecord) -> bytes:
    """Return the bytes of ``record``; ValueError if it cannot be written."""
    validate_ledger_record(record)
    return flat(
        wire_pb2.LedgerRecord(
            version=WIRE_VERSION,
            plan_id=record.plan_id,
            cluster=record.cluster,
            sequence=record.sequence,
            kind=_WIRE_KINDS[record.kind],
            window=record.window,
            next_offset=record.next_offset,
            charge_units=write_big_integer(record.charge_units),
            spent_units=write_big_integer(record.spent_units),
            cap_units=write_big_integer(record.cap_units),
            noise_variance_numerator=write_big_integer(record.noise_variance.numerator),
            noise_variance_denominator=write_big_integer(record.noise_variance.denominator),
            l2_sensitivity_squared=record.l2_sensitivity_squared,
            release_digest=record.release_digest,
            previous_hash=record.previous_hash,
            sealed_at_ms=record.sealed_at_ms,
            next_units=write_big_integer(record.next_units),
            participation_digest=record.participation_digest,
            clip=None if record.clip is None else _write_clip(record.clip),
        )
    )


def decode_ledger_record(data: bytes | memoryview | None) -> LedgerRecord:
    """Return the ledger record in ``data``; MalformedMessageError if there is none."""
    wire = parse(wire_pb2.LedgerRecord, byte_view(data))
    if wire.kind not in _KINDS:
        raise MalformedMessageError("the ledger record's kind is unknown")
    record = LedgerRecord(
        plan_id=wire.plan_id,
        cluster=wire.cluster,
        sequence=wire.sequence,
        kind=_KINDS[wire.kind],
        window=wire.window,
        next_offset=wire.next_offset,
        charge_units=read_big_integer(wire.charge_units),
        spent_units=read_big_integer(wire.spent_units),
        cap_units=read_big_integer(wire.cap_units),
        noise_variance=read_fraction(
            wire.noise_variance_numerator, wire.noise_variance_denominator
        ),
        l2_sensitivity_squared=wire.l2_sensitivity_squared,
        release_digest=wire.release_digest,
        previous_hash=wire.previous_hash,
        sealed_at_ms=wire.sealed_at_ms,
        next_units=read_big_integer(wire.next_units),
        participation_digest=wire.participation_digest,
        clip=_read_clip(wire.clip) if wire.HasField("clip") else None,
    )
    return accept(record, validate_ledger_record)


def _write_clip(clip: ClipState) -> wire_pb2.ClipState:
    return wire_pb2.ClipState(
        norm=clip.norm,
        next_norm=clip.next_norm,
        bit_total=clip.bit_total,
        count_total=clip.count_total,
    )


def _read_clip(wire: wire_pb2.ClipState) -> ClipState:
    return ClipState(
        norm=wire.norm,
        next_norm=wire.next_norm,
        bit_total=wire.bit_total,
        count_total=wire.count_total,
    )


def encode_reject_record(record: RejectRecord) -> bytes:
    """Return the bytes of ``record``; ValueError if it cannot be written."""
    validate_reject_record(record)
    return flat(
        wire_pb2.RejectRecord(
            version=WIRE_VERSION,
            plan_id=record.plan_id,
            cluster=record.cluster,
            reason=record.reason,
            client_id=record.client_id,
            window=record.window,
            partition=record.partition,
            offset=record.offset,
            detail=record.detail,
        )
    )


def decode_reject_record(data: bytes | memoryview | None) -> RejectRecord:
    """Return the reject record in ``data``; MalformedMessageError if there is none."""
    wire = parse(wire_pb2.RejectRecord, byte_view(data))
    record = RejectRecord(
        plan_id=wire.plan_id,
        cluster=wire.cluster,
        reason=wire.reason,
        client_id=wire.client_id,
        window=wire.window,
        partition=wire.partition,
        offset=wire.offset,
        detail=wire.detail,
    )
    return accept(record, validate_reject_record)
