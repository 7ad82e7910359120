"""What is taken of messages, and that nobody chooses a window by a time of his own."""

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

from agents.record_batch import WrongTimestampsError, plain_records


class Message:
    """As confluent-kafka's, which cannot be made without a broker."""

    def __init__(self, offset, timestamp_ms, value, kind=TIMESTAMP_LOG_APPEND_TIME):
        self._parts = offset, (kind, timestamp_ms), value

    def offset(self):
        return self._parts[0]

    def timestamp(self):
        return self._parts[1]

    def value(self):
        return self._parts[2]

    def topic(self):
        return "updates"


def test_records_are_offset_time_and_value_in_their_order():
    assert plain_records([Message(7, 1000, b"a"), Message(9, 1001, None)]) == [
        (7, 1000, b"a"),
        (9, 1001, None),
    ]
    assert plain_records([]) == []


def test_one_time_of_a_producer_among_the_broker_s_is_refused_unless_any_will_do():
    messages = [Message(7, 1000, b"a"), Message(8, 1, b"b", TIMESTAMP_CREATE_TIME)]
    with pytest.raises(WrongTimestampsError, match=r"updates does not stamp .*LogAppendTime"):
        plain_records(messages)
    assert plain_records(messages, unsafe_any_timestamps=True)[1] == (8, 1, b"b")
