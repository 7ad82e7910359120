"""Record batches of one topic, from a confluent-kafka consumer to a Faust channel.

Faust's own consumer makes four tasks a message and derives offsets that lose data; here one
thread owns the consumer, and the event loop sees whole batches (FAUST notes, variant D). The
group's callbacks are the gate: a partition's owner has restored it before its first record is
fetched, and has let go of it before another worker can get it.

Only the thread touches the consumer: its calls exclude each other in a way that starves whoever
else waits. Whatever else is asked of it is therefore queued, and done between two fetches.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from faust.types import ChannelT
from mode import Service

from stream.errors import StreamError

from .kafka_edge import client_log
from .record_batch import PartitionOwner, RecordBatch, plain_records

log = logging.getLogger(__name__)

_POLL_S = 0.02
_RETRY_S = 0.5
_STOP_TIMEOUT_S = 8.0
# The records that were to be read next are not ours to read.
_NOT_ALLOWED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
)
_T = TypeVar("_T")


class PartitionFeed(Service):
    """The consumer thread of one topic and group."""

    def __init__(
        self,
        *,
        config: Mapping[str, str],
        topic: str,
        group: str,
        session_timeout_ms: int,
        isolation_level: str,
        batch_records: int,
        batch_bytes: int,
        owner: PartitionOwner,
        channel: ChannelT[RecordBatch],
        unsafe_any_timestamps: bool = False,
    ) -> None:
        """Set up; nothing is connected before the service starts.

        Args:
            config: How to reach the broker.
            topic: The topic to read.
            group: The consumer group.
            session_timeout_ms: Silence after which the group gives our partitions away.
            isolation_level: ``read_committed`` or ``read_uncommitted``.
            batch_records: Most records in one batch.
            batch_bytes: About as many bytes are in one at most.
            owner: Who restores and releases partitions.
            channel: Where the batches go; its size bounds the memory.
            unsafe_any_timestamps: Take records that carry the producers' own times, which
                anybody can forge. For librdkafka's mock cluster, which has no others.
        """
        super().__init__()
        self._config = {
            **config,
            "log_level": "6",
            "group.id": group,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": max(100, session_timeout_ms // 10),
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # Eager assignment: every rebalance rebuilds the state from what is durable.
            "partition.assignment.strategy": "roundrobin",
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32 * 1024,
        }
        self._topic = topic
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._owner = owner
        self._channel = channel
        self._unsafe_any_timestamps = unsafe_any_timestamps
        self._commands: queue.SimpleQueue[Callable[[Consumer], None]] = queue.SimpleQueue()
        self._epoch_by_partition: dict[int, int] = {}
        self._position_by_partition: dict[int, int] = {}
        self._retry_at: dict[int, float] = {}
        # next() of it is atomic: both the loop and the thread number epochs.
        self._epochs = itertools.count(1)
        self._stop_thread = threading.Event()
        self._joined = threading.Event()
        self._thread: threading.Thread | None = None

    async def on_start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"feed-{self._topic}", daemon=True)
        self._thread.start()

    async def on_stop(self) -> None:
        """Leave the group, after what is running has finished."""
        self._stop_thread.set()
        thread = self._thread
        if thread is not None:
            await self.loop.run_in_executor(None, thread.join, _STOP_TIMEOUT_S)

    @property
    def has_joined(self) -> bool:
        """Whether the group has answered, be it with no partition at all."""
        return self._joined.is_set()

    def seek(self, partition: int, offset: int) -> int:
        """Ask for the partition's records from ``offset`` on; return the epoch they will carry."""
        epoch = next(self._epochs)
        self._commands.put(partial(self._seek, partition, offset, epoch))
        return epoch

    def rejoin(self) -> None:
        """Ask the group for a new assignment, so that every partition is opened anew."""
        self._commands.put(self._rejoin)

    def _run(self) -> None:
        consumer = Consumer(self._config, logger=client_log())
        try:
            self._subscribe(consumer)
            while not self._stop_thread.is_set():
                self._carry_out_commands(consumer)
                self._deliver(self._fetch(consumer))
            consumer.close()
        except concurrent.futures.CancelledError:
            log.info("the event loop is closing; the consumer stops without it")
        except StreamError as error:
            # Nothing is wrong with the group: nobody should have to wait for our session's end.
            consumer.close()
            self._in_loop_soon(self._report(error))
        except BaseException as error:  # noqa: BLE001 - a thread's error must reach the worker
            self._in_loop_soon(self._report(error))

    def _subscribe(self, consumer: Consumer) -> None:
        consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    async def _report(self, error: BaseException) -> None:
        if isinstance(error, StreamError):
            # An expected refusal: its text says all, a traceback would hide it.
            log.error("%s is not read any more: %s", self._topic, error)
        else:
            log.error("reading %s failed: %r", self._topic, error, exc_info=error)
        await self.crash(error)

    def _fetch(self, consumer: Consumer) -> list[Message]:
        first = consumer.poll(_POLL_S)
        if first is None:
            return []
        # poll() waits for one only; what else has arrived comes with it. Most are as long as the
        # first one, and the client's queue bounds what others there can be.
        fitting = self._batch_bytes // max(1, len(first.value() or b""))
        more = min(self._batch_records, fitting) - 1
        return [first, *consumer.consume(more, 0)] if more > 0 else [first]

    def _deliver(self, messages: list[Message]) -> None:
        by_partition: dict[int | None, list[Message]] = {}
        ends: dict[int, int] = {}
        partitions = [message.partition() for message in messages]
        if len(set(partitions)) == 1 and not any(map(Message.error, messages)):
            # As nearly always under load, and one by one is what takes longest here.
            by_partition[partitions[0]] = messages
        else:
            for partition, message in zip(partitions, messages, strict=True):
                if message.error() is None:
                    by_partition.setdefault(partition, []).append(message)
                elif partition is not None and partition in self._epoch_by_partition:
                    self._take_event(partition, message, ends)
        for partition in {*by_partition, *ends}:
            # What is no longer ours is left to its new owner.
            if partition is not None and partition in self._epoch_by_partition:
                records = plain_records(
                    by_partition.get(partition, []),
                    unsafe_any_timestamps=self._unsafe_any_timestamps,
                )
                if records:
                    self._position_by_partition[partition] = records[-1][0] + 1
                epoch = self._epoch_by_partition[partition]
                self._put(RecordBatch(partition, epoch, records, ends.get(partition)))

    def _take_event(self, partition: int, message: Message, ends: dict[int, int]) -> None:
        error, offset = message.error(), message.offset()
        if error is None or offset is None:
            return  # told to the log by the client itself
        if error.code() == KafkaError._PARTITION_EOF:
            ends[partition] = offset
        else:
            self._recover(partition, error)

    def _recover(self, partition: int, error: KafkaError) -> None:
        """Read on where the client stopped, in a moment."""
        if error.fatal() or error.code() in _NOT_ALLOWED:
            raise KafkaException(error)
        # With auto.offset.reset=error the client stops at whatever it cannot resolve itself, for
        # example a leader's epoch after a broker came back, or an offset that is gone.
        log.warning("%s partition %d: %s; reading on", self._topic, partition, error.str())
        self._retry_at[partition] = time.monotonic() + _RETRY_S

    def _put(self, batch: RecordBatch) -> None:
        # Faust's channels carry any value; their types know only events.
        put = self._channel.put(batch)  # type: ignore[arg-type]
        future = asyncio.run_coroutine_threadsafe(put, self.loop)
        while not self._stop_thread.is_set():
            try:
                future.result(timeout=0.5)
            except concurrent.futures.TimeoutError:
                continue
            return
        future.cancel()

    def _carry_out_commands(self, consumer: Consumer) -> None:
        now = time.monotonic()
        for partition in [p for p, due in self._retry_at.items() if due <= now]:
            del self._retry_at[partition]
            self._seek_to(partition, self._position_by_partition[partition], consumer)
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()(consumer)

    def _seek(self, partition: int, offset: int, epoch: int, consumer: Consumer) -> None:
        # A partition that was opened anew since has a newer epoch, and is left alone.
        if self._epoch_by_partition.get(partition, epoch) < epoch:
            self._epoch_by_partition[partition] = epoch
            self._position_by_partition[partition] = offset
            self._seek_to(partition, offset, consumer)

    def _seek_to(self, partition: int, offset: int, consumer: Consumer) -> None:
        try:
            consumer.seek(TopicPartition(self._topic, partition, offset))
        except KafkaException as error:
            # The client does not take an offset where it could not resolve one. Opened anew, the
            # owner finds out what is still there, and where to read on.
            log.warning("%s partition %d is opened anew: %s", self._topic, partition, error)
            self.rejoin()

    def _rejoin(self, consumer: Consumer) -> None:
        consumer.unsubscribe()
        self._subscribe(consumer)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        metadata = consumer.consumer_group_metadata()
        epochs = {partition.partition: next(self._epochs) for partition in partitions}
        offsets = self._in_loop(self._open_all(epochs, metadata))
        taken = []
        for partition, offset in offsets.items():
            if offset is not None:
                self._epoch_by_partition[partition] = epochs[partition]
                self._position_by_partition[partition] = offset
                taken.append(TopicPartition(self._topic, partition, offset))
        consumer.assign(taken)
        self._joined.set()

    async def _open_all(self, epochs: Mapping[int, int], metadata: object) -> dict[int, int | None]:
        opened = await asyncio.gather(
            *(self._owner.open_partition(p, epoch, metadata) for p, epoch in epochs.items())
        )
        return dict(zip(epochs, opened, strict=True))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._epoch_by_partition.pop(partition.partition, None)
            self._retry_at.pop(partition.partition, None)
            self._in_loop(self._owner.close_partition(partition.partition))
        consumer.unassign()

    def _in_loop(self, coroutine: Coroutine[object, object, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def _in_loop_soon(self, coroutine: Coroutine[object, object, None]) -> None:
        if self.loop.is_closed():
            coroutine.close()
            return
        asyncio.run_coroutine_threadsafe(coroutine, self.loop)
