"""Topics that are deleted, made again or cut off are noticed, and told with the remedy."""

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException

from agents import topic_watch
from agents.topic_ids import TopicsSeen
from agents.topic_watch import TopicWatch


class Looks:
    """Topics that are seen as they are told, one look after the other; then the last for ever."""

    names = ("a", "b")

    def __init__(self, *seen):
        self._seen = list(seen)

    def look(self):
        seen = self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]
        if seen is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return seen

    @property
    def are_over(self):
        return len(self._seen) == 1


BOTH = TopicsSeen({"a": "1", "b": "2"}, (0, 0))
WITHOUT_B = TopicsSeen({"a": "1"})
NEW_B = TopicsSeen({"a": "1", "b": "3"}, (0, 0))
CUT_OFF = TopicsSeen({"a": "1", "b": "2"}, (0, 5))


def watched(monkeypatch, *seen):
    """Watch until all that is to be seen was, and a little longer; return what was told."""
    monkeypatch.setattr(topic_watch, "_EVERY_S", 0.001)
    monkeypatch.setattr(topic_watch, "_AGAIN_S", 0.001)
    changes = []

    async def main():
        looks = Looks(*seen)
        watch = TopicWatch(looks, lambda: changes.append(watch.gone))
        await watch.start()
        async with asyncio.timeout(20):
            while not looks.are_over:  # noqa: ASYNC110 - the looks are in a thread
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
        await watch.stop()
        return changes

    return asyncio.run(main())


def test_topics_that_stay_what_they_are_are_no_news(monkeypatch, caplog):
    assert watched(monkeypatch, BOTH, BOTH, None, BOTH) == []
    assert "anew" not in caplog.text


@pytest.mark.parametrize(
    ("after", "gone", "words"),
    [
        (WITHOUT_B, ("b",), "deleted: b. Stop all workers"),
        (NEW_B, (), "deleted and made again: b: everything is opened anew"),
        (CUT_OFF, (), "the oldest records of the ledger were deleted: everything is opened anew"),
    ],
)
def test_each_change_is_told_once(monkeypatch, caplog, after, gone, words):
    assert watched(monkeypatch, BOTH, BOTH, after) == [gone]
    assert caplog.text.count(words) == 1


def test_a_topic_that_comes_back_is_a_change_too(monkeypatch):
    assert watched(monkeypatch, BOTH, WITHOUT_B, WITHOUT_B, NEW_B) == [("b",), ()]


def test_what_a_broker_says_once_is_not_believed(monkeypatch):
    assert watched(monkeypatch, BOTH, WITHOUT_B, BOTH, NEW_B, None, BOTH, BOTH) == []


def test_a_broker_that_is_away_at_first_is_asked_until_it_answers(monkeypatch):
    assert watched(monkeypatch, None, None, BOTH, BOTH, NEW_B) == [()]
