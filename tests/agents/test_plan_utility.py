import dataclasses
import math

import numpy as np
import pytest

from agents.plan_utility import Utility
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.testing import insecure_entropy

PLAN = PrivacyPlan(
    name="utility",
    dimension=4000,
    cluster_count=4,
    assignment="hash",
    assignment_key="public",
    expected_clients=1000,
    start_ms=0,
    window_length_ms=60_000,
    grace_ms=1000,
    release_delay_ms=5000,
    l2_clip_norm=2.0,
    grid_l2_bound=1500,
    count_weight=50,
    update_dtype="int8",
    epsilon=4.0,
    delta=1e-6,
    horizon_windows=1000,
    optimizer=OptimizerSpec("sgd", learning_rate=0.1),
    normalizer="expected_clients",
)


def test_it_is_what_noise_that_is_drawn_does_to_a_mean() -> None:
    """Seeded. With fresh noise 16,000 draws stay within 5 % but for 1e-18 of the runs."""
    noise = RoundedGaussian(insecure_entropy(1))
    total = sum(noise.sample(PLAN.noise_variance, PLAN.dimension) for _ in range(4))
    mean = total * PLAN.grid_step / PLAN.expected_clients
    found = Utility.of(PLAN)
    assert np.linalg.norm(mean) / PLAN.l2_clip_norm == pytest.approx(
        found.noise_to_signal, rel=0.05
    )
    assert mean.std() == pytest.approx(found.mean_noise_stddev, rel=0.05)


def test_another_windows_noise_is_in_proportion_to_its_deviation() -> None:
    first, later = Utility.of(PLAN), Utility.of(PLAN, PLAN.noise_variance * 9)
    for ours, theirs in zip(dataclasses.astuple(first), dataclasses.astuple(later), strict=True):
        assert theirs == pytest.approx(3 * ours, rel=1e-12)


def test_the_count_is_off_by_the_noise_of_all_clusters_over_its_weight() -> None:
    assert Utility.of(PLAN).count_stddev == pytest.approx(2 * math.sqrt(PLAN.noise_variance) / 50)
