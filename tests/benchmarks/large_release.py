"""A window of a very large model in several clusters: from its end until all of it is public."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from deployment import Deployment, small_plan
from measurement import Floor, Result

from schemas import Update, decode_release, encode_update
from stream.privacy.plan import PrivacyPlan

_DIMENSION, _CLUSTERS = 8_000_000, 4
_WINDOW_MS = 20_000
_IN_TIME = Floor("<=", 30)  # a release delay that a plan of that size could have, in seconds
_CLIENTS = 3  # of each cluster; they send while the window before is released
_WAIT_S = 120.0
_END = -1  # librdkafka's OFFSET_END


def large_release_results(servers: str, windows: int) -> Iterator[Result]:
    """Yield the seconds of so many windows, and the head's memory."""
    seconds, peak_mib = measured_releases(
        servers, _plan(_DIMENSION, _CLUSTERS, _WINDOW_MS), windows
    )
    yield Result("release_8M_x4", "s", seconds, _IN_TIME)
    yield Result("release_8M_x4_peak", "MiB", [peak_mib])


def measured_releases(servers: str, plan: PrivacyPlan, windows: int) -> tuple[list[float], float]:
    """Return when so many windows were public, in seconds from their ends, and peak MiB."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdp-bench-")))
        deployment = Deployment(servers, plan, folder)
        stack.callback(deployment.close)
        head = deployment.start_head(noise=True)
        deployment.wait_until_owned()
        consumer = Consumer(
            deployment.config
            | {"group.id": "bench", "enable.auto.commit": False, "fetch.max.bytes": 256 << 20}
            | {"receive.message.max.bytes": 512 << 20}
        )
        stack.callback(consumer.close)
        consumer.assign([TopicPartition(deployment.names.releases, 0, _END)])
        # The window in which the head came may have begun without it.
        first = deployment.current_window() + 1
        seconds = [_released_s(deployment, consumer, first + n) for n in range(windows)]
        return seconds, _peak_mib(head.process.pid)


def _released_s(deployment: Deployment, consumer: Consumer, window: int) -> float:
    """Return when the last cluster's release of ``window`` was appended, from the window's end."""
    plan = deployment.plan
    deployment.eventually(f"window {window} begins", lambda: deployment.current_window() >= window)
    _send_updates(deployment)
    appended_ms: dict[int, int] = {}
    deadline = time.monotonic() + _WAIT_S + plan.window_length_ms / 1000
    while len(appended_ms) < plan.cluster_count:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            release = decode_release(message.value())
            if release.window == window:
                appended_ms[release.cluster] = message.timestamp()[1]
        elif time.monotonic() > deadline:
            raise RuntimeError(f"window {window} was released by {sorted(appended_ms)} only")
    return (max(appended_ms.values()) - plan.window_end_ms(window)) / 1000


def _send_updates(deployment: Deployment) -> None:
    plan = deployment.plan
    vector = np.random.default_rng(0).integers(-15, 16, plan.dimension, np.int8)
    producer = Producer(deployment.config | {"message.max.bytes": plan.dimension + (1 << 20)})
    for cluster in range(plan.cluster_count):
        for client in range(_CLIENTS):
            update = encode_update(Update(plan.plan_id, f"{cluster}/{client}", 0, vector))
            producer.produce(deployment.names.updates, update, partition=cluster)
    if producer.flush(_WAIT_S):
        raise RuntimeError("not every update was written")


def _plan(dimension: int, clusters: int, window_ms: int) -> PrivacyPlan:
    root = round(dimension**0.5)
    return small_plan(
        name="large",
        dimension=dimension,
        grid_l2_bound=20 * root,
        count_weight=10 * root,
        cluster_count=clusters,
        assignment="prefix",
        assignment_key="",
        prefixes=tuple(map(str, range(clusters))),
        expected_clients=_CLIENTS * clusters,
        window_length_ms=window_ms,
        # So short that nothing ever waits for it: what is measured is what it takes.
        grace_ms=window_ms // 100,
        release_delay_ms=window_ms // 50,
        topic_prefix=f"large-{os.getpid()}-{dimension}",
    )


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} does not say what memory it had")
