"""A batch is what a protobuf writer makes of it, and nothing else is a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import (
    BATCH_OVERHEAD_BYTES,
    MalformedMessageError,
    Update,
    decode_update_batch,
    encode_update,
    encode_update_batch,
    equal_updates,
)
from schemas.v1 import wire_pb2

UPDATES = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5)


@given(updates=UPDATES)
def test_a_batch_is_read_as_it_was_written_and_as_protobuf_writes_it(updates):
    data = encode_update_batch(updates)
    assert decode_update_batch(data) == updates
    assert data == wire_pb2.UpdateBatch(version=1, updates=updates).SerializeToString()
    assert len(data) <= sum(map(len, updates)) + BATCH_OVERHEAD_BYTES * len(updates)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_malformed_or_the_one_encoding_of_their_updates(data):
    try:
        updates = decode_update_batch(data)
    except MalformedMessageError:
        return
    assert (updates == [data]) if data[:1] != b"\x08" else encode_update_batch(updates) == data


def test_an_update_by_itself_is_one_update_and_is_not_copied():
    data = encode_update(Update(bytes(16), "a", 0, np.ones(3, np.int8)))
    (update,) = decode_update_batch(data)
    assert update is data


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x08\x01",
        b"\x08\x02\x12\x01a",
        b"\x08\x01\x12",
        b"\x08\x01\x12\x00",
        b"\x08\x01\x12\x02a",
        b"\x08\x01\x12\x81\x00a",
        b"\x08\x01\x12\x01a\x1a\x01b",
        b"\x08\x01\x12\x01a\x12",
        b"\x08\x01\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7fa",
    ],
)
def test_what_only_begins_like_a_batch_is_malformed(data):
    with pytest.raises(MalformedMessageError):
        decode_update_batch(data)


@pytest.mark.parametrize("updates", [[], [b""], [b"a", b""]])
def test_a_batch_that_could_not_be_read_is_not_written(updates):
    with pytest.raises(ValueError, match="at least one"):
        encode_update_batch(updates)


def check_equal(batches):
    """Where equal updates are found, they are those of a parser; say whether they are found."""
    found = equal_updates(batches)
    if found is None:
        return False
    parsed = [decode_update_batch(batch) for batch in batches]
    assert found.counts == [len(updates) for updates in parsed]
    assert found.length <= found.rows.shape[1]
    skip = found.rows.shape[1] - found.length
    assert [row.tobytes() for row in found.rows[:, skip:]] == [u for each in parsed for u in each]
    return True


@given(
    length=st.sampled_from([1, 2, 127, 128, 300]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    data=st.data(),
)
def test_batches_of_one_length_are_rows_without_being_cut(length, counts, data):
    updates = st.binary(min_size=length, max_size=length)
    batches = [
        encode_update_batch(data.draw(st.lists(updates, min_size=count, max_size=count)))
        for count in counts
    ]
    assert check_equal(batches)
    # One byte anywhere that is another one: what is found then is right, or nothing is.
    at = data.draw(st.integers(0, len(batches[-1]) - 1))
    changed = bytearray(batches[-1])
    changed[at] ^= data.draw(st.integers(1, 255))
    check_equal([*batches[:-1], bytes(changed)])
    check_equal([bytes(changed), *batches[:-1]])


@given(batches=st.lists(UPDATES.map(encode_update_batch), min_size=1, max_size=5))
def test_batches_of_any_lengths_are_rows_only_where_all_are_equal(batches):
    lengths = {len(update) for batch in batches for update in decode_update_batch(batch)}
    assert check_equal(batches) == (len(lengths) == 1)


@pytest.mark.parametrize(
    "other", [b"", b"\x08", b"\x08\x01", b"\x08\x01\x12\x00", b"\x0a\x01a", b"x"]
)
def test_what_is_no_batch_has_no_rows(other):
    batch = encode_update_batch([b"a"])
    assert equal_updates([other]) is None
    assert equal_updates([batch, other]) is None
