"""The clients of the demonstration: one process, one producer, two thousand identities.

In every window each client takes the newest model that came over Kafka, computes the gradient on
its own images, and publishes it. The process ends by itself after the plan's last window.
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, start_http_server

from agents.settings import SettingsError, load_settings
from schemas import ModelSnapshot
from stream.client import GradientClient, connect_producer
from stream.errors import DeliveryError, PlanError
from stream.metrics import ClientMetrics
from stream.privacy.plan import PrivacyPlan
from stream.subscriber import ModelSubscriber

from .data import CLIENTS, IMAGES_PER_CLIENT, Images, client_ids, client_set, load_images
from .training import client_gradients

log = logging.getLogger(__name__)

# So many gradients are in memory at once (31 KB each).
_CHUNK = 100
# An update belongs to the window in which the broker appends it: keep away from both edges.
_EDGE_MS = 20
_TAIL_SHARE = 0.1
_MODEL_WAIT_SHARE = 0.4
_MODEL_POLL_S = 0.02


class Fleet:
    """Many clients that take part in every window of a plan.

    Args:
        plan: The plan.
        images: `IMAGES_PER_CLIENT` rows for each client, in the order of ``clients``.
        clients: The identities.
        newest_model: Returns the newest model that has been received, or None.
        metrics: Where published, skipped and failed updates are counted.
        stop: Set to end early; its ``wait`` is how the fleet passes the time.
        now_ms: The clock, in epoch milliseconds.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        images: Images,
        clients: Sequence[GradientClient],
        newest_model: Callable[[], ModelSnapshot | None],
        metrics: ClientMetrics,
        stop: threading.Event,
        now_ms: Callable[[], int],
    ) -> None:
        self._plan = plan
        self._images = images
        self._clients = clients
        self._newest_model = newest_model
        self._metrics = metrics
        self._stop = stop
        self._now_ms = now_ms

    def run(self) -> None:
        """Take part in each window from the present one to the plan's last, or until stopped."""
        first = max(0, self._plan.window_of(self._now_ms()))
        for window in range(first, self._plan.horizon_windows):
            start_ms = self._plan.window_end_ms(window - 1) + _EDGE_MS
            while (wait_ms := start_ms - self._now_ms()) > 0 and not self._stop.is_set():
                self._stop.wait(wait_ms / 1000)
            if self._stop.is_set():
                return
            self._take_part(window)

    def _take_part(self, window: int) -> None:
        model = self._model_for(window)
        if model is None:
            log.warning("window %d: there is no model yet", window)
        turns = 0 if model is None else self._publish_all(window, model)
        skipped = len(self._clients) - turns
        self._metrics.observe_skipped(skipped)
        log.info("window %d: %d clients had their turn, %d did not", window, turns, skipped)

    def _model_for(self, window: int) -> ModelSnapshot | None:
        """Return the model that has the window before in it, or the newest if that is late."""
        length_ms = self._plan.window_length_ms
        until_ms = self._plan.window_end_ms(window) - int((1 - _MODEL_WAIT_SHARE) * length_ms)
        while (model := self._newest_model()) is None or model.window < window - 1:
            if self._now_ms() >= until_ms or self._stop.is_set():
                break
            self._stop.wait(_MODEL_POLL_S)
        if model is not None:
            self._metrics.observe_model(model.model_version)
        return model

    def _publish_all(self, window: int, model: ModelSnapshot) -> int:
        """Return how many clients had their turn before the window was nearly over."""
        tail_ms = int(_TAIL_SHARE * self._plan.window_length_ms)
        until_ms = self._plan.window_end_ms(window) - tail_ms
        turns = 0
        for client, gradient in zip(self._clients, self._gradients(model), strict=True):
            if self._now_ms() >= until_ms or self._stop.is_set():
                break
            self._publish(client, gradient, model)
            turns += 1
        return turns

    def _gradients(self, model: ModelSnapshot) -> Iterator[NDArray[np.float32]]:
        """Yield each client's gradient; a chunk of them is computed at a time."""
        for start in range(0, len(self._clients), _CHUNK):
            rows = slice(start * IMAGES_PER_CLIENT, (start + _CHUNK) * IMAGES_PER_CLIENT)
            chunk = Images(self._images.features[rows], self._images.labels[rows])
            yield from client_gradients(model.vector, chunk)

    def _publish(
        self, client: GradientClient, gradient: NDArray[np.float32], model: ModelSnapshot
    ) -> None:
        try:
            client.publish(gradient, model=model)
        except DeliveryError as error:
            # The next window is another chance; what is lost is seen in the metrics.
            log.warning("not delivered: %s", error)
            self._metrics.observe_failure()
        else:
            self._metrics.observe_published()


@click.command()
@click.option(
    "--plan",
    "plan_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The privacy plan.",
)
@click.option("--clients", default=CLIENTS, type=click.IntRange(1, CLIENTS), show_default=True)
def main(plan_file: Path, clients: int) -> None:
    """Run the demonstration's clients until the plan's last window.

    Addresses and the port of the metrics (SDP_OPERATOR_PORT) are settings, as for every process.
    """
    try:
        settings = load_settings(plan=plan_file)
        plan = PrivacyPlan.from_toml(plan_file.read_text(encoding="utf-8"))
    except (SettingsError, PlanError) as error:
        raise click.ClickException(str(error)) from error
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    images = client_set(load_images(), clients)
    registry = CollectorRegistry()
    servers, options = settings.bootstrap_servers, settings.kafka_options
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(connect_producer(plan, servers, options))
        models = stack.enter_context(ModelSubscriber(plan, servers, options))
        fleet = Fleet(
            plan,
            images,
            [GradientClient(plan, name, producer) for name in client_ids(clients)],
            models.newest,
            ClientMetrics(registry),
            stop,
            lambda: time.time_ns() // 1_000_000,
        )
        # Serving comes last: an answer on this port means that the clients are ready.
        server, _ = start_http_server(settings.operator_port, settings.metrics_host, registry)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        fleet.run()


if __name__ == "__main__":
    main()
