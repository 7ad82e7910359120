"""The demonstration's privacy plan: (8, 1e-5) for everything that 40 windows release."""

from stream.optimizer import Sgd
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec

from .data import DIMENSION

CLUSTERS = 4
WINDOWS = 40
WINDOW_MS = 3000
SHORTEST_WINDOW_MS = 1000

_LEARNING_RATE, _MOMENTUM = 0.2, 0.9


def demo_plan(
    *, start_ms: int, clients: int, windows: int, window_ms: int, topic_prefix: str
) -> PrivacyPlan:
    """Return the plan of one run.

    The constants come from the simulation that `data` tells of: about 60 % of the gradients
    are clipped, which costs two points of accuracy at most.

    Raises:
        PlanError: the numbers cannot be honoured.
    """
    return PrivacyPlan(
        name="demo",
        dimension=DIMENSION,
        cluster_count=CLUSTERS,
        assignment="hash",
        assignment_key="sdp demo",
        expected_clients=clients,
        start_ms=start_ms,
        window_length_ms=window_ms,
        grace_ms=window_ms // 30,
        release_delay_ms=window_ms // 6,
        l2_clip_norm=2.0,
        grid_l2_bound=1024,
        count_weight=100,
        update_dtype="int8",
        epsilon=8.0,
        delta=1e-5,
        horizon_windows=windows,
        optimizer=OptimizerSpec("sgd", learning_rate=_LEARNING_RATE, momentum=_MOMENTUM),
        normalizer="expected_clients",
        topic_prefix=topic_prefix,
    )


def demo_optimizer() -> Sgd:
    """Return the optimizer that the plan names, for the training without privacy."""
    return Sgd(_LEARNING_RATE, _MOMENTUM)
