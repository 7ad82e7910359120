"""A second worker takes clusters over from a first one that is at work: no window is lost, none is
released with two contents, and no update is counted twice or not at all."""

import threading
import time
from contextlib import contextmanager
from itertools import chain, count

import pytest

from agents.ledger import verify_deep

CLIENTS, CLUSTERS = 24, 4
PAUSE_S = 0.005
pytestmark = [pytest.mark.integration, pytest.mark.slow]


@contextmanager
def steady_load(deployment):
    """One client after the other sends, without an end, while the block runs."""
    stop = threading.Event()
    failures = []

    def send():
        try:
            for number in count():
                if stop.is_set():
                    return
                client = number % CLIENTS
                one_hot = [int(i == client) for i in range(CLIENTS)]
                deployment.send(f"client-{client}", deployment.update(f"client-{client}", one_hot))
                time.sleep(PAUSE_S)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        deployment.producer().flush(30)
    assert failures == []


def newest_window_of_all(deployment):
    newest = dict.fromkeys(range(CLUSTERS), -1)
    for cluster, window in deployment.releases():
        newest[cluster] = max(newest[cluster], window)
    return min(newest.values())


def wait_for_windows(deployment, windows):
    target = newest_window_of_all(deployment) + windows
    deployment.eventually(
        f"window {target} is released", lambda: newest_window_of_all(deployment) >= target
    )


def test_a_second_worker_takes_clusters_over_under_load_and_no_window_is_lost(deploy):
    deployment = deploy(dimension=CLIENTS, cluster_count=CLUSTERS, expected_clients=CLIENTS)
    first = deployment.start_head()
    deployment.wait_until_owned(first)

    def is_shared():
        shares = [deployment.owned_clusters(worker) for worker in (first, second)]
        return all(shares) and sorted(chain(*shares)) == list(range(CLUSTERS))

    with steady_load(deployment):
        wait_for_windows(deployment, 3)
        second = deployment.start_head()
        deployment.eventually("both workers have clusters", is_shared)
        wait_for_windows(deployment, 3)
        assert is_shared()
        last = deployment.current_window()
    deployment.eventually(
        "all that was sent is released", lambda: newest_window_of_all(deployment) > last
    )

    released = sorted(deployment.releases())
    for cluster in range(CLUSTERS):
        windows = [window for each, window in released if each == cluster]
        assert windows == list(range(windows[0], windows[-1] + 1)), "a window was skipped"
    verified = verify_deep(deployment.config, deployment.plan, is_noise_free=True)
    assert verified.problems == []
    assert verified.deep.sums_checked >= len(released) - CLUSTERS
    assert all(row.sums_unchecked == () for row in verified.deep.clusters)
    counted = sum(row.updates_counted for row in verified.deep.clusters)
    counts = [int(release.vector[-1]) for release in deployment.releases().values()]
    assert sum(counts) == counted * deployment.plan.count_weight
    # A client counts once a window, in each of the windows that the load was there for.
    assert counted >= 4 * CLIENTS
