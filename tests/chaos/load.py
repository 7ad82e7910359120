"""One-hot clients that never rest, and an ear on what becomes public."""

import random
import threading
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from deployment import Deployment

from schemas import decode_model_snapshot, decode_release

CLIENTS = 24
MODEL = -1
"""What the newest model's window stands under, beside the clusters' numbers."""

_PAUSE_S = 0.1
_SHARE = 0.3


class Load:
    """Client i sends one grid step in coordinate i, some clients every tenth of a second.

    Attributes:
        acknowledged: Partition and offset of each update that the broker has acknowledged.
        given_up: Updates that the broker never acknowledged; they may be there all the same.
    """

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self.acknowledged: set[tuple[int, int]] = set()
        self.given_up = 0
        self._deployment = deployment
        self._random = random.Random(seed)
        self._producer = Producer(
            deployment.config
            | {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        )
        one_hot = [[int(i == client) for i in range(CLIENTS)] for client in range(CLIENTS)]
        self._updates = [
            deployment.update(f"client-{i}", vector) for i, vector in enumerate(one_hot)
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send no more, and wait for every acknowledgement."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(120)
        if left:
            raise AssertionError(f"the broker did not say what became of {left} updates")

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            for client in self._random.sample(range(CLIENTS), int(_SHARE * CLIENTS)):
                name = f"client-{client}"
                self._producer.produce(
                    self._deployment.names.updates,
                    self._updates[client],
                    name.encode(),
                    partition=self._deployment.plan.cluster_of(name),
                    on_delivery=self._delivered,
                )
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add((message.partition(), message.offset()))
        else:
            self.given_up += 1


class Ear:
    """Hears each release and each model when everyone could.

    Attributes:
        newest: The newest window that is public, by cluster; that of the newest model under
            `MODEL`.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.newest: dict[int, int] = {}
        self._heard: dict[int, list[tuple[int, float]]] = {}
        self._deployment = deployment
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ear", daemon=True)
        self._thread.start()

    def seconds_until(
        self, sources: Iterable[int], window: int, since_s: float, timeout_s: float
    ) -> float | None:
        """Return how long after ``since_s`` all ``sources`` had shown ``window``.

        Waits for it, for at most ``timeout_s`` from now; then None.
        """
        sources, deadline_s = list(sources), time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if all(self.newest.get(source, -1) >= window for source in sources):
                heard = [self._first_heard(source, window) for source in sources]
                return max(0.0, max(heard) - since_s)
            time.sleep(0.01)
        return None

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join()

    def _first_heard(self, source: int, window: int) -> float:
        return next(at for newest, at in self._heard[source] if newest >= window)

    def _run(self) -> None:
        names = self._deployment.names
        consumer = Consumer(
            self._deployment.config
            | {
                "group.id": "ear",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            consumer.assign([TopicPartition(t, 0, 0) for t in (names.releases, names.model)])
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                # An error is a broker that is away: the client reads on by itself.
                if message is None or message.error() is not None:
                    continue
                if message.topic() == names.model:
                    self._note(MODEL, decode_model_snapshot(message.value()).window)
                else:
                    release = decode_release(message.value())
                    self._note(release.cluster, release.window)
        finally:
            consumer.close()

    def _note(self, source: int, window: int) -> None:
        if window > self.newest.get(source, -1):
            self._heard.setdefault(source, []).append((window, time.monotonic()))
            self.newest[source] = window
