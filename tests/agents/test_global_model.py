"""The model on real Kafka: no step lost, none applied twice, whatever was killed."""

import numpy as np
import pytest

from schemas import decode_model_snapshot
from stream.client import GradientClient, ModelSubscriber

pytestmark = pytest.mark.integration


def snapshots(deployment):
    return [decode_model_snapshot(m.value()) for m in deployment.read(deployment.names.model)]


def test_versions_have_no_gap_and_no_repeat_though_the_agent_is_killed(deploy):
    deployment = deploy()
    deployment.start_head()
    merger = deployment.start_global()
    deployment.wait_until_owned()
    deployment.eventually("three models", lambda: len(snapshots(deployment)) >= 4)
    merger.kill()
    released = max(window for _, window in deployment.releases())
    deployment.eventually(
        "windows pass without it", lambda: max(w for _, w in deployment.releases()) > released + 1
    )
    deployment.start_global()
    deployment.eventually(
        "it has caught up", lambda: snapshots(deployment)[-1].window > released + 2
    )
    models = snapshots(deployment)
    assert [model.model_version for model in models] == list(range(len(models)))
    windows = [model.window for model in models[1:]]
    assert windows == list(range(windows[0], windows[0] + len(windows)))


def test_the_model_steps_by_the_mean_of_what_the_clients_published(deploy):
    deployment = deploy(window_length_ms=2000, grid_l2_bound=400, dimension=12)
    deployment.start_head()
    deployment.start_global()
    deployment.wait_until_owned()
    plan = deployment.plan
    gradient = np.linspace(-0.1, 0.1, 12)
    with ModelSubscriber(plan, deployment.bootstrap_servers) as subscriber:
        first = subscriber.wait_for(0, 30)
        window = deployment.current_window() + 1
        deployment.eventually("a window begins", lambda: deployment.current_window() >= window)
        for client in range(plan.expected_clients):
            name = f"client-{client}"
            GradientClient(plan, name, deployment.producer()).publish(
                gradient, model_version=first.model_version
            )
        deployment.producer().flush(30)
        before = after = first
        while after.window < window:
            before, after = after, subscriber.wait_for(after.model_version + 1, 30)
    # Twelve clients' stochastic rounding: each is off by less than one grid step.
    step = plan.optimizer.learning_rate * plan.grid_step
    moved = before.vector.astype(float) - after.vector
    assert np.abs(moved - plan.optimizer.learning_rate * gradient).max() < step


def test_two_agents_share_one_model_and_the_second_takes_over(deploy):
    deployment = deploy()
    deployment.start_head()
    first = deployment.start_global()
    deployment.eventually("it owns the model", lambda: (first.health() or {}).get("owns_model"))
    second = deployment.start_global()
    deployment.eventually("the second is well", second.health)
    assert first.stop() == 0
    deployment.eventually(
        "the second owns the model", lambda: (second.health() or {}).get("owns_model")
    )
    models = len(snapshots(deployment))
    deployment.eventually("models go on", lambda: len(snapshots(deployment)) > models + 1)
    assert [m.model_version for m in snapshots(deployment)] == list(
        range(len(snapshots(deployment)))
    )
