"""Small checks of a plan's parts, and the part of a plan that names the server optimizer."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from stream.errors import PlanError

OPTIMIZER_KEYS = {"sgd": ("momentum",), "adam": ("beta1", "beta2", "epsilon")}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The server optimizer of the global agent (post-processing: no part of the guarantee).

    Attributes:
        kind: ``sgd`` or ``adam``.
        learning_rate: Step size, in weight units per gradient unit; positive.
        momentum: Heavy-ball factor in [0, 1), of ``sgd``.
        beta1: Decay of the first moment in [0, 1), of ``adam``.
        beta2: Decay of the second moment in [0, 1), of ``adam``.
        epsilon: Stabiliser added to the root of the second moment, of ``adam``; positive.
    """

    kind: str
    learning_rate: float
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse numbers that no optimizer can use, and numbers that would have no effect."""
        require(
            self.kind in OPTIMIZER_KEYS,
            f'[optimizer] kind is {self.kind!r}: write "sgd" or "adam"',
        )
        for name in ("learning_rate", "momentum", "beta1", "beta2", "epsilon"):
            set_float(self, name, f"[optimizer] {name}")
        require_positive("[optimizer] learning_rate", self.learning_rate)
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            require(
                0 <= value < 1,
                f"[optimizer] {name} is {value}: write a number of at least 0 and below 1",
            )
        require_positive("[optimizer] epsilon", self.epsilon)
        for kind, names in OPTIMIZER_KEYS.items():
            for name in names:
                # A number without effect would still change the plan's identity.
                is_default = getattr(self, name) == _OPTIMIZER_DEFAULTS[name]
                require(
                    kind == self.kind or is_default,
                    f"[optimizer] {name} has no effect with kind = {self.kind!r}: remove it",
                )


_OPTIMIZER_DEFAULTS = {item.name: item.default for item in fields(OptimizerSpec)}


def check_name(key: str, value: str) -> None:
    """Raise `PlanError` unless ``value`` can be part of a topic's name."""
    require(
        _NAME.fullmatch(value) is not None,
        f"{key} is {value!r}: write 1 to 64 letters, digits, '.', '_' or '-', "
        "the first one a letter or a digit",
    )


def check_assignment(rule: str, key: str, prefixes: Sequence[str], cluster_count: int) -> None:
    """Raise `PlanError` unless the rule gives every client at most one cluster."""
    if rule == "hash":
        require(not prefixes, '[clusters] prefixes needs assignment = "prefix": remove it')
        require(
            1 <= len(key.encode()) <= 64,
            "[clusters] key must be a text of 1 to 64 bytes; it is public",
        )
        return
    require(rule == "prefix", f'[clusters] assignment is {rule!r}: write "hash" or "prefix"')
    require(not key, '[clusters] key needs assignment = "hash": remove it')
    require(
        len(set(prefixes)) == len(prefixes) == cluster_count,
        f"[clusters] prefixes must list {cluster_count} different texts, one a cluster",
    )
    require(
        all(prefix and "/" not in prefix for prefix in prefixes),
        '[clusters] prefixes must not be empty or hold a "/"',
    )


def set_float(owner: object, name: str, where: str) -> None:
    """Make a frozen dataclass's number a float, so that 1 and 1.0 are one plan.

    Raises:
        PlanError: the value is no number.
    """
    value = getattr(owner, name)
    require(
        isinstance(value, int | float) and not isinstance(value, bool),
        f"{where} is {value!r}: write a number",
    )
    object.__setattr__(owner, name, float(value))


def require_positive(name: str, value: float) -> None:
    """Raise `PlanError` unless ``value`` is a finite number above 0."""
    require(math.isfinite(value) and value > 0, f"{name} is {value}: write a finite number above 0")


def require(is_met: bool, message: str) -> None:
    """Raise `PlanError` with ``message`` unless the claim holds."""
    if not is_met:
        raise PlanError(message)


def require_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `PlanError` unless ``value`` is one of ``choices``."""
    listed = " or ".join(f'"{choice}"' for choice in choices)
    require(value in choices, f"{name} is {value!r}: write {listed}")


def require_range(name: str, value: int, smallest: int, largest: int) -> None:
    """Raise `PlanError` unless ``value`` is a whole number in the closed range."""
    # bool is an int to isinstance, never to a plan.
    require(
        type(value) is int and smallest <= value <= largest,
        f"{name} is {value}: write a whole number from {smallest} to {largest}",
    )
