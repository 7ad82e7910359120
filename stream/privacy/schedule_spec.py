"""The [schedule] table of a plan: how a cluster's budget is spread over its windows."""

import math
from dataclasses import dataclass, fields
from itertools import pairwise

from .plan_checks import require, require_positive, require_range, set_float

# What each kind must be given; ``smoothing`` alone may be left out.
SCHEDULE_KEYS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "exponential": ("noise_decay",),
    "linear": ("final_noise_ratio",),
    "cosine": ("final_noise_ratio",),
    "step": ("milestones", "noise_ratios"),
    "learning_rate": ("learning_rate_decay", "final_learning_rate_ratio"),
    "paced": (),
    "infinite": (),
    "snr": ("target_snr", "smoothing", "min_noise_multiplier"),
}
COMMON_SCHEDULE_KEYS = ("saving_windows", "max_noise_multiplier")
SCHEDULE_EXAMPLES = {
    "noise_decay": "0.995",
    "final_noise_ratio": "0.25",
    "milestones": "[100, 200]",
    "noise_ratios": "[4.0, 2.0, 1.0]",
    "learning_rate_decay": '"cosine"',
    "final_learning_rate_ratio": "0.05",
    "target_snr": "1.0",
    "smoothing": "0.9",
    "min_noise_multiplier": "5.0",
    "saving_windows": "100",
    "max_noise_multiplier": "100.0",
}

_LEARNING_RATE_DECAYS = ("cosine", "linear", "exponential")
_OPTIONAL_KEYS = frozenset({"smoothing"})
_FLOATS = (
    "noise_decay",
    "final_noise_ratio",
    "final_learning_rate_ratio",
    "target_snr",
    "smoothing",
    "min_noise_multiplier",
    "max_noise_multiplier",
)
_SMALLEST_RATIO, _LARGEST_RATIO = 1e-6, 1e6
_LARGEST_MULTIPLIER = 1e9
_MOST_MILESTONES = 1000


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """How the lifetime cap R of a cluster is spread over its windows, H of which are planned.

    H is the plan's ``[budget] windows``, z the noise multiplier of a window. A number that its
    kind does not use is refused. `Schedule` makes charges of this, all of which fit R.

    Attributes:
        kind: ``constant``: every window costs R/H. ``exponential``: z falls by ``noise_decay``
            a window. ``linear``, ``cosine``: z goes from its start to ``final_noise_ratio``
            times that, along a line or half a cosine. ``step``: z is constant between
            ``milestones``. ``learning_rate``: a window's charge is proportional to the server's
            learning rate. ``paced``: what is left over the windows that are left. ``infinite``:
            what is left over H, for ever (a factor q = 1 - 1/H on what is left). ``snr``: as
            much as the newest release says is needed for ``target_snr``.
        noise_decay: z of a window over z of the one before, above 0 and below 1.
        final_noise_ratio: z of the last planned window over z of the first.
        milestones: The windows, counted from 0, at which z changes; increasing.
        noise_ratios: z before the first milestone, between milestones, and after the last one,
            all relative to one another.
        learning_rate_decay: ``cosine``, ``linear`` or ``exponential``: the way down of the
            server's learning rate over H windows (`learning_rate_factor`).
        final_learning_rate_ratio: The learning rate at the end over that at the start.
        target_snr: Wanted energy of the signal over that of the noise in a release.
        smoothing: Part of a charge that the one before decides, at least 0 and below 1.
        min_noise_multiplier: z never falls below this with ``snr``.
        saving_windows: K of the saving mode: beyond 90 % of R no window gets more than 1/K of
            what is left, and releases go on beyond H. With ``snr`` that limit holds from the
            start. 0 is off: all kinds but ``constant``, ``infinite`` and ``snr`` end after H
            windows.
        max_noise_multiplier: Releases end where z would have to be larger. 0 is no such end.
    """

    kind: str = "constant"
    noise_decay: float = 0.0
    final_noise_ratio: float = 0.0
    milestones: tuple[int, ...] = ()
    noise_ratios: tuple[float, ...] = ()
    learning_rate_decay: str = ""
    final_learning_rate_ratio: float = 0.0
    target_snr: float = 0.0
    smoothing: float = 0.0
    min_noise_multiplier: float = 0.0
    saving_windows: int = 0
    max_noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that make no schedule, and numbers that would have no effect."""
        kinds = ", ".join(f'"{kind}"' for kind in SCHEDULE_KEYS)
        require(
            self.kind in SCHEDULE_KEYS, f"[schedule] kind is {self.kind!r}: write one of {kinds}"
        )
        for name in _FLOATS:
            set_float(self, name, f"[schedule] {name}")
        self._check_keys()
        self._check_common()
        if self.kind == "exponential":
            require(
                0 < self.noise_decay < 1,
                f"[schedule] noise_decay is {self.noise_decay}: write a number above 0 and "
                "below 1, such as 0.995",
            )
        elif self.kind in ("linear", "cosine"):
            _check_ratio("final_noise_ratio", self.final_noise_ratio)
        elif self.kind == "step":
            self._check_steps()
        elif self.kind == "learning_rate":
            self._check_learning_rate()
        elif self.kind == "snr":
            self._check_snr()

    def _check_keys(self) -> None:
        for name, default in _DEFAULTS.items():
            is_given = getattr(self, name) != default
            if name in SCHEDULE_KEYS[self.kind]:
                require(
                    is_given or name in _OPTIONAL_KEYS,
                    f"[schedule] kind = {self.kind!r} needs {name}: write for example "
                    f"{name} = {SCHEDULE_EXAMPLES[name]}",
                )
            else:
                # A number without effect would still change the plan's identity.
                require(
                    not is_given or name in COMMON_SCHEDULE_KEYS,
                    f"[schedule] {name} has no effect with kind = {self.kind!r}: remove it",
                )

    def _check_common(self) -> None:
        require_range("[schedule] saving_windows", self.saving_windows, 0, 2**31 - 1)
        require(
            0 <= self.max_noise_multiplier <= _LARGEST_MULTIPLIER,
            f"[schedule] max_noise_multiplier is {self.max_noise_multiplier}: write a number "
            f"above 0 and at most {_LARGEST_MULTIPLIER:g}",
        )

    def _check_steps(self) -> None:
        require(
            all(type(window) is int and window >= 1 for window in self.milestones)
            and all(before < after for before, after in pairwise(self.milestones))
            and len(self.milestones) <= _MOST_MILESTONES,
            f"[schedule] milestones must be at most {_MOST_MILESTONES} increasing whole numbers "
            "above 0, such as [100, 200]",
        )
        require(
            len(self.noise_ratios) == len(self.milestones) + 1,
            f"[schedule] noise_ratios has {len(self.noise_ratios)} numbers: write "
            f"{len(self.milestones) + 1}, one more than milestones",
        )
        for ratio in self.noise_ratios:
            require(type(ratio) in (int, float), f"[schedule] noise_ratios: {ratio!r} is no number")
            _check_ratio("noise_ratios", ratio)
        # So that 1 and 1.0 are one plan.
        object.__setattr__(self, "noise_ratios", tuple(float(ratio) for ratio in self.noise_ratios))

    def _check_learning_rate(self) -> None:
        require(
            self.learning_rate_decay in _LEARNING_RATE_DECAYS,
            f"[schedule] learning_rate_decay is {self.learning_rate_decay!r}: write one of "
            + ", ".join(f'"{name}"' for name in _LEARNING_RATE_DECAYS),
        )
        ratio = self.final_learning_rate_ratio
        # At 0 the last windows would cost nothing, which no noise can do.
        require(
            _SMALLEST_RATIO <= ratio <= 1,
            f"[schedule] final_learning_rate_ratio is {ratio}: write a number from "
            f"{_SMALLEST_RATIO:g} to 1",
        )

    def _check_snr(self) -> None:
        require_positive("[schedule] target_snr", self.target_snr)
        require(
            0 <= self.smoothing < 1,
            f"[schedule] smoothing is {self.smoothing}: write a number of at least 0 and below 1",
        )
        require(
            self.max_noise_multiplier > 0,
            "[schedule] kind = 'snr' needs max_noise_multiplier: write for example "
            f"max_noise_multiplier = {SCHEDULE_EXAMPLES['max_noise_multiplier']}",
        )
        require(
            0 < self.min_noise_multiplier < self.max_noise_multiplier,
            f"[schedule] min_noise_multiplier is {self.min_noise_multiplier}: write a number "
            f"above 0 and below max_noise_multiplier, {self.max_noise_multiplier}",
        )


_DEFAULTS = {item.name: item.default for item in fields(ScheduleSpec) if item.name != "kind"}


def _check_ratio(name: str, ratio: float) -> None:
    require(
        math.isfinite(ratio) and _SMALLEST_RATIO <= ratio <= _LARGEST_RATIO,
        f"[schedule] {name}: {ratio} is not from {_SMALLEST_RATIO:g} to {_LARGEST_RATIO:g}",
    )
