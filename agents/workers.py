"""Puts a worker together: settings and plan in, a running role out. The roles' only `main`."""

import os
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stream.errors import PlanError
from stream.metrics import GlobalMetrics, HeadMetrics, Registries
from stream.privacy.noise import NoiseSource, noise_source
from stream.privacy.plan import PrivacyPlan

from .app import CHANNEL_BATCHES, RoleApp, add_agent, make_app, run_worker
from .cluster_head import HeadService
from .global_model import GlobalService
from .heap import keep_what_is_there, share_heaps
from .kafka_edge import LogEnds, connection
from .model_opener import ModelOpener
from .observability import Endpoints, Health
from .partition import ClusterOpener
from .protocol_steps import Watcher, nobody
from .publisher import Publisher
from .settings import Settings, SettingsError
from .topic_ids import global_topics, head_topics
from .topics import check_mock_topics, check_topics, topics_of

# Enough to be worth a turn of the event loop, and not so much that a heartbeat would wait.
_BATCH_BYTES = 8 << 20
_MOST_BATCH_RECORDS = 4000


def run_head(
    settings: Settings,
    plan: PrivacyPlan,
    noise: NoiseSource | None = None,
    *,
    unsafe_mock_broker: bool = False,
    watch: Watcher = nobody,
) -> NoReturn:
    """Run a cluster head until it is stopped.

    Args:
        settings: Of this process.
        plan: The plan.
        noise: The noise source; by default exact, from the operating system's entropy. Anything
            else voids the guarantee and is for tests.
        unsafe_mock_broker: The broker is librdkafka's mock cluster (any other is refused): its
            topics have no configuration to check, and windows are decided by the producers'
            clocks. This voids the guarantee, and is for demonstrations on invented clients.
        watch: Who watches the protocol's steps; for crash tests.

    Raises:
        TopicError: topics are missing or do not fit the plan.
        SettingsError: a port for the metrics is taken, or the noise kernel is not installed.
        KafkaException: the broker cannot be asked.
    """
    share_heaps()
    noise = noise or _noise(settings, plan)
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    _check(settings, config, plan, unsafe_mock_broker=unsafe_mock_broker)
    registries, health = Registries(plan), Health("head")
    largest = max(spec.max_message_bytes for spec in topics_of(plan))
    topics = (
        None
        if unsafe_mock_broker
        else head_topics(LogEnds(config, settings.request_timeout_s), plan)
    )
    app = make_app(f"sdp-head-{plan.plan_id_hex}")
    channel = app.channel(maxsize=CHANNEL_BATCHES)
    service = HeadService(
        app=app,
        channel=channel,
        plan=plan,
        opener=ClusterOpener(
            settings,
            plan,
            config,
            noise,
            largest,
            topics=topics,
            unsafe_mock_broker=unsafe_mock_broker,
            watch=watch,
        ),
        publisher=Publisher(
            config,
            plan,
            request_timeout_s=settings.request_timeout_s,
            max_message_bytes=largest,
            unsafe_mock_broker=unsafe_mock_broker,
        ),
        feed_options=_feed_options(
            settings, config, largest, unsafe_mock_broker=unsafe_mock_broker
        ),
        metrics=HeadMetrics(registries, plan),
        health=health,
        topics=topics,
        watch=watch,
    )
    app.service(service)  # type: ignore[arg-type]  # an instance is as good as a class
    add_agent(app, channel, service.take)
    _run(app, settings, registries, health)


def run_global(
    settings: Settings,
    plan: PrivacyPlan,
    initial_weights: NDArray[np.float64],
    *,
    unsafe_mock_broker: bool = False,
    watch: Watcher = nobody,
) -> NoReturn:
    """Run a global agent until it is stopped.

    Args:
        settings: Of this process.
        plan: The plan.
        initial_weights: Shape ``(dimension,)``; used where no model was ever published.
        unsafe_mock_broker: See `run_head`.
        watch: See `run_head`.

    Raises:
        TopicError: topics are missing or do not fit the plan.
        SettingsError: a port for the metrics is taken.
        KafkaException: the broker cannot be asked.
    """
    share_heaps()
    config = connection(settings.bootstrap_servers, settings.kafka_options)
    _check(settings, config, plan, unsafe_mock_broker=unsafe_mock_broker)
    registries, health = Registries(plan), Health("global")
    largest = max(spec.max_message_bytes for spec in topics_of(plan))
    ends = LogEnds(config, settings.request_timeout_s)
    topics = None if unsafe_mock_broker else global_topics(ends, plan)
    app = make_app(f"sdp-global-{plan.plan_id_hex}")
    channel = app.channel(maxsize=CHANNEL_BATCHES)
    service = GlobalService(
        app=app,
        channel=channel,
        plan=plan,
        opener=ModelOpener(
            settings,
            plan,
            config,
            initial_weights,
            largest,
            topics=topics,
            unsafe_mock_broker=unsafe_mock_broker,
            watch=watch,
        ),
        ends=ends,
        feed_options=_feed_options(
            settings, config, largest, unsafe_mock_broker=unsafe_mock_broker
        ),
        metrics=GlobalMetrics(registries),
        health=health,
        topics=topics,
        watch=watch,
    )
    app.service(service)  # type: ignore[arg-type]  # an instance is as good as a class
    add_agent(app, channel, service.take)
    _run(app, settings, registries, health)


def read_initial_weights(path: Path | None, plan: PrivacyPlan) -> NDArray[np.float64]:
    """Return the weights in a ``.npy`` file, flattened, or zeros without a file.

    Raises:
        PlanError: the file does not hold ``dimension`` finite numbers.
    """
    if path is None:
        return np.zeros(plan.dimension)
    try:
        with path.open("rb") as file:
            # np.load would also take archives and pickles.
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise PlanError(f"the weights {path} cannot be read: {error}") from error
    if array.dtype.kind not in "fiu":
        raise PlanError(f"{path} must hold real numbers, not {array.dtype}")
    weights: NDArray[np.float64] = array.astype(np.float64).ravel()
    if weights.size != plan.dimension or not np.isfinite(weights).all():
        raise PlanError(f"{path} must hold {plan.dimension} finite numbers, as the plan says")
    return weights


def _noise(settings: Settings, plan: PrivacyPlan) -> NoiseSource:
    try:
        return noise_source(plan.noise, os.urandom, settings.kernel)
    except ImportError as error:
        raise SettingsError(str(error)) from error


def _check(
    settings: Settings, config: dict[str, str], plan: PrivacyPlan, *, unsafe_mock_broker: bool
) -> None:
    if unsafe_mock_broker:
        check_mock_topics(config, plan)
    else:
        check_topics(config, plan, request_timeout_s=settings.request_timeout_s)


def _feed_options(
    settings: Settings,
    config: dict[str, str],
    largest: int,
    *,
    unsafe_mock_broker: bool,
) -> dict[str, object]:
    return {
        "config": {**config, "max.partition.fetch.bytes": str(max(1 << 20, largest))},
        "session_timeout_ms": settings.session_timeout_ms,
        "batch_records": _MOST_BATCH_RECORDS,
        "batch_bytes": _BATCH_BYTES,
        "unsafe_any_timestamps": unsafe_mock_broker,
    }


def _run(app: RoleApp, settings: Settings, registries: Registries, health: Health) -> NoReturn:
    try:
        Endpoints(
            registries,
            health,
            host=settings.metrics_host,
            operator_port=settings.operator_port,
            public_port=settings.public_port,
        )
    except OSError as error:
        raise SettingsError(
            f"no metrics can be served: {error}. Is another worker on this machine? Set "
            f"SDP_OPERATOR_PORT (now {settings.operator_port}) and SDP_PUBLIC_PORT (now "
            f"{settings.public_port}) to free ports, or to 0 for any; SDP_METRICS_HOST is "
            f"{settings.metrics_host}"
        ) from error
    keep_what_is_there()
    run_worker(app, settings.log_level)
