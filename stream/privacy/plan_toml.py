"""A plan's TOML text as the arguments of `PrivacyPlan`: shape and types, not yet meaning.

The tables and keys below are the whole file format. A key that is unknown, missing or of the
wrong type is refused here, with the name of the nearest key that exists; whether the numbers
make a guarantee is for `PrivacyPlan` to say.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import GenericAlias

from stream.errors import PlanError

from .plan_checks import OPTIMIZER_KEYS

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of the file: the argument it becomes, its type, and an example to quote."""

    argument: str
    kind: type | GenericAlias
    example: str
    is_required: bool = True


_TABLES: dict[str, dict[str, _Key]] = {
    "": {
        "version": _Key("version", int, "1"),
        "name": _Key("name", str, '"fraud-eu"'),
        "dimension": _Key("dimension", int, "7850"),
        "topic_prefix": _Key("topic_prefix", str, '"sdp"', is_required=False),
    },
    "clusters": {
        "count": _Key("cluster_count", int, "4"),
        "expected_clients": _Key("expected_clients", int, "2000"),
        "assignment": _Key("assignment", str, '"hash"'),
        "key": _Key("assignment_key", str, '"any public text"', is_required=False),
        "prefixes": _Key("prefixes", list[str], '["region-0", "region-1"]', is_required=False),
    },
    "window": {
        "start": _Key("start_ms", datetime, "2026-12-01T00:00:00Z"),
        "length_ms": _Key("window_length_ms", int, "60000"),
        "grace_ms": _Key("grace_ms", int, "500"),
        "release_delay_ms": _Key("release_delay_ms", int, "2000"),
    },
    "gradient": {
        "l2_clip_norm": _Key("l2_clip_norm", float, "1.0"),
        "grid_l2_bound": _Key("grid_l2_bound", int, "1024"),
        "count_weight": _Key("count_weight", int, "100"),
        "dtype": _Key("update_dtype", str, '"int8"'),
        "rotation": _Key("rotation", str, '"hadamard"', is_required=False),
    },
    "clipping": {
        "target_quantile": _Key("target_quantile", float, "0.5"),
        "learning_rate": _Key("learning_rate", float, "0.2"),
        "bit_weight": _Key("bit_weight", int, "100"),
        "epoch_windows": _Key("epoch_windows", int, "10"),
    },
    "budget": {
        "epsilon": _Key("epsilon", float, "8.0"),
        "delta": _Key("delta", float, "1e-6"),
        "windows": _Key("horizon_windows", int, "1000"),
        "noise": _Key("noise", str, '"discrete_gaussian"', is_required=False),
        "scope": _Key("scope", str, '"client"', is_required=False),
        "hour_epsilon": _Key("hour_epsilon", float, "1.0", is_required=False),
        "day_epsilon": _Key("day_epsilon", float, "4.0", is_required=False),
    },
    "schedule": {
        "kind": _Key("kind", str, '"constant"'),
        "noise_decay": _Key("noise_decay", float, "0.995", is_required=False),
        "final_noise_ratio": _Key("final_noise_ratio", float, "0.25", is_required=False),
        "milestones": _Key("milestones", list[int], "[100, 200]", is_required=False),
        "noise_ratios": _Key("noise_ratios", list[float], "[4.0, 2.0, 1.0]", is_required=False),
        "learning_rate_decay": _Key("learning_rate_decay", str, '"cosine"', is_required=False),
        "final_learning_rate_ratio": _Key(
            "final_learning_rate_ratio", float, "0.05", is_required=False
        ),
        "target_snr": _Key("target_snr", float, "1.0", is_required=False),
        "smoothing": _Key("smoothing", float, "0.9", is_required=False),
        "min_noise_multiplier": _Key("min_noise_multiplier", float, "5.0", is_required=False),
        "saving_windows": _Key("saving_windows", int, "100", is_required=False),
        "max_noise_multiplier": _Key("max_noise_multiplier", float, "100.0", is_required=False),
    },
    "optimizer": {
        "kind": _Key("kind", str, '"sgd"'),
        "learning_rate": _Key("learning_rate", float, "0.1"),
        "momentum": _Key("momentum", float, "0.9", is_required=False),
        "beta1": _Key("beta1", float, "0.9", is_required=False),
        "beta2": _Key("beta2", float, "0.999", is_required=False),
        "epsilon": _Key("epsilon", float, "1e-8", is_required=False),
        "normalizer": _Key("normalizer", str, '"expected_clients"'),
        "minimum_count": _Key("minimum_count", int, "100", is_required=False),
    },
}

_OPTIONAL_TABLES = frozenset({"clipping", "schedule"})
# These tables make a value of their own; the rest of the optimizer's belongs to the plan.
_PARTS = ("clipping", "optimizer", "schedule")
_PLAN_KEYS_OF_OPTIMIZER = frozenset({"normalizer", "minimum_count"})
_PLURALS: dict[type, str] = {str: "texts", int: "whole numbers", float: "numbers"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plan_arguments(text: str) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Return the arguments of the plan, and those of its parts by table, if they are there.

    Raises:
        PlanError: not TOML, or a key is unknown, missing or of the wrong type.
    """
    try:
        document = tomllib.loads(text)
    # TOMLDecodeError, a number too long for Python, brackets too deep for the parser.
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the plan is not valid TOML: {error}") from error
    _refuse_other_version(document.get("version", FORMAT_VERSION))
    _refuse_unknown_tables(document)
    plan: dict[str, object] = {}
    parts: dict[str, dict[str, object]] = {}
    for table, keys in _TABLES.items():
        values = _table(document, table)
        if values is None:
            continue
        if table in _PARTS:
            parts[table] = {}
        for key, value in _read_table(table, keys, values).items():
            (parts[table] if _is_of_part(table, key) else plan)[keys[key].argument] = value
    del plan["version"]
    _refuse_keys_without_effect(parts["optimizer"])
    _refuse_limits_of_nothing(plan)
    return plan, parts


def _table(document: Mapping[str, object], table: str) -> dict[str, object] | None:
    """Return a table's keys, or None where it is left out and may be."""
    values = document.get(table) if table else _top_level(document)
    if values is None and table in _OPTIONAL_TABLES:
        return None
    if values is None:
        keys = ", ".join(_TABLES[table])
        raise PlanError(f"the plan has no table [{table}]: add it, with {keys}")
    if not isinstance(values, dict):
        raise PlanError(f"[{table}] must be a table: write a line [{table}] above its keys")
    return values


def plan_text(plan: Mapping[str, object], parts: Mapping[str, Mapping[str, object]]) -> str:
    """Return the TOML text that `plan_arguments` reads back into the same arguments."""
    lines: list[str] = []
    arguments = {"version": FORMAT_VERSION, **plan}
    for table, keys in _TABLES.items():
        if table in _OPTIONAL_TABLES and table not in parts:
            continue
        if table:
            lines += ["", f"[{table}]"]
        for key, spec in keys.items():
            source = parts[table] if _is_of_part(table, key) else arguments
            if spec.argument in source:
                lines.append(f"{key} = {_toml_value(spec.kind, source[spec.argument])}")
    return "\n".join(lines) + "\n"


def _is_of_part(table: str, key: str) -> bool:
    return table in _PARTS and not (table == "optimizer" and key in _PLAN_KEYS_OF_OPTIMIZER)


def _toml_value(kind: type | GenericAlias, value: object) -> str:
    if kind is datetime and isinstance(value, int):
        # Not fromtimestamp: a float of epoch seconds can lose the last millisecond.
        moment = _EPOCH + timedelta(milliseconds=value)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(str, item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's too; TOML wants DEL escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _top_level(document: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value
        for key, value in document.items()
        if not isinstance(value, dict) and (not key or key not in _TABLES)
    }


def _refuse_other_version(version: object) -> None:
    # Before all else: another version may have keys that this program does not know.
    if type(version) is int and version != FORMAT_VERSION:
        raise PlanError(
            "the plan is of a version that this program does not understand: "
            f"write version = {FORMAT_VERSION}, or upgrade sdp"
        )


def _refuse_unknown_tables(document: Mapping[str, object]) -> None:
    for key, value in document.items():
        if isinstance(value, dict) and (not key or key not in _TABLES):
            raise PlanError(f"unknown table [{key}] in the plan{_suggest(key, _TABLES)}")


def _refuse_keys_without_effect(optimizer: Mapping[str, object]) -> None:
    kind = optimizer["kind"]
    for key in sorted(optimizer.keys() - {"kind", "learning_rate"}):
        if kind in OPTIMIZER_KEYS and key not in OPTIMIZER_KEYS[str(kind)]:
            raise PlanError(f"[optimizer] {key} has no effect with kind = {kind!r}: remove it")


def _refuse_limits_of_nothing(plan: Mapping[str, object]) -> None:
    for key in ("hour_epsilon", "day_epsilon"):
        if plan.get(key) == 0:
            raise PlanError(f"[budget] {key} is 0, which is no limit: write more, or remove it")


def _read_table(
    table: str, keys: Mapping[str, _Key], values: Mapping[str, object]
) -> dict[str, object]:
    where = f"[{table}] " if table else ""
    for key in values:
        if key not in keys:
            raise PlanError(f"unknown key {where}{key} in the plan{_suggest(key, keys)}")
    for key, spec in keys.items():
        if spec.is_required and key not in values:
            raise PlanError(
                f"the plan lacks {where}{key}: write for example {key} = {spec.example}"
            )
    return {key: _typed(f"{where}{key}", keys[key], value) for key, value in values.items()}


def _typed(where: str, spec: _Key, value: object) -> object:
    hint = f"write for example {where.split()[-1]} = {spec.example}"
    if spec.kind is datetime:
        return _timestamp_ms(where, value, hint)
    items = value if isinstance(value, list) else [value]
    if any(type(item) is int and not -(2**63) <= item < 2**63 for item in items):
        raise PlanError(f"{where} does not fit 64 bits: {hint}")
    if isinstance(spec.kind, GenericAlias):
        (kind,) = spec.kind.__args__
        if not isinstance(value, list) or not all(_is_of_kind(item, kind) for item in value):
            raise PlanError(f"{where} must be a list of {_PLURALS[kind]}: {hint}")
        return tuple(kind(item) for item in value)
    if spec.kind is float and type(value) is int:
        return float(value)
    # bool is an int to isinstance, never to a plan.
    if type(value) is not spec.kind:
        raise PlanError(
            f"{where} is of type {type(value).__name__}, not {spec.kind.__name__}: {hint}"
        )
    return value


def _is_of_kind(item: object, kind: type) -> bool:
    # bool is an int to isinstance, never to a plan.
    return type(item) is kind or (kind is float and type(item) is int)


def _timestamp_ms(where: str, value: object, hint: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise PlanError(f"{where} must be a date and time with an offset: {hint}")
    since_epoch = value - _EPOCH
    # Integer arithmetic: a float of epoch seconds loses the milliseconds' last bit.
    microseconds = (since_epoch.days * 86400 + since_epoch.seconds) * 10**6
    microseconds += since_epoch.microseconds
    if microseconds % 1000:
        raise PlanError(f"{where} is finer than a millisecond: {hint}")
    return microseconds // 1000


def _suggest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, [name for name in known if name], n=1)
    names = ", ".join(sorted(name for name in known if name))
    return f": did you mean {close[0]}?" if close else f": the known ones are {names}"
