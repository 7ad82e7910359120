"""The privacy plan: every number that the guarantee depends on, frozen, validated, hashed.

Everyone is given the same plan: what was made under another one carries another ``plan_id`` and
is refused. What can be derived (scale, sensitivity, noise, charge) is, and cannot be configured.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal

from stream.errors import PlanError

from .accounting import gaussian_charge_units
from .adaptive_clipping import ClippingSpec
from .calibration import PrivacyFilter
from .plan_checks import OPTIMIZER_KEYS, OptimizerSpec, require
from .plan_fields import COORDINATE_LIMITS, PlanFields
from .plan_toml import plan_arguments, plan_text
from .quantization import client_scale
from .schedule import Schedule
from .schedule_shares import planned_shares
from .schedule_spec import ScheduleSpec

# Releases are int32 while this many times the expected clients (and noise) cannot leave it.
_RELEASE_HEADROOM = 64
# What a client's own budget may count up to: its spent units are kept in 64 bits.
_LARGEST_CLIENT_CAP = 2**63 - 1
_MOST_CLUSTERS_THAT_ADAPT, _CAP_BITS = 1000, 36
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_LEFT_OUT_BY_DEFAULT = (
    "assignment_key",
    "prefixes",
    "minimum_count",
    "noise",
    "scope",
    "hour_epsilon",
    "day_epsilon",
    "rotation",
)


@dataclass(frozen=True)
class PrivacyPlan(PlanFields):
    """What is promised, to whom, and every number that the promise rests on."""

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be honoured; each message says what to write instead."""
        super().__post_init__()
        try:
            _ = self.client_scale
        except ValueError as error:
            raise PlanError(f"[gradient] grid_l2_bound: {error}") from error
        require(
            self.clipping is None or self.cluster_count <= _MOST_CLUSTERS_THAT_ADAPT,
            f"[clusters] count is {self.cluster_count}: with [clipping] write at most "
            f"{_MOST_CLUSTERS_THAT_ADAPT}, whose clip norms a model's header can hold",
        )
        _ = self.sliding_caps
        require(
            self.windows_allowed != 0,
            "the budget does not pay for one release: raise [budget] epsilon",
        )

    @classmethod
    def from_toml(cls, text: str) -> "PrivacyPlan":
        """Return the plan that ``text`` describes.

        Raises:
            PlanError: the text is no plan, or the plan cannot be honoured.
        """
        plan, parts = plan_arguments(text)
        # plan_arguments has checked that the keys are ours and each value has its field's type.
        if "schedule" in parts:
            plan["schedule_spec"] = ScheduleSpec(**parts["schedule"])  # type: ignore[arg-type]
        if "clipping" in parts:
            plan["clipping"] = ClippingSpec(**parts["clipping"])  # type: ignore[arg-type]
        return cls(optimizer=OptimizerSpec(**parts["optimizer"]), **plan)  # type: ignore[arg-type]

    def to_toml(self) -> str:
        """Return the plan as TOML text; `from_toml` of it is this plan."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _LEFT_OUT_BY_DEFAULT:
            if values[name] == PlanFields.__dataclass_fields__[name].default:
                del values[name]
        keys = ("kind", "learning_rate", *OPTIMIZER_KEYS[self.optimizer.kind])
        parts = {"optimizer": {key: getattr(self.optimizer, key) for key in keys}}
        if self.schedule_spec != ScheduleSpec():
            parts["schedule"] = _not_default(self.schedule_spec)
        if self.clipping is not None:
            parts["clipping"] = asdict(self.clipping)
        return plan_text(values, parts)

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
        return COORDINATE_LIMITS[self.update_dtype]

    @property
    def release_size(self) -> int:
        """Number of coordinates of a release: an update's, the count, perhaps the clip bits."""
        return self.coordinate_count + (1 if self.clipping is None else 2)

    @cached_property
    def client_scale(self) -> float:
        """Norm, in grid steps, that a gradient of norm ``l2_clip_norm`` is scaled to."""
        return client_scale(self.grid_l2_bound, self.coordinate_count)

    @property
    def grid_step(self) -> float:
        """Gradient units per grid step, at the clip norm ``l2_clip_norm``."""
        return self.l2_clip_norm / self.client_scale

    @property
    def l2_sensitivity_squared(self) -> int:
        """How far neighbouring exact sums can differ, squared, in grid steps (PRIVACY 1.3)."""
        bit = 0 if self.clipping is None else self.clipping.bit_weight // 2
        return self.grid_l2_bound**2 + self.count_weight**2 + bit**2

    @property
    def privacy_filter(self) -> PrivacyFilter:
        """What turns a total of charges into epsilon, by the kind of noise."""
        is_rounded = self.noise == "rounded_gaussian"
        return PrivacyFilter.GDP if is_rounded else PrivacyFilter.ZCDP

    @cached_property
    def cap_units(self) -> int:
        """The cap R of a cluster (or, with scope ``client``, of a client), in 2^-60 zCDP."""
        try:
            cap = self.privacy_filter.cap_units(self.epsilon, self.delta)
        except ValueError as error:
            raise PlanError(f"[budget] {error}: raise epsilon or delta") from error
        require(
            self.scope == "cluster" or cap <= _LARGEST_CLIENT_CAP,
            f"[budget] epsilon is {self.epsilon}: a client's own budget counts up to 8 zCDP, "
            f"here epsilon {self.privacy_filter.epsilon(_LARGEST_CLIENT_CAP, self.delta):.15g}: "
            "lower it to that",
        )
        # Another machine's float arithmetic may differ in the last digits of an exact cap. All
        # must find the same one, and what is cut off is far below a billionth of the budget.
        unused_bits = max(0, cap.bit_length() - _CAP_BITS)
        return cap >> unused_bits << unused_bits

    @cached_property
    def schedule(self) -> Schedule:
        """What each window may cost."""
        return Schedule(
            self.schedule_spec,
            cap_units=self.cap_units,
            horizon=self.horizon_windows,
            l2_sensitivity_squared=self.l2_sensitivity_squared,
        )

    @cached_property
    def sliding_caps(self) -> tuple[tuple[Literal["hour", "day"], int, int], ...]:
        """The rate limits as (name, consecutive windows, cap in 2^-60 zCDP).

        Raises:
            PlanError: a limit does not pay for a window.
        """
        caps: list[tuple[Literal["hour", "day"], int, int]] = []
        spans: tuple[tuple[Literal["hour", "day"], int, float], ...] = (
            ("hour", _HOUR_MS, self.hour_epsilon),
            ("day", _DAY_MS, self.day_epsilon),
        )
        for name, span_ms, epsilon in spans:
            if epsilon:
                # An hour that begins within a window touches one window more.
                windows = -(-span_ms // self.window_length_ms) + 1
                caps.append((name, windows, self._limit_units(name, epsilon)))
        return tuple(caps)

    @cached_property
    def noise_variance(self) -> Fraction:
        """Variance of the first window's noise, in squared grid steps, rounded up."""
        return self.schedule.noise_variance(self.schedule.first_units())

    @cached_property
    def charge_units(self) -> int:
        """What the first window costs, in units of 2^-60 zCDP, rounded up."""
        return gaussian_charge_units(self.l2_sensitivity_squared, self.noise_variance)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the first window's noise over the sensitivity."""
        return math.sqrt(self.noise_variance / self.l2_sensitivity_squared)

    @cached_property
    def windows_allowed(self) -> int | None:
        """Number of releases that the budget pays for; None where only their noise ends them.

        With scope ``client``: in which one client can take part.
        """
        return self.schedule.windows_allowed

    @cached_property
    def release_dtype(self) -> str:
        """``int32`` where sums and noise fit with ample room, else ``int64``."""
        largest_term = max(self.coordinate_limit, self.count_weight)
        if self.clipping is not None:
            largest_term = max(largest_term, self.clipping.bit_weight // 2)
        largest = _RELEASE_HEADROOM * self.expected_clients * largest_term
        variance = self.schedule.largest_noise_variance
        largest += _RELEASE_HEADROOM * (math.isqrt(math.ceil(variance)) + 1)
        return "int32" if largest < 2**31 else "int64"

    @property
    def guarantee(self) -> str:
        """One sentence: what is guaranteed, to whom, against whom, and under which trust."""
        if self.scope == "client":
            extent = (
                "release under this plan, for ever (a client takes part in at most "
                f"{self.windows_allowed} windows)"
            )
        elif self.windows_allowed is None:
            extent = "ever release under this plan"
        else:
            extent = f"ever release under this plan (at most {self.windows_allowed} windows each)"
        return (
            f"Each client (one identity with its whole stream) is ({self.epsilon:.15g}, "
            f"{self.delta:.15g})-differentially private, add-or-remove-one, against everyone of "
            f"bounded computing power who sees all that the {self.cluster_count} clusters {extent} "
            "and every model made from it, provided that the cluster heads, the transport and the "
            "client's own host are trusted and that an identity belongs to one client; the "
            "quantization of clients, their number and their timing contribute nothing to it."
        )

    def cluster_of(self, client_id: str) -> int | None:
        """Return the cluster of ``client_id``, or None where no prefix matches.

        A public function of the identity alone (PRIVACY 1.7): never of what a client holds.
        """
        if self.assignment == "prefix":
            return self._cluster_by_prefix.get(client_id.partition("/")[0])
        if self.cluster_count == 1:
            return 0
        keyed = _hash_keyed_with(self.assignment_key).copy()
        keyed.update(client_id.encode())
        return int.from_bytes(keyed.digest(), "big") % self.cluster_count

    def window_of(self, timestamp_ms: int) -> int:
        """Return the window that holds ``timestamp_ms`` (half-open); negative before the start."""
        return (timestamp_ms - self.start_ms) // self.window_length_ms

    def window_end_ms(self, window: int) -> int:
        """Return the first epoch millisecond after ``window``."""
        return self.start_ms + (window + 1) * self.window_length_ms

    def _limit_units(self, name: str, epsilon: float) -> int:
        try:
            cap = self.privacy_filter.cap_units(epsilon, self.delta)
        except ValueError as error:
            raise PlanError(f"[budget] {name}_epsilon: {error}: raise it") from error
        first = self.schedule.first_units()
        steps = planned_shares(self.schedule_spec, self.horizon_windows).extreme_steps
        largest = max(self.schedule.next_units(step, 0, first, None) for step in steps)
        require(
            cap >= largest,
            f"[budget] {name}_epsilon is {epsilon:.15g}, but a window is planned that costs "
            f"{self.privacy_filter.epsilon(largest, self.delta):.15g} alone: raise it, or "
            "[budget] windows",
        )
        return cap

    def release_due_ms(self, window: int) -> int:
        """Return when what came of ``window`` is published, in epoch milliseconds."""
        return self.window_end_ms(window) + self.release_delay_ms

    @cached_property
    def _cluster_by_prefix(self) -> dict[str, int]:
        return {prefix: cluster for cluster, prefix in enumerate(self.prefixes)}


@lru_cache(maxsize=8)
def _hash_keyed_with(key: str) -> "hashlib.blake2b":
    """Return a hash to copy, for half of what it costs to begin with the key; not to update."""
    return hashlib.blake2b(key=key.encode(), digest_size=8)


def _not_default(spec: ScheduleSpec) -> dict[str, object]:
    """Return ``kind``, and what else is not as it would be without being written."""
    return {
        item.name: getattr(spec, item.name)
        for item in fields(spec)
        if item.name == "kind" or getattr(spec, item.name) != item.default
    }
