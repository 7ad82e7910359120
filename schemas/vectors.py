"""The vector of a message: which dtypes it may have, and how it is taken without a copy."""

from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .framing import split_vector
from .limits import MAX_DIMENSION
from .messages import MalformedMessageError, VectorType
from .v1 import wire_pb2

ScalarT = TypeVar("ScalarT", bound=np.generic)

_WIRE_TYPES: Final = {
    VectorType.INT8: wire_pb2.VECTOR_TYPE_INT8,
    VectorType.INT16: wire_pb2.VECTOR_TYPE_INT16,
    VectorType.INT32: wire_pb2.VECTOR_TYPE_INT32,
    VectorType.INT64: wire_pb2.VECTOR_TYPE_INT64,
    VectorType.FLOAT32: wire_pb2.VECTOR_TYPE_FLOAT32,
    VectorType.FLOAT64: wire_pb2.VECTOR_TYPE_FLOAT64,
}


class VectorHeader(Protocol):
    """What every header of a message with a vector says about it."""

    vector_type: wire_pb2.VectorType
    dimension: int


class VectorFormat(Generic[ScalarT]):
    """The dtypes that the vectors of one kind of message may have."""

    def __init__(self, dtypes: Mapping[VectorType, np.dtype[ScalarT]]) -> None:
        # Plain ints as keys: a parsed header holds the number, legal or not.
        self._dtype_by_number = {int(key): dtype for key, dtype in dtypes.items()}
        self._wire_type_by_dtype = {dtype: _WIRE_TYPES[key] for key, dtype in dtypes.items()}

    def wire_type(self, vector: NDArray[ScalarT], axes: int = 1) -> wire_pb2.VectorType:
        """Return how ``vector`` is written.

        Raises:
            ValueError: another dtype, another number of axes, or too few or many coordinates.
        """
        wire_type = self._wire_type_by_dtype.get(vector.dtype)
        if wire_type is None:
            raise ValueError(f"a vector of dtype {vector.dtype} does not belong in this message")
        if vector.ndim != axes or not 1 <= vector.shape[-1] <= MAX_DIMENSION:
            raise ValueError(f"a vector of shape {vector.shape} does not belong in this message")
        return wire_type

    def take(
        self, view: memoryview, position: int, header: VectorHeader, rows: int = 1
    ) -> NDArray[ScalarT]:
        """Take the vector that starts, with its tag, at ``position``, and ends the message.

        Returns:
            Shape ``(rows * dimension,)``, a read-only view of ``view``.

        Raises:
            MalformedMessageError: the type, the dimension or the length is not right.
        """
        dtype = self._dtype_by_number.get(header.vector_type)
        if dtype is None:
            raise MalformedMessageError("the vector_type does not belong in this message")
        dimension = header.dimension
        if not 1 <= dimension <= MAX_DIMENSION:
            raise MalformedMessageError("the dimension is out of range")
        start = split_vector(view, position, rows * dimension * dtype.itemsize)
        return np.frombuffer(view, dtype, -1, start)


UPDATE_VECTOR: Final = VectorFormat[np.int8 | np.int16](
    {VectorType.INT8: np.dtype("<i1"), VectorType.INT16: np.dtype("<i2")}
)
RELEASE_VECTOR: Final = VectorFormat[np.int32 | np.int64](
    {VectorType.INT32: np.dtype("<i4"), VectorType.INT64: np.dtype("<i8")}
)
SNAPSHOT_VECTOR: Final = VectorFormat[np.float32]({VectorType.FLOAT32: np.dtype("<f4")})
STATE_VECTOR: Final = VectorFormat[np.float64]({VectorType.FLOAT64: np.dtype("<f8")})
