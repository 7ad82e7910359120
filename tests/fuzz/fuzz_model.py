"""What is fuzzed of plans and of the global agent: plan texts, releases and stored models."""

import contextlib
from fractions import Fraction

import numpy as np
from fuzz_plans import ADAPTIVE, PLAN, Choices

from schemas import (
    MalformedMessageError,
    Release,
    decode_model_state,
    decode_release,
    encode_model_snapshot,
    encode_model_state,
    encode_release,
)
from stream.errors import PlanError
from stream.global_model import DivergedError, GlobalModel
from stream.privacy.plan import PrivacyPlan

_DEADLINE_MS = 500
_MOST_STEPS = 60
_NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_NORMS = (0.0, 1.0, 1.5, 5e-324, 1.7e308)


def plan(data: bytes) -> None:
    """Any text is refused with a PlanError, or is a plan that its own text gives back."""
    try:
        found = PrivacyPlan.from_toml(data.decode(errors="replace"))
    except PlanError:
        return
    again = PrivacyPlan.from_toml(found.to_toml())
    assert again == found
    assert again.plan_id == found.plan_id
    assert found.guarantee
    assert found.release_dtype in ("int32", "int64")
    assert found.charge_units >= 1
    assert found.noise_multiplier > 0


def model(data: bytes) -> None:
    """Whatever the topic of releases holds, the agent goes on, and merges no cell twice."""
    choices = Choices(data)
    fuzzed = (PLAN, ADAPTIVE)[choices.number(1) % 2]
    agent = GlobalModel.start(fuzzed, np.zeros(fuzzed.dimension), merge_deadline_ms=_DEADLINE_MS)
    merged: list[tuple[int, int]] = []
    now = PLAN.start_ms
    for offset in range(_MOST_STEPS):
        if choices.are_over:
            break
        now += choices.number(2)
        if agent.due(now):
            agent.expect(now, agent.position)
        release = _release(fuzzed, choices)
        if release is None:
            agent.advance(offset + 1)
        else:
            agent.offer(offset, release, now)
        while agent.ready() is not None:
            try:
                stepped = agent.step(now)
            except DivergedError:
                return
            encode_model_snapshot(stepped.snapshot)
            agent.commit(stepped)
            merged += stepped.cells
            assert len(set(merged)) == len(merged), "a cell is in two steps"
            assert stepped.snapshot.model_version == agent.version
            if choices.number(1) % 2:
                # A crash: what is stored is enough, but for what waited and is read again.
                state = decode_model_state(encode_model_state(stepped.state))
                agent = GlobalModel.restore(fuzzed, state, merge_deadline_ms=_DEADLINE_MS)


def restore(data: bytes) -> None:
    """A stored model fits the plan, or is refused with a PlanError."""
    try:
        state = decode_model_state(data)
    except MalformedMessageError:
        return
    for fuzzed in (PLAN, ADAPTIVE):
        with contextlib.suppress(PlanError):
            agent = GlobalModel.restore(fuzzed, state, merge_deadline_ms=_DEADLINE_MS)
            assert agent.version == state.model_version


def _release(fuzzed: PrivacyPlan, choices: Choices) -> Release | None:
    """Any bytes, or a release that its codec takes, likely or not."""
    action = choices.number(1)
    if action % 4 == 0:
        with contextlib.suppress(MalformedMessageError):
            return decode_release(choices.sized_piece())
        return None
    # Half of them fit; each bit of the other half's byte spoils one field.
    spoil = choices.number(1) if action % 2 else 0
    numbers = [_number(choices) for _ in range(fuzzed.release_size + bool(spoil & 1))]
    dtype = np.dtype(np.int64 if spoil & 2 else fuzzed.release_dtype)
    limits = np.iinfo(dtype)
    window = choices.number(8) % 2**63 if spoil & 4 else choices.number(1) % 12
    is_adaptive = (fuzzed is ADAPTIVE) != bool(spoil & 8)
    following = (window // 3 + 1) * 3 + bool(spoil & 16)
    next_norm = _NORMS[choices.number(1) % len(_NORMS)] if is_adaptive else 0.0
    release = Release(
        plan_id=bytes(16) if spoil & 32 else fuzzed.plan_id,
        cluster=choices.number(1) % 2 + 2 * bool(spoil & 64),
        window=window,
        sequence=window + 1 + bool(spoil & 128),
        charge_units=1,
        spent_units=1,
        cap_units=2,
        noise_variance=Fraction(1),
        l2_sensitivity_squared=1,
        vector=np.clip(numbers, limits.min, limits.max).astype(dtype),
        clip_norm=_NORMS[1 + choices.number(1) % 4] if is_adaptive else 0.0,
        next_clip_norm=next_norm,
        next_clip_window=following if next_norm else 0,
    )
    with contextlib.suppress(ValueError):
        return decode_release(encode_release(release))
    return None


def _number(choices: Choices) -> int:
    number = choices.signed(1)
    return _NUMBERS[number % len(_NUMBERS)] if number < 0 else number


TARGETS = {"plan": plan, "model": model, "restore": restore}
