"""The clients' program, with a clock that only waiting moves and a producer that keeps all."""

import threading
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from agents.demo.data import DIMENSION, client_ids, client_set, load_images
from agents.demo.fleet import Fleet, main
from agents.demo.plan import demo_plan
from schemas import ModelSnapshot, Update, decode_update
from stream.client import GradientClient
from stream.errors import DeliveryError
from stream.metrics import ClientMetrics
from stream.testing import FakeClock, LoopbackProducer

CLIENTS, WINDOWS, WINDOW_MS, START_MS = 250, 3, 3000, 1_000_000
PLAN = demo_plan(
    start_ms=START_MS, clients=CLIENTS, windows=WINDOWS, window_ms=WINDOW_MS, topic_prefix="demo"
)
IMAGES = client_set(load_images(), CLIENTS)


class Passing(threading.Event):
    """A stop signal whose waiting moves a clock instead of passing time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(max(1, int((timeout or 0) * 1000)))
        return self.is_set()


class TimedProducer(LoopbackProducer):
    """Notes when each record was sent; every send takes time."""

    def __init__(self, clock: FakeClock, send_ms: int = 0) -> None:
        super().__init__()
        self._clock = clock
        self._send_ms = send_ms
        self.sent_ms: list[int] = []

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        self._clock.advance(self._send_ms)
        self.sent_ms.append(self._clock())
        super().send(topic, partition, key, value)


class World:
    """A fleet with everything around it."""

    def __init__(self, now_ms: int = 0, send_ms: int = 0, model_delay_ms: int = 600) -> None:
        self.clock = FakeClock(now_ms)
        self.stop = Passing(self.clock)
        self.producer = TimedProducer(self.clock, send_ms)
        self.model_delay_ms = model_delay_ms
        self.registry = CollectorRegistry()
        clients = [GradientClient(PLAN, name, self.producer) for name in client_ids(CLIENTS)]
        self.fleet = Fleet(
            PLAN, IMAGES, clients, self.newest, ClientMetrics(self.registry), self.stop, self.clock
        )

    def newest(self) -> ModelSnapshot | None:
        """Version 0 from the beginning; each window's model some time after its end."""
        window = PLAN.window_of(self.clock() - self.model_delay_ms) - 1
        window = max(window, -1)
        weights = np.zeros(DIMENSION, dtype=np.float32)
        return ModelSnapshot(PLAN.plan_id, window + 1, window, self.clock(), weights)

    def sent_by_window(self) -> list[list[Update]]:
        sent: list[list[Update]] = [[] for _ in range(WINDOWS)]
        for record, at_ms in zip(self.producer.sent, self.producer.sent_ms, strict=True):
            sent[PLAN.window_of(at_ms)].append(decode_update(record.value))
        return sent

    def counted(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


def test_every_client_publishes_once_in_each_window() -> None:
    world = World()
    world.fleet.run()
    for updates in world.sent_by_window():
        assert Counter(update.client_id for update in updates) == Counter(client_ids(CLIENTS))
    assert world.counted("sdp_client_updates_published_total") == CLIENTS * WINDOWS
    assert world.counted("sdp_client_updates_skipped_total") == 0


def test_clients_wait_for_the_model_of_the_window_before() -> None:
    world = World(model_delay_ms=900)
    world.fleet.run()
    versions = [{update.model_version for update in sent} for sent in world.sent_by_window()]
    assert versions == [{0}, {1}, {2}]


def test_a_model_that_is_late_is_not_waited_for_beyond_two_fifths_of_the_window() -> None:
    world = World(model_delay_ms=1500)
    world.fleet.run()
    versions = [{update.model_version for update in sent} for sent in world.sent_by_window()]
    assert versions == [{0}, {0}, {1}]
    waited_ms = min(at for at in world.producer.sent_ms if at >= START_MS + WINDOW_MS)
    assert waited_ms - (START_MS + WINDOW_MS) == pytest.approx(0.4 * WINDOW_MS, abs=25)


def test_who_does_not_finish_in_time_skips_the_window_and_nobody_is_late() -> None:
    world = World(send_ms=20)
    world.fleet.run()
    for window, updates in enumerate(world.sent_by_window()):
        assert 0 < len(updates) < CLIENTS
        assert len({update.client_id for update in updates}) == len(updates), window
    published = world.counted("sdp_client_updates_published_total")
    skipped = world.counted("sdp_client_updates_skipped_total")
    assert published is not None
    assert skipped is not None
    assert published + skipped == CLIENTS * WINDOWS


def test_a_fleet_that_starts_late_leaves_out_the_windows_before() -> None:
    world = World(now_ms=START_MS + WINDOW_MS + 100)
    world.fleet.run()
    assert [len(sent) for sent in world.sent_by_window()] == [0, CLIENTS, CLIENTS]


def test_a_stopped_fleet_publishes_nothing_more() -> None:
    world = World()
    world.stop.set()
    world.fleet.run()
    assert world.producer.sent == []


def test_an_update_that_is_not_delivered_is_counted_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    send = world.producer.send

    def fail_for_one(topic: str, partition: int, key: bytes, value: bytes) -> None:
        if key == b"device-0007":
            raise DeliveryError("no broker")
        send(topic, partition, key, value)

    monkeypatch.setattr(world.producer, "send", fail_for_one)
    world.fleet.run()
    assert world.counted("sdp_client_delivery_failures_total") == WINDOWS
    assert world.counted("sdp_client_updates_published_total") == (CLIENTS - 1) * WINDOWS


def test_a_missing_address_is_explained(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan_file = tmp_path_factory.mktemp("fleet") / "plan.toml"
    plan_file.write_text(PLAN.to_toml())
    result = CliRunner().invoke(main, ["--plan", str(plan_file)])
    assert result.exit_code == 1
    assert "SDP_BOOTSTRAP_SERVERS" in result.output
