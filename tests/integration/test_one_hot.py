"""Client i sends one grid step in coordinate i and noise is replaced by zero, so every correct
sum is zeros and ones: a two is a double count, whatever was killed, moved or replayed."""

import itertools

import numpy as np
import pytest

from agents.kafka_edge import LogEnds
from agents.ledger import verify_deep
from schemas import decode_update_batch
from stream.update_batcher import UpdateBatcher

CLIENTS = 24
pytestmark = [pytest.mark.integration, pytest.mark.slow]


def one_hot(client):
    return [int(i == client) for i in range(CLIENTS)]


def publish_all(deployment, counter):
    """Every client sends its update, in an order of its own for this call."""
    turn = next(counter)
    for step in range(CLIENTS):
        client = (step * 7 + turn) % CLIENTS
        name = f"client-{client}"
        deployment.send(name, deployment.update(name, one_hot(client)))
    deployment.producer().flush(30)


def expected_cells(deployment):
    """What each cell must hold, read from the log itself: first update of a client a window."""
    cells = {}
    for cluster in range(deployment.plan.cluster_count):
        for message in deployment.updates(cluster):
            window = deployment.plan.window_of(message.timestamp()[1])
            cells.setdefault((cluster, window), set()).add(message.key().decode())
    return cells


def assert_sums_are_right(deployment, windows):
    releases = deployment.releases()
    expected = expected_cells(deployment)
    for cluster, window in itertools.product(range(deployment.plan.cluster_count), windows):
        vector = releases[cluster, window].vector.tolist()
        who = expected.get((cluster, window), set())
        assert vector[:-1] == [int(f"client-{i}" in who) for i in range(CLIENTS)]
        assert vector[-1] == len(who) * deployment.plan.count_weight


def newest_common_window(deployment):
    newest = {}
    for cluster, window in deployment.releases():
        newest[cluster] = max(window, newest.get(cluster, -1))
    return min(newest.values()) if len(newest) == deployment.plan.cluster_count else -1


def test_sums_are_zeros_and_ones_though_a_head_is_killed_and_started_again(deploy):
    deployment = deploy(dimension=CLIENTS, cluster_count=4, expected_clients=CLIENTS)
    counter = itertools.count()
    first, second = deployment.start_head(), deployment.start_head()
    deployment.wait_until_owned()

    def windows_pass(count):
        target = newest_common_window(deployment) + count

        def probe():
            publish_all(deployment, counter)
            return newest_common_window(deployment) >= target

        deployment.eventually(f"{count} more windows are released", probe, 90)

    windows_pass(3)
    first.kill()
    publish_all(deployment, counter)
    third = deployment.start_head()
    deployment.wait_until_owned(second, third)
    windows_pass(3)
    assert second.stop() == 0
    deployment.wait_until_owned(third)
    windows_pass(2)

    last = newest_common_window(deployment)
    begins = [min(w for c, w in deployment.releases() if c == cluster) for cluster in range(4)]
    assert_sums_are_right(deployment, range(max(begins), last + 1))
    for cluster, begin in enumerate(begins):
        released = sorted(w for c, w in deployment.releases() if c == cluster)
        assert released == list(range(begin, released[-1] + 1)), "a window was skipped"
    verified = deployment.sdp("ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_updates_of_a_gateway_count_like_any_others(deploy):
    deployment = deploy(dimension=CLIENTS, cluster_count=2, expected_clients=CLIENTS)
    deployment.start_head()
    deployment.wait_until_owned()
    names = [f"client-{client}" for client in range(CLIENTS)]
    with UpdateBatcher(deployment.producer(), max_updates=5) as gateway:
        for client, name in enumerate(names):
            update = deployment.update(name, one_hot(client))
            cluster = deployment.plan.cluster_of(name)
            gateway.send(deployment.names.updates, cluster, name.encode(), update)
        # One by itself, after its twin in the batch: only one of them counts where both are in
        # one window, and each of them where they are not.
        deployment.send(names[0], deployment.update(names[0], one_hot(0)))

    def released():
        vectors = [release.vector for release in deployment.releases().values()]
        return np.sum(vectors, axis=0) if vectors else np.zeros(CLIENTS + 1)

    def are_there():
        counts = list(released()[:-1])
        return counts[0] in (1, 2) and counts[1:] == [1] * (CLIENTS - 1)

    deployment.eventually("each client's update is released", are_there)
    messages = [m.value() for cluster in range(2) for m in deployment.updates(cluster)]
    assert len(messages) < CLIENTS // 2
    assert sum(len(decode_update_batch(value)) for value in messages) == CLIENTS + 1
    assert verify_deep(deployment.config, deployment.plan, is_noise_free=True).problems == []


def test_an_offset_is_committed_with_each_window(deploy):
    deployment = deploy(dimension=CLIENTS, expected_clients=CLIENTS)
    deployment.start_head()
    deployment.wait_until_owned()
    counter = itertools.count()

    def committed():
        publish_all(deployment, counter)
        group = f"sdp-head-{deployment.plan.plan_id_hex}"
        ends = LogEnds(deployment.config, 10)
        return all(ends.committed_offset(group, deployment.names.updates, c) for c in range(2))

    deployment.eventually("both partitions have a committed offset", committed)
