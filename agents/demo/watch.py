"""Watching a run from outside: the public topics, and the heads' counters of the operator."""

import http.client
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from schemas import TopicNames, decode_model_snapshot, decode_release

from .state import DemoState

_SCRAPE_EVERY_S = 1.0
_SCRAPE_TIMEOUT_S = 5.0


class Watch:
    """Keeps a `DemoState` up to date; as a context manager, it leaves Kafka at the end.

    Args:
        state: What to keep up to date.
        bootstrap_servers: Addresses as Kafka clients take them.
        operator_ports: Ports on loopback of the heads' operator metrics.
    """

    def __init__(
        self, state: DemoState, bootstrap_servers: str, operator_ports: Sequence[int]
    ) -> None:
        self._state = state
        self._ports = operator_ports
        self._names = TopicNames(state.plan.topic_prefix)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "sdp-demo-watch",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [
                TopicPartition(topic, 0, OFFSET_BEGINNING)
                for topic in (self._names.releases, self._names.model)
            ]
        )
        # A thread of its own: waiting for an endpoint must not make releases look late.
        self._scraper = ThreadPoolExecutor(max_workers=1)
        self._scrape: Future[Counter[str]] | None = None
        self._scraped_at_s = 0.0

    def poll(self, timeout_s: float) -> None:
        """Wait for news until ``timeout_s`` is over, and take in all that there are.

        Raises:
            KafkaException: the broker refuses to be read.
            MalformedMessageError: a public topic holds what is no message of ours.
        """
        message = self._consumer.poll(timeout_s)
        while message is not None:
            self._take(message, time.time_ns() // 1_000_000)
            message = self._consumer.poll(0)
        self._scrape_now_and_then()

    def finish(self) -> None:
        """Read the counters a last time, while the heads still run.

        Raises:
            OSError: a head does not answer.
        """
        self._state.observe_updates(count_updates(self._ports))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scraper.shutdown(cancel_futures=True)
        self._consumer.close()

    def _take(self, message: Message, received_ms: int) -> None:
        if (error := message.error()) is not None:
            raise KafkaException(error)
        value = message.value() or b""
        if message.topic() == self._names.releases:
            self._state.observe_release(decode_release(value), value, received_ms)
        else:
            self._state.observe_model(decode_model_snapshot(value), received_ms)

    def _scrape_now_and_then(self) -> None:
        if self._scrape is not None and self._scrape.done():
            # A head too busy to answer is asked again; `finish` is what must succeed.
            if self._scrape.exception() is None:
                self._state.observe_updates(self._scrape.result())
            self._scrape = None
        if self._scrape is None and time.monotonic() - self._scraped_at_s > _SCRAPE_EVERY_S:
            self._scraped_at_s = time.monotonic()
            self._scrape = self._scraper.submit(count_updates, self._ports)


def count_updates(ports: Sequence[int]) -> Counter[str]:
    """Return the updates of all heads by outcome: ``accepted``, or the reason of the refusal.

    Raises:
        OSError: an endpoint does not answer.
    """
    counts: Counter[str] = Counter()
    for port in ports:
        counts += parse_updates(http_get(port, "/metrics"))
    return counts


def parse_updates(text: str) -> Counter[str]:
    """Return the updates by outcome from a head's metrics in Prometheus' text format."""
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "sdp_updates_total":
                counts[sample.labels["outcome"]] += int(sample.value)
    return counts


def http_get(port: int, path: str, timeout_s: float = _SCRAPE_TIMEOUT_S) -> str:
    """Return the body of an answer with status 200 from loopback.

    Raises:
        OSError: no answer, or another status.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
    except http.client.HTTPException as error:
        raise OSError(f"port {port}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise OSError(f"port {port}: {path} answers {response.status}: {body.strip()}")
    return body
