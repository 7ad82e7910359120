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


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One client's clipped and quantized gradient. Private.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        client_id: Who sent it, 1 to 128 bytes of UTF-8.
        model_version: The model that the gradient was taken at, below 2**64.
        vector: Shape ``(d,)``, in grid steps. After decoding: read-only, the message's own
            memory, and perhaps unaligned. The most negative value of the dtype is legal here.
    """

    plan_id: bytes
    client_id: str
    model_version: int
    vector: NDArray[np.int8 | np.int16]


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
        vector: Shape ``(d + 1,)``: the sum, in grid steps, then the count coordinate.
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


@dataclass(frozen=True, slots=True, eq=False)
class ModelSnapshot:
    """The model's weights, for clients. Public.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        model_version: Counts the optimizer's steps, from 0.
        window: The newest window merged, -1 at version 0.
        published_at_ms: The global agent's clock, epoch milliseconds.
        vector: Shape ``(d,)``, finite.
    """

    plan_id: bytes
    model_version: int
    window: int
    published_at_ms: int
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """All that the global agent needs to go on after a restart. Public.

    Attributes:
        plan_id: The plan's hash, 16 bytes.
        model_version: The version of the newest snapshot.
        window: The newest window merged, -1 for none.
        next_offset: Where in the releases a restarted agent resumes.
        merged_through: By cluster, the newest window merged, -1 for none. At least one.
        optimizer: The optimizer's name, 1 to 64 bytes of UTF-8.
        step: The optimizer's step.
        vectors: Shape ``(1 + slots, d)``: the weights, then the optimizer's slots, of which
            there are at most ``MAX_STATE_ROWS - 1``. Finite.
    """

    plan_id: bytes
    model_version: int
    window: int
    next_offset: int
    merged_through: tuple[int, ...]
    optimizer: str
    step: int
    vectors: NDArray[np.float64]


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
