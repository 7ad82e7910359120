"""Updates that are counted many at a time have the fate that each would have had alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import KERNELS

from schemas import ClipState, Update, encode_update, encode_update_batch
from stream.aggregation import open_windows, vector_sum
from stream.aggregation.familiar import FamiliarUpdates
from stream.aggregation.intake import WindowIntake
from stream.aggregation.open_windows import OpenWindows
from stream.aggregation.validation import Reason
from stream.budget.client_budgets import ClientBudgets
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.noise_kernel import Kernel
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAIN = PrivacyPlan(
    name="together",
    dimension=6,
    cluster_count=2,
    assignment="prefix",
    prefixes=("north", "south"),
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=9,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
PLANS = {
    "int8": PLAIN,
    "int16": replace(PLAIN, update_dtype="int16"),
    "adaptive": replace(PLAIN, clipping=ClippingSpec(0.5, 0.2, bit_weight=20, epoch_windows=4)),
    "clients pay": replace(PLAIN, scope="client", horizon_windows=2),
}
CLIENTS = ("north/a", "north/bb", "north/" + "c" * 100, "south/a", "west", "north/é")
VECTORS = (
    [1, 2, 3, 4, 5, 6],
    [0] * 6,
    [60, 80, 0, 0, 0, 0],
    [60, 80, 1, 0, 0, 0],
    [-128, 0, 0, 0, 0, 0],
)


def intake_of(plan: PrivacyPlan, kernel: Kernel = "numpy") -> WindowIntake:
    clip = None if plan.clipping is None else ClipState(1.0, 0.0, 0, 0)
    clients = ClientBudgets(plan.cap_units) if plan.scope == "client" else None
    return WindowIntake(
        plan,
        0,
        next_window=1,
        position=0,
        max_open_windows=3,
        clip=clip,
        clients=clients,
        kernel=kernel,
    )


updates = st.tuples(
    st.sampled_from(CLIENTS),
    st.sampled_from(VECTORS),
    st.sampled_from([0, 0, 0, 1, 7]),  # the model's version
    st.sampled_from([1.0, 1.0, 1.0, 2.0]),  # the clip norm, where there is one
    st.booleans(),
)
records = st.tuples(
    st.sampled_from([0, 1, 1, 1, 2, 2, 3, 5]),
    st.one_of(updates, updates, updates, st.sampled_from([None, b"", b"\x0a\x7fgarbage"])),
)


def value_of(plan: PrivacyPlan, what) -> bytes | None:
    if not isinstance(what, tuple):
        return what
    client, vector, version, clip_norm, is_below = what
    clip_norm = 0.0 if plan.clipping is None else clip_norm
    return encode_update(
        Update(
            plan.plan_id,
            client,
            version,
            np.array(vector, plan.update_dtype),
            clip_norm,
            is_below and clip_norm > 0,
        )
    )


def judged(plan: PrivacyPlan, log, size: int, kernel: Kernel = "numpy") -> list[object]:
    """Everything that an intake makes of a log, offered in batches of ``size``."""
    intake = intake_of(plan, kernel)
    outcomes = [intake.offer(log[begin : begin + size]) for begin in range(0, len(log), size)]
    seen: list[object] = [
        sum(outcome.accepted for outcome in outcomes),
        [rejected for outcome in outcomes for rejected in outcome.rejected],
    ]
    for _ in range(3):
        seen += [intake.exact_sum().tolist(), intake.client_keys().tolist(), intake.resume_offset()]
        intake.close_window(intake._clip, intake._open.clients)
    return seen


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shortest_long", [4, 10_000])
@pytest.mark.parametrize("name", PLANS)
@given(
    drawn=st.lists(records, max_size=60),
    size=st.sampled_from([1, 7, 100]),
    looked_at=st.sampled_from([3, 512]),
    measured=st.sampled_from([20, 10_000]),
)
@settings(max_examples=40)
def test_together_or_alone_is_the_same(
    name, shortest_long, kernel, drawn, size, looked_at, measured
):
    plan = PLANS[name]
    log = [
        (offset, plan.window_end_ms(window) - 1, value_of(plan, what))
        for offset, (window, what) in enumerate(drawn)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_sum, "SHORT", shortest_long)
        patch.setattr(vector_sum, "_TOGETHER", measured)
        patch.setattr(open_windows, "_TOGETHER", looked_at)
        together = judged(plan, log, size, kernel)
        patch.setattr(FamiliarUpdates, "find", lambda *_: ())
        assert together == judged(plan, log, 1)


@pytest.mark.parametrize("name", PLANS)
@given(drawn=st.lists(records, max_size=60), sizes=st.lists(st.integers(1, 9), min_size=60))
@settings(max_examples=60)
def test_in_a_batch_or_by_itself_is_the_same(name, drawn, sizes):
    """Except that all of a batch has one offset, and one time."""
    plan, log, batched, sizes = PLANS[name], [], [], iter(sizes)
    values = [(window, value_of(plan, what)) for window, what in drawn]
    while values:
        window, size = values[0][0], next(sizes)
        values, taken = values[size:], [value for _, value in values[:size] if value]
        offset, at_ms = len(batched), plan.window_end_ms(window) - 1
        log += [(offset, at_ms, value) for value in taken]
        batched.append((offset, at_ms, encode_update_batch(taken) if taken else None))
    alone = intake_of(plan)
    outcomes = []
    for record in log:
        # Records of one offset, which no log has: each is offered as if it were the first.
        alone.position = alone._furthest = record[0]
        outcomes.append(alone.offer([record]))
    together = intake_of(plan)
    outcome = together.offer(batched)
    assert outcome.accepted == sum(each.accepted for each in outcomes)
    assert outcome.rejected == [rejected for each in outcomes for rejected in each.rejected]
    assert together.exact_sum().tolist() == alone.exact_sum().tolist()


def test_most_updates_need_no_parser(monkeypatch):
    parsed = []
    parse = OpenWindows._parse

    def noted(self, *arguments):
        parsed.append(arguments)
        return parse(self, *arguments)

    monkeypatch.setattr(OpenWindows, "_parse", noted)
    log = [
        (n, PLAIN.window_end_ms(1) - 1, value_of(PLAIN, (f"north/{n}", VECTORS[0], 1, 0.0, False)))
        for n in range(1000)
    ]
    outcome = intake_of(PLAIN).offer(log)
    assert (outcome.accepted, outcome.rejected) == (1000, [])
    assert len(parsed) == 1


def test_a_flood_of_duplicates_needs_no_parser_either(monkeypatch):
    value = value_of(PLAIN, ("north/a", VECTORS[0], 1, 0.0, False))
    log = [(n, PLAIN.window_end_ms(1) - 1, value) for n in range(1000)]
    intake = intake_of(PLAIN)
    assert intake.offer(log[:1]).accepted == 1
    monkeypatch.setattr(OpenWindows, "_parse", None)
    outcome = intake.offer(log)
    assert [each.rejection.reason for each in outcome.rejected] == [Reason.DUPLICATE] * 999
    assert intake.exact_sum().tolist() == [*VECTORS[0], 10]


def test_a_verdict_of_another_window_is_not_used():
    """A model that may be known in window 2 cannot have been in window 1."""
    late = value_of(PLAIN, ("north/a", VECTORS[0], 2, 0.0, False))
    log = [(n, PLAIN.window_end_ms(window) - 1, late) for n, window in enumerate((2, 1))]
    outcome = intake_of(PLAIN).offer(log)
    assert outcome.accepted == 1
    assert [each.rejection.reason for each in outcome.rejected] == [Reason.FUTURE_MODEL]
