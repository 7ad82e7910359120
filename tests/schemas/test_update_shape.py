"""What is taken apart by its shape is what a parser makes of it; all else is left to that."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import MalformedMessageError, Update, UpdateShape, decode_update, encode_update

PLAN_ID = bytes(range(16))
INT8, INT16 = np.dtype(np.int8), np.dtype("<i2")


def update(client_id="a", size=3, dtype=np.int8, **changes) -> Update:
    return replace(Update(PLAN_ID, client_id, 0, np.arange(size, dtype=dtype)), **changes)


IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(
    client_id=IDS,
    model_version=st.integers(0, 2**64 - 1),
    clip_norm=st.sampled_from([0.0, 1.5]),
    is_below=st.booleans(),
    size=st.sampled_from([1, 3, 127, 128, 1000]),
    dtype=st.sampled_from([INT8, INT16]),
)
def test_a_sound_update_is_taken_apart_as_a_parser_does(
    client_id, model_version, clip_norm, is_below, size, dtype
):
    written = update(
        client_id,
        size,
        dtype,
        model_version=model_version,
        clip_norm=clip_norm,
        is_below_clip=is_below and clip_norm > 0,
    )
    data = encode_update(written)
    client, rest, start = UpdateShape(PLAN_ID, dtype, size).split(data)
    assert client == client_id.encode()
    assert data[start:] == written.vector.tobytes()
    # The rest is the same for another client, and only for the same fields.
    other = encode_update(replace(written, client_id="someone else"))
    assert UpdateShape(PLAN_ID, dtype, size).split(other)[1] == rest
    later = encode_update(replace(written, model_version=model_version ^ 1))
    assert UpdateShape(PLAN_ID, dtype, size).split(later)[1] != rest


@pytest.mark.parametrize(
    "other",
    [
        encode_update(update(plan_id=bytes(16))),
        encode_update(update(size=4)),
        encode_update(update(dtype=np.int16)),
        encode_update(update(client_id="x" * 128)),
        encode_update(update())[:-1],
        encode_update(update()) + b"\0",
        b"",
        b"\x0a",
    ],
)
def test_another_shape_is_left_to_the_parser(other):
    assert UpdateShape(PLAN_ID, INT8, 3).split(other) is None


def test_the_longest_header_of_one_byte_is_still_known():
    shape = UpdateShape(PLAN_ID, INT8, 3)
    is_known = [
        shape.split(encode_update(update(client_id="x" * n))) is not None for n in range(1, 129)
    ]
    assert is_known[:80] == [True] * 80
    assert is_known == sorted(is_known, reverse=True)
    assert not is_known[-1]


@given(data=st.data())
def test_what_differs_anywhere_is_not_taken_for_the_same(data):
    """Any change of bytes: either another shape, or other parts, or a parser takes it too."""
    shape = UpdateShape(PLAN_ID, INT8, 5)
    good = encode_update(update("client", 5, model_version=300))
    known = shape.split(good)
    at = data.draw(st.integers(0, len(good) - 1))
    value = data.draw(st.integers(0, 255))
    changed = good[:at] + bytes([value]) + good[at + 1 :]
    parts = shape.split(changed)
    if parts is None or parts.rest != known.rest:
        return
    try:
        client = parts.client.decode()
    except UnicodeDecodeError:
        with pytest.raises(MalformedMessageError):
            decode_update(changed)
        return
    parsed = decode_update(changed)
    assert (parsed.client_id, parsed.plan_id, parsed.model_version) == (client, PLAN_ID, 300)
    assert parsed.vector.tobytes() == changed[parts.start :]
