"""Each update of a message is counted or refused, and a message that is none is refused."""

import pytest

from schemas import encode_update_batch
from stream.aggregation.outcome import BatchOutcome, updates_of


def test_a_message_is_an_update_or_each_one_of_a_batch():
    assert list(updates_of(b"one")) == [b"one"]
    assert list(updates_of(encode_update_batch([b"one", b"two"]))) == [b"one", b"two"]


@pytest.mark.parametrize("value", [b"", b"\x08", b"\x08\x01", b"\x08\x01\x12\x09a"])
def test_what_is_neither_is_one_update_to_be_refused(value):
    assert list(updates_of(value)) == [value]


def test_outcomes_do_not_share_what_they_list():
    assert BatchOutcome().rejected is not BatchOutcome().rejected
