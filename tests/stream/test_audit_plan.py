import dataclasses

import numpy as np
import pytest

from schemas import decode_update
from stream.aggregation.client_numbers import ClientNumbers
from stream.aggregation.validation import check_update
from stream.aggregation.vector_sum import VectorAdder
from stream.aggregation.window import WindowSum
from stream.audit_plan import audit_plan, canary_sum, canary_updates
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_spec import ScheduleSpec

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
    l2_clip_norm=1.5,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=1.0,
    delta=1e-6,
    horizon_windows=50,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="noisy_count",
    minimum_count=3,
)
CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=30, epoch_windows=5)
PLANS = {
    "plain": PLAN,
    "discrete": dataclasses.replace(PLAN, noise="discrete_gaussian"),
    "clients": dataclasses.replace(PLAN, scope="client"),
    "adaptive": dataclasses.replace(PLAN, clipping=CLIPPING),
    "scheduled": dataclasses.replace(
        PLAN,
        schedule_spec=ScheduleSpec("step", milestones=(20,), noise_ratios=(2.0, 1.0)),
        window_length_ms=60_000,
        hour_epsilon=0.9,
        rotation="hadamard",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_game_keeps_the_budget_the_noise_and_the_scope(name):
    plan = PLANS[name]
    game = audit_plan(plan, 16, 100, 100, 2, 7)
    assert game.cap_units == plan.cap_units
    assert (game.noise, game.scope, game.delta) == (plan.noise, plan.scope, plan.delta)
    assert game.windows_allowed == 2
    assert (game.sliding_caps, game.cluster_count, game.coordinate_count) == ((), 1, 16)
    parts = 3 if plan.clipping else 2
    assert game.l2_sensitivity_squared == parts * 100**2


@pytest.mark.parametrize("name", PLANS)
def test_what_canaries_send_is_accepted_and_sums_to_what_is_said(name):
    game = audit_plan(PLANS[name], 16, 100, 20, 2, 7)
    vector = np.arange(16)
    window, numbers = WindowSum(game, VectorAdder(game), 0), ClientNumbers()
    for canary in (0, 1):
        for data in canary_updates(game, vector, clients=3, canary=canary):
            update = decode_update(data)
            clip_norm = 1.5 if game.clipping else 0.0
            assert check_update(update, game, 0, 0, clip_norm) is None
            number = numbers.add([update.client_id.encode()])
            assert window.are_new(number)
            window.vectors.add(update.vector)
            window.count(number, int(update.is_below_clip))
    assert window.exact_sum.tolist() == (3 * canary_sum(game, 2 * vector, 2)).tolist()
