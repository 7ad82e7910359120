"""What the fields of each message may hold, when written and when read.

These are the limits of the format, not of a plan: whether an update fits a plan is the head's
to say. Every function returns nothing, or raises ValueError with the rule that is broken; no
text quotes a value of unbounded length.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .messages import (
    LedgerKind,
    LedgerRecord,
    ModelSnapshot,
    ModelState,
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

_NO_PREVIOUS: Final = bytes(DIGEST_BYTES)
_UINT64_END: Final = 2**64
# A window number must fit the signed fields of every message, a cluster Kafka's partitions.
_WINDOW_END: Final = 2**63
_PARTITION_END: Final = 2**31


def validate_update(update: Update) -> None:
    """Raise ValueError unless the scalar fields of ``update`` can be written."""
    _validate_plan_id(update.plan_id)
    _validate_text("client_id", update.client_id, 1, MAX_CLIENT_ID_BYTES)
    _validate_range("model_version", update.model_version, 0, _UINT64_END)


def validate_release(release: Release) -> None:
    """Raise ValueError unless the scalar fields of ``release`` can be written."""
    _validate_plan_id(release.plan_id)
    _validate_range("cluster", release.cluster, 0, _PARTITION_END)
    _validate_range("window", release.window, 0, _WINDOW_END)
    _validate_range("sequence", release.sequence, 0, _UINT64_END)
    _validate_paid(release)
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
    _validate_links(record)
    if record.kind is LedgerKind.RELEASE:
        _validate_paid(record)


def validate_model_snapshot(snapshot: ModelSnapshot) -> None:
    """Raise ValueError unless ``snapshot`` can be written."""
    _validate_plan_id(snapshot.plan_id)
    _validate_range("model_version", snapshot.model_version, 0, _UINT64_END)
    _validate_range("window", snapshot.window, -1, _WINDOW_END)
    _validate_range("published_at_ms", snapshot.published_at_ms, 0, _UINT64_END)
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
    if not is_release and record.noise_variance != 0:
        raise ValueError("only a release has a noise_variance")
    if len(record.previous_hash) != DIGEST_BYTES:
        raise ValueError("previous_hash has not 32 bytes")
    if (record.kind is LedgerKind.GENESIS) != (record.previous_hash == _NO_PREVIOUS):
        raise ValueError("previous_hash is zero in the first record, and only there")


def _validate_plan_id(plan_id: bytes) -> None:
    if len(plan_id) != PLAN_ID_BYTES:
        raise ValueError("plan_id has not 16 bytes")


def _validate_range(name: str, value: int, start: int, end: int) -> None:
    if not start <= value < end:
        raise ValueError(f"{name} is out of range")


def _validate_text(name: str, text: str, shortest: int, longest: int) -> None:
    # A lone surrogate has no UTF-8; UnicodeEncodeError is a ValueError.
    if not shortest <= len(text.encode()) <= longest:
        raise ValueError(f"{name} has not {shortest} to {longest} bytes")


def _validate_finite(values: NDArray[np.float32] | NDArray[np.float64]) -> None:
    if not np.isfinite(values).all():
        raise ValueError("the model has a NaN or an infinity")
