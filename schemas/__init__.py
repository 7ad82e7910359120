"""The wire contract: what crosses a process boundary, and on which topics.

Framing:
    A message with a vector is ``0A <length> <header> 12 <length> <vector>`` and nothing more,
    which is what a protobuf writer makes of ``{Header header = 1; bytes vector = 2;}``. The
    vector is raw little-endian coordinates. Ledger and reject records are flat protobuf
    messages. A participation without clients ends after its header. `v1/wire.proto` is the
    schema, readable from any language.

Guarantee:
    Decoding does O(1) work in the length of an integer vector: a header has at most 64 KiB, the
    vector is a read-only view of the bytes that were given, and no declared length is believed
    or allocated. A model's floats are read once more, because they must be finite, and so are
    the keys of a participation, because they must ascend.

Canonical form:
    A message has exactly one encoding, and decoders accept only that one. Equal bytes, equal
    message; so the ledger may name a release, and its own last record, by SHA-256.

Versioning:
    ``version`` is the first field of every header and of every flat message. A decoder refuses
    a newer version with a text that says to upgrade, before it looks at anything else. A field
    at the end of a message, absent by default, may be added within a version: an older decoder
    refuses it as not canonical. Any other change of the schema is a new version. Either way,
    readers are upgraded before writers.

Failure:
    ``decode_*`` raises MalformedMessageError and nothing else, for any bytes; ``encode_*``
    raises ValueError for a message that no decoder would accept.
"""

from .codec import (
    decode_ledger_record,
    decode_reject_record,
    decode_release,
    decode_update,
    encode_ledger_record,
    encode_reject_record,
    encode_release,
    encode_update,
    record_hash,
    release_digest,
)
from .limits import MAX_CLIENT_ID_BYTES, MAX_DELTA_CLIENTS, MAX_SNAPSHOT_CLIENTS, MAX_STATE_ROWS
from .messages import (
    WIRE_VERSION,
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
    VectorType,
)
from .model_codec import (
    decode_model_snapshot,
    decode_model_state,
    encode_model_snapshot,
    encode_model_state,
)
from .participation_codec import (
    DELTA_KEYS,
    decode_participation,
    encode_participation,
    participation_key,
)
from .topic_spec import Role, TopicNames, TopicSpec
from .topics import topic_table
from .update_batch import (
    BATCH_OVERHEAD_BYTES,
    EqualUpdates,
    decode_update_batch,
    encode_update_batch,
    equal_updates,
)
from .update_shape import LONGEST_HEAD, UpdateShape

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "DELTA_KEYS",
    "LONGEST_HEAD",
    "MAX_CLIENT_ID_BYTES",
    "MAX_DELTA_CLIENTS",
    "MAX_SNAPSHOT_CLIENTS",
    "MAX_STATE_ROWS",
    "WIRE_VERSION",
    "ClipNorm",
    "ClipState",
    "EqualUpdates",
    "LedgerKind",
    "LedgerRecord",
    "MalformedMessageError",
    "ModelSnapshot",
    "ModelState",
    "Participation",
    "ParticipationKind",
    "RejectRecord",
    "Release",
    "Role",
    "TopicNames",
    "TopicSpec",
    "Update",
    "UpdateShape",
    "VectorType",
    "decode_ledger_record",
    "decode_model_snapshot",
    "decode_model_state",
    "decode_participation",
    "decode_reject_record",
    "decode_release",
    "decode_update",
    "decode_update_batch",
    "encode_ledger_record",
    "encode_model_snapshot",
    "encode_model_state",
    "encode_participation",
    "encode_reject_record",
    "encode_release",
    "encode_update",
    "encode_update_batch",
    "equal_updates",
    "participation_key",
    "record_hash",
    "release_digest",
    "topic_table",
]
