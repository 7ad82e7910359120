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

class Update(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "client_id", "model_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    vector_type: VectorType
    dimension: int
    client_id: str
    model_version: int
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., client_id: _Optional[str] = ..., model_version: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ReleaseHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ReleaseHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ReleaseHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "cluster", "window", "sequence", "charge_units", "spent_units", "cap_units", "noise_variance_numerator", "noise_variance_denominator", "l2_sensitivity_squared")
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
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., cluster: _Optional[int] = ..., window: _Optional[int] = ..., sequence: _Optional[int] = ..., charge_units: _Optional[bytes] = ..., spent_units: _Optional[bytes] = ..., cap_units: _Optional[bytes] = ..., noise_variance_numerator: _Optional[bytes] = ..., noise_variance_denominator: _Optional[bytes] = ..., l2_sensitivity_squared: _Optional[int] = ...) -> None: ...

class LedgerRecord(_message.Message):
    __slots__ = ("version", "plan_id", "cluster", "sequence", "kind", "window", "next_offset", "charge_units", "spent_units", "cap_units", "noise_variance_numerator", "noise_variance_denominator", "l2_sensitivity_squared", "release_digest", "previous_hash", "sealed_at_ms")
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
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., cluster: _Optional[int] = ..., sequence: _Optional[int] = ..., kind: _Optional[_Union[LedgerKind, str]] = ..., window: _Optional[int] = ..., next_offset: _Optional[int] = ..., charge_units: _Optional[bytes] = ..., spent_units: _Optional[bytes] = ..., cap_units: _Optional[bytes] = ..., noise_variance_numerator: _Optional[bytes] = ..., noise_variance_denominator: _Optional[bytes] = ..., l2_sensitivity_squared: _Optional[int] = ..., release_digest: _Optional[bytes] = ..., previous_hash: _Optional[bytes] = ..., sealed_at_ms: _Optional[int] = ...) -> None: ...

class ModelSnapshot(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ModelSnapshotHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ModelSnapshotHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ModelSnapshotHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "model_version", "window", "published_at_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    plan_id: bytes
    vector_type: VectorType
    dimension: int
    model_version: int
    window: int
    published_at_ms: int
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., model_version: _Optional[int] = ..., window: _Optional[int] = ..., published_at_ms: _Optional[int] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("header", "vector")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    header: ModelStateHeader
    vector: bytes
    def __init__(self, header: _Optional[_Union[ModelStateHeader, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class ModelStateHeader(_message.Message):
    __slots__ = ("version", "plan_id", "vector_type", "dimension", "rows", "model_version", "window", "next_offset", "merged_through", "optimizer", "step")
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
    def __init__(self, version: _Optional[int] = ..., plan_id: _Optional[bytes] = ..., vector_type: _Optional[_Union[VectorType, str]] = ..., dimension: _Optional[int] = ..., rows: _Optional[int] = ..., model_version: _Optional[int] = ..., window: _Optional[int] = ..., next_offset: _Optional[int] = ..., merged_through: _Optional[_Iterable[int]] = ..., optimizer: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

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
