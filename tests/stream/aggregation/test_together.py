"""What is known of each of some updates."""

import numpy as np

from stream.aggregation.client_numbers import ClientNumbers
from stream.aggregation.familiar import FamiliarGroup
from stream.aggregation.together import Together
from stream.aggregation.validation import Reason, Rejection


def numbers(*given: int) -> np.ndarray:
    return np.array(given, np.int32)


def test_who_is_taken_is_known_and_who_is_refused_is_not_counted():
    together = Together(4, [], [b"a", b"b", b"c", b"d"].__getitem__)
    assert together.unknown() == [0, 1, 2, 3]
    together.take([0, 2], FamiliarGroup([0, 2], numbers(7, 8), True))
    together.take([1], FamiliarGroup([1], numbers(9), False))
    assert together.unknown() == [3]
    assert together.below_clip == {0, 2}
    why = Rejection(Reason.DUPLICATE, "again")
    together.refuse(2, "two", why)
    together.refuse(3, "", why)
    assert together.clients == {0: 7, 1: 9}
    assert together.refused == {2: ("two", why), 3: ("", why)}


def test_nothing_is_unknown_once_all_are_taken():
    together = Together(1, [], [b"a"].__getitem__)
    together.take([0], FamiliarGroup([0], numbers(7), False))
    assert together.unknown() == []


def test_who_was_parsed_gets_a_number_unless_it_is_refused():
    known = ClientNumbers()
    known.add([b"old"])
    together = Together(4, [], [b"a", b"b", b"c", b"d"].__getitem__)
    together.take_parsed(3, b"new", is_below_clip=True)
    together.take_parsed(1, b"old", is_below_clip=False)
    together.take_parsed(0, b"refused", is_below_clip=False)
    together.refuse(0, "refused", Rejection(Reason.DUPLICATE, "again"))
    assert together.clients == {}
    together.number_parsed(known)
    assert {place: known.name(number) for place, number in together.clients.items()} == {
        1: b"old",
        3: b"new",
    }
    assert together.below_clip == {3}
    assert len(known) == 2
    together.number_parsed(known)
    assert len(known) == 2
