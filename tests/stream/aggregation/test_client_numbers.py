"""Numbers of clients, against a dictionary."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.aggregation import client_numbers
from stream.aggregation.client_numbers import UNKNOWN, ClientNumbers, with_room

# Of few lengths and few letters, zeros among them, so that many are nearly the same.
NAMES = st.one_of(
    st.text("a\0", min_size=1, max_size=17).map(str.encode),
    st.integers(0, 300).map(lambda n: b"client-%d" % n),
    st.binary(min_size=1, max_size=128),
)


def find(numbers: ClientNumbers, name: bytes) -> int:
    (found,) = numbers.find(np.frombuffer(name, np.uint8)[np.newaxis]).tolist()
    return found


@given(batches=st.lists(st.lists(NAMES, max_size=30), max_size=20), data=st.data())
def test_it_does_what_a_dictionary_does(batches, data):
    numbers, expected = ClientNumbers(), {}
    for batch in batches:
        are_new = [name for name in batch if name not in expected]
        assert [find(numbers, name) for name in are_new] == [UNKNOWN] * len(are_new)
        for name, number in zip(batch, numbers.add(batch).tolist(), strict=True):
            assert expected.setdefault(name, number) == number
        assert sorted(expected.values()) == list(range(len(numbers)))
        assert all(find(numbers, name) == number for name, number in expected.items())
        assert all(numbers.name(number) == name for name, number in expected.items())
        if data.draw(st.integers(0, 3)) == 0:
            are_kept = np.array([data.draw(st.booleans()) for _ in expected], np.bool_)
            numbers.keep(are_kept)
            gone = [name for name, number in expected.items() if not are_kept[number]]
            moved = np.cumsum(are_kept) - 1
            expected = {
                name: int(moved[number]) for name, number in expected.items() if are_kept[number]
            }
            assert all(find(numbers, name) == UNKNOWN for name in gone)


def test_many_of_one_length_are_found_at_once():
    names = [b"%06d" % n for n in range(20_000)]
    numbers = ClientNumbers()
    given_out = numbers.add(names)
    assert np.array_equal(np.sort(given_out), np.arange(20_000))
    asked = np.frombuffer(b"".join(names[::-1]) + b"nobody", np.uint8).reshape(-1, 6)
    assert numbers.find(asked).tolist() == [*given_out[::-1].tolist(), UNKNOWN]


@pytest.mark.parametrize("size", [7, 8, 9, 128, 255])
def test_names_that_differ_in_one_byte_are_different(size):
    names = [bytes(size)] + [
        bytes(at) + bytes((1 << bit,)) + bytes(size - at - 1)
        for at in range(size)
        for bit in (0, 7)
    ]
    numbers = ClientNumbers()
    assert len(set(numbers.add(names).tolist())) == len(names)
    assert len(numbers) == len(names)


def test_all_on_one_place_are_still_found(monkeypatch):
    monkeypatch.setattr(client_numbers, "_MULTIPLIERS", np.zeros(34, np.uint64))
    names = [b"%03d" % n for n in range(300)]
    numbers = ClientNumbers()
    given_out = numbers.add(names).tolist()
    assert [find(numbers, name) for name in names] == given_out
    assert find(numbers, b"abc") == UNKNOWN
    are_kept = np.arange(300) % 3 == 0
    numbers.keep(are_kept)
    assert sum(find(numbers, name) != UNKNOWN for name in names) == 100


@pytest.mark.parametrize("multiplier", [3, 1 << 60 | 1, 0x9E37_79B9_7F4A_7C15])
def test_names_that_are_counted_up_are_spread_over_the_table(monkeypatch, multiplier):
    """For bad secrets too. A table that is as full as it gets would move one in eight."""
    monkeypatch.setattr(
        client_numbers,
        "_MULTIPLIERS",
        np.array([multiplier] * 33 + [0xD6E8_FEB8_6659_FD93] + [5], np.uint64),
    )
    numbers = ClientNumbers()
    names = np.frombuffer(b"".join(b"device-%05d" % n for n in range(20_000)), np.uint8)
    names = names.reshape(20_000, -1)
    numbers.add([name.tobytes() for name in names])
    words = client_numbers._words_of(names)
    first = numbers._table[numbers._first_places(words, names.shape[1])]
    assert np.count_nonzero(first != numbers.find(names)) < 20_000 / 6


def test_the_place_of_a_client_follows_from_the_secret_of_the_process():
    """As the hash of bytes does: another process has others."""
    expected = hash(b"client word 0") & (1 << 64) - 1 | 1
    assert int(client_numbers._secret_multipliers()[0]) == expected
    assert np.all(client_numbers._MULTIPLIERS & np.uint64(1))


def test_a_longer_array_begins_like_the_one_before():
    array = np.array([1, 2, 3], np.int32)
    assert with_room(array, 3) is array
    longer = with_room(array, 5000)
    assert longer.dtype == np.int32
    assert longer.size >= 5000
    assert longer[:3].tolist() == [1, 2, 3]
    assert not longer[3:].any()
