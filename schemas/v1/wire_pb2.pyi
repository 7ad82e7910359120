from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VectorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VECTOR_TYPE_UNSPECIFIED: _ClassVar[VectorType]
    VECTOR_TYPE_INT8: _ClassVar[VectorType]
    VECTOR_TYPE_INT16: _ClassVar[VectorType]
    VECTOR_TYPE_INT32: _ClassVar[VectorType]
    VECTOR_TYPE_INT64: _ClassVar[VectorType]
    VECTOR_TYPE_FLOAT32: _ClassVar[VectorType]
    VECTOR_TYPE_FLOAT64: _ClassVar[VectorType]

class LedgerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEDGER_KIND_UNSPECIFIED: _ClassVar[LedgerKind]
    LEDGER_KIND_GENESIS: _ClassVar[LedgerKind]
    LEDGER_KIND_RELEASE: _ClassVar[LedgerKind]
    LEDGER_KIND_EXHAUSTED: _ClassVar[LedgerKind]
    LEDGER_KIND_THROTTLED: _ClassVar[LedgerKind]

class ParticipationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTICIPATION_KIND_UNSPECIFIED: _ClassVar[ParticipationKind]
    PARTICIPATION_KIND_DELTA: _ClassVar[ParticipationKind]
    PARTICIPATION_KIND_SNAPSHOT: _ClassVar[ParticipationKind]
VECTOR_TYPE_UNSPECIFIED: VectorType
VECTOR_TYPE_INT8: VectorType
VECTOR_TYPE_INT16: VectorType
VECTOR_TYPE_INT32: VectorType
VECTOR_TYPE_INT64: VectorType
VECTOR_TYPE_FLOAT32: VectorType
VECTOR_TYPE_FLOAT64: VectorType
LEDGER_KIND_UNSPECIFIED: LedgerKind
LEDGER_KIND_GENESIS: LedgerKind
LEDGER_KIND_RELEASE: LedgerKind
LEDGER_KIND_EXHAUSTED: LedgerKind
LEDGER_KIND_THROTTLED: LedgerKind
PARTICIPATION_KIND_UNSPECIFIED: ParticipationKind
PARTICIPATION_KIND_DELTA: ParticipationKind
PARTICIPATION_KIND_SNAPSHOT: ParticipationKind

class Update(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class UpdateBatch(_message.Message):
    __slots__ = ("version", "updates")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    version: int
    updates: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, version: _Optional[int] = ..., updates: _Optional[_Iterable[bytes]] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "client_id", "model_version", "clip_norm", "is_below_clip")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    IS_BELOW_CLIP_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    vector_type: VectorType
    dimension: int
    client_id: str
    model_version: int
    clip_norm: float
    is_below_clip: bool
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., client_id: _Optional[str] = ..., model_version: _Optional[int] = ..., clip_norm: _Optional[float] = ..., is_below_clip: _Optional[bool] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ReleaseHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ReleaseHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ReleaseHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "cluster", "window", "sequence", "charge_units", "spent_units", "cap_units", "noise_variance_numerator", "noise_variance_denominator", "l2_sensitivity_squared", "clip_norm", "next_clip_norm", "next_clip_window")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHARGE_UNITS_FIELD_NUMBER: _ClassVar[int]
    SPENT_UNITS_FIELD_NUMBER: _ClassVar[int]
    CAP_UNITS_FIELD_NUMBER: _ClassVar[int]
    NOISE_VARIANCE_NUMERATOR_FIELD_NUMBER: _ClassVar[int]
    NOISE_VARIANCE_DENOMINATOR_FIELD_NUMBER: _ClassVar[int]
    L2_SENSITIVITY_SQUARED_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    NEXT_CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    NEXT_CLIP_WINDOW_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    vector_type: VectorType
    dimension: int
    cluster: int
    window: int
    sequence: int
    charge_units: bytes
    spent_units: bytes
    cap_units: bytes
    noise_variance_numerator: bytes
    noise_variance_denominator: bytes
    l2_sensitivity_squared: int
    clip_norm: float
    next_clip_norm: float
    next_clip_window: int
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., cluster: _Optional[int] = ..., window: _Optional[int] = ..., sequence: _Optional[int] = ..., charge_units: _Optional[bytes] = ..., spent_units: _Optional[bytes] = ..., cap_units: _Optional[bytes] = ..., noise_variance_numerator: _Optional[bytes] = ..., noise_variance_denominator: _Optional[bytes] = ..., l2_sensitivity_squared: _Optional[int] = ..., clip_norm: _Optional[float] = ..., next_clip_norm: _Optional[float] = ..., next_clip_window: _Optional[int] = ...) -> None: ...

class LedgerRecord(_message.Message):
    __slots__ = ("version", "plan_id", "cluster", "sequence", "kind", "window", "next_offset", "charge_units", "spent_units", "cap_units", "noise_variance_numerator", "noise_variance_denominator", "l2_sensitivity_squared", "release_digest", "previous_hash", "sealed_at_ms", "next_units", "participation_digest", "clip")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHARGE_UNITS_FIELD_NUMBER: _ClassVar[int]
    SPENT_UNITS_FIELD_NUMBER: _ClassVar[int]
    CAP_UNITS_FIELD_NUMBER: _ClassVar[int]
    NOISE_VARIANCE_NUMERATOR_FIELD_NUMBER: _ClassVar[int]
    NOISE_VARIANCE_DENOMINATOR_FIELD_NUMBER: _ClassVar[int]
    L2_SENSITIVITY_SQUARED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    SEALED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_UNITS_FIELD_NUMBER: _ClassVar[int]
    PARTICIPATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    cluster: int
    sequence: int
    kind: LedgerKind
    window: int
    next_offset: int
    charge_units: bytes
    spent_units: bytes
    cap_units: bytes
    noise_variance_numerator: bytes
    noise_variance_denominator: bytes
    l2_sensitivity_squared: int
    release_digest: bytes
    previous_hash: bytes
    sealed_at_ms: int
    next_units: bytes
    participation_digest: bytes
    clip: ClipState
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., cluster: _Optional[int] = ..., sequence: _Optional[int] = ..., kind: _Optional[_Union[LedgerKind, str]] = ..., window: _Optional[int] = ..., next_offset: _Optional[int] = ..., charge_units: _Optional[bytes] = ..., spent_units: _Optional[bytes] = ..., cap_units: _Optional[bytes] = ..., noise_variance_numerator: _Optional[bytes] = ..., noise_variance_denominator: _Optional[bytes] = ..., l2_sensitivity_squared: _Optional[int] = ..., release_digest: _Optional[bytes] = ..., previous_hash: _Optional[bytes] = ..., sealed_at_ms: _Optional[int] = ..., next_units: _Optional[bytes] = ..., participation_digest: _Optional[bytes] = ..., clip: _Optional[_Union[ClipState, _Mapping]] = ...) -> None: ...

class ClipState(_message.Message):
    __slots__ = ("norm", "next_norm", "bit_total", "count_total")
    NORM_FIELD_NUMBER: _ClassVar[int]
    NEXT_NORM_FIELD_NUMBER: _ClassVar[int]
    BIT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COUNT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    norm: float
    next_norm: float
    bit_total: int
    count_total: int
    def __init__(self, norm: _Optional[float] = ..., next_norm: _Optional[float] = ..., bit_total: _Optional[int] = ..., count_total: _Optional[int] = ...) -> None: ...

class ModelSnapshot(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ModelSnapshotHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ModelSnapshotHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ModelSnapshotHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "model_version", "window", "published_at_ms", "clip_norms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORMS_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    vector_type: VectorType
    dimension: int
    model_version: int
    window: int
    published_at_ms: int
    clip_norms: _containers.RepeatedCompositeFieldContainer[ClipNorm]
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., model_version: _Optional[int] = ..., window: _Optional[int] = ..., published_at_ms: _Optional[int] = ..., clip_norms: _Optional[_Iterable[_Union[ClipNorm, _Mapping]]] = ...) -> None: ...

class ClipNorm(_message.Message):
    __slots__ = ("cluster", "from_window", "norm")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FROM_WINDOW_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    cluster: int
    from_window: int
    norm: float
    def __init__(self, cluster: _Optional[int] = ..., from_window: _Optional[int] = ..., norm: _Optional[float] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ModelStateHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ModelStateHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ModelStateHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "rows", "model_version", "window", "next_offset", "merged_through", "optimizer", "step", "clip_norms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MERGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORMS_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    vector_type: VectorType
    dimension: int
    rows: int
    model_version: int
    window: int
    next_offset: int
    merged_through: _containers.RepeatedScalarFieldContainer[int]
    optimizer: str
    step: int
    clip_norms: _containers.RepeatedCompositeFieldContainer[ClipNorm]
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., rows: _Optional[int] = ..., model_version: _Optional[int] = ..., window: _Optional[int] = ..., next_offset: _Optional[int] = ..., merged_through: _Optional[_Iterable[int]] = ..., optimizer: _Optional[str] = ..., step: _Optional[int] = ..., clip_norms: _Optional[_Iterable[_Union[ClipNorm, _Mapping]]] = ...) -> None: ...

class RejectRecord(_message.Message):
    __slots__ = ("version", "plan_id", "cluster", "reason", "client_id", "window", "partition", "offset", "detail")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    cluster: int
    reason: str
    client_id: str
    window: int
    partition: int
    offset: int
    detail: str
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., cluster: _Optional[int] = ..., reason: _Optional[str] = ..., client_id: _Optional[str] = ..., window: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Participation(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ParticipationHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ParticipationHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ParticipationHeader(_message.Message):
    __slots__ = ("version", "plan_id", "cluster", "sequence", "window", "kind", "charge_units", "part", "parts", "client_count")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHARGE_UNITS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    cluster: int
    sequence: int
    window: int
    kind: ParticipationKind
    charge_units: bytes
    part: int
    parts: int
    client_count: int
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., cluster: _Optional[int] = ..., sequence: _Optional[int] = ..., window: _Optional[int] = ..., kind: _Optional[_Union[ParticipationKind, str]] = ..., charge_units: _Optional[bytes] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., client_count: _Optional[int] = ...) -> None: ...
