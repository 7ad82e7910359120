"""A deep verification of what running heads and a running global agent write."""

import json

import pytest

from agents.ledger import verify_deep

CLIENTS = 24
pytestmark = [pytest.mark.integration, pytest.mark.slow]


def one_hot(client):
    return [int(i == client) for i in range(CLIENTS)]


def publish_until(deployment, windows):
    """Let clients send, some of it again or invalid, until so many windows more are merged."""
    target = len(deployment.read(deployment.names.model)) + windows

    def probe():
        for client in range(CLIENTS):
            name = f"client-{client}"
            deployment.send(name, deployment.update(name, one_hot(client)))
        deployment.send("client-1", b"garbage")
        deployment.send("client-2", deployment.update("client-2", [127] * CLIENTS))
        deployment.producer().flush(30)
        return len(deployment.read(deployment.names.model)) >= target

    deployment.eventually(f"{windows} windows are merged", probe, 120)


def test_a_deployment_without_noise_verifies_exactly_while_a_head_is_killed(deploy):
    deployment = deploy(dimension=CLIENTS, grid_l2_bound=300)
    first = deployment.start_head()
    deployment.start_global()
    publish_until(deployment, 3)
    first.kill()
    deployment.start_head()
    publish_until(deployment, 3)
    found = verify_deep(deployment.config, deployment.plan, is_noise_free=True)
    assert found.problems == []
    deep = found.deep
    assert deep.sums_checked >= 4
    assert all(row.updates_counted > 0 for row in deep.clusters)
    assert sum(row.updates_refused["duplicate"] for row in deep.clusters) > 0
    for row in deep.clusters:
        explained = row.updates_counted + sum(row.updates_refused.values()) + row.updates_excused
        assert row.updates_read == explained + row.updates_waiting + row.updates_unchecked
    # The same sums without their noise are no noise.
    problems = verify_deep(deployment.config, deployment.plan).problems
    assert any("too little" in problem for problem in problems)


def test_the_noise_of_running_heads_is_that_of_the_ledger(deploy):
    """False alarms: at most 1e-9, by the guarantee of `agents.noise_fit`."""
    deployment = deploy(dimension=CLIENTS, grid_l2_bound=300)
    deployment.start_head(noise=True)
    deployment.start_global()
    publish_until(deployment, 3)
    verified = deployment.sdp("ledger", "verify", "--deep", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    deep = json.loads(verified.stdout)["deep"]
    assert deep["sums_checked"] >= 2
    assert deep["model"]["newest_version"] >= 3
