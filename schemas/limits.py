"""What the fields of each message may hold, when written and when read.

These are the limits of the format, not of a plan: whether an update fits a plan is the head's
to say. Every ``validate_*`` returns nothing, or raises ValueError with the rule that is broken;
no text quotes a value of unbounded length.
"""

from collections.abc import Callable
from itertools import pairwise
from math import copysign, isfinite
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from .messages import (
    ClipNorm,
    ClipState,
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    ModelSnapshot,
    ModelState,
    Participation,
    ParticipationKind,
    RejectRecord,
    Release,
    Update,
)

PLAN_ID_BYTES: Final = 16
DIGEST_BYTES: Final = 32
MAX_CLIENT_ID_BYTES: Final = 128
MAX_NAME_BYTES: Final = 64
MAX_DETAIL_BYTES: Final = 1024
MAX_DIMENSION: Final = 2**31 - 1
MAX_STATE_ROWS: Final = 4
"""The weights and three slots: AMSGrad, the hungriest common optimizer, has three."""
MAX_DELTA_CLIENTS: Final = 4_000_000
"""Of one window of a cluster, where each client has a budget of its own: four times as many as a
plan may expect, in a message that Kafka still takes."""
MAX_SNAPSHOT_CLIENTS: Final = MAX_DELTA_CLIENTS // 2
"""Of one part: each has a key and its spent units, which take the room of two keys."""

_NO_PREVIOUS: Final = bytes(DIGEST_BYTES)
_INT64_END: Final = 2**63
_UINT64_END: Final = 2**64
# A window number must fit the signed fields of every message, a cluster Kafka's partitions.
_WINDOW_END: Final = 2**63
_PARTITION_END: Final = 2**31
_BIG_INTEGER_END: Final = 2**256
_UINT64: Final = np.dtype("<u8")

MessageT = TypeVar("MessageT")


def accept(message: MessageT, validate: Callable[[MessageT], None]) -> MessageT:
    """Return a parsed ``message`` that could have been written.

    Raises:
        MalformedMessageError: ``validate`` refuses it.
    """
    try:
        validate(message)
    except ValueError as error:
        raise MalformedMessageError(str(error)) from error
    return message


def validate_update(update: Update) -> None:
    """Raise ValueError unless the scalar fields of ``update`` can be written."""
    _validate_plan_id(update.plan_id)
    _validate_text("client_id", update.client_id, 1, MAX_CLIENT_ID_BYTES)
    _validate_range("model_version", update.model_version, 0, _UINT64_END)
    _validate_norm("clip_norm", update.clip_norm)
    if update.is_below_clip and not update.clip_norm:
        raise ValueError("is_below_clip has no meaning without a clip_norm")


def validate_release(release: Release) -> None:
    """Raise ValueError unless the scalar fields of ``release`` can be written."""
    _validate_plan_id(release.plan_id)
    _validate_range("cluster", release.cluster, 0, _PARTITION_END)
    _validate_range("window", release.window, 0, _WINDOW_END)
    _validate_range("sequence", release.sequence, 0, _UINT64_END)
    _validate_paid(release)
    _validate_clip_norms(release)
    if len(release.vector) < 2:
        raise ValueError("a release has at least one coordinate and the count")


def validate_ledger_record(record: LedgerRecord) -> None:
    """Raise ValueError unless ``record`` can be written."""
    _validate_plan_id(record.plan_id)
    _validate_range("cluster", record.cluster, 0, _PARTITION_END)
    _validate_range("sequence", record.sequence, 0, _UINT64_END)
    _validate_range("window", record.window, -1, _WINDOW_END)
    _validate_range("next_offset", record.next_offset, 0, _UINT64_END)
    _validate_range("l2_sensitivity_squared", record.l2_sensitivity_squared, 0, _UINT64_END)
    _validate_range("sealed_at_ms", record.sealed_at_ms, 0, _UINT64_END)
    _validate_range("charge_units", record.charge_units, 0, record.cap_units + 1)
    _validate_range("spent_units", record.spent_units, 0, record.cap_units + 1)
    _validate_range("next_units", record.next_units, 0, _BIG_INTEGER_END)
    _validate_links(record)
    if record.kind is LedgerKind.RELEASE:
        _validate_paid(record)
    if record.kind is LedgerKind.THROTTLED and record.charge_units != 0:
        raise ValueError("a window without a release has no charge_units")
    if record.clip is not None:
        _validate_clip_state(record.clip)


def validate_model_snapshot(snapshot: ModelSnapshot) -> None:
    """Raise ValueError unless ``snapshot`` can be written."""
    _validate_plan_id(snapshot.plan_id)
    _validate_range("model_version", snapshot.model_version, 0, _UINT64_END)
    _validate_range("window", snapshot.window, -1, _WINDOW_END)
    _validate_range("published_at_ms", snapshot.published_at_ms, 0, _UINT64_END)
    _validate_clip_history(snapshot.clip_norms)
    _validate_finite(snapshot.vector)


def validate_model_state(state: ModelState) -> None:
    """Raise ValueError unless ``state`` can be written."""
    _validate_plan_id(state.plan_id)
    _validate_range("model_version", state.model_version, 0, _UINT64_END)
    _validate_range("window", state.window, -1, _WINDOW_END)
    _validate_range("next_offset", state.next_offset, 0, _UINT64_END)
    _validate_range("step", state.step, 0, _UINT64_END)
    _validate_text("optimizer", state.optimizer, 1, MAX_NAME_BYTES)
    if not state.merged_through:
        raise ValueError("merged_through names no cluster")
    for window in state.merged_through:
        _validate_range("merged_through", window, -1, _WINDOW_END)
    _validate_clip_history(state.clip_norms)
    _validate_range("the number of vectors", len(state.vectors), 1, MAX_STATE_ROWS + 1)
    _validate_finite(state.vectors)


def validate_reject_record(record: RejectRecord) -> None:
    """Raise ValueError unless ``record`` can be written."""
    _validate_plan_id(record.plan_id)
    _validate_range("cluster", record.cluster, 0, _PARTITION_END)
    _validate_text("reason", record.reason, 1, MAX_NAME_BYTES)
    _validate_text("client_id", record.client_id, 0, MAX_CLIENT_ID_BYTES)
    _validate_range("window", record.window, -_WINDOW_END, _WINDOW_END)
    _validate_range("partition", record.partition, 0, _PARTITION_END)
    _validate_range("offset", record.offset, 0, _UINT64_END)
    _validate_text("detail", record.detail, 0, MAX_DETAIL_BYTES)


def validate_participation(participation: Participation) -> None:
    """Raise ValueError unless ``participation`` can be written."""
    is_delta = participation.kind is ParticipationKind.DELTA
    _validate_plan_id(participation.plan_id)
    _validate_range("cluster", participation.cluster, 0, _PARTITION_END)
    _validate_range("sequence", participation.sequence, 0, _UINT64_END)
    _validate_range("window", participation.window, 0 if is_delta else -1, _WINDOW_END)
    _validate_range(
        "charge_units", participation.charge_units, 0, _BIG_INTEGER_END if is_delta else 1
    )
    _validate_range("parts", participation.parts, 1, 2 if is_delta else _PARTITION_END)
    _validate_range("part", participation.part, 0, participation.parts)
    _validate_clients(
        participation.clients, MAX_DELTA_CLIENTS if is_delta else MAX_SNAPSHOT_CLIENTS
    )
    _validate_spent(participation)


def _validate_paid(paid: Release | LedgerRecord) -> None:
    """A release costs something, within the cap, and has noise that hides someone."""
    if not 1 <= paid.charge_units <= paid.spent_units <= paid.cap_units:
        raise ValueError("a release needs 1 <= charge_units <= spent_units <= cap_units")
    if paid.noise_variance <= 0:
        raise ValueError("a release needs a noise_variance above 0")
    _validate_range("l2_sensitivity_squared", paid.l2_sensitivity_squared, 1, _UINT64_END)


def _validate_links(record: LedgerRecord) -> None:
    """The digest and the variance belong to releases, the zero hash to the first record."""
    is_release = record.kind is LedgerKind.RELEASE
    if len(record.release_digest) != (DIGEST_BYTES if is_release else 0):
        raise ValueError("a release has a release_digest of 32 bytes, another record has none")
    is_sealed = is_release or record.kind is LedgerKind.THROTTLED
    if len(record.participation_digest) not in ((0, DIGEST_BYTES) if is_sealed else (0,)):
        raise ValueError("participation_digest has 0 or 32 bytes, without a sealed window 0")
    if not is_release and record.noise_variance != 0:
        raise ValueError("only a release has a noise_variance")
    if len(record.previous_hash) != DIGEST_BYTES:
        raise ValueError("previous_hash has not 32 bytes")
    if (record.kind is LedgerKind.GENESIS) != (record.previous_hash == _NO_PREVIOUS):
        raise ValueError("previous_hash is zero in the first record, and only there")


def _validate_clip_norms(release: Release) -> None:
    """A next norm needs its first window, and both need the norm that they follow."""
    _validate_norm("clip_norm", release.clip_norm)
    _validate_norm("next_clip_norm", release.next_clip_norm)
    _validate_range("next_clip_window", release.next_clip_window, 0, _WINDOW_END)
    if (release.next_clip_norm > 0) != (release.next_clip_window > 0):
        raise ValueError("next_clip_norm and next_clip_window need each other")
    if release.next_clip_norm > 0 and not release.clip_norm:
        raise ValueError("next_clip_norm has no meaning without a clip_norm")


def _validate_clip_state(clip: ClipState) -> None:
    _validate_positive("clip.norm", clip.norm)
    _validate_norm("clip.next_norm", clip.next_norm)
    _validate_range("clip.bit_total", clip.bit_total, -_INT64_END, _INT64_END)
    _validate_range("clip.count_total", clip.count_total, -_INT64_END, _INT64_END)


def _validate_clip_history(clip_norms: tuple[ClipNorm, ...]) -> None:
    """In one order, and never two norms for the same window of a cluster."""
    for clip in clip_norms:
        _validate_range("clip_norms' cluster", clip.cluster, 0, _PARTITION_END)
        _validate_range("clip_norms' from_window", clip.from_window, 0, _WINDOW_END)
        _validate_positive("clip_norms' norm", clip.norm)
    places = [(clip.cluster, clip.from_window) for clip in clip_norms]
    if any(before >= after for before, after in pairwise(places)):
        raise ValueError("clip_norms do not ascend by cluster and from_window")


def _validate_clients(clients: NDArray[np.uint64], most: int) -> None:
    if clients.dtype != _UINT64 or clients.ndim != 1 or len(clients) > most:
        raise ValueError("clients are not an array of uint64, or are too many")
    if not (clients[1:] > clients[:-1]).all():
        raise ValueError("clients do not ascend, or one is there twice")


def _validate_spent(participation: Participation) -> None:
    spent = participation.spent
    if (spent is None) != (participation.kind is ParticipationKind.DELTA):
        raise ValueError("a SNAPSHOT has spent units, a DELTA has none")
    if spent is not None and (spent.dtype != _UINT64 or spent.shape != participation.clients.shape):
        raise ValueError("spent is not an array of uint64, one for each client")


def _validate_plan_id(plan_id: bytes) -> None:
    if len(plan_id) != PLAN_ID_BYTES:
        raise ValueError("plan_id has not 16 bytes")


def _validate_range(name: str, value: int, start: int, end: int) -> None:
    if not start <= value < end:
        raise ValueError(f"{name} is out of range")


def _validate_norm(name: str, norm: float) -> None:
    # copysign tells -0.0, a second encoding of nothing, from 0.0.
    if not isfinite(norm) or copysign(1.0, norm) < 0:
        raise ValueError(f"{name} is not finite and at least 0")


def _validate_positive(name: str, norm: float) -> None:
    if not isfinite(norm) or norm <= 0:
        raise ValueError(f"{name} is not finite and above 0")


def _validate_text(name: str, text: str, shortest: int, longest: int) -> None:
    # A lone surrogate has no UTF-8; UnicodeEncodeError is a ValueError.
    if not shortest <= len(text.encode()) <= longest:
        raise ValueError(f"{name} has not {shortest} to {longest} bytes")


def _validate_finite(values: NDArray[np.float32] | NDArray[np.float64]) -> None:
    if not np.isfinite(values).all():
        raise ValueError("the model has a NaN or an infinity")
