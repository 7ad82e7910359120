"""The cluster head on Kafka: takes over clusters, counts their updates, releases their windows.

`stream.cluster_head` decides; this module moves bytes and runs the release protocol of DESIGN,
"sealing a window". Everything that blocks runs in a pool of threads, one cluster at a time under
that cluster's lock, so the event loop stays free for the group's callbacks and for `/healthz`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from confluent_kafka import TopicPartition
from faust.types import ChannelT
from mode import Service

from schemas import TopicNames
from stream.cluster_head import SealedCell
from stream.errors import LedgerError
from stream.metrics import HeadMetrics
from stream.privacy.plan import PrivacyPlan

from .app import RoleApp, wait_for_agent
from .budget_notice import budget_notice
from .feed import PartitionFeed
from .heap import seals_at_once
from .kafka_edge import now_ms
from .observability import Health, timed
from .ownership import FINISH_S, Owned, finish, take_over
from .partition import ClusterOpener, OpenedCluster, group_of, outgoing
from .protocol_steps import Step, Watcher, nobody
from .publisher import Publisher
from .record_batch import RecordBatch
from .takeover_checks import Unpublished, offset_note
from .topic_ids import Topics
from .topic_watch import TopicWatch
from .transactions import OwnershipLostError, TransactionFailedError

log = logging.getLogger(__name__)

_TICK_S = 0.02
_BEAT_S = 0.2
_RETRY_S = 0.5
_THREADS = 8
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Shard(Owned):
    """A cluster that this worker is head of."""

    def __init__(self, opened: OpenedCluster, epoch: int, metadata: object) -> None:
        super().__init__(opened.writer, epoch, metadata)
        self.head = opened.head
        self.unpublished: Unpublished | None = opened.unpublished
        self.marks_at = 0.0
        # Held from a window's seal to its commit, and by who lets go of the cluster: `lock`, for
        # the head's state, is free meanwhile, and the next windows fill.
        self.turn = asyncio.Lock()


class HeadService(Service):
    """Owns the clusters that the consumer group gives to this worker."""

    def __init__(
        self,
        *,
        app: RoleApp,
        channel: ChannelT[RecordBatch],
        plan: PrivacyPlan,
        opener: ClusterOpener,
        publisher: Publisher,
        feed_options: Mapping[str, object],
        metrics: HeadMetrics,
        health: Health,
        topics: Topics | None = None,
        watch: Watcher = nobody,
    ) -> None:
        """Set up; nothing is asked of Kafka before the service starts."""
        super().__init__()
        self._app = app
        self._channel = channel
        self._plan = plan
        self._names = TopicNames(plan.topic_prefix)
        self._opener = opener
        self._publisher = publisher
        self._metrics = metrics
        self._health = health
        self._watch = watch
        self._shards: dict[int, _Shard] = {}
        self._refused: dict[int, str] = {}
        self._seals = asyncio.Semaphore(seals_at_once(plan.release_size))
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="head")
        self._feed = PartitionFeed(
            topic=self._names.updates,
            group=group_of(plan),
            # A client may write in transactions; waiting for one to end would let it stop us.
            isolation_level="read_uncommitted",
            owner=self,
            channel=channel,
            **feed_options,  # type: ignore[arg-type]
        )
        self._topics = None if topics is None else TopicWatch(topics, self._feed.rejoin)

    async def on_start(self) -> None:
        """Begin to read once the agent does."""
        await wait_for_agent(self._app, self._channel)
        if self._topics is not None:
            await self.add_runtime_dependency(self._topics)
        await self.add_runtime_dependency(self._feed)

    async def on_shutdown(self) -> None:
        """Let running transactions finish, and send what is written down of rejects."""
        await asyncio.gather(*(self.close_partition(cluster) for cluster in list(self._shards)))
        await finish(self._pool, lambda: self._publisher.close(FINISH_S))

    async def open_partition(self, partition: int, epoch: int, metadata: object) -> int | None:
        """Take over a cluster; None where its ledger cannot be trusted."""
        try:
            opened = await take_over(
                self._feed,
                self._pool,
                f"taking over cluster {partition}",
                lambda: self._opener.open(partition),
            )
        except LedgerError as error:
            # An expected refusal: its text says all, a traceback would hide it.
            log.error("cluster %d is refused: %s", partition, error)  # noqa: TRY400
            self._refused[partition] = str(error)
            self._metrics.observe_refused(partition)
            return None
        if opened is None:
            return None
        head = opened.head
        self._refused.pop(partition, None)
        shard = self._shards[partition] = _Shard(opened, epoch, metadata)
        self.add_future(self._tend(partition, shard))
        self._metrics.observe_opened(partition, opened.newest, now_ms(), opened.lost_records)
        # No offset and no window: they tell how many updates there were, and logs may leave.
        log.info("head of cluster %d", partition)
        return head.position

    async def close_partition(self, partition: int) -> None:
        """Let go of a cluster, after its running release."""
        if self._refused.pop(partition, None) is not None:
            self._metrics.observe_refusal_over(partition)
        shard = self._shards.get(partition)
        if shard is None:
            return
        async with shard.turn, shard.lock:
            self._drop(partition, shard)

    async def take(self, batch: RecordBatch) -> None:
        """Count a batch of updates (the Faust agent's body)."""
        shard = self._shards.get(batch.partition)
        if shard is None:
            return
        async with shard.lock:
            # The batch may have waited while the cluster moved, or was sent to read again.
            if shard.is_closed or batch.epoch != shard.epoch:
                return
            outcome = await self._blocking(shard.head.offer, batch.records)
            if batch.end_offset is not None:
                shard.head.advance(batch.end_offset)
        self._metrics.observe_batch(batch.partition, outcome)
        self._publisher.report_rejected(batch.partition, outcome.rejected)

    @Service.task
    async def _beat(self) -> None:
        while not self.should_stop:
            self._health.beat()
            self._tell_health()
            due = time.monotonic() + _BEAT_S
            await self.sleep(_BEAT_S)
            self._metrics.observe_loop_lag(max(0.0, time.monotonic() - due))

    async def _tend(self, cluster: int, shard: _Shard) -> None:
        """Do what is due for one cluster, until it is let go."""
        while not (shard.is_closed or self.should_stop):
            # It is free between two steps, so the group gets its turn.
            async with shard.turn:
                try:
                    is_ours = self._shards.get(cluster) is shard
                    may_be_more = is_ours and await self._step(cluster, shard)
                except TransactionFailedError as error:
                    async with shard.lock:
                        self._step_back(cluster, shard, error)
                    return
            if not may_be_more:
                due = shard.unpublished
                pause_s = due.pause_s(self._plan, time.time(), _TICK_S) if due else _TICK_S
                await self.sleep(pause_s)

    def _step_back(self, cluster: int, shard: _Shard, error: TransactionFailedError) -> None:
        """Let go of a cluster whose state only the ledger knows now, and take it over anew."""
        log.warning("cluster %d is let go: %s", cluster, error)
        self._drop(cluster, shard)
        # Who has lost the partition is told so by the group anyway.
        if not isinstance(error, OwnershipLostError):
            self._feed.rejoin()

    async def _step(self, cluster: int, shard: _Shard) -> bool:
        """Do one thing that is due; return whether there may be more."""
        if shard.unpublished is not None:
            return await self._publish(cluster, shard, shard.unpublished)
        window = shard.head.needs_end_offset(now_ms())
        if window is not None and not await self._mark_end(cluster, shard, window):
            return False
        if not shard.head.is_ready():
            return False
        await self._release(cluster, shard)
        return True

    async def _mark_end(self, cluster: int, shard: _Shard, window: int) -> bool:
        if time.monotonic() < shard.marks_at:
            return False
        mark = await self._blocking(self._publisher.mark, cluster)
        over = -1 if mark is None else min(window, self._plan.window_of(mark.timestamp_ms) - 1)
        if over < window:
            # Not at once again where the broker is away, or its clock is behind ours.
            shard.marks_at = time.monotonic() + _RETRY_S
        if mark is None:
            return False
        shard.head.expect(over, mark.offset + 1)
        self._metrics.observe_lag(cluster, max(0, mark.offset - shard.head.position))
        return True

    async def _release(self, cluster: int, shard: _Shard) -> None:
        """Steps 1 to 3 of sealing a window: charge, sum and noise, one transaction."""
        async with shard.lock:
            shard.head.begin_seal()
        async with self._seals:
            with timed(partial(self._metrics.observe_stage, "seal")):
                cell = await self._blocking(self._seal, shard)
            with timed(partial(self._metrics.observe_stage, "transaction")):
                await self._blocking(self._write, shard, cell)
        spent_before = shard.head.spent_units
        async with shard.lock:
            rewind = shard.head.commit(cell)
            if rewind is not None:
                shard.epoch = self._feed.seek(cluster, rewind)
        if cell.kind is not None:
            notice = budget_notice(self._plan, cell, spent_before, shard.head.spent_units)
            shard.unpublished = Unpublished(cell.window, cell.release, notice)
        self._metrics.observe_sealed(cell, now_ms())

    def _seal(self, shard: _Shard) -> SealedCell:
        self._watch(Step.CHARGE)
        return shard.head.seal(now_ms())

    def _write(self, shard: _Shard, cell: SealedCell) -> None:
        sequence = shard.head.sequence if cell.record is None else cell.record.sequence
        resume = TopicPartition(
            self._names.updates, cell.cluster, cell.resume_offset, offset_note(sequence)
        )
        shard.writer.write(outgoing(self._names, cell), resume, shard.metadata)

    async def _publish(self, cluster: int, shard: _Shard, unpublished: Unpublished) -> bool:
        """Step 4: publish what has committed, at the time that the plan says."""
        if now_ms() < self._plan.release_due_ms(unpublished.window):
            return False
        with timed(partial(self._metrics.observe_stage, "publish")):
            is_public = unpublished.data is None or await self._blocking(
                self._show, cluster, unpublished.data
            )
        if is_public:
            shard.unpublished = None
            if unpublished.notice:
                log.warning("cluster %d: %s", cluster, unpublished.notice)
            self._metrics.observe_published(unpublished.window, now_ms())
        return is_public

    def _show(self, cluster: int, release: bytes) -> bool:
        self._watch(Step.PUBLISH)
        is_public = self._publisher.publish(cluster, release)
        self._watch(Step.PUBLISHED)
        return is_public

    def _drop(self, cluster: int, shard: _Shard) -> None:
        if not shard.is_closed:
            shard.is_closed = True
            self._metrics.observe_closed(cluster)
        if self._shards.get(cluster) is shard:
            del self._shards[cluster]

    def _tell_health(self) -> None:
        gone = list(self._topics.gone) if self._topics else []
        # A spare head, to which the group gives nothing, is well too.
        self._health.is_ready = self._feed.has_joined and not gone
        self._health.details = {
            "clusters": sorted(self._shards),
            "refused": {str(cluster): why for cluster, why in sorted(self._refused.items())},
            "deleted_topics": gone,
        }

    async def _blocking(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))
