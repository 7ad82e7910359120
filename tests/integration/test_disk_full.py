"""The broker's disk is full: it dies of it, and nothing but time is lost."""

import pytest
from small_disk import fill, make_room, small_disk
from topic_faults import has_no_gap, windows

from agents.ledger import verify_deep
from agents.local_kafka import NativeBroker

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DISK = "64m"


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, or none where a user may mount nothing."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, DISK) as found:
        if found is None:
            pytest.skip("no file system can be mounted here: user name spaces are switched off")
        yield found


def publish(deployment):
    """Send an update that the broker acknowledges."""
    deployment.send("a", deployment.update("a", [3] * 12))
    deployment.producer().flush(60)


def total(deployment):
    return sum(int(release.vector[:-1].sum()) for release in deployment.releases().values())


def test_a_full_disk_costs_nothing_but_time(deploy, native_kafka, disk):
    with NativeBroker(disk / "kafka", say=print) as broker:
        deployment = deploy(cluster_count=2, servers=broker.bootstrap_servers)
        head, merger = deployment.start_head(), deployment.start_global()
        deployment.wait_until_owned(head)
        deployment.eventually("windows are released", lambda: len(deployment.releases()) >= 4)

        publish(deployment)
        fill(disk)
        deployment.eventually("the broker gives up", broker.has_ended)
        window = deployment.current_window()
        deployment.eventually("a window passes", lambda: deployment.current_window() > window + 1)
        make_room(disk)
        broker.restart()
        publish(deployment)
        deployment.eventually(
            "each cluster releases again",
            lambda: {c for c, w in deployment.releases() if w > window} == {0, 1},
            90,
        )

        assert (head.process.poll(), merger.process.poll()) == (None, None)
        assert all(has_no_gap(windows(deployment, cluster)) for cluster in range(2))
        assert sum(len(deployment.updates(cluster)) for cluster in range(2)) == 2
        deployment.eventually("both are in a sum", lambda: total(deployment) == 2 * 3 * 12)
        assert verify_deep(deployment.config, deployment.plan, is_noise_free=True).problems == []
