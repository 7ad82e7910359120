"""What became of the updates of a batch, and which updates a message has."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas import MalformedMessageError, decode_update_batch

from .validation import Rejection


@dataclass(frozen=True, slots=True)
class RejectedUpdate:
    """One record that did not count, and why; holds nothing of the gradient."""

    offset: int
    window: int
    client_id: str
    rejection: Rejection


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch: how many updates counted, and each one that did not."""

    accepted: int = 0
    rejected: list[RejectedUpdate] = field(default_factory=list)


def updates_of(value: bytes) -> Sequence[bytes]:
    """Return each update of a message; of a malformed batch itself, to be refused as an update."""
    try:
        return decode_update_batch(value)
    except MalformedMessageError:
        return (value,)
