"""From a consumer's thread to the event loop: order, epochs, and who owns what when."""

import asyncio
import contextlib
import dataclasses
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agents.feed import PartitionFeed
from agents.kafka_edge import connection
from agents.record_batch import WrongTimestampsError
from stream.aggregation.intake import Record
from stream.errors import LedgerError

pytestmark = pytest.mark.integration

_SESSION_MS = 10_000
_TIMEOUT_S = 20


@dataclasses.dataclass
class Topic:
    """A topic of two partitions, and its group."""

    config: dict[str, str]
    name: str

    def append(self, partition, values):
        producer = Producer(self.config)
        for value in values:
            producer.produce(self.name, value, partition=partition)
        assert producer.flush(30) == 0


@pytest.fixture
def make_topic(bootstrap_servers, topic_prefix):
    config = connection(bootstrap_servers, {})
    admin = AdminClient(config)

    def make(timestamps="LogAppendTime"):
        new = NewTopic(topic_prefix, 2, 1, config={"message.timestamp.type": timestamps})
        admin.create_topics([new])[topic_prefix].result()
        return Topic(config, topic_prefix)

    return make


@pytest.fixture
def topic(make_topic):
    return make_topic()


class Channel:
    """Where a feed puts its batches; as large as it is told."""

    def __init__(self, size=0):
        self._queue = asyncio.Queue(size)
        self.taken = []

    async def put(self, batch):
        await self._queue.put(batch)

    async def take_until(self, is_last):
        """Return the batches up to the first one that ``is_last`` is true of."""
        batches = []
        async with asyncio.timeout(_TIMEOUT_S):
            while not batches or not is_last(batches[-1]):
                batches.append(await self._queue.get())
        return batches

    def has_reached(self, partition, end):
        return self.take_until(lambda b: (b.partition, b.end_offset) == (partition, end))


class Owner:
    """Opens each partition where it is told to, and notes what happens in which order."""

    def __init__(self, name="owner", events=None, *, offsets=(0, 0), closing_s=0.0):
        self.name = name
        self.events = [] if events is None else events
        self.epochs = {}
        self._offsets = offsets
        self._closing_s = closing_s

    async def open_partition(self, partition, epoch, metadata):
        assert metadata is not None
        self.events.append((self.name, "opens", partition))
        self.epochs[partition] = epoch
        return self._offsets[partition]

    async def close_partition(self, partition):
        await asyncio.sleep(self._closing_s)
        self.events.append((self.name, "has closed", partition))

    async def has_opened(self, *partitions):
        await until(lambda: set(partitions) <= self.epochs.keys())


async def until(condition):
    async with asyncio.timeout(_TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - the events come from a thread
            await asyncio.sleep(0.01)


def make_feed(topic, owner, channel, **changes):
    options = {
        "config": topic.config,
        "topic": topic.name,
        "group": f"{topic.name}-group",
        "session_timeout_ms": _SESSION_MS,
        "isolation_level": "read_uncommitted",
        "batch_records": 100,
        "batch_bytes": 1 << 20,
        "owner": owner,
        "channel": channel,
    }
    return PartitionFeed(**(options | changes))


@contextlib.asynccontextmanager
async def running(feed):
    await feed.start()
    try:
        yield feed
    finally:
        await feed.stop()


def records(batches, partition=0):
    return [Record(*each) for b in batches if b.partition == partition for each in b.records]


def test_batches_hold_all_records_in_order_and_then_the_end_of_the_log(topic):
    async def main():
        channel, owner = Channel(), Owner()
        async with running(make_feed(topic, owner, channel)):
            batches = await channel.has_reached(0, 1000)
            topic.append(0, [b"later"])
            return owner, batches, await channel.has_reached(0, 1001)

    before_ms = time.time_ns() // 1_000_000
    topic.append(0, [b"%d" % number for number in range(1000)])
    owner, batches, later = asyncio.run(main())
    found = records(batches)
    assert [record.offset for record in found] == list(range(1000))
    assert [record.value for record in found] == [b"%d" % number for number in range(1000)]
    assert all(abs(record.timestamp_ms - before_ms) < 60_000 for record in found)
    assert max(len(batch.records) for batch in batches) <= 100
    assert {b.epoch for b in [*batches, *later] if b.partition == 0} == {owner.epochs[0]}
    assert [record.value for record in records(later)] == [b"later"]


def test_a_partition_is_read_from_where_its_owner_says_and_one_without_owner_not_at_all(topic):
    async def main():
        channel, owner = Channel(), Owner(offsets=(None, 7))
        async with running(make_feed(topic, owner, channel)):
            batches = await channel.has_reached(1, 10)
            topic.append(0, [b"unread"])
            topic.append(1, [b"read"])
            return batches + await channel.has_reached(1, 11)

    for partition in (0, 1):
        topic.append(partition, [b"%d" % number for number in range(10)])
    batches = asyncio.run(main())
    assert [record.offset for record in records(batches, 1)] == [7, 8, 9, 10]
    assert records(batches, 0) == []


def test_after_a_seek_batches_carry_its_epoch_and_no_older_one_follows(topic):
    async def main():
        channel, owner = Channel(), Owner()
        async with running(make_feed(topic, owner, channel)) as feed:
            await channel.has_reached(0, 500)
            # Records are in flight when the seek comes.
            topic.append(0, [b"more"] * 500)
            epoch = feed.seek(0, 123)
            assert epoch > owner.epochs[0]
            batches = await channel.take_until(lambda b: (b.epoch, b.end_offset) == (epoch, 1000))
        return epoch, [batch for batch in batches if batch.partition == 0]

    topic.append(0, [b"x"] * 500)
    epoch, batches = asyncio.run(main())
    epochs = [batch.epoch for batch in batches]
    first = epochs.index(epoch)
    assert set(epochs[first:]) == {epoch}
    found = [record.offset for record in records(batches[first:])]
    assert found == list(range(123, 1000))


def test_a_seek_may_come_before_the_first_record(topic):
    async def main():
        channel, owner = Channel(), Owner()
        async with running(make_feed(topic, owner, channel)) as feed:
            await owner.has_opened(0)
            epoch = feed.seek(0, 8)
            batches = await channel.take_until(lambda b: (b.epoch, b.end_offset) == (epoch, 10))
        return [batch for batch in batches if batch.epoch == epoch]

    topic.append(0, [b"x"] * 10)
    assert [record.offset for record in records(asyncio.run(main()))] == [8, 9]


def test_a_seek_from_before_the_partition_was_opened_is_void(topic):
    async def main():
        channel, owner = Channel(), Owner()
        feed = make_feed(topic, owner, channel)
        stale = feed.seek(0, 8)
        # As after a rebalance that was over within one call of the consumer: the partition was
        # opened anew before the thread has seen the seek.
        carry_out, feed._carry_out_commands = feed._carry_out_commands, lambda consumer: None
        async with running(feed):
            await owner.has_opened(0)
            assert stale < owner.epochs[0]
            feed._carry_out_commands = carry_out
            await channel.has_reached(0, 10)
            topic.append(0, [b"x"])
            return owner.epochs[0], await channel.has_reached(0, 11)

    topic.append(0, [b"x"] * 10)
    epoch, batches = asyncio.run(main())
    assert {batch.epoch for batch in batches if batch.partition == 0} == {epoch}
    assert [record.offset for record in records(batches)] == [10]


def test_times_that_producers_chose_stop_the_feed_with_the_remedy(make_topic):
    async def main():
        feed = make_feed(topic, Owner(), Channel())
        async with running(feed):
            await until(lambda: feed.crashed)
        return feed.crash_reason

    topic = make_topic("CreateTime")
    topic.append(0, [b"x"])
    reason = asyncio.run(main())
    assert isinstance(reason, WrongTimestampsError)
    assert "message.timestamp.type=LogAppendTime" in str(reason)
    assert topic.name in str(reason)


def test_a_partition_is_opened_by_one_only_when_the_other_has_closed_it(topic):
    events = []

    async def main():
        first = Owner("first", events, closing_s=0.2)
        second = Owner("second", events)
        async with running(make_feed(topic, second, Channel())) as feed:
            await second.has_opened(0, 1)
            async with running(make_feed(topic, first, Channel())):
                await until(lambda: first.epochs)
                await until(lambda: sum(what == "opens" for _, what, _ in events) >= 4)
            # The first has left: what it owned comes back at once, not after its session.
            left_at = time.monotonic()
            await until(lambda: sum(what == "opens" for _, what, _ in events) >= 6)
            assert time.monotonic() - left_at < _SESSION_MS / 1000 / 2
            await feed.stop()

    asyncio.run(main())
    owners = {}
    for name, what, partition in events:
        if what == "opens":
            assert partition not in owners, events
            owners[partition] = name
        else:
            assert owners.pop(partition) == name, events
    assert owners == {}
    assert {name for name, what, _ in events if what == "opens"} == {"first", "second"}


def test_an_owner_that_fails_to_open_crashes_the_service(topic):
    class Fails(Owner):
        async def open_partition(self, partition, epoch, metadata):
            raise RuntimeError("no way")

    async def main():
        feed = make_feed(topic, Fails(), Channel())
        async with running(feed):
            await until(lambda: feed.crashed)
        return feed.crash_reason

    reason = asyncio.run(main())
    assert isinstance(reason, RuntimeError)
    assert str(reason) == "no way"


def test_a_feed_whose_channel_is_full_reads_no_further_and_still_stops(topic):
    async def main():
        channel, owner = Channel(size=1), Owner()
        async with running(make_feed(topic, owner, channel)):
            await owner.has_opened(0, 1)
            await asyncio.sleep(0.3)
            stopping_at = time.monotonic()
        assert ("owner", "has closed", 0) in owner.events
        return time.monotonic() - stopping_at

    topic.append(0, [b"x"] * 1000)
    assert asyncio.run(main()) < 3


def test_a_partition_whose_next_records_are_gone_is_opened_anew_and_read_on(topic):
    class FindsOut(Owner):
        async def open_partition(self, partition, epoch, metadata):
            await super().open_partition(partition, epoch, metadata)
            return 6 if self.events.count((self.name, "opens", partition)) > 1 else 0

    async def main():
        channel, owner = Channel(), FindsOut()
        async with running(make_feed(topic, owner, channel)) as feed:
            batches = await channel.has_reached(0, 10)
            assert not feed.crashed
            return owner, batches

    topic.append(0, [b"%d" % number for number in range(10)])
    admin = AdminClient(topic.config)
    where = TopicPartition(topic.name, 0, 6)
    admin.delete_records([where])[where].result(30)
    owner, batches = asyncio.run(main())
    assert [record.offset for record in records(batches)] == [6, 7, 8, 9]
    assert {batch.epoch for batch in batches if batch.partition == 0} == {owner.epochs[0]}


def test_a_refusal_is_told_without_a_traceback_and_leaves_the_group(topic, caplog):
    class Refuses(Owner):
        async def open_partition(self, partition, epoch, metadata):
            raise LedgerError("the reason and the remedy")

    async def main():
        # A session that this test would not wait for.
        refusing = make_feed(topic, Refuses(), Channel(), session_timeout_ms=90_000)
        async with running(refusing):
            await until(lambda: refusing.crashed)
            owner = Owner()
            async with running(make_feed(topic, owner, Channel())):
                await owner.has_opened(0, 1)
        return refusing.crash_reason

    assert isinstance(asyncio.run(main()), LedgerError)
    (told,) = [record for record in caplog.records if "the remedy" in record.message][:1]
    assert told.message == f"{topic.name} is not read any more: the reason and the remedy"
    assert told.exc_info is None
