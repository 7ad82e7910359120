"""The global agent on Kafka: reads releases, merges them, publishes models.

`stream.global_model` decides; this module moves bytes. A model, the state to go on from and the
offset that was read up to are written in one transaction, so no step is lost and none is applied
twice, wherever a crash falls.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from confluent_kafka import KafkaException, TopicPartition
from faust.types import ChannelT
from mode import Service

from schemas import (
    MalformedMessageError,
    TopicNames,
    decode_release,
)
from stream.aggregation.intake import PlainRecord
from stream.global_model import GlobalModel, Stepped
from stream.metrics import GlobalMetrics
from stream.privacy.plan import PrivacyPlan

from .app import RoleApp, wait_for_agent
from .feed import PartitionFeed
from .kafka_edge import LogEnds, now_ms
from .model_opener import ModelOpener, model_group, outgoing
from .observability import Health
from .ownership import Owned, finish, take_over
from .protocol_steps import Step, Watcher, nobody
from .record_batch import RecordBatch
from .topic_ids import Topics
from .topic_watch import TopicWatch
from .transactions import OwnershipLostError, TransactionalWriter, TransactionFailedError

log = logging.getLogger(__name__)

_TICK_S = 0.02
_MALFORMED = "malformed"
_KEY = b"model"
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _OwnedModel(Owned):
    """The model, while this worker owns it."""

    def __init__(
        self, model: GlobalModel, writer: TransactionalWriter, epoch: int, metadata: object
    ) -> None:
        super().__init__(writer, epoch, metadata)
        self.model = model


class GlobalService(Service):
    """Owns the model while the consumer group gives the releases topic to this worker."""

    def __init__(
        self,
        *,
        app: RoleApp,
        channel: ChannelT[RecordBatch],
        plan: PrivacyPlan,
        opener: ModelOpener,
        ends: LogEnds,
        feed_options: Mapping[str, object],
        metrics: GlobalMetrics,
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
        self._ends = ends
        self._metrics = metrics
        self._health = health
        self._watch = watch
        self._owned: _OwnedModel | None = None
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="global")
        self._feed = PartitionFeed(
            topic=self._names.releases,
            group=model_group(plan),
            isolation_level="read_committed",
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
        # A second global agent waits for the first one's partition: well, and not in charge.
        self._tell_health()

    async def on_shutdown(self) -> None:
        """Let a running transaction finish."""
        await self.close_partition(0)
        await finish(self._pool)

    async def open_partition(self, partition: int, epoch: int, metadata: object) -> int | None:
        """Take over the model; what cannot be trusted ends the worker with the reason."""
        if partition != 0:
            return None  # all releases are in the first one; a mock cluster has others too
        opened = await take_over(self._feed, self._pool, "taking over the model", self._opener.open)
        if opened is None:
            return None
        model, writer = opened
        self._owned = _OwnedModel(model, writer, epoch, metadata)
        self._metrics.observe_model(model.version, model.window)
        log.info("the model is at version %d, window %d", model.version, model.window)
        self._tell_health()
        return model.position

    async def close_partition(self, partition: int) -> None:
        """Let go of the model, after its running transaction."""
        owned = self._owned
        if owned is not None:
            async with owned.lock:
                self._drop(owned)

    async def take(self, batch: RecordBatch) -> None:
        """Read a batch of releases (the Faust agent's body)."""
        owned = self._owned
        if owned is None:
            return
        async with owned.lock:
            if owned.is_closed or batch.epoch != owned.epoch:
                return
            for record in batch.records:
                self._offer(owned.model, record)
                await self._step_while_ready(owned)
            if batch.end_offset is not None:
                owned.model.advance(batch.end_offset)

    @Service.task
    async def _merge_windows(self) -> None:
        while not self.should_stop:
            self._health.beat()
            owned = self._owned
            if owned is not None:
                async with owned.lock:
                    await self._ask_end(owned)
                    await self._step_while_ready(owned)
            await self.sleep(_TICK_S)

    def _offer(self, model: GlobalModel, record: PlainRecord) -> None:
        offset, timestamp_ms, value = record
        try:
            release = decode_release(value)
        except MalformedMessageError as error:
            log.warning("offset %d of the releases is no release: %s", offset, error)
            model.advance(offset + 1)
            self._metrics.observe_release(_MALFORMED)
            return
        outcome = model.offer(offset, release, timestamp_ms)
        self._metrics.observe_release(outcome)

    async def _ask_end(self, owned: _OwnedModel) -> None:
        asked_ms = now_ms()
        if owned.is_closed or not owned.model.due(asked_ms):
            return
        try:
            end = await self._blocking(self._ends.end_offset, self._names.releases, 0)
        except KafkaException as error:
            log.warning("the end of the releases cannot be asked for: %s", error)
            return
        owned.model.expect(asked_ms, end)

    async def _step_while_ready(self, owned: _OwnedModel) -> None:
        while not owned.is_closed and owned.model.ready() is not None:
            try:
                stepped = await self._blocking(self._make_step, owned)
            except TransactionFailedError as error:
                log.warning("the model is let go: %s", error)
                self._drop(owned)
                # Who has lost the model is told so by the group anyway.
                if not isinstance(error, OwnershipLostError):
                    self._feed.rejoin()
                return
            owned.model.commit(stepped)
            self._observe(stepped)

    def _make_step(self, owned: _OwnedModel) -> Stepped:
        self._watch(Step.MERGE)
        stepped = owned.model.step(now_ms())
        resume = TopicPartition(self._names.releases, 0, stepped.state.next_offset)
        owned.writer.write(outgoing(self._names, stepped), resume, owned.metadata)
        return stepped

    def _observe(self, stepped: Stepped) -> None:
        version = stepped.snapshot.model_version
        missing = self._plan.cluster_count - sum(
            window == stepped.window for _, window in stepped.cells
        )
        lag_s = (now_ms() - self._plan.window_end_ms(stepped.window)) / 1000
        self._tell_health()
        self._metrics.observe_model(version, stepped.window)
        self._metrics.observe_step(
            len(stepped.cells), missing, lag_s, stepped.noisy_count, stepped.update_norm
        )
        log.info(
            "model version %d: window %d, %d cells merged, %d missing",
            version,
            stepped.window,
            len(stepped.cells),
            missing,
        )

    def _drop(self, owned: _OwnedModel) -> None:
        owned.is_closed = True
        if self._owned is owned:
            self._owned = None
        self._tell_health()

    def _tell_health(self) -> None:
        owned = self._owned
        version = None if owned is None else owned.model.version
        self._health.is_ready = True
        self._health.details = {"owns_model": owned is not None, "model_version": version}

    async def _blocking(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))
