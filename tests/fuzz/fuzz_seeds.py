"""What each target starts from: valid messages, and scripts, which any bytes are."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from fuzz_head import update_bytes
from fuzz_plans import ADAPTIVE, PER_CLIENT, PLAN, SHORT, WIDE

from schemas import encode_model_state, encode_update_batch
from stream.global_model import GlobalModel
from stream.privacy.plan import OptimizerSpec
from stream.privacy.schedule_spec import ScheduleSpec

_GOLDEN_TESTS = Path(__file__).parents[1] / "schemas" / "test_codec.py"
_SCRIPT_TARGETS = ("head", "model", "ledger", "participation_log")
_SCRIPT_BYTES = (24, 60, 200)
# After the honest one's place: two clients' updates, one of them again, and the next window.
_HEAD_SCRIPT = (
    b"\x00"
    + b"\x04\x10\x00"
    + b"\x01\x00\x00"
    + b"\x05\xfb\x07"
    + b"\x04\x10\x00"
    + b"\x02\x00\x00"
    + b"\x7f\x00\x00"
    + b"\x03\x00"
    + b"\x04\x10\x01"
    + b"\x01\x00\x00"
    + b"\x01\x01\x01"
    + b"\x00\x05\x00"
    + b"\x04\x10\x00"
    + b"\x01\x00\x00"
    + b"\x01\x02\x03"
)
_LARGEST = {PLAN: (127, -79, 7), ADAPTIVE: (127, -79, 7), WIDE: (32767, -22000, 0, 1)}


def seeds_by_target() -> dict[str, list[bytes]]:
    """The golden bytes of the codecs' tests, and what the other targets can use."""
    golden = _golden()
    seeds = {f"decode_{kind}": wires for kind, wires in golden.items()}
    seeds["framing"] = [wire for wires in golden.values() for wire in wires]
    updates = seeds["decode_update"]
    seeds["update_batch"] = [updates[0], *(encode_update_batch([u]) for u in updates)]
    seeds["update_batch"].append(encode_update_batch(updates))
    seeds["check"] = [
        update_bytes(plan, client, tuple(number // part for number in vector), clip_norm)
        for plan, vector in _LARGEST.items()
        for client in ("north/1", "south/1", "east/1")
        for part in (1, 2)
        for clip_norm in (0.0, 1.25)
    ]
    seeds["plan"] = [plan.to_toml().encode() for plan in _plans()]
    starts = [GlobalModel.start(p, np.zeros(3), merge_deadline_ms=0) for p in (PLAN, ADAPTIVE)]
    seeds["restore"] = [encode_model_state(start.initial(0).state) for start in starts]
    random = np.random.default_rng(1)
    for target in _SCRIPT_TARGETS:
        first = range(4)
        seeds[target] = [bytes([n]) + random.bytes(size) for n in first for size in _SCRIPT_BYTES]
    seeds["head"] += [bytes([plan]) + _HEAD_SCRIPT for plan in range(4)]
    # What is given twice would go with the window after it.
    twice = (0, 1, 0, 1, 2)
    seeds["model"] += [b"\x00" + _cells(twice), b"\x01" + _cells(twice, norms=b"\x00\x00")]
    return seeds


def _cells(windows: Sequence[int], norms: bytes = b"") -> bytes:
    """Windows of both clusters, each followed by a step after which nothing crashes."""
    return b"".join(
        b"\x00\x00"
        + b"\x02"
        + bytes(range(1, 5 + bool(norms)))
        + bytes([window])
        + norms[:1]
        + bytes([cluster])
        + norms[1:]
        + b"\x00" * cluster
        for window in windows
        for cluster in range(2)
    )


def _golden() -> dict[str, list[bytes]]:
    spec = importlib.util.spec_from_file_location("golden_bytes", _GOLDEN_TESTS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wires: dict[str, list[bytes]] = {}
    for kind, _, wire in module.GOLDEN:
        wires.setdefault(kind, []).append(wire)
    return wires


def _plans():
    schedules = (
        ScheduleSpec("exponential", noise_decay=0.99),
        ScheduleSpec("step", milestones=(2, 5), noise_ratios=(4.0, 2.5, 1.0)),
        ScheduleSpec("cosine", final_noise_ratio=0.5, saving_windows=10),
        ScheduleSpec("learning_rate", learning_rate_decay="linear", final_learning_rate_ratio=0.1),
        ScheduleSpec(
            "snr", target_snr=1.0, smoothing=0.5, min_noise_multiplier=2.0, max_noise_multiplier=1e6
        ),
        ScheduleSpec("paced"),
        ScheduleSpec("infinite"),
    )
    plain = (PLAN, PER_CLIENT, ADAPTIVE, WIDE, SHORT)
    hashed = replace(PLAN, assignment="hash", assignment_key="public", prefixes=())
    adam = replace(PLAN, optimizer=OptimizerSpec("adam", 0.1), noise="discrete_gaussian")
    counted = replace(PLAN, normalizer="noisy_count", minimum_count=3, day_epsilon=4.0)
    return (
        *plain,
        hashed,
        adam,
        counted,
        *(replace(PLAN, schedule_spec=schedule) for schedule in schedules),
    )
