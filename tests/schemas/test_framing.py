"""Varints, big integers, fractions: one encoding each."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import MalformedMessageError, framing
from schemas.v1 import wire_pb2


@given(st.integers(0, 2**64 - 1))
def test_a_varint_comes_back_with_the_position_after_it(value):
    data = framing.write_varint(value)
    assert framing.read_varint(b"x" + data + b"y", 1) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("value", "wire"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**31, "8080808008")]
)
def test_a_varint_is_the_one_of_protobuf(value, wire):
    assert framing.write_varint(value).hex() == wire


@pytest.mark.parametrize("wire", ["", "80", "8000", "ff00", "ff" * 9, "ff" * 10 + "01"])
def test_a_varint_that_is_cut_off_or_padded_or_endless_is_malformed(wire):
    with pytest.raises(MalformedMessageError, match="varint"):
        framing.read_varint(memoryview(bytes.fromhex(wire)), 0)


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param("", id="nothing"),
        pytest.param("12", id="another tag"),
        pytest.param("0a", id="no length"),
        pytest.param("0a05080112", id="a length beyond the end"),
        pytest.param("0affffffff7f", id="a length of 32 GiB"),
        pytest.param("0a81800408" + "00" * 65537, id="a header of more than 64 KiB"),
    ],
)
def test_a_header_that_is_not_there_is_malformed(wire):
    with pytest.raises(MalformedMessageError):
        framing.split_header(memoryview(bytes.fromhex(wire)))


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param("", id="nothing"),
        pytest.param("0a03010203", id="another tag"),
        pytest.param("1202010203", id="a length that is too small"),
        pytest.param("1204010203", id="a length that is too large"),
        pytest.param("12830001 0203", id="a length that is not minimal"),
        pytest.param("120301020304", id="a byte after the vector"),
        pytest.param("12030102", id="a byte missing"),
        pytest.param("12020102", id="another vector"),
    ],
)
def test_a_vector_that_is_not_what_the_header_says_is_malformed(wire):
    assert framing.split_vector(memoryview(b"\x12\x03abc"), 0, 3) == 2
    with pytest.raises(MalformedMessageError, match="not a vector of the length"):
        framing.split_vector(memoryview(bytes.fromhex(wire)), 0, 3)


def test_a_vector_may_be_written_in_pieces():
    header = wire_pb2.ParticipationHeader(version=1)
    keys = np.array([1, 2], "<u8")
    whole = framing.frame(header, np.concatenate((keys, keys)))
    assert framing.frame(header, keys, keys) == whole
    assert whole.hex() == "0a020801" + "1220" + 2 * ("01" + "00" * 7 + "02" + "00" * 7)


def test_an_empty_vector_is_absent():
    header = wire_pb2.ParticipationHeader(version=1)
    empty = np.array([], "<u8")
    assert (
        framing.frame(header, empty) == framing.frame(header, empty, empty) == b"\x0a\x02\x08\x01"
    )
    assert framing.split_vector(memoryview(b"x"), 1, 0) == 1
    for rest in (b"\x12\x00", b"\x12", b"\x00"):
        with pytest.raises(MalformedMessageError, match="not a vector of the length"):
            framing.split_vector(memoryview(b"x" + rest), 1, 0)


@given(st.integers(0, 2**256 - 1))
def test_a_big_integer_comes_back(value):
    assert framing.read_big_integer(framing.write_big_integer(value)) == value


@given(st.binary(max_size=34))
def test_any_bytes_are_a_canonical_big_integer_or_malformed(data):
    try:
        value = framing.read_big_integer(data)
    except MalformedMessageError:
        assert data[:1] == b"\x00" or len(data) > 32
    else:
        assert framing.write_big_integer(value) == data


@pytest.mark.parametrize(
    ("value", "wire"), [(0, ""), (1, "01"), (255, "ff"), (256, "0100"), (2**64, "01" + "00" * 8)]
)
def test_a_big_integer_is_minimal_and_big_endian(value, wire):
    assert framing.write_big_integer(value).hex() == wire


@pytest.mark.parametrize("value", [-1, 2**256])
def test_a_big_integer_out_of_range_is_not_written(value):
    with pytest.raises(ValueError, match="big integer"):
        framing.write_big_integer(value)


@pytest.mark.parametrize(("numerator", "denominator"), [(2, 4), (0, 2), (0, 0), (1, 0), (7, 0)])
def test_a_fraction_not_in_lowest_terms_is_malformed(numerator, denominator):
    with pytest.raises(MalformedMessageError, match="lowest terms"):
        framing.read_fraction(
            framing.write_big_integer(numerator), framing.write_big_integer(denominator)
        )


def test_a_fraction_in_lowest_terms_is_read():
    assert framing.read_fraction(b"\x09", b"\x04") == Fraction(9, 4)
    assert framing.read_fraction(b"", b"\x01") == 0
