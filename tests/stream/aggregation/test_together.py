"""What is known of each of some updates."""

from stream.aggregation.familiar import FamiliarGroup
from stream.aggregation.together import Together
from stream.aggregation.validation import Reason, Rejection


def test_who_is_taken_is_known_and_who_is_refused_is_not_counted():
    together = Together(4, [], [b"a", b"b", b"c", b"d"].__getitem__)
    assert together.unknown() == [0, 1, 2, 3]
    together.take([0, 2], FamiliarGroup([0, 2], [b"one", b"two"], True))
    together.take([1], FamiliarGroup([1], [b"three"], False))
    assert together.unknown() == [3]
    assert together.below_clip == {0, 2}
    why = Rejection(Reason.DUPLICATE, "again")
    together.refuse(2, "two", why)
    together.refuse(3, "", why)
    assert together.clients == {0: b"one", 1: b"three"}
    assert together.refused == {2: ("two", why), 3: ("", why)}


def test_nothing_is_unknown_once_all_are_taken():
    together = Together(1, [], [b"a"].__getitem__)
    together.take([0], FamiliarGroup([0], [b"one"], False))
    assert together.unknown() == []
