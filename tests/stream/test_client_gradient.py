import math

import numpy as np
import pytest

from stream.client_gradient import GradientPreparation
from stream.errors import GradientError
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=3)


def make_plan(clipping: ClippingSpec | None = CLIPPING) -> PrivacyPlan:
    return PrivacyPlan(
        name="test",
        dimension=1000,
        cluster_count=1,
        assignment="hash",
        assignment_key="public",
        expected_clients=100,
        start_ms=0,
        window_length_ms=1000,
        grace_ms=100,
        release_delay_ms=200,
        l2_clip_norm=1.0,
        grid_l2_bound=4000,
        count_weight=100,
        update_dtype="int16",
        epsilon=8.0,
        delta=1e-5,
        horizon_windows=10,
        optimizer=OptimizerSpec("sgd", 0.1),
        normalizer="expected_clients",
        clipping=clipping,
    )


def preparation(plan: PrivacyPlan, **options: object) -> GradientPreparation:
    defaults = {"clip_norm": None, "layer_clip_norms": None, "keep_fraction": 1.0}
    return GradientPreparation(plan, np.random.default_rng(1), **(defaults | options))


def layer_lengths(plan_norm: float, **options: object) -> tuple[float, float]:
    """Prepare two long layers; return how long they are after it, in gradient units."""
    plan = make_plan()
    layers = [np.full(400, 7.0), np.full((20, 30), 7.0)]
    vector = preparation(plan, **options).prepare(layers, plan_norm).vector.astype(float)
    grid_step = plan_norm / plan.client_scale
    return (
        float(np.linalg.norm(vector[:400])) * grid_step,
        float(np.linalg.norm(vector[400:])) * grid_step,
    )


@pytest.mark.parametrize("clip_norm", [0.01, 1.0, 50.0])
def test_layer_clip_norms_keep_their_share_of_a_norm_that_adapts(clip_norm):
    lengths = layer_lengths(clip_norm, layer_clip_norms=[0.6, 0.8])
    assert lengths == pytest.approx((0.6 * clip_norm, 0.8 * clip_norm), rel=0.01)


@pytest.mark.parametrize(
    ("clip_norm", "growth"), [(1.0, 1.0), (0.75, 1.0), (0.5, 1.0), (0.25, 0.5), (9.0, 1.0)]
)
def test_within_a_clients_own_clip_norm_layers_shrink_only_when_the_plan_goes_below(
    clip_norm, growth
):
    lengths = layer_lengths(clip_norm, layer_clip_norms=[0.3, 0.4], clip_norm=0.5)
    assert lengths == pytest.approx((0.3 * growth, 0.4 * growth), rel=0.03)


@pytest.mark.parametrize(("clip_norm", "growth"), [(1.0, 1.0), (0.5, 0.5), (2.0, 2.0), (9.0, 3.0)])
def test_a_clip_norm_above_the_plans_leaves_layers_room_to_grow(clip_norm, growth):
    lengths = layer_lengths(clip_norm, layer_clip_norms=[0.6, 0.8], clip_norm=3.0)
    assert lengths == pytest.approx((0.6 * growth, 0.8 * growth), rel=0.01)


@pytest.mark.parametrize("clip_norm", [1e-9, 1e-3, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_holds_at_every_clip_norm(clip_norm, dtype):
    plan = make_plan()
    gradient = np.random.default_rng(0).standard_normal(1000)
    gradient /= np.linalg.norm(gradient)
    for factor in (0.5, 2.0):
        part = (factor * clip_norm * gradient).astype(dtype)
        vector = preparation(plan).prepare(part, clip_norm).vector.astype(np.int64)
        assert int(vector @ vector) <= plan.grid_l2_bound**2
        steps = math.sqrt(int(vector @ vector))
        assert steps == pytest.approx(min(factor, 1.0) * plan.client_scale, rel=0.01)


def test_a_gradient_exactly_at_the_clip_norm_is_within_it():
    gradient = np.zeros(1000)
    gradient[:2] = 3.0, 4.0
    ready = preparation(make_plan())
    assert ready.prepare(gradient, 5.0).is_below_clip
    assert not ready.prepare(gradient, math.nextafter(5.0, 0)).is_below_clip


def test_where_clipping_is_fixed_nobody_asks_for_the_bit():
    assert not preparation(make_plan(None)).prepare(np.zeros(1000), 1.0).is_below_clip


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.7e308])
def test_a_bad_gradient_is_refused_before_its_bit_is_told(bad):
    with pytest.raises(GradientError, match="nothing was sent"):
        preparation(make_plan()).prepare(np.full(1000, bad), 1.0)


def test_only_where_clipping_adapts_may_a_clients_norm_exceed_the_plans():
    preparation(make_plan(), clip_norm=3.0)
    with pytest.raises(ValueError, match="exceeds the plan"):
        preparation(make_plan(None), clip_norm=3.0)
    with pytest.raises(ValueError, match=r"and the clip norm is 1: multiply each by"):
        preparation(make_plan(), clip_norm=3.0, layer_clip_norms=[0.8, 0.8])
