"""What is taken apart by its shape is what a parser makes of it; all else is left to that."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import (
    LONGEST_HEAD,
    MalformedMessageError,
    Update,
    UpdateShape,
    decode_update,
    encode_update,
    update_shape,
)

PLAN_ID = bytes(range(16))
INT8, INT16 = np.dtype(np.int8), np.dtype("<i2")


def update(client_id="a", size=3, dtype=np.int8, **changes) -> Update:
    return replace(Update(PLAN_ID, client_id, 0, np.arange(size, dtype=dtype)), **changes)


def groups(shape, values):
    """Look at values of any length as their reader does: those of one length at once."""
    for length in {len(value): None for value in values}:
        places = [place for place, value in enumerate(values) if len(value) == length]
        heads = np.frombuffer(b"".join(values[place] for place in places), np.uint8)
        for group in shape.groups(heads.reshape(len(places), -1)[:, :LONGEST_HEAD], length):
            yield group._replace(places=[places[row] for row in group.places])


def parts_of(shape, data) -> tuple[bytes, bytes] | None:
    """The client and the rest of one message, alone; None where it has another shape."""
    found = list(groups(shape, [data]))
    if not found:
        assert shape.rest_of(data) is None
        return None
    ((places, clients, rest),) = found
    assert list(places) == [0]
    assert shape.rest_of(data) == rest
    return clients.tobytes(), rest


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
    client, rest = parts_of(UpdateShape(PLAN_ID, dtype, size), data)
    assert client == client_id.encode()
    # The rest is the same for another client, and only for the same fields.
    other = encode_update(replace(written, client_id="someone else"))
    assert parts_of(UpdateShape(PLAN_ID, dtype, size), other)[1] == rest
    later = encode_update(replace(written, model_version=model_version ^ 1))
    assert parts_of(UpdateShape(PLAN_ID, dtype, size), later)[1] != rest


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
    assert parts_of(UpdateShape(PLAN_ID, INT8, 3), other) is None


def test_the_longest_header_of_one_byte_is_still_known():
    shape = UpdateShape(PLAN_ID, INT8, 3)
    is_known = [
        parts_of(shape, encode_update(update(client_id="x" * n))) is not None for n in range(1, 129)
    ]
    assert is_known[:80] == [True] * 80
    assert is_known == sorted(is_known, reverse=True)
    assert not is_known[-1]


@given(data=st.data())
def test_what_differs_anywhere_is_not_taken_for_the_same(data):
    """Any change of bytes: either another shape, or other parts, or a parser takes it too."""
    shape = UpdateShape(PLAN_ID, INT8, 5)
    good = encode_update(update("client", 5, model_version=300))
    _, rest = parts_of(shape, good)
    at = data.draw(st.integers(0, len(good) - 1))
    value = data.draw(st.integers(0, 255))
    changed = good[:at] + bytes([value]) + good[at + 1 :]
    parts = parts_of(shape, changed)
    if parts is None or parts[1] != rest:
        return
    try:
        client = parts[0].decode()
    except UnicodeDecodeError:
        with pytest.raises(MalformedMessageError):
            decode_update(changed)
        return
    parsed = decode_update(changed)
    assert (parsed.client_id, parsed.plan_id, parsed.model_version) == (client, PLAN_ID, 300)
    assert parsed.vector.tobytes() == changed[-5:]


@given(data=st.data())
def test_many_are_taken_apart_as_each_is_alone(data):
    shape = UpdateShape(PLAN_ID, INT8, 5)
    sound = st.builds(
        lambda client, version: encode_update(update(client, 5, model_version=version)),
        st.sampled_from(["a", "b", "cc", "d" * 90]),
        st.sampled_from([0, 1, 2, 300]),
    )
    cut = st.builds(
        lambda whole, at: whole[:at] + b"\x05" + whole[at + 1 :], sound, st.integers(0, 40)
    )
    values = data.draw(st.lists(st.one_of(sound, cut, st.binary(max_size=60)), max_size=40))
    alone = {n: parts for n, value in enumerate(values) if (parts := parts_of(shape, value))}
    together = {
        place: (client, group.rest)
        for group in groups(shape, values)
        for place, client in zip(group.places, map(np.ndarray.tobytes, group.clients), strict=True)
    }
    assert together == alone


def test_what_is_bad_does_not_hide_what_is_good():
    """However many messages of one length are no updates, each in its own way."""
    shape = UpdateShape(PLAN_ID, INT8, 3)
    good = encode_update(update("client"))
    bad = [
        good[:at] + bytes([good[at] ^ change]) + good[at + 1 :]
        for at in range(20)
        for change in (1, 2, 255)
    ]
    values = [*bad, *[good] * 3, *bad]
    group = next(g for g in groups(shape, values) if b"client" in map(bytes, g.clients))
    assert {len(bad), len(bad) + 1, len(bad) + 2} <= set(group.places)


def test_updates_of_very_many_kinds_are_left_to_the_parser_beyond_the_first_ones():
    shape = UpdateShape(PLAN_ID, INT8, 3)
    values = [encode_update(update("client", model_version=128 + n)) for n in range(100)]
    found = [place for group in groups(shape, values) for place in group.places]
    assert found == list(range(update_shape._MOST_GROUPS))
