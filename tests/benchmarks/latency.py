"""From a release being due to its being read, and to the model made of it, on an idle system.

Beside it, in turns, on the same broker: one produce-consume round trip of a record of that size.
A 99th percentile of fewer than 100 windows is their maximum.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deployment import Deployment, small_plan
from measurement import Floor, Result

from agents.topics import topics_of
from schemas import decode_model_snapshot, decode_release

_DIMENSION = 1000
_WINDOW_MS, _GRACE_MS, _DELAY_MS = 250, 50, 150
_UNCOUNTED = 8  # windows in which caches fill
_REST_S = 0.06  # a release finds an idle broker, so a round trip should
_WAIT_S = 30.0
_END = -1  # librdkafka's OFFSET_END
_NO_MORE_THAN = Floor("<=", 10)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Look:
    """One window: milliseconds from the release being due, and of a round trip after it."""

    release_ms: float
    model_ms: float
    round_trip_ms: float


def latency_results(servers: str, windows: int) -> Iterator[Result]:
    """Yield the percentiles of so many windows, and the release's against the round trip."""
    yield from figures(measured_looks(servers, windows))


def figures(looks: Sequence[Look]) -> Iterator[Result]:
    """Yield percentiles, and the release's against the round trip."""
    releases = [look.release_ms for look in looks]
    round_trips = [look.round_trip_ms for look in looks]
    yield from _percentiles("release_latency", releases)
    yield from _percentiles("model_latency", [look.model_ms for look in looks])
    yield from _percentiles("round_trip", round_trips)
    # Against the median, the smaller of the two that could be meant.
    ratio = percentile(releases, 0.99) / median(round_trips)
    yield Result("release_p99_vs_round_trip", "round trips", [ratio], _NO_MORE_THAN)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of all is not above."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _percentiles(name: str, values: Sequence[float]) -> Iterator[Result]:
    yield Result(f"{name}_p50", "ms", values)
    yield Result(f"{name}_p99", "ms", [percentile(values, 0.99)])
    yield Result(f"{name}_max", "ms", [max(values)])


def measured_looks(servers: str, windows: int) -> list[Look]:
    """Run a head and a global agent without clients; look at each of so many windows."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdp-bench-")))
        deployment = Deployment(servers, _plan(), folder)
        stack.callback(deployment.close)
        deployment.start_head(noise=True)
        deployment.start_global()
        deployment.wait_until_owned()
        deployment.eventually(
            "models are made", lambda: len(deployment.read(deployment.names.model)) > 1
        )
        names = deployment.names
        releases = stack.enter_context(_reader(deployment, names.releases))
        models = stack.enter_context(_reader(deployment, names.model))
        round_trip = stack.enter_context(_round_trips(deployment))
        looks = [
            _look(deployment, releases, models, round_trip) for _ in range(_UNCOUNTED + windows)
        ]
    return looks[_UNCOUNTED:]


def _plan():
    return small_plan(
        name="latency",
        dimension=_DIMENSION,
        cluster_count=1,
        window_length_ms=_WINDOW_MS,
        grace_ms=_GRACE_MS,
        release_delay_ms=_DELAY_MS,
        horizon_windows=10_000,
        topic_prefix=f"latency-{os.getpid()}",
    )


def _look(
    deployment: Deployment,
    releases: Consumer,
    models: Consumer,
    round_trip: Callable[[], float],
) -> Look:
    release, release_s = _next(releases, decode_release)
    snapshot, model_s = _next(models, decode_model_snapshot)
    while snapshot.window < release.window:
        snapshot, model_s = _next(models, decode_model_snapshot)
    if snapshot.window > release.window:
        raise RuntimeError(f"window {release.window} was read after the model of a later one")
    due_ms = deployment.plan.release_due_ms(release.window)
    time.sleep(_REST_S)
    return Look(release_s * 1e3 - due_ms, model_s * 1e3 - due_ms, round_trip())


def _next(consumer: Consumer, decode: Callable[[bytes | None], _T]) -> tuple[_T, float]:
    message = _wait(consumer)
    return decode(message.value()), time.time()


def _wait(consumer: Consumer) -> Message:
    message = consumer.poll(_WAIT_S)
    if message is None or message.error() is not None:
        raise RuntimeError(f"nothing to read: {message and message.error()}")
    return message


@contextmanager
def _reader(deployment: Deployment, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        deployment.config
        | {"group.id": "latency", "enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, _END)])
        yield consumer
    finally:
        consumer.close()


@contextmanager
def _round_trips(deployment: Deployment) -> Iterator[Callable[[], float]]:
    """Give what makes a round trip over a topic like the one of the releases, in milliseconds."""
    topic = f"{deployment.names.releases}-round-trip"
    spec = next(s for s in topics_of(deployment.plan) if s.name == deployment.names.releases)
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=spec.config())
    admin = AdminClient(deployment.config)  # a name, since its answers end with it
    admin.create_topics([new])[topic].result(_WAIT_S)
    producer = Producer(
        deployment.config | {"linger.ms": 0, "acks": "all", "enable.idempotence": True}
    )
    payload = os.urandom(4 * _DIMENSION)
    with _reader(deployment, topic) as consumer:
        # The reader begins at the end as it finds it: so until it has found it.
        while True:
            producer.produce(topic, payload, partition=0)
            producer.flush(_WAIT_S)
            if consumer.poll(1) is not None:
                break
        while consumer.poll(1) is not None:
            pass
        yield partial(_round_trip, producer, consumer, topic, payload)


def _round_trip(producer: Producer, consumer: Consumer, topic: str, payload: bytes) -> float:
    begin = time.perf_counter()
    producer.produce(topic, payload, partition=0)
    _wait(consumer)
    taken = time.perf_counter() - begin
    producer.flush(_WAIT_S)
    return taken * 1e3
