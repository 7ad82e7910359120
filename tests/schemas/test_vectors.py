"""Which vectors belong in which message."""

import numpy as np
import pytest

from schemas import MalformedMessageError, VectorType, vectors
from schemas.v1 import wire_pb2

FORMATS = {
    vectors.UPDATE_VECTOR: {VectorType.INT8, VectorType.INT16},
    vectors.RELEASE_VECTOR: {VectorType.INT32, VectorType.INT64},
    vectors.SNAPSHOT_VECTOR: {VectorType.FLOAT32},
    vectors.STATE_VECTOR: {VectorType.FLOAT64},
}


@pytest.mark.parametrize("vector_type", VectorType)
@pytest.mark.parametrize("vector_format", FORMATS, ids=lambda f: str(FORMATS[f]))
def test_a_vector_type_is_taken_by_its_own_message_only(vector_format, vector_type):
    vector = np.array([1, 2], vector_type.numpy)
    view = memoryview(b"\x12" + bytes((vector.nbytes,)) + vector.tobytes())
    header = wire_pb2.UpdateHeader(vector_type=int(vector_type), dimension=2)
    if vector_type in FORMATS[vector_format]:
        assert vector_format.wire_type(vector) == vector_type
        taken = vector_format.take(view, 0, header)
        assert taken.dtype == vector.dtype
        assert taken.tolist() == [1, 2]
        return
    with pytest.raises(ValueError, match="does not belong"):
        vector_format.wire_type(vector)
    with pytest.raises(MalformedMessageError, match="does not belong"):
        vector_format.take(view, 0, header)


def test_a_dimension_beyond_the_limit_is_not_written():
    # A broadcast vector has the size without the memory.
    huge = np.broadcast_to(np.int8(1), 2**31)
    with pytest.raises(ValueError, match="does not belong"):
        vectors.UPDATE_VECTOR.wire_type(huge)
    assert vectors.UPDATE_VECTOR.wire_type(huge[1:]) == VectorType.INT8
