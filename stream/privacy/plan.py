"""The privacy plan: every number that the guarantee depends on, frozen, validated, hashed.

Everyone is given the same plan. An update or a release that was made under another one carries
another ``plan_id`` and is refused. What can be derived (client scale, sensitivity, noise,
charge) is derived here and cannot be configured, so no two settings can contradict each other.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from functools import cached_property

from stream.errors import PlanError

from .accounting import UNITS_PER_RHO, gaussian_charge_units, gdp_cap_units
from .plan_checks import (
    OPTIMIZER_KEYS,
    OptimizerSpec,
    check_assignment,
    check_name,
    require,
    require_positive,
    require_range,
    set_float,
)
from .plan_toml import plan_arguments, plan_text
from .quantization import client_scale

_COORDINATE_LIMITS = {"int8": 127, "int16": 32767}
_LATEST_START_MS = 253_402_300_799_999  # the last millisecond that TOML can write
# Releases are int32 while this many times the expected clients (and noise) cannot leave it.
_RELEASE_HEADROOM = 64
_SMALLEST_VARIANCE, _LARGEST_VARIANCE = Fraction(1, 64), Fraction(1 << 60)


@dataclass(frozen=True)
class PrivacyPlan:
    """What is promised, to whom, and every number that the promise rests on.

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

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be honoured; each message says what to write instead."""
        set_float(self, "l2_clip_norm", "[gradient] l2_clip_norm")
        set_float(self, "epsilon", "[budget] epsilon")
        set_float(self, "delta", "[budget] delta")
        check_name("name", self.name)
        check_name("topic_prefix", self.topic_prefix)
        self._check_clusters()
        self._check_window()
        self._check_gradient()
        self._check_budget()

    @classmethod
    def from_toml(cls, text: str) -> "PrivacyPlan":
        """Return the plan that ``text`` describes.

        Raises:
            PlanError: the text is no plan, or the plan cannot be honoured.
        """
        plan, optimizer = plan_arguments(text)
        # plan_arguments has checked that the keys are ours and each value has its field's type.
        return cls(optimizer=OptimizerSpec(**optimizer), **plan)  # type: ignore[arg-type]

    def to_toml(self) -> str:
        """Return the plan as TOML text; `from_toml` of it is this plan."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "optimizer"}
        for name in ("assignment_key", "prefixes", "minimum_count"):
            if not values[name]:
                del values[name]
        keys = ("kind", "learning_rate", *OPTIMIZER_KEYS[self.optimizer.kind])
        return plan_text(values, {key: getattr(self.optimizer, key) for key in keys})

    @cached_property
    def plan_id(self) -> bytes:
        """16 bytes that stand for every number above."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"sdp plan 1\n" + canonical.encode()).digest()[:16]

    @property
    def plan_id_hex(self) -> str:
        """The plan's identity as 32 hexadecimal digits."""
        return self.plan_id.hex()

    @property
    def coordinate_limit(self) -> int:
        """Largest absolute value of a coordinate; the most negative integer is never sent."""
        return _COORDINATE_LIMITS[self.update_dtype]

    @cached_property
    def client_scale(self) -> float:
        """Norm, in grid steps, that a gradient of norm ``l2_clip_norm`` is scaled to."""
        return client_scale(self.grid_l2_bound, self.dimension)

    @property
    def grid_step(self) -> float:
        """Gradient units per grid step."""
        return self.l2_clip_norm / self.client_scale

    @property
    def l2_sensitivity_squared(self) -> int:
        """How far neighbouring exact sums can differ, squared, in grid steps (PRIVACY 1.3)."""
        return self.grid_l2_bound**2 + self.count_weight**2

    @cached_property
    def cap_units(self) -> int:
        """The lifetime cap R of a cluster, in units of 2^-60 zCDP."""
        try:
            return gdp_cap_units(self.epsilon, self.delta)
        except ValueError as error:
            raise PlanError(f"[budget] {error}: raise epsilon or delta") from error

    @cached_property
    def noise_variance(self) -> Fraction:
        """Variance of the noise on every coordinate, in squared grid steps, rounded up."""
        target = self.cap_units // self.horizon_windows
        if target < 1:
            raise PlanError("[budget] windows is too large for the budget: lower it")
        exact = Fraction(self.l2_sensitivity_squared * UNITS_PER_RHO, 2 * target)
        # A short denominator keeps records small; 40 bits cost less than 1e-12 of the noise.
        denominator = 1 << max(0, 40 - int(exact).bit_length())
        return Fraction(math.ceil(exact * denominator), denominator)

    @cached_property
    def charge_units(self) -> int:
        """What one release costs its cluster, in units of 2^-60 zCDP, rounded up."""
        return gaussian_charge_units(self.l2_sensitivity_squared, self.noise_variance)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity (dimensionless)."""
        return math.sqrt(self.noise_variance / self.l2_sensitivity_squared)

    @property
    def windows_allowed(self) -> int:
        """Number of releases that the budget of a cluster pays for."""
        return self.cap_units // self.charge_units

    @cached_property
    def release_dtype(self) -> str:
        """``int32`` where sums and noise fit with ample room, else ``int64``."""
        largest_term = max(self.coordinate_limit, self.count_weight)
        largest = _RELEASE_HEADROOM * self.expected_clients * largest_term
        largest += _RELEASE_HEADROOM * (math.isqrt(math.ceil(self.noise_variance)) + 1)
        return "int32" if largest < 2**31 else "int64"

    @property
    def guarantee(self) -> str:
        """One sentence: what is guaranteed, to whom, against whom, and under which trust."""
        return (
            f"Each client (one identity with its whole stream) is ({self.epsilon:.15g}, "
            f"{self.delta:.15g})-differentially private, add-or-remove-one, against everyone of "
            f"bounded computing power who sees all that the {self.cluster_count} clusters ever "
            f"release under this plan (at most {self.windows_allowed} windows each) and every "
            "model made from it, provided that the cluster heads, the transport and the client's "
            "own host are trusted and that an identity belongs to one client; the quantization "
            "of clients, their number and their timing contribute nothing to it."
        )

    def cluster_of(self, client_id: str) -> int | None:
        """Return the cluster of ``client_id``, or None where no prefix matches.

        A public function of the identity alone (PRIVACY 1.7): never of what a client holds.
        """
        if self.assignment == "hash":
            digest = hashlib.blake2b(
                client_id.encode(), key=self.assignment_key.encode(), digest_size=8
            ).digest()
            return int.from_bytes(digest, "big") % self.cluster_count
        return self._cluster_by_prefix.get(client_id.partition("/")[0])

    def window_of(self, timestamp_ms: int) -> int:
        """Return the window that holds ``timestamp_ms`` (half-open); negative before the start."""
        return (timestamp_ms - self.start_ms) // self.window_length_ms

    def window_end_ms(self, window: int) -> int:
        """Return the first epoch millisecond after ``window``."""
        return self.start_ms + (window + 1) * self.window_length_ms

    @cached_property
    def _cluster_by_prefix(self) -> dict[str, int]:
        return {prefix: cluster for cluster, prefix in enumerate(self.prefixes)}

    def _check_clusters(self) -> None:
        require_range("[clusters] count", self.cluster_count, 1, 10_000)
        require_range("[clusters] expected_clients", self.expected_clients, 1, 10**9)
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
            self.update_dtype in _COORDINATE_LIMITS,
            f'[gradient] dtype is {self.update_dtype!r}: write "int8" or "int16"',
        )
        require_positive("[gradient] l2_clip_norm", self.l2_clip_norm)
        largest = math.isqrt(self.coordinate_limit**2 * self.dimension)
        require_range("[gradient] grid_l2_bound", self.grid_l2_bound, 1, largest)
        require_range("[gradient] count_weight", self.count_weight, 1, 2**31 - 1)
        try:
            _ = self.client_scale
        except ValueError as error:
            raise PlanError(f"[gradient] grid_l2_bound: {error}") from error

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
        require(
            _SMALLEST_VARIANCE <= self.noise_variance <= _LARGEST_VARIANCE,
            f"the noise has a standard deviation of {math.sqrt(self.noise_variance):.3g} grid "
            "steps, outside 1/8 to 2^30: change [gradient] grid_l2_bound or [budget]",
        )
        require(
            self.windows_allowed >= 1,
            "the budget does not pay for one release: raise [budget] epsilon",
        )
