"""The broker away, and back: nothing is lost, released twice, or guessed."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GOOD = [3] * 12


def test_a_head_and_a_global_agent_survive_a_broker_that_goes_away_and_comes_back(
    deploy, native_broker
):
    deployment = deploy(cluster_count=2, servers=native_broker.bootstrap_servers)
    head, merger = deployment.start_head(), deployment.start_global()
    deployment.wait_until_owned(head)
    deployment.eventually("windows are released", lambda: len(deployment.releases()) >= 4)

    before = len(deployment.releases())
    window = deployment.current_window()
    native_broker.kill()
    deployment.eventually("two windows pass", lambda: deployment.current_window() > window + 2)
    native_broker.restart()
    deployment.eventually(
        "windows are released again", lambda: len(deployment.releases()) >= before + 6, 90
    )
    assert head.process.poll() is None
    assert merger.process.poll() is None
    for cluster in range(2):
        windows = sorted(w for c, w in deployment.releases() if c == cluster)
        assert windows == list(range(windows[0], windows[-1] + 1))
    verified = deployment.sdp("ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
