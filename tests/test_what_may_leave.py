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
from prometheus_client import Counter

import agents.cluster_head
import agents.global_model
from agents.cluster_head import HeadService
from agents.global_model import GlobalService
from agents.observability import Health
from agents.partition import OpenedCluster
from agents.publisher import Mark
from agents.record_batch import RecordBatch
from schemas import (
    TopicNames,
    Update,
    decode_ledger_record,
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
from stream.participation_log import rebuild
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.sealing import Sealing
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
PLANS = {
    "cluster": PLAN,
    # The victim is refused from its third window on; releases go on.
    "client": dataclasses.replace(PLAN, scope="client", horizon_windows=2),
    # An hour pays for three windows, and touches them all.
    "throttled": dataclasses.replace(PLAN, hour_epsilon=6.8),
    "adaptive": dataclasses.replace(PLAN, clipping=ClippingSpec(0.5, 0.2, 20, 1000)),
    # The release of window 0 decides the clip norm of windows 3 to 5.
    "adapting": dataclasses.replace(PLAN, clipping=ClippingSpec(0.5, 0.2, 20, 3)),
}
WINDOWS = 6  # the budget pays for four
RELEASES = {"cluster": 4, "client": 6, "throttled": 3, "adaptive": 4, "adapting": 4}
RESTART_AT = 2
VICTIM = "north/victim"
NAMES = TopicNames(PLAN.topic_prefix)
# Follow from the noisy vectors, and from nothing else: equal where those are (`Coupled`).
POST_PROCESSED = ("sdp_noisy_count", "sdp_model_update_norm")


def script(
    plan: PrivacyPlan, window: int, clip_norm: float, with_victim: bool
) -> list[tuple[int, bytes]]:
    """What arrives in a window, with its milliseconds; the victim behaves in every way."""

    def update(client: str, *values: int) -> bytes:
        vector = np.zeros(PLAN.dimension, np.int8)
        vector[: len(values)] = values
        is_below = clip_norm > 0 and client != "north/b"
        return encode_update(Update(plan.plan_id, client, 0, vector, clip_norm, is_below))

    begin = PLAN.window_end_ms(window - 1)
    records = [
        (begin + 10, update("north/a", 5, window)),
        (begin + 20, update("north/b", 0, -7)),
        (begin + 25, update(f"north/{window}", 0, 0, 3)),
    ]
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


def difference(plan: PrivacyPlan, window: int) -> np.ndarray:
    """What the victim adds to the exact sum of a window."""
    total = np.zeros(plan.release_size, np.int64)
    is_spent = plan.scope == "client" and window >= plan.windows_allowed
    if window != 3 and not is_spent:
        total[[0, 1, 2, 6]] = 60, -window, 1, plan.count_weight
        total[7:] = 10  # half the bit's weight: it is within the norm
    return total


class Exact(UnsafeNoNoise):
    """No noise."""

    def __init__(self, plan: PrivacyPlan, with_victim: bool) -> None:
        pass


class Coupled:
    """In the world without the victim, noise that differs by what the victim would have added."""

    def __init__(self, plan: PrivacyPlan, with_victim: bool) -> None:
        self._plan = plan
        self._noise = RoundedGaussian(insecure_entropy(3))
        self._with_victim = with_victim
        self._window = 0

    def sample(self, variance, size):
        noise = self._noise.sample(variance, size)
        if not self._with_victim:
            noise += difference(self._plan, self._window)
        self._window += 1
        return noise


@dataclass
class Kafka:
    """Stands in for the broker: topics, their ends, and the head's and the model's producers."""

    clock: FakeClock
    topics: dict[str, list[bytes]] = field(default_factory=dict)
    public: list[tuple[int, bytes]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def write(self, records, resume=None, metadata=None):
        for record in records:
            self.topics.setdefault(record.topic, []).append(record.value)

    def publish(self, cluster, data):
        self.public.append((self.clock(), data))
        return True

    def mark(self, cluster):
        """To the private topic of updates."""
        updates = self.topics[NAMES.updates]
        updates.append(Record(len(updates), self.clock(), None))
        return Mark(len(updates) - 1, self.clock())

    def report_rejected(self, cluster, rejected):
        """To the private topic of rejects."""
        self.refused += [str(each.rejection.reason) for each in rejected]

    def end_offset(self, topic, partition):
        return len(self.topics[topic])


class HeadOpener:
    def __init__(self, plan, kafka, noise):
        self._plan, self._kafka, self._noise = plan, kafka, noise
        kafka.topics[NAMES.ledger] = [encode_ledger_record(genesis(plan, 0, 0, 0, plan.start_ms))]

    def open(self, cluster):
        head = ClusterHead(
            self._plan,
            cluster,
            self._noise,
            self._kafka.topics[NAMES.ledger],
            is_complete=True,
            max_open_windows=4,
            clients=self._clients() if self._plan.scope == "client" else None,
        )
        newest = decode_ledger_record(self._kafka.topics[NAMES.ledger][-1])
        return OpenedCluster(head, self._kafka, newest, None, 0)

    def _clients(self):
        plan, topics = self._plan, self._kafka.topics
        newest = decode_ledger_record(topics[NAMES.ledger][-1])
        records, digest = topics.get(NAMES.participation, []), newest.participation_digest
        return rebuild(plan.cap_units, records, plan.plan_id, 0, newest.sequence, digest)


class ModelOpener:
    def __init__(self, plan, kafka):
        self._plan, self._kafka = plan, kafka

    def open(self):
        weights = np.linspace(-1, 1, PLAN.dimension)
        return GlobalModel.start(self._plan, weights, merge_deadline_ms=1000), self._kafka


class Feed:
    """Stands in for the consumer, which the world below plays itself."""

    def __init__(self, **_):
        self.position = self.epoch = 0

    def seek(self, partition, offset):
        """Go back to what was left for a second pass."""
        self.position, self.epoch = offset, self.epoch + 1
        return self.epoch


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

    def __init__(self, name, make_noise, with_victim, monkeypatch):
        self.seen = Seen()
        self.refused = []
        self._plan = plan = PLANS[name]
        self._releases = RELEASES[name]
        self._with_victim = with_victim
        self._clock = FakeClock(PLAN.start_ms)
        self._kafka = Kafka(self._clock)
        self._updates: list[Record] = []
        self._kafka.topics[NAMES.updates] = self._updates
        for module in (agents.cluster_head, agents.global_model):
            monkeypatch.setattr(module, "PartitionFeed", Feed)
            monkeypatch.setattr(module, "now_ms", self._clock)
        monkeypatch.setattr(agents.cluster_head, "_TICK_S", 0.001)
        self._registries = Registries(plan)
        self._health = Health("head")
        edges = {"app": None, "channel": None, "plan": plan, "feed_options": {}}
        self._head = HeadService(
            opener=HeadOpener(plan, self._kafka, make_noise(plan, with_victim)),
            publisher=self._kafka,
            metrics=HeadMetrics(self._registries, plan),
            health=self._health,
            **edges,
        )
        self._model = GlobalService(
            opener=ModelOpener(plan, self._kafka),
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
        self.refused = self._kafka.refused
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
        feed = self._head._feed
        feed.position, feed.epoch = await self._head.open_partition(0, 0, None), 0
        await self._deliver()

    async def _deliver(self):
        """Give the head what it has not read."""
        feed, end = self._head._feed, len(self._updates)
        batch = RecordBatch(0, feed.epoch, self._updates[feed.position :], end)
        feed.position = end
        await self._head.take(batch)

    async def _pass(self, window):
        clip_norm = self._clip_norm(window)
        for timestamp, value in script(self._plan, window, clip_norm, self._with_victim):
            self._updates.append(Record(len(self._updates), timestamp, value))
        await self._deliver()
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

    def _clip_norm(self, window):
        """What clients learn from the public releases."""
        if self._plan.clipping is None:
            return 0.0
        norm = self._plan.l2_clip_norm
        for _, data in self._kafka.public:
            release = decode_release(data)
            if release.next_clip_norm and release.next_clip_window <= window:
                norm = release.next_clip_norm
        return norm

    async def _settle(self, window, *, is_due=False):
        """Wait until the head's own task has done what the clock allows, metrics included."""
        published = min(window + 1, self._releases) if is_due else 0
        async with asyncio.timeout(20):
            while (
                self._count("sdp_windows_sealed_total") <= window
                or self._count("sdp_releases_total") < published
                or (is_due and any(s.unpublished for s in self._head._shards.values()))
            ):
                await asyncio.sleep(0.002)
                if self._head._feed.position < len(self._updates):
                    await self._deliver()

    def _count(self, name):
        registries = (self._registries.operator, self._registries.public)
        samples = [item for registry in registries for item in _samples(registry).items()]
        return sum(value for key, value in samples if key[0] == name)

    def _look(self):
        self.seen.metrics.append(_samples(self._registries.public))
        self.seen.health.append(self._health.status())


def runs(name, make_noise, monkeypatch) -> tuple[Seen, Seen]:
    return tuple(World(name, make_noise, there, monkeypatch).run() for there in (True, False))


def assert_alike(name, make_noise, monkeypatch):
    whole, less = runs(name, make_noise, monkeypatch)
    if make_noise is Exact:
        whole, less = whole.without_vectors(), less.without_vectors()
    for item in dataclasses.fields(Seen):
        assert getattr(whole, item.name) == getattr(less, item.name), item.name


@pytest.mark.parametrize(
    ("name", "make_noise"),
    # Where the clip norm adapts, it follows the vectors, and is as they are.
    [(name, noise) for name in PLANS for noise in (Exact, Coupled) if name != "adapting"]
    + [("adapting", Coupled)],
)
def test_one_client_changes_nothing_public_but_through_the_noisy_vectors(
    name, make_noise, monkeypatch
):
    assert_alike(name, make_noise, monkeypatch)


@pytest.mark.parametrize("name", ["client", "throttled", "adaptive"])
def test_in_every_kind_of_plan_the_client_does_change_the_sums(name, monkeypatch):
    whole, less = runs(name, Exact, monkeypatch)
    vectors = [
        [decode_release(data).vector.astype(np.int64) for _, data in seen.releases]
        for seen in (whole, less)
    ]
    assert len(vectors[0]) == len(vectors[1]) == RELEASES[name] == len(whole.snapshots)
    changes = [(more - fewer).tolist() for more, fewer in zip(*vectors, strict=True)]
    assert changes == [difference(PLANS[name], window).tolist() for window in range(len(changes))]
    held_back = [line for line in whole.logs if "a rate limit holds window" in line]
    assert len(held_back) == (3 if name == "throttled" else 0)


def test_a_client_that_is_refused_is_refused_inside(monkeypatch):
    world = World("client", Exact, True, monkeypatch)
    seen = world.run()
    assert "client_exhausted" in world.refused
    assert not [line for line in seen.logs if "exhausted" in line or VICTIM in line]
    public = str(seen.metrics) + str(seen.health)
    assert "exhausted" not in public.replace("sdp_budget_exhausted", "")


def test_the_clip_norm_does_adapt_and_clients_follow_it(monkeypatch):
    world = World("adapting", Coupled, True, monkeypatch)
    norms = [decode_release(data).clip_norm for _, data in world.run().releases]
    assert norms[:3] == [1.0] * 3
    assert norms[3] != 1.0
    assert "wrong_scale" not in world.refused


def test_the_runs_are_real_ones_and_the_client_does_change_the_sums(monkeypatch):
    whole, less = runs("cluster", Exact, monkeypatch)
    vectors = [
        [decode_release(data).vector.astype(np.int64) for _, data in seen.releases]
        for seen in (whole, less)
    ]
    assert len(vectors[0]) == len(vectors[1]) == PLAN.windows_allowed == 4
    for window, (more, fewer) in enumerate(zip(*vectors, strict=True)):
        assert (more - fewer).tolist() == difference(PLAN, window).tolist()
    assert len(whole.snapshots) == 4
    due = [PLAN.window_end_ms(window) + PLAN.release_delay_ms for window in range(4)]
    assert [at for at, _ in whole.releases] == due
    assert any("head of cluster 0" in line for line in whole.logs)
    assert any("budget is spent" in line for line in whole.logs)
    assert whole.metrics[-1]["sdp_releases_total", ("cluster", "0")] == 4


def _leak_a_count(monkeypatch):
    begin, count = HeadMetrics.__init__, HeadMetrics.observe_batch

    def begin_with_a_leak(self, registries, plan):
        begin(self, registries, plan)
        self.leak = Counter("sdp_leak", "Of updates.", registry=registries.public)

    def observe_batch(self, cluster, outcome):
        count(self, cluster, outcome)
        self.leak.inc(outcome.accepted)

    monkeypatch.setattr(HeadMetrics, "__init__", begin_with_a_leak)
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


def _leak_who_is_refused(monkeypatch):
    report = Kafka.report_rejected

    def tell(self, cluster, rejected):
        report(self, cluster, rejected)
        count = self.refused.count("client_exhausted")
        logging.getLogger("agents.publisher").info("%d updates could not be paid for", count)

    monkeypatch.setattr(Kafka, "report_rejected", tell)


def _leak_a_charge(monkeypatch):
    release = Sealing.release

    def cheaper(self, receipt, vector):
        units = receipt.units - int(vector[1] % 2)
        return release(self, dataclasses.replace(receipt, units=units), vector)

    monkeypatch.setattr(Sealing, "release", cheaper)


@pytest.mark.parametrize("make_noise", [Exact, Coupled])
@pytest.mark.parametrize("leak", [_leak_a_count, _leak_a_log_line, _leak_a_time])
def test_a_leak_is_noticed(leak, make_noise, monkeypatch):
    leak(monkeypatch)
    with pytest.raises(AssertionError):
        assert_alike("cluster", make_noise, monkeypatch)


@pytest.mark.parametrize("leak", [_leak_who_is_refused, _leak_a_charge])
def test_a_leak_of_who_has_spent_its_budget_is_noticed(leak, monkeypatch):
    leak(monkeypatch)
    with pytest.raises(AssertionError):
        assert_alike("client", Exact, monkeypatch)
