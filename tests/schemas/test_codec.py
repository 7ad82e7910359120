"""The bytes of version 1, pinned; and what a decoder says to bytes that are not ours."""

import hashlib
import tracemalloc
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest

import schemas
from schemas import (
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    ModelSnapshot,
    ModelState,
    RejectRecord,
    Release,
    Update,
)
from schemas.v1 import wire_pb2

PLAN_ID = bytes(range(16))

UPDATE = bytes.fromhex(
    "0a1f"  # header, 31 bytes
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1801"  # vector_type
    "2003"  # dimension
    "2a03"
    "616461"  # client_id
    "3005"  # model_version
    "1203"
    "01fe7f"  # vector
)
UPDATE16 = bytes.fromhex(
    "0a1c"  # header, 28 bytes
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1802"  # vector_type
    "2002"  # dimension
    "2a02"
    "c3a9"  # client_id
    "1204"
    "0100feff"  # vector
)
RELEASE = bytes.fromhex(
    "0a46"  # header, 70 bytes
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1803"  # vector_type
    "2003"  # dimension
    "2803"  # cluster
    "3007"  # window
    "3809"  # sequence
    "4208"
    "1000000000000000"  # charge_units
    "4a09"
    "400000000000000000"  # spent_units
    "5209"
    "800000000000000000"  # cap_units
    "5a01"
    "09"  # noise_variance_numerator
    "6201"
    "04"  # noise_variance_denominator
    "6841"  # l2_sensitivity_squared
    "120c"
    "01000000ffffffff02000000"  # vector
)
RELEASE64 = bytes.fromhex(
    "0a2c"  # header, 44 bytes
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1804"  # vector_type
    "2002"  # dimension
    "3801"  # sequence
    "4201"
    "01"  # charge_units
    "4a01"
    "01"  # spent_units
    "5201"
    "01"  # cap_units
    "5a02"
    "012c"  # noise_variance_numerator
    "6201"
    "01"  # noise_variance_denominator
    "6801"  # l2_sensitivity_squared
    "1210"
    "feffffffffffffff0200000000000000"  # vector
)
GENESIS = bytes.fromhex(
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1803"  # cluster
    "2801"  # kind
    "3001"  # window
    "5209"
    "800000000000000000"  # cap_units
    "6201"
    "01"  # noise_variance_denominator
    "6841"  # l2_sensitivity_squared
    "7a20"
    "0000000000000000000000000000000000000000000000000000000000000000"  # previous_hash
    "8001e807"  # sealed_at_ms
)
LEDGER = bytes.fromhex(
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1803"  # cluster
    "2009"  # sequence
    "2802"  # kind
    "300e"  # window
    "38ac02"  # next_offset
    "4208"
    "1000000000000000"  # charge_units
    "4a09"
    "400000000000000000"  # spent_units
    "5209"
    "800000000000000000"  # cap_units
    "5a01"
    "09"  # noise_variance_numerator
    "6201"
    "04"  # noise_variance_denominator
    "6841"  # l2_sensitivity_squared
    "7220"
    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"  # release_digest
    "7a20"
    "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"  # previous_hash
    "8001e807"  # sealed_at_ms
)
SNAPSHOT = bytes.fromhex(
    "0a1d"  # header, 29 bytes
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1805"  # vector_type
    "2002"  # dimension
    "3001"  # window
    "38e807"  # published_at_ms
    "1208"
    "0000803f000000bf"  # vector
)
STATE = bytes.fromhex(
    "0a2c"  # header, 44 bytes
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1806"  # vector_type
    "2002"  # dimension
    "2802"  # rows
    "3002"  # model_version
    "380e"  # window
    "40ac02"  # next_offset
    "4a02"
    "0e01"  # merged_through
    "5203"
    "736764"  # optimizer
    "5802"  # step
    "1220"
    "000000000000f03f000000000000e0bf00000000000000000000000000000040"  # vector
)
REJECT = bytes.fromhex(
    "0801"  # version
    "1210"
    "000102030405060708090a0b0c0d0e0f"  # plan_id
    "1803"  # cluster
    "2204"
    "6c617465"  # reason
    "2a03"
    "616461"  # client_id
    "3003"  # window
    "3803"  # partition
    "40ac02"  # offset
    "4a01"
    "78"  # detail
)

INT8_UPDATE = Update(PLAN_ID, "ada", 5, np.array([1, -2, 127], np.int8))
RELEASE_RECORD = LedgerRecord(
    plan_id=PLAN_ID,
    cluster=3,
    sequence=9,
    kind=LedgerKind.RELEASE,
    window=7,
    next_offset=300,
    charge_units=2**60,
    spent_units=2**70,
    cap_units=2**71,
    noise_variance=Fraction(9, 4),
    l2_sensitivity_squared=65,
    release_digest=bytes(range(32, 64)),
    previous_hash=bytes(range(64, 96)),
    sealed_at_ms=1000,
)
GENESIS_RECORD = replace(
    RELEASE_RECORD,
    sequence=0,
    kind=LedgerKind.GENESIS,
    window=-1,
    next_offset=0,
    charge_units=0,
    spent_units=0,
    noise_variance=Fraction(0),
    release_digest=b"",
    previous_hash=bytes(32),
)
RELEASE_OF_INT32 = Release(
    plan_id=PLAN_ID,
    cluster=3,
    window=7,
    sequence=9,
    charge_units=2**60,
    spent_units=2**70,
    cap_units=2**71,
    noise_variance=Fraction(9, 4),
    l2_sensitivity_squared=65,
    vector=np.array([1, -1, 2], np.int32),
)
RELEASE_OF_INT64 = Release(
    plan_id=PLAN_ID,
    cluster=0,
    window=0,
    sequence=1,
    charge_units=1,
    spent_units=1,
    cap_units=1,
    noise_variance=Fraction(300),
    l2_sensitivity_squared=1,
    vector=np.array([-2, 2], np.int64),
)
MODEL_STATE = ModelState(
    plan_id=PLAN_ID,
    model_version=2,
    window=7,
    next_offset=300,
    merged_through=(7, -1),
    optimizer="sgd",
    step=2,
    vectors=np.array([[1.0, -0.5], [0.0, 2.0]]),
)
REJECT_RECORD = RejectRecord(PLAN_ID, 3, "late", "ada", -2, 3, 300, "x")
KINDS = ("update", "release", "ledger_record", "model_snapshot", "model_state", "reject_record")
FRAMED = ("update", "release", "model_snapshot", "model_state")
GOLDEN = [
    ("update", INT8_UPDATE, UPDATE),
    ("update", Update(PLAN_ID, "\u00e9", 0, np.array([1, -2], np.int16)), UPDATE16),
    ("release", RELEASE_OF_INT32, RELEASE),
    ("release", RELEASE_OF_INT64, RELEASE64),
    ("ledger_record", GENESIS_RECORD, GENESIS),
    ("ledger_record", RELEASE_RECORD, LEDGER),
    (
        "model_snapshot",
        ModelSnapshot(PLAN_ID, 0, -1, 1000, np.array([1.0, -0.5], np.float32)),
        SNAPSHOT,
    ),
    ("model_state", MODEL_STATE, STATE),
    ("reject_record", REJECT_RECORD, REJECT),
]
WIRE_BY_KIND = {kind: wire for kind, _, wire in GOLDEN}


def encode(kind, message):
    return getattr(schemas, f"encode_{kind}")(message)


def decode(kind, data):
    return getattr(schemas, f"decode_{kind}")(data)


def update_bytes(header: bytes, vector: bytes) -> bytes:
    """An update of the short lengths that are given, framed by hand."""
    return b"\x0a" + bytes((len(header),)) + header + b"\x12" + bytes((len(vector),)) + vector


@pytest.mark.parametrize(("kind", "message", "wire"), GOLDEN)
def test_golden_bytes_do_not_change(kind, message, wire):
    assert encode(kind, message).hex() == wire.hex()


@pytest.mark.parametrize(("kind", "message", "wire"), GOLDEN)
def test_golden_bytes_decode_to_the_message(kind, message, wire):
    decoded = decode(kind, wire)
    for field in fields(message):
        expected, actual = getattr(message, field.name), getattr(decoded, field.name)
        if isinstance(expected, np.ndarray):
            assert actual.dtype == expected.dtype
            assert actual.tolist() == expected.tolist()
        else:
            assert type(actual) is type(expected)
            assert actual == expected


@pytest.mark.parametrize(("kind", "message", "wire"), GOLDEN)
def test_any_protobuf_reader_understands_a_message(kind, message, wire):
    parsed = getattr(wire_pb2, type(message).__name__).FromString(wire)
    assert parsed.SerializeToString(deterministic=True) == wire
    assert (parsed.header if kind in FRAMED else parsed).plan_id == PLAN_ID


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("writer", KINDS)
def test_a_message_of_another_kind_is_malformed(reader, writer):
    if reader != writer:
        with pytest.raises(MalformedMessageError):
            decode(reader, WIRE_BY_KIND[writer])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tombstone_is_malformed(kind):
    with pytest.raises(MalformedMessageError, match="the record has no value"):
        decode(kind, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_may_be_given_as_a_memoryview(kind):
    padded = b"x" + WIRE_BY_KIND[kind] + b"x"
    assert encode(kind, decode(kind, memoryview(padded)[1:-1])) == WIRE_BY_KIND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_future_version_asks_for_an_upgrade(kind):
    future = WIRE_BY_KIND[kind].replace(b"\x08\x01\x12\x10", b"\x08\x02\x12\x10", 1)
    expected = r"^wire version 2 is newer than this program understands \(1\): upgrade sdp$"
    with pytest.raises(MalformedMessageError, match=expected):
        decode(kind, future)


def test_a_future_version_may_change_everything_after_the_version():
    with pytest.raises(MalformedMessageError, match="wire version 300 is newer"):
        schemas.decode_update(b"\x0a\x05\x08\xac\x02\xff\xff" + b"anything")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["0800", "", "088100"], ids=["zero", "absent", "not minimal"])
def test_a_version_that_never_was_is_malformed(kind, start):
    past = WIRE_BY_KIND[kind].replace(b"\x08\x01\x12\x10", bytes.fromhex(start) + b"\x12\x10", 1)
    with pytest.raises(MalformedMessageError):
        decode(kind, past)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("18012003", "20031801"), id="fields out of order"),
        pytest.param(("18012003", "180118012003"), id="a field twice"),
        pytest.param(("18012003", "18018001002003"), id="an unknown field"),
        pytest.param(("18012003", "1801208300"), id="a varint that is not minimal"),
        pytest.param(("3005", "3000"), id="a default written out"),
        pytest.param(("3005", "30058a0100"), id="an unknown field at the end"),
        pytest.param(("1801", "1803"), id="a release's vector type"),
        pytest.param(("1801", "1809"), id="an unknown vector type"),
        pytest.param(("18012003", "1801"), id="dimension 0"),
        pytest.param(("2003", "20ffffffff0f"), id="a dimension beyond 2**31 - 1"),
        pytest.param(("2003", "2002"), id="a dimension below the vector's"),
        pytest.param(("2003", "2004"), id="a dimension above the vector's"),
        pytest.param(("2a03616461", ""), id="no client"),
        pytest.param(("2a03616461", "2a0161616461"), id="a client cut short"),
        pytest.param(("2a03616461", "2a03ff6461"), id="a client that is not UTF-8"),
        pytest.param(("1210", "120f"), id="a plan_id's length that lies"),
    ],
)
def test_an_update_has_one_encoding(change):
    old, new = map(bytes.fromhex, change)
    header = UPDATE[2:33]
    assert update_bytes(header, b"\x01\xfe\x7f") == UPDATE
    with pytest.raises(MalformedMessageError):
        schemas.decode_update(update_bytes(header.replace(old, new, 1), b"\x01\xfe\x7f"))


def test_an_empty_vector_is_malformed():
    with pytest.raises(MalformedMessageError):
        schemas.decode_update(update_bytes(UPDATE[2:33].replace(b"\x20\x03", b""), b""))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_model_with_a_number_that_is_not_finite_is_malformed(value):
    coordinate = np.float32(value).tobytes()
    with pytest.raises(MalformedMessageError, match="NaN"):
        schemas.decode_model_snapshot(SNAPSHOT[:-4] + coordinate)
    with pytest.raises(MalformedMessageError, match="NaN"):
        schemas.decode_model_state(STATE[:-8] + np.float64(value).tobytes())


def test_decoding_a_large_update_allocates_nothing_of_its_size():
    vector = np.ones(50_000_000, np.int8)
    data = schemas.encode_update(replace(INT8_UPDATE, vector=vector))
    schemas.decode_update(UPDATE)
    tracemalloc.start()
    decoded = schemas.decode_update(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024
    assert decoded.vector.size == vector.size
    assert np.shares_memory(decoded.vector, np.frombuffer(data, np.int8))


@pytest.mark.parametrize("kind", KINDS)
def test_refusing_large_bytes_allocates_nothing_of_their_size(kind):
    for start in (b"\x0a", b"\x0a\x84\x80\x80\x08\x08\x01", b"\x08\x01", WIRE_BY_KIND[kind]):
        data = start + bytes(2**24)
        tracemalloc.start()
        with pytest.raises(MalformedMessageError):
            decode(kind, data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 * 1024


@pytest.mark.parametrize("data", [UPDATE, bytearray(UPDATE)], ids=["bytes", "writable memory"])
def test_a_decoded_vector_is_read_only(data):
    vector = schemas.decode_update(memoryview(data)).vector
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 0


def test_the_most_negative_coordinate_is_not_the_codecs_business():
    for dtype in (np.int8, np.int16):
        vector = np.array([np.iinfo(dtype).min], dtype)
        data = schemas.encode_update(replace(INT8_UPDATE, vector=vector))
        assert schemas.decode_update(data).vector.tolist() == vector.tolist()


@pytest.mark.parametrize(
    "vector",
    [
        np.array([1, 2], np.int32),
        np.array([1, 2], ">i2"),
        np.array([1.0]),
        np.array([True]),
        np.array([], np.int8),
        np.array(1, np.int8),
        np.array([[1, 2]], np.int8),
    ],
    ids=str,
)
def test_an_update_of_another_vector_is_not_encoded(vector):
    with pytest.raises(ValueError, match="does not belong in this message"):
        schemas.encode_update(replace(INT8_UPDATE, vector=vector))


def test_a_strided_vector_is_written_in_its_order():
    strided = np.array([1, 0, -2, 0, 127, 0], np.int8)[::2]
    assert schemas.encode_update(replace(INT8_UPDATE, vector=strided)) == UPDATE
    transposed = MODEL_STATE.vectors.T.copy().T
    assert schemas.encode_model_state(replace(MODEL_STATE, vectors=transposed)) == STATE


def test_a_header_that_no_reader_takes_is_not_encoded():
    with pytest.raises(ValueError, match="more than a header may have"):
        schemas.encode_model_state(replace(MODEL_STATE, merged_through=(7,) * 70_000))


def test_the_hashes_of_the_chain_are_sha_256():
    assert schemas.release_digest(RELEASE) == hashlib.sha256(RELEASE).digest()
    assert schemas.record_hash(GENESIS) == hashlib.sha256(GENESIS).digest()
