"""A plan as it is written: its fields, and what each of them may be.

What follows from the fields (sensitivity, cap, charges, noise) is for `plan.PrivacyPlan`.
"""

import math
from dataclasses import dataclass, field

from .adaptive_clipping import ClippingSpec
from .plan_checks import (
    OptimizerSpec,
    check_assignment,
    check_name,
    require,
    require_one_of,
    require_positive,
    require_range,
    set_float,
)
from .rotation import rotated_length
from .schedule_spec import ScheduleSpec

COORDINATE_LIMITS = {"int8": 127, "int16": 32767}
NOISES = ("rounded_gaussian", "discrete_gaussian")
SCOPES = ("cluster", "client")
ROTATIONS = ("none", "hadamard")
_CONSTANT = ScheduleSpec()
_MOST_CLIENTS_WITH_BUDGETS = 1_000_000
_LATEST_START_MS = 253_402_300_799_999  # the last millisecond that TOML can write


@dataclass(frozen=True)
class PlanFields:
    """What a plan's file says.

    Attributes:
        name: Short name, for people.
        dimension: Number of coordinates d of a gradient.
        cluster_count: Number of clusters K; one partition of the updates topic each.
        assignment: ``hash`` (keyed hash of the client id) or ``prefix`` (what precedes its "/").
        expected_clients: Clients that take part in a window, over all clusters; public.
        start_ms: Epoch milliseconds at which window 0 begins.
        window_length_ms: Length L of a window.
        grace_ms: How long after its end a window is sealed.
        release_delay_ms: How long after its end a release is published, whatever happened.
        l2_clip_norm: Bound on one client's gradient, in gradient units.
        grid_l2_bound: The bound D after rounding, in grid steps, as the head checks it.
        count_weight: Integer weight kappa of the count coordinate, in grid steps.
        update_dtype: ``int8`` or ``int16``.
        epsilon: The lifetime budget's epsilon.
        delta: The lifetime budget's delta.
        horizon_windows: Number of releases of a cluster that the budget is spread over.
        optimizer: The server optimizer.
        normalizer: ``expected_clients`` or ``noisy_count``.
        assignment_key: Public key of the hash; only with ``hash``.
        prefixes: The prefix of each cluster, in order; only with ``prefix``.
        minimum_count: Public floor of the noisy count; only with ``noisy_count``.
        topic_prefix: What the names of all topics begin with.
        noise: ``rounded_gaussian`` (GDP filter) or ``discrete_gaussian`` (zCDP filter).
        scope: Whose budget epsilon is: with ``cluster`` releases end when it is spent; with
            ``client`` each client pays for the windows that used its update, and is refused
            when its own budget is spent.
        hour_epsilon: Most that any hour of consecutive windows may cost; 0 for no such limit.
        day_epsilon: Most that any day of consecutive windows may cost; 0 for no such limit.
        schedule_spec: How the budget is spread over the windows.
        rotation: ``none`` or ``hadamard``: clients rotate gradients before they round them.
        clipping: How the clip norm adapts; None where it is fixed.
    """

    name: str
    dimension: int
    cluster_count: int
    assignment: str
    expected_clients: int
    start_ms: int
    window_length_ms: int
    grace_ms: int
    release_delay_ms: int
    l2_clip_norm: float
    grid_l2_bound: int
    count_weight: int
    update_dtype: str
    epsilon: float
    delta: float
    horizon_windows: int
    optimizer: OptimizerSpec
    normalizer: str
    assignment_key: str = ""
    prefixes: tuple[str, ...] = field(default=())
    minimum_count: int = 0
    topic_prefix: str = "sdp"
    noise: str = "rounded_gaussian"
    scope: str = "cluster"
    hour_epsilon: float = 0.0
    day_epsilon: float = 0.0
    schedule_spec: ScheduleSpec = _CONSTANT
    rotation: str = "none"
    clipping: ClippingSpec | None = None

    def __post_init__(self) -> None:
        """Refuse a field that is out of range; each message says what to write instead."""
        for name, table in _FLOATS.items():
            set_float(self, name, f"[{table}] {name}")
        check_name("name", self.name)
        check_name("topic_prefix", self.topic_prefix)
        self._check_clusters()
        self._check_window()
        self._check_gradient()
        self._check_budget()
        self._check_normalizer()

    @property
    def coordinate_count(self) -> int:
        """Number of coordinates of an update: the dimension, padded where it is rotated."""
        return self.dimension if self.rotation == "none" else rotated_length(self.dimension)

    def _check_clusters(self) -> None:
        require_range("[clusters] count", self.cluster_count, 1, 10_000)
        require_range("[clusters] expected_clients", self.expected_clients, 1, 10**9)
        # One record says who took part in a window.
        most = _MOST_CLIENTS_WITH_BUDGETS * self.cluster_count
        require(
            self.scope == "cluster" or self.expected_clients <= most,
            f'[budget] scope = "client" is for up to {_MOST_CLIENTS_WITH_BUDGETS} clients a '
            "cluster: raise [clusters] count",
        )
        check_assignment(self.assignment, self.assignment_key, self.prefixes, self.cluster_count)

    def _check_window(self) -> None:
        require_range("[window] start, in epoch milliseconds,", self.start_ms, 0, _LATEST_START_MS)
        require_range("[window] length_ms", self.window_length_ms, 100, 31 * 86_400_000)
        require_range("[window] grace_ms", self.grace_ms, 0, self.window_length_ms)
        # A release must be out before the next window commits: a restart republishes one cell.
        require_range(
            "[window] release_delay_ms (between grace_ms and length_ms)",
            self.release_delay_ms,
            self.grace_ms,
            self.window_length_ms,
        )

    def _check_gradient(self) -> None:
        require_range("dimension", self.dimension, 1, 2**31 - 2)
        require(
            self.update_dtype in COORDINATE_LIMITS,
            f'[gradient] dtype is {self.update_dtype!r}: write "int8" or "int16"',
        )
        require_positive("[gradient] l2_clip_norm", self.l2_clip_norm)
        require_one_of("[gradient] rotation", self.rotation, ROTATIONS)
        limit = COORDINATE_LIMITS[self.update_dtype]
        largest = math.isqrt(limit**2 * self.coordinate_count)
        require_range("[gradient] grid_l2_bound", self.grid_l2_bound, 1, largest)
        require_range("[gradient] count_weight", self.count_weight, 1, 2**31 - 1)

    def _check_budget(self) -> None:
        require(
            0 < self.epsilon <= 100,
            f"[budget] epsilon is {self.epsilon}: write a number above 0 and at most 100",
        )
        require(
            1e-100 <= self.delta < 1,
            f"[budget] delta is {self.delta}: write a number of at least 1e-100 and below 1, "
            "such as 1/(10 clients)",
        )
        require_range("[budget] windows", self.horizon_windows, 1, 2**31 - 1)
        require_one_of("[budget] noise", self.noise, NOISES)
        require_one_of("[budget] scope", self.scope, SCOPES)
        for name in ("hour_epsilon", "day_epsilon"):
            require(
                0 <= getattr(self, name) <= self.epsilon,
                f"[budget] {name} is {getattr(self, name)}: write a number above 0 and at most "
                f"epsilon, {self.epsilon}",
            )
        # Each client stands elsewhere in its budget; only a constant charge suits them all.
        require(
            self.scope == "cluster" or self.schedule_spec == _CONSTANT,
            '[budget] scope = "client" needs every window to cost the same: remove [schedule]',
        )

    def _check_normalizer(self) -> None:
        require(
            self.normalizer in ("expected_clients", "noisy_count"),
            f'[optimizer] normalizer is {self.normalizer!r}: write "expected_clients" or '
            '"noisy_count"',
        )
        if self.normalizer == "noisy_count":
            require_range("[optimizer] minimum_count", self.minimum_count, 1, 10**9)
        else:
            require(
                self.minimum_count == 0,
                '[optimizer] minimum_count needs normalizer = "noisy_count": remove it',
            )


_FLOATS = {
    "l2_clip_norm": "gradient",
    "epsilon": "budget",
    "delta": "budget",
    "hour_epsilon": "budget",
    "day_epsilon": "budget",
}
