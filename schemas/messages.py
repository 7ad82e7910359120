"""The messages of the wire contract, as values.

A message is plain data: it is checked when it is encoded and when it is decoded, not when it
is built. Those that hold an array compare by identity; compare their encoded bytes instead.
"""

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

WIRE_VERSION: Final = 1
"""The version that this program writes, and the newest that it reads."""


class MalformedMessageError(Exception):
    """The bytes are not a message that this program would have written.

    Its text names the broken rule. It quotes nothing of unbounded length from the bytes.
    """


class VectorType(IntEnum):
    """How a vector's coordinates are written; the value is the one on the wire."""

    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT32 = 5
    FLOAT64 = 6

    @property
    def numpy(self) -> "np.dtype[np.generic]":
        """The little-endian dtype of one coordinate."""
        return np.dtype(self.name.lower()).newbyteorder("<")


class LedgerKind(IntEnum):
    """What a ledger record records; the value is the one on the wire."""

    GENESIS = 1
    RELEASE = 2
    EXHAUSTED = 3
    THROTTLED = 4


class ParticipationKind(IntEnum):
    """What a participation record says; the value is the one on the wire."""

    DELTA = 1
    SNAPSHOT = 2


@dataclass(frozen=True, slots=True)
class ClipState:
    """How far adaptive clipping of a cluster is, as released values alone decide it.

    Attributes:
        norm: Of the sealed window, in gradient units, above 0.
        next_norm: Of the next epoch; 0 as long as it is not fixed.
        bit_total: Sum of the epoch's noisy bit coordinates, signed 64 bits.
        count_total: Sum of the epoch's noisy count coordinates, signed 64 bits.
    """

    norm: float
    next_norm: float
    bit_total: int
    count_total: int


@dataclass(frozen=True, slots=True)
class ClipNorm:
    """From which window on a cluster's clients clip to which norm.

    Attributes:
        cluster: The cluster.
        from_window: The first window of the norm, from 0.
        norm: In gradient units, above 0.
    """

    cluster: int
    from_window: int
    norm: float


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One client's clipped and quantized gradient. Private.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        client_id: Who sent it, 1 to 128 bytes of UTF-8.
        model_version: The model that the gradient was taken at, below 2**64.
        vector: Shape ``(n,)``, in grid steps; n is the gradient's d, or the next power of two
            where it is rotated. After decoding: read-only, the message's own memory, and perhaps
            unaligned. The most negative value of the dtype is legal here.
        clip_norm: What the vector was scaled with; 0 where clipping is not adaptive.
        is_below_clip: Whether the gradient's norm was at most ``clip_norm``.
    """

    plan_id: bytes
    client_id: str
    model_version: int
    vector: NDArray[np.int8 | np.int16]
    clip_norm: float = 0.0
    is_below_clip: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """The noisy sum of one cell. Public.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        cluster: The cluster, which is also the partition of its updates.
        window: The window, from 0.
        sequence: The number of the ledger record that paid for this release.
        charge_units: What it cost, in 2**-60 zCDP, at least 1.
        spent_units: What the cluster has spent, this charge included.
        cap_units: What the cluster may spend.
        noise_variance: Per coordinate, in squared grid steps, above 0.
        l2_sensitivity_squared: In squared grid steps, at least 1.
        vector: Shape ``(n + 1,)``: the sum of updates of shape ``(n,)``, in grid steps, then the
            count coordinate; ``(n + 2,)`` where clipping is adaptive, with the bit coordinate last.
        clip_norm: Of this window, in gradient units; 0 where clipping is not adaptive.
        next_clip_norm: Of the next epoch; 0 as long as it is not fixed.
        next_clip_window: The first window of ``next_clip_norm``; 0 without one.
    """

    plan_id: bytes
    cluster: int
    window: int
    sequence: int
    charge_units: int
    spent_units: int
    cap_units: int
    noise_variance: Fraction
    l2_sensitivity_squared: int
    vector: NDArray[np.int32 | np.int64]
    clip_norm: float = 0.0
    next_clip_norm: float = 0.0
    next_clip_window: int = 0


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One link of a cluster's chain of charges. Private.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        cluster: The cluster whose chain this is.
        sequence: The link's number.
        kind: Why the record was written.
        window: The newest sealed window, -1 before the first.
        next_offset: Where in the cluster's updates a restarted head resumes.
        charge_units: The charge that is recorded, in 2**-60 zCDP.
        spent_units: What the cluster has spent, this charge included.
        cap_units: What the cluster may spend.
        noise_variance: The release's; 0 for any other kind.
        l2_sensitivity_squared: In squared grid steps; at least 1 for a release.
        release_digest: SHA-256 of the release's bytes; empty for any other kind.
        previous_hash: SHA-256 of the previous record's bytes; 32 zero bytes for GENESIS, and
            for no other kind.
        sealed_at_ms: The head's clock, epoch milliseconds.
        next_units: The charge planned for the next record's window; 0 for nothing more.
        participation_digest: SHA-256 over that of the record before and over what the window
            wrote to the topic of participation, which a snapshot begins anew (`wire.proto` says
            how); only with RELEASE or THROTTLED, and empty where clients have no budgets.
        clip: The state of adaptive clipping; None where it is not adaptive.
    """

    plan_id: bytes
    cluster: int
    sequence: int
    kind: LedgerKind
    window: int
    next_offset: int
    charge_units: int
    spent_units: int
    cap_units: int
    noise_variance: Fraction
    l2_sensitivity_squared: int
    release_digest: bytes
    previous_hash: bytes
    sealed_at_ms: int
    next_units: int = 0
    participation_digest: bytes = b""
    clip: ClipState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelSnapshot:
    """The model's weights, for clients. Public.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        model_version: Counts the optimizer's steps, from 0.
        window: The newest window that is over for the model, -1 at version 0.
        published_at_ms: The global agent's clock, epoch milliseconds.
        vector: Shape ``(d,)``, finite.
        clip_norms: Ascending by cluster, then by window; empty where clipping is not adaptive.
    """

    plan_id: bytes
    model_version: int
    window: int
    published_at_ms: int
    vector: NDArray[np.float32]
    clip_norms: tuple[ClipNorm, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """All that the global agent needs to go on after a restart. Public.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        model_version: The version of the newest snapshot.
        window: The newest window that is over for the model, merged or not; -1 for none.
        next_offset: Where in the releases a restarted agent resumes.
        merged_through: By cluster, the newest window merged, -1 for none. At least one.
        optimizer: The optimizer's name, 1 to 64 bytes of UTF-8.
        step: The optimizer's step.
        vectors: Shape ``(1 + slots, d)``: the weights, then the optimizer's slots, of which
            there are at most ``MAX_STATE_ROWS - 1``. Finite.
        clip_norms: As in a snapshot.
    """

    plan_id: bytes
    model_version: int
    window: int
    next_offset: int
    merged_through: tuple[int, ...]
    optimizer: str
    step: int
    vectors: NDArray[np.float64]
    clip_norms: tuple[ClipNorm, ...] = ()


@dataclass(frozen=True, slots=True)
class RejectRecord:
    """Why an update was not counted; never what was in it. Private.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        cluster: The cluster that rejected it.
        reason: From the closed set of reasons, 1 to 64 bytes of UTF-8.
        client_id: Who sent it, at most 128 bytes of UTF-8; empty when it could not be read.
        window: Where its timestamp falls; negative before the plan's start.
        partition: Where the update lies in the updates topic.
        offset: Where the update lies in its partition.
        detail: One sentence, at most 1024 bytes of UTF-8.
    """

    plan_id: bytes
    cluster: int
    reason: str
    client_id: str
    window: int
    partition: int
    offset: int
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Participation:
    """Who has spent what, where each client has a budget of its own. Private.

    A DELTA says who took part in one window: each of ``clients`` pays ``charge_units``. The
    SNAPSHOT of a window says what everybody has spent, that window included, in several parts.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        cluster: The cluster.
        sequence: The number of the ledger record that sealed the window.
        window: The window, from 0; a SNAPSHOT before the first has -1.
        kind: DELTA or SNAPSHOT.
        charge_units: What each client pays, in 2**-60 zCDP; 0 in a SNAPSHOT.
        part: The number of this part, from 0.
        parts: How many there are; 1 for a DELTA.
        clients: Shape ``(n,)``, strictly ascending keys; may be empty. At most
            ``MAX_DELTA_CLIENTS`` or ``MAX_SNAPSHOT_CLIENTS``.
        spent: Shape ``(n,)``, in 2**-60 zCDP; None in a DELTA.
    """

    plan_id: bytes
    cluster: int
    sequence: int
    window: int
    kind: ParticipationKind
    charge_units: int
    part: int
    parts: int
    clients: NDArray[np.uint64]
    spent: NDArray[np.uint64] | None
