"""The games' arithmetic; that they find faults is in test_audit."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from stream.audit_games import Auditor, _LargeNoise, mu_interval
from stream.errors import PlanError
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import insecure_entropy

PLAN = PrivacyPlan(
    name="games",
    dimension=10,
    cluster_count=2,
    assignment="prefix",
    prefixes=("north", "south"),
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=1.0,
    delta=1e-6,
    horizon_windows=50,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


def make_auditor(plan: PrivacyPlan = PLAN) -> Auditor:
    return Auditor(plan, insecure_entropy(1), RoundedGaussian, miss=1e-6)


@pytest.mark.parametrize(("right", "games"), [(60, 100), (3000, 4000), (99, 100), (51, 52)])
@pytest.mark.parametrize("miss", [0.025, 1e-6, 1e-10])
def test_the_interval_is_that_of_clopper_and_pearson(right, games, miss):
    exact = stats.binomtest(right, games).proportion_ci(1 - 2 * miss, method="exact")
    lower, upper = mu_interval(right, games, miss)
    assert lower == pytest.approx(max(0.0, 2 * stats.norm.ppf(exact.low)), rel=1e-6)
    assert upper == pytest.approx(2 * stats.norm.ppf(exact.high), rel=1e-4)  # 1 - p in float


def test_games_that_are_all_won_or_lost_bound_one_side_only():
    lower, upper = mu_interval(1000, 1000, 1e-6)
    assert (lower, upper) == (pytest.approx(2 * stats.norm.ppf(1e-6 ** (1 / 1000))), np.inf)
    assert mu_interval(0, 1000, 1e-6) == (0.0, 0.0)


def test_a_game_of_a_small_budget_is_played_by_a_group_of_clients():
    auditor = make_auditor()
    (found,) = auditor.canaries(1000)
    assert found.clients == round(2 / auditor.lifetime_mu) > 1
    assert found.charged_mu == pytest.approx(auditor.lifetime_mu, rel=1e-9)


def test_a_game_of_a_large_budget_spends_a_part_of_it():
    auditor = make_auditor(dataclasses.replace(PLAN, epsilon=60.0))
    (canaries,) = auditor.canaries(1000)
    worlds, difference = auditor.worlds(20)
    assert auditor.lifetime_mu > 4
    for found in (canaries, worlds, difference):
        assert found.clients == 1
        assert 1.3 < found.charged_mu <= 2


def test_what_the_games_cost_is_counted():
    auditor = make_auditor(dataclasses.replace(PLAN, epsilon=8.0))
    auditor.worlds(10)
    assert auditor.releases == 20
    assert auditor.updates % 6 == 0  # two windows of three updates, or nothing
    auditor.add_large_noise()
    assert auditor.releases == 21
    assert not auditor.findings.faults


def test_a_budget_that_no_bearable_number_of_clients_would_show_is_refused():
    with pytest.raises(PlanError, match="too little to be seen"):
        make_auditor(dataclasses.replace(PLAN, epsilon=1e-5, delta=1e-9, horizon_windows=1))


def test_large_noise_is_odd_and_beyond_2_to_the_60():
    noise = _LargeNoise(insecure_entropy(2)).sample(None, 1000)
    assert noise.dtype == np.int64
    assert (noise % 2 == 1).all()
    assert (abs(noise) >= 2**60).all()
    assert (abs(noise) < 2**61).all()
