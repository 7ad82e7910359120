"""What may leave the boundary (PRIVACY 1.9): two runs that differ in one client look alike.

The real services of a head and of the global agent run in process, with doubles in place of
Kafka and the clock. In `Exact` runs the noise is zero: everything that is public must be equal
but for the vectors and what is computed from them. In `Coupled` runs the second world's noise
makes up for the missing client, so that the noisy vectors are equal too: then everything must be
equal to the last byte, which shows that it depends on the client through those vectors alone.
"""

import asyncio
import dataclasses
import logging
from dataclasses import dataclass, field

import numpy as np
import pytest

import agents.cluster_head
import agents.global_model
from agents.cluster_head import HeadService
from agents.global_model import GlobalService
from agents.observability import Health
from agents.partition import OpenedCluster
from agents.record_batch import RecordBatch
from schemas import (
    TopicNames,
    Update,
    decode_model_snapshot,
    decode_model_state,
    decode_release,
    encode_ledger_record,
    encode_update,
)
from stream.aggregation.intake import Record
from stream.cluster_head import ClusterHead
from stream.global_model import GlobalModel
from stream.ledger_chain import genesis
from stream.metrics import GlobalMetrics, HeadMetrics, Registries
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import FakeClock, UnsafeNoNoise, insecure_entropy

PLAN = PrivacyPlan(
    name="leak",
    dimension=6,
    cluster_count=1,
    assignment="prefix",
    prefixes=("north",),
    expected_clients=3,
    start_ms=10_000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=3,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=4,
    optimizer=OptimizerSpec("sgd", 0.1, momentum=0.5),
    normalizer="noisy_count",
    minimum_count=1,
)
WINDOWS = 6  # the budget pays for four
RESTART_AT = 2
VICTIM = "north/victim"
NAMES = TopicNames(PLAN.topic_prefix)
# Follow from the noisy vectors, and from nothing else: equal where those are (`Coupled`).
POST_PROCESSED = ("sdp_noisy_count", "sdp_model_update_norm")


def update(client: str, *values: int) -> bytes:
    vector = np.zeros(PLAN.dimension, np.int8)
    vector[: len(values)] = values
    return encode_update(Update(PLAN.plan_id, client, 0, vector))


def script(window: int, with_victim: bool) -> list[tuple[int, bytes]]:
    """What arrives in a window, with its milliseconds; the victim behaves in every way."""
    begin = PLAN.window_end_ms(window - 1)
    records = [(begin + 10, update("north/a", 5, window)), (begin + 20, update("north/b", 0, -7))]
    if with_victim and window != 3:
        records += [
            (begin + 30, update(VICTIM, 127, 127)),  # too long
            (begin + 40, update(VICTIM, 60, -window, 1)),
            (begin + 50, update(VICTIM, 60)),  # a second time
            (begin + 60, b"no update at all"),
            (begin + 70 + 7 * PLAN.window_length_ms, update(VICTIM, 1)),  # ahead of its time
            (begin - 5, update(VICTIM, 2)),  # too late
        ]
    return [*records, (begin + 900, update("north/c", 1, 1, 1))]


def difference(window: int) -> np.ndarray:
    """What the victim adds to the exact sum of a window."""
    total = np.zeros(PLAN.dimension + 1, np.int64)
    if window != 3:
        total[[0, 1, 2, 6]] = 60, -window, 1, PLAN.count_weight
    return total


class Exact(UnsafeNoNoise):
    """No noise."""

    def __init__(self, with_victim: bool) -> None:
        pass


class Coupled:
    """In the world without the victim, noise that differs by what the victim would have added."""

    def __init__(self, with_victim: bool) -> None:
        self._noise = RoundedGaussian(insecure_entropy(1))
        self._with_victim = with_victim
        self._window = 0

    def sample(self, variance, size):
        noise = self._noise.sample(variance, size)
        if not self._with_victim:
            noise += difference(self._window)
        self._window += 1
        return noise


@dataclass
class Kafka:
    """Stands in for the broker: topics, their ends, and the head's and the model's producers."""

    clock: FakeClock
    topics: dict[str, list[bytes]] = field(default_factory=dict)
    public: list[tuple[int, bytes]] = field(default_factory=list)

    def write(self, records, resume=None, metadata=None):
        for record in records:
            self.topics.setdefault(record.topic, []).append(record.value)

    def publish(self, cluster, data):
        self.public.append((self.clock(), data))
        return True

    def report_rejected(self, cluster, rejected):
        """To the private topic of rejects."""

    def end_offset(self, topic, partition):
        return len(self.topics[topic])


class HeadOpener:
    def __init__(self, kafka, noise):
        self._kafka, self._noise = kafka, noise
        kafka.topics[NAMES.ledger] = [encode_ledger_record(genesis(PLAN, 0, 0, 0, PLAN.start_ms))]

    def open(self, cluster):
        head = ClusterHead(
            PLAN,
            cluster,
            self._noise,
            self._kafka.topics[NAMES.ledger],
            is_complete=True,
            max_open_windows=4,
        )
        return OpenedCluster(head, self._kafka, None, 0)


class ModelOpener:
    def __init__(self, kafka):
        self._kafka = kafka

    def open(self):
        weights = np.linspace(-1, 1, PLAN.dimension)
        return GlobalModel.start(PLAN, weights, merge_deadline_ms=1000), self._kafka


class Feed:
    """Stands in for the consumer, which the world below plays itself."""

    def __init__(self, **_):
        pass


@dataclass
class Seen:
    """All that someone outside the boundary sees of a run."""

    releases: list[tuple[int, bytes]] = field(default_factory=list)
    snapshots: list[bytes] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    metrics: list[dict[tuple[str, ...], float]] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)

    def without_vectors(self) -> "Seen":
        """The same, less the noisy vectors and what is computed from them."""
        return Seen(
            [(at, _header(decode_release(data))) for at, data in self.releases],
            [_header(decode_model_snapshot(data)) for data in self.snapshots],
            [_header(decode_model_state(data)) for data in self.states],
            [
                {key: value for key, value in samples.items() if key[0] not in POST_PROCESSED}
                for samples in self.metrics
            ],
            self.health,
            self.logs,
        )


def _header(message):
    fields = (item.name for item in dataclasses.fields(message))
    return {name: getattr(message, name) for name in fields if name not in ("vector", "vectors")}


def _samples(registry):
    # When a counter was made is the process's own clock, the same whoever takes part.
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


class _Lines(logging.Handler):
    def __init__(self, lines):
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record):
        self._lines.append(f"{record.levelname} {record.getMessage()}")


class World:
    """One run: windows arrive, are sealed, published and merged; the head restarts once."""

    def __init__(self, make_noise, with_victim, monkeypatch):
        self.seen = Seen()
        self._with_victim = with_victim
        self._clock = FakeClock(PLAN.start_ms)
        self._kafka = Kafka(self._clock)
        self._updates: list[Record] = []
        self._kafka.topics[NAMES.updates] = self._updates
        for module in (agents.cluster_head, agents.global_model):
            monkeypatch.setattr(module, "PartitionFeed", Feed)
            monkeypatch.setattr(module, "now_ms", self._clock)
        monkeypatch.setattr(agents.cluster_head, "_TICK_S", 0.001)
        self._registries = Registries(PLAN)
        self._health = Health("head")
        edges = {"app": None, "channel": None, "plan": PLAN, "feed_options": {}}
        self._head = HeadService(
            opener=HeadOpener(self._kafka, make_noise(with_victim)),
            publisher=self._kafka,
            ends=self._kafka,
            metrics=HeadMetrics(self._registries, PLAN),
            health=self._health,
            **edges,
        )
        self._model = GlobalService(
            opener=ModelOpener(self._kafka),
            ends=self._kafka,
            metrics=GlobalMetrics(self._registries),
            health=Health("global"),
            **edges,
        )

    def run(self) -> Seen:
        root = logging.getLogger()
        handler, level = _Lines(self.seen.logs), root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            asyncio.run(self._run())
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
        self.seen.releases = self._kafka.public
        self.seen.snapshots = self._kafka.topics[NAMES.model]
        self.seen.states = self._kafka.topics[NAMES.model_state]
        return self.seen

    async def _run(self):
        await self._head.open_partition(0, 0, None)
        await self._model.open_partition(0, 0, None)
        for window in range(WINDOWS):
            if window == RESTART_AT:
                await self._restart()
            await self._pass(window)
        await self._head.close_partition(0)
        await self._model.close_partition(0)
        await asyncio.sleep(0.02)  # the head's task ends by itself

    async def _restart(self):
        await self._head.close_partition(0)
        position = await self._head.open_partition(0, 0, None)
        await self._head.take(RecordBatch(0, 0, self._updates[position:], len(self._updates)))

    async def _pass(self, window):
        first = len(self._updates)
        for timestamp, value in script(window, self._with_victim):
            self._updates.append(Record(len(self._updates), timestamp, value))
        await self._head.take(RecordBatch(0, 0, self._updates[first:], len(self._updates)))
        end = PLAN.window_end_ms(window)
        for moment in (end + PLAN.grace_ms, end + PLAN.release_delay_ms - 1):
            self._clock.advance(moment - self._clock())
            await self._settle(window)
            self._look()
        self._clock.advance(1)
        await self._settle(window, is_due=True)
        merged = len(self._kafka.topics.get(NAMES.model, []))
        records = [Record(i, *item) for i, item in enumerate(self._kafka.public)][merged:]
        await self._model.take(RecordBatch(0, 0, records, len(self._kafka.public)))
        self._look()

    async def _settle(self, window, *, is_due=False):
        """Wait until the head's own task has done what the clock allows, metrics included."""
        published = min(window + 1, PLAN.windows_allowed) if is_due else 0
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110 - the head's task tells nobody
                self._count("sdp_windows_sealed_total") <= window
                or self._count("sdp_releases_total") < published
            ):
                await asyncio.sleep(0.002)

    def _count(self, name):
        registries = (self._registries.operator, self._registries.public)
        samples = [item for registry in registries for item in _samples(registry).items()]
        return sum(value for key, value in samples if key[0] == name)

    def _look(self):
        self.seen.metrics.append(_samples(self._registries.public))
        self.seen.health.append(self._health.status())


def runs(make_noise, monkeypatch) -> tuple[Seen, Seen]:
    return tuple(World(make_noise, there, monkeypatch).run() for there in (True, False))


def assert_alike(make_noise, monkeypatch):
    whole, less = runs(make_noise, monkeypatch)
    if make_noise is Exact:
        whole, less = whole.without_vectors(), less.without_vectors()
    for item in dataclasses.fields(Seen):
        assert getattr(whole, item.name) == getattr(less, item.name), item.name


@pytest.mark.parametrize("make_noise", [Exact, Coupled])
def test_one_client_changes_nothing_public_but_through_the_noisy_vectors(make_noise, monkeypatch):
    assert_alike(make_noise, monkeypatch)


def test_the_runs_are_real_ones_and_the_client_does_change_the_sums(monkeypatch):
    whole, less = runs(Exact, monkeypatch)
    vectors = [
        [decode_release(data).vector.astype(np.int64) for _, data in seen.releases]
        for seen in (whole, less)
    ]
    assert len(vectors[0]) == len(vectors[1]) == PLAN.windows_allowed == 4
    for window, (more, fewer) in enumerate(zip(*vectors, strict=True)):
        assert (more - fewer).tolist() == difference(window).tolist()
    assert len(whole.snapshots) == 4
    due = [PLAN.window_end_ms(window) + PLAN.release_delay_ms for window in range(4)]
    assert [at for at, _ in whole.releases] == due
    assert any("head of cluster 0: next window 2" in line for line in whole.logs)
    assert any("budget is spent" in line for line in whole.logs)
    assert whole.metrics[-1]["sdp_releases_total", ("cluster", "0")] == 4


def _leak_a_count(monkeypatch):
    count = HeadMetrics.observe_batch

    def observe_batch(self, cluster, outcome):
        count(self, cluster, outcome)
        self._releases.labels(cluster).inc(outcome.accepted)

    monkeypatch.setattr(HeadMetrics, "observe_batch", observe_batch)


def _leak_a_log_line(monkeypatch):
    take = HeadService.take

    async def logging_take(self, batch):
        await take(self, batch)
        logging.getLogger("agents.cluster_head").info("read to %s", batch.end_offset)

    monkeypatch.setattr(HeadService, "take", logging_take)


def _leak_a_time(monkeypatch):
    publish = Kafka.publish

    def publish_later(self, cluster, data):
        self.clock.advance(len(self.topics[NAMES.updates]) % 7)
        return publish(self, cluster, data)

    monkeypatch.setattr(Kafka, "publish", publish_later)


@pytest.mark.parametrize("make_noise", [Exact, Coupled])
@pytest.mark.parametrize("leak", [_leak_a_count, _leak_a_log_line, _leak_a_time])
def test_a_leak_is_noticed(leak, make_noise, monkeypatch):
    leak(monkeypatch)
    with pytest.raises(AssertionError):
        assert_alike(make_noise, monkeypatch)
