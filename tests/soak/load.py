"""Clients for ever, in one process: `python load.py PLAN SERVERS RATE`, until SIGTERM.

Regular clients and ones that come once; the product's own client, producer and subscriber. One
update in ten is bad, of all kinds in turn. Prints one JSON object at the end.
"""

import dataclasses
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from schemas import TopicNames, Update, encode_update
from stream.client import GradientClient, ModelSubscriber, connect_producer
from stream.privacy.plan import PrivacyPlan
from stream.producer import UpdateProducer

REGULARS = 400
BAD_EVERY = 10
TICK_S = 0.02
# After a pause of the machine's, this much of what was missed is made up for.
MOST_TICKS_AT_ONCE = 5


def bad_values(plan: PrivacyPlan) -> list[bytes]:
    """One update of each kind that a head refuses."""
    good = np.zeros(plan.coordinate_count, np.dtype(plan.update_dtype))
    foreign = dataclasses.replace(plan, name="foreign").plan_id

    def update(vector: np.ndarray, plan_id: bytes = plan.plan_id, version: int = 0) -> bytes:
        return encode_update(Update(plan_id, "bad", version, vector))

    return [
        b"",
        b"garbage",
        update(good)[:-1],
        update(good, foreign),
        update(good[:-1]),
        update(np.full_like(good, plan.coordinate_limit)),
        update(good, version=10**9),
        update(good),  # right, but for most clusters not theirs, and after the first a duplicate
    ]


class Load:
    """Sends what each tick asks for.

    Attributes:
        sent: Updates handed to the producer.
    """

    def __init__(self, plan: PrivacyPlan, producer: UpdateProducer) -> None:
        self.sent = 0
        self._plan = plan
        self._producer = producer
        self._topic = TopicNames(plan.topic_prefix).updates
        self._bad = itertools.cycle(bad_values(plan))
        self._rng = np.random.default_rng(1)
        self._regulars = itertools.cycle(
            [GradientClient(plan, f"regular-{i}", producer, self._rng) for i in range(REGULARS)]
        )
        self._gradient = np.ones(plan.dimension)

    def send(self, count: int, model_version: int) -> None:
        """Send ``count`` updates: bad ones, clients that were never seen before, regular ones."""
        for number in range(self.sent, self.sent + count):
            if number % BAD_EVERY == 0:
                cluster = number // BAD_EVERY % self._plan.cluster_count
                self._producer.send(self._topic, cluster, b"bad", next(self._bad))
            else:
                self._client(number).publish(self._gradient, model_version=model_version)
        self.sent += count

    def _client(self, number: int) -> GradientClient:
        if number % 2:
            return GradientClient(self._plan, f"guest-{number}", self._producer, self._rng)
        return next(self._regulars)


def ticks(rate: float) -> Iterator[int]:
    """Yield how many updates to send, tick by tick, until SIGTERM."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    due, begin = 0.0, time.monotonic()
    while not stopped:
        time.sleep(TICK_S)
        now = time.monotonic()
        due += rate * min(now - begin, MOST_TICKS_AT_ONCE * TICK_S)
        begin = now
        yield int(due)
        due -= int(due)


def main() -> None:
    """Send until SIGTERM; what was not acknowledged raises."""
    path, servers, rate = sys.argv[1:]
    plan = PrivacyPlan.from_toml(Path(path).read_text(encoding="utf-8"))
    with ModelSubscriber(plan, servers) as models, connect_producer(plan, servers) as producer:
        load = Load(plan, producer)
        version = models.wait_for(0, 60).model_version
        for count in ticks(float(rate)):
            newest = models.newest()
            version = version if newest is None else newest.model_version
            load.send(count, version)
    sys.stdout.write(json.dumps({"sent": load.sent, "model_version": version}) + "\n")


if __name__ == "__main__":
    main()
