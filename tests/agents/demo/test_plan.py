"""The demonstration's plan."""

import pytest

from agents.demo.data import CLIENTS, DIMENSION, client_ids
from agents.demo.plan import CLUSTERS, SHORTEST_WINDOW_MS, WINDOW_MS, WINDOWS, demo_plan
from stream.privacy.plan import PrivacyPlan


def plan_of(windows: int = WINDOWS, window_ms: int = WINDOW_MS) -> PrivacyPlan:
    return demo_plan(
        start_ms=1_700_000_000_000,
        clients=CLIENTS,
        windows=windows,
        window_ms=window_ms,
        topic_prefix="demo",
    )


def test_the_budget_pays_for_exactly_the_windows_of_the_demonstration() -> None:
    plan = plan_of()
    assert (plan.epsilon, plan.delta, plan.dimension) == (8.0, 1e-5, DIMENSION)
    assert plan.windows_allowed == WINDOWS


def test_the_noise_is_that_of_the_simulation() -> None:
    # Simulated: sigma 3905.8 for a sensitivity of 1028.9 over 40 windows.
    assert plan_of().noise_multiplier == pytest.approx(3.796, abs=0.001)


@pytest.mark.parametrize("windows", [1, 4, 40, 1000])
@pytest.mark.parametrize("window_ms", [SHORTEST_WINDOW_MS, WINDOW_MS, 600_000])
def test_every_size_that_the_command_takes_makes_a_plan(windows: int, window_ms: int) -> None:
    plan = plan_of(windows, window_ms)
    assert plan.windows_allowed == windows
    assert PrivacyPlan.from_toml(plan.to_toml()) == plan


def test_clients_are_spread_evenly_over_the_clusters() -> None:
    plan = plan_of()
    clusters = [plan.cluster_of(client) for client in client_ids(CLIENTS)]
    assert all(450 < clusters.count(cluster) < 550 for cluster in range(CLUSTERS))
