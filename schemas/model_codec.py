"""From messages to bytes, and back: the model, which the global agent writes.

What `schemas.codec` says of its functions holds for these.
"""

from collections.abc import Iterable

from .framing import byte_view, frame, parse, split_header
from .limits import MAX_STATE_ROWS, accept, validate_model_snapshot, validate_model_state
from .messages import (
    WIRE_VERSION,
    ClipNorm,
    MalformedMessageError,
    ModelSnapshot,
    ModelState,
)
from .v1 import wire_pb2
from .vectors import SNAPSHOT_VECTOR, STATE_VECTOR


def encode_model_snapshot(snapshot: ModelSnapshot) -> bytes:
    """Return the bytes of ``snapshot``; ValueError if it cannot be written."""
    validate_model_snapshot(snapshot)
    header = wire_pb2.ModelSnapshotHeader(
        version=WIRE_VERSION,
        plan_id=snapshot.plan_id,
        vector_type=SNAPSHOT_VECTOR.wire_type(snapshot.vector),
        dimension=snapshot.vector.size,
        model_version=snapshot.model_version,
        window=snapshot.window,
        published_at_ms=snapshot.published_at_ms,
        clip_norms=_write_clip_norms(snapshot.clip_norms),
    )
    return frame(header, snapshot.vector)


def decode_model_snapshot(data: bytes | memoryview | None) -> ModelSnapshot:
    """Return the snapshot whose bytes are ``data``; MalformedMessageError if there is none."""
    view = byte_view(data)
    header_view, position = split_header(view)
    header = parse(wire_pb2.ModelSnapshotHeader, header_view)
    snapshot = ModelSnapshot(
        plan_id=header.plan_id,
        model_version=header.model_version,
        window=header.window,
        published_at_ms=header.published_at_ms,
        vector=SNAPSHOT_VECTOR.take(view, position, header),
        clip_norms=_read_clip_norms(header.clip_norms),
    )
    return accept(snapshot, validate_model_snapshot)


def encode_model_state(state: ModelState) -> bytes:
    """Return the bytes of ``state``; ValueError if it cannot be written."""
    validate_model_state(state)
    header = wire_pb2.ModelStateHeader(
        version=WIRE_VERSION,
        plan_id=state.plan_id,
        vector_type=STATE_VECTOR.wire_type(state.vectors, axes=2),
        dimension=state.vectors.shape[1],
        rows=state.vectors.shape[0],
        model_version=state.model_version,
        window=state.window,
        next_offset=state.next_offset,
        merged_through=state.merged_through,
        optimizer=state.optimizer,
        step=state.step,
        clip_norms=_write_clip_norms(state.clip_norms),
    )
    return frame(header, state.vectors)


def decode_model_state(data: bytes | memoryview | None) -> ModelState:
    """Return the state whose bytes are ``data``; MalformedMessageError if there is none."""
    view = byte_view(data)
    header_view, position = split_header(view)
    header = parse(wire_pb2.ModelStateHeader, header_view)
    if not 1 <= header.rows <= MAX_STATE_ROWS:
        raise MalformedMessageError("the number of vectors is out of range")
    vector = STATE_VECTOR.take(view, position, header, header.rows)
    state = ModelState(
        plan_id=header.plan_id,
        model_version=header.model_version,
        window=header.window,
        next_offset=header.next_offset,
        merged_through=tuple(header.merged_through),
        optimizer=header.optimizer,
        step=header.step,
        vectors=vector.reshape(header.rows, header.dimension),
        clip_norms=_read_clip_norms(header.clip_norms),
    )
    return accept(state, validate_model_state)


def _write_clip_norms(clip_norms: Iterable[ClipNorm]) -> list[wire_pb2.ClipNorm]:
    return [
        wire_pb2.ClipNorm(cluster=clip.cluster, from_window=clip.from_window, norm=clip.norm)
        for clip in clip_norms
    ]


def _read_clip_norms(wire: Iterable[wire_pb2.ClipNorm]) -> tuple[ClipNorm, ...]:
    return tuple(ClipNorm(clip.cluster, clip.from_window, clip.norm) for clip in wire)
