import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from schemas import (
    ClipNorm,
    ModelState,
    Release,
    decode_model_state,
    encode_model_snapshot,
    encode_model_state,
)
from stream.errors import PlanError, StreamError
from stream.global_model import DivergedError, GlobalModel, ReleaseOutcome, Stepped
from stream.optimizer import Adam
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_shares import learning_rate_factor
from stream.privacy.schedule_spec import ScheduleSpec

LONG_AFTER_MS = 10**9
MERGE_DEADLINE_MS = 700
MOMENTUM = OptimizerSpec("sgd", 0.5, momentum=0.5)
ADAM = OptimizerSpec("adam", 0.1)
PLAN = PrivacyPlan(
    name="global",
    dimension=2,
    cluster_count=3,
    assignment="hash",
    assignment_key="public",
    expected_clients=90,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=200,
    l2_clip_norm=1.0,
    grid_l2_bound=1000,
    count_weight=10,
    update_dtype="int16",
    epsilon=8.0,
    delta=1e-6,
    horizon_windows=100,
    optimizer=MOMENTUM,
    normalizer="expected_clients",
)


ADAPTIVE = replace(
    PLAN,
    clipping=ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=3),
)


def release(cluster: int, window: int, plan: PrivacyPlan = PLAN) -> Release:
    """A vector that tells its cell from every other, and norms that tell cluster and epoch."""
    epoch, is_adaptive = window // 3, plan.clipping is not None
    return Release(
        plan_id=plan.plan_id,
        cluster=cluster,
        window=window,
        sequence=window + 1,
        charge_units=1,
        spent_units=1,
        cap_units=2,
        noise_variance=Fraction(1),
        l2_sensitivity_squared=1,
        vector=np.array(
            [1 + 7 * cluster + 31 * window, -((cluster + 2) ** (window % 9 + 1)), 300, 40],
            np.dtype(plan.release_dtype),
        )[: plan.release_size],
        clip_norm=norm_of(cluster, epoch) if is_adaptive else 0.0,
        next_clip_norm=norm_of(cluster, epoch + 1) if is_adaptive else 0.0,
        next_clip_window=3 * epoch + 3 if is_adaptive else 0,
    )


def norm_of(cluster: int, epoch: int) -> float:
    """A norm that the releases of a cluster name; that of epoch 0 is the plan's."""
    return 1.0 + epoch * (0.3 + cluster)


def start(plan: PrivacyPlan = PLAN) -> GlobalModel:
    return GlobalModel.start(plan, np.array([1.0, -1.0]), merge_deadline_ms=MERGE_DEADLINE_MS)


def restore(state: ModelState, plan: PrivacyPlan = PLAN) -> GlobalModel:
    stored = decode_model_state(encode_model_state(state))
    return GlobalModel.restore(plan, stored, merge_deadline_ms=MERGE_DEADLINE_MS)


def give(model: GlobalModel, cells: Iterable[tuple[int, int]], plan: PrivacyPlan = PLAN) -> None:
    for cluster, window in cells:
        outcome = model.offer(model.position, release(cluster, window, plan), LONG_AFTER_MS)
        assert outcome is ReleaseOutcome.ACCEPTED


def full(window: int) -> list[tuple[int, int]]:
    return [(cluster, window) for cluster in range(3)]


def expected_weights(steps: Iterable[Iterable[tuple[int, int]]]) -> list[float]:
    """The weights after ``steps``, in scalar Python, from the definition."""
    weights, velocity = [1.0, -1.0], [0.0, 0.0]
    for cells in steps:
        vectors = [release(*cell).vector.tolist() for cell in cells]
        clients = PLAN.expected_clients * len(vectors) / PLAN.cluster_count
        for i in range(2):
            mean = sum(vector[i] for vector in vectors) * PLAN.l2_clip_norm
            mean /= PLAN.client_scale * clients
            velocity[i] = 0.5 * velocity[i] + mean
            weights[i] -= 0.5 * velocity[i]
    return weights


def test_the_first_model_is_version_0_with_the_initial_weights():
    model = start()
    first = model.initial(now_ms=5)
    assert first.snapshot.vector.tolist() == [1.0, -1.0]
    assert first.snapshot.vector.dtype == np.float32
    assert (first.snapshot.model_version, first.snapshot.window) == (0, -1)
    assert first.snapshot.published_at_ms == 5
    assert (first.cells, first.state.next_offset) == ((), 0)
    assert (restore(first.state).version, restore(first.state).window) == (0, -1)


def test_a_step_merges_a_window_and_takes_force_with_its_commit():
    model = start()
    give(model, full(0))
    stepped = model.step(now_ms=1300)
    assert (model.version, model.window, model.ready()) == (0, -1, 0)
    assert model.weights.tolist() == [1.0, -1.0]
    model.commit(stepped)
    assert (model.version, model.window, model.ready()) == (1, 0, None)
    assert model.weights == pytest.approx(expected_weights([full(0)]), rel=1e-12)
    assert stepped.cells == ((0, 0), (1, 0), (2, 0))
    assert stepped.noisy_count == 90
    moved = math.dist(model.weights, [1.0, -1.0])
    assert stepped.update_norm == pytest.approx(moved, rel=1e-12)
    assert stepped.snapshot.published_at_ms == 1300
    assert stepped.snapshot.vector.tolist() == model.weights.astype(np.float32).tolist()
    assert (stepped.state.step, stepped.state.merged_through) == (1, (0, 0, 0))


def test_what_a_step_holds_can_be_encoded():
    model = start()
    give(model, full(0))
    stepped = model.step(now_ms=1300)
    assert encode_model_snapshot(stepped.snapshot)
    assert encode_model_state(stepped.state)


def test_a_late_cluster_is_folded_into_the_next_step():
    model = start()
    give(model, [(0, 0), (1, 0)])
    model.commit(model.step(0))
    give(model, [(2, 0), *full(1)])
    stepped = model.step(0)
    model.commit(stepped)
    assert stepped.cells == ((0, 1), (1, 1), (2, 0), (2, 1))
    steps = [[(0, 0), (1, 0)], [(2, 0), *full(1)]]
    assert model.weights == pytest.approx(expected_weights(steps), rel=1e-12)


def test_late_cells_alone_make_a_step_that_ends_a_window_so_versions_never_outrun_windows():
    model = start()
    give(model, [(0, 0), (1, 0)])
    model.commit(model.step(0))
    give(model, [(2, 0)])
    model.expect(PLAN.release_due_ms(1) + MERGE_DEADLINE_MS, 3)
    assert model.ready() == 1
    model.commit(model.step(0))
    assert (model.version, model.window) == (2, 1)
    give(model, full(1))
    assert model.ready() is None
    give(model, full(2))
    model.commit(model.step(0))
    # An update of window 3 may name version 3, and no version that could not be there.
    assert (model.version, model.window) == (3, 2)


def test_a_state_that_is_behind_what_it_has_merged_is_refused():
    model = start()
    give(model, [(0, 0), (1, 0)])
    state = replace(model.step(0).state, window=-1)
    with pytest.raises(PlanError, match="at window -1, and has merged window 0"):
        GlobalModel.restore(PLAN, state, merge_deadline_ms=0)


def test_a_step_without_a_release_is_refused():
    with pytest.raises(ValueError, match="no release"):
        start().step(0)


def test_a_step_is_committed_once_and_only_as_it_was_made():
    model = start()
    give(model, [(0, 0), (1, 0)])
    stepped = model.step(0)
    give(model, [(2, 0)])
    with pytest.raises(ValueError, match="not the step"):
        model.commit(stepped)
    whole = model.step(0)
    give(model, [(0, 1)])
    model.commit(whole)
    with pytest.raises(ValueError, match="not the step"):
        model.commit(whole)
    with pytest.raises(ValueError, match="not at its start"):
        model.initial(0)


def test_the_initial_model_is_not_a_step_to_commit():
    model = start()
    with pytest.raises(ValueError, match="not the step"):
        model.commit(model.initial(0))


def test_adam_counts_its_steps_across_a_restart():
    plan = replace(PLAN, optimizer=ADAM)
    model = start(plan)
    weights, slots = np.array([1.0, -1.0]), np.zeros((2, 2))
    for window in range(4):
        give(model, full(window), plan)
        stepped = model.step(0)
        merged = sum(release(*cell, plan).vector[:2].astype(np.float64) for cell in full(window))
        gradient = merged * plan.grid_step / plan.expected_clients
        adam = Adam(ADAM.learning_rate, ADAM.beta1, ADAM.beta2, ADAM.epsilon)
        weights, slots = adam.step(weights, slots, gradient, window + 1)
        assert stepped.state.vectors == pytest.approx(np.vstack((weights, slots)), rel=1e-12)
        model = restore(stepped.state, plan)


def test_after_a_restart_a_past_deadline_waits_for_what_arrived_in_time():
    model = restore(start().initial(0).state)
    log = [*full(0), *full(1)]
    give(model, log[:1])
    assert model.due(LONG_AFTER_MS)
    assert model.ready() is None
    model.expect(LONG_AFTER_MS, len(log))
    assert model.ready() is None
    give(model, log[1:])
    assert model.step(0).cells == tuple(full(0))


def test_a_model_that_was_lost_is_published_again_as_it_stood():
    model = start()
    give(model, full(0))
    stepped = model.step(5)
    model.commit(stepped)
    again = model.snapshot(9)
    assert again.published_at_ms == 9
    assert encode_model_snapshot(replace(again, published_at_ms=5)) == encode_model_snapshot(
        stepped.snapshot
    )


def test_a_release_is_new_if_no_step_has_merged_it_wherever_it_stands():
    model = start()
    assert model.is_new(release(0, 0), LONG_AFTER_MS)
    give(model, full(0))
    model.commit(model.step(5))
    assert not model.is_new(release(0, 0), LONG_AFTER_MS)
    assert model.is_new(release(0, 1), LONG_AFTER_MS)
    # What would be dropped is not new either.
    assert not model.is_new(replace(release(0, 1), plan_id=bytes(16)), LONG_AFTER_MS)
    assert not model.is_new(release(0, 1), 0 - LONG_AFTER_MS)
    assert model.position == 3


def test_a_restart_drops_what_was_merged_and_reads_what_was_not():
    model = start()
    give(model, [(0, 0), (0, 1), (1, 0), (2, 0)])
    stepped = model.step(0)
    assert stepped.state.next_offset == 1
    restored = restore(stepped.state)
    outcomes = [
        restored.offer(restored.position, release(*cell), LONG_AFTER_MS)
        for cell in [(0, 1), (1, 0), (2, 0)]
    ]
    assert outcomes == ["accepted", "duplicate", "duplicate"]


@pytest.mark.parametrize("spec", [MOMENTUM, ADAM, OptimizerSpec("sgd", 0.5)])
def test_a_diverged_model_is_never_made_and_the_error_names_the_learning_rate(spec):
    plan = replace(PLAN, optimizer=replace(spec, learning_rate=1e300), l2_clip_norm=1e30)
    model = start(plan)
    give(model, full(0), plan)
    with pytest.raises(DivergedError, match=r"learning_rate below 1e\+300") as error:
        model.step(0)
    assert isinstance(error.value, StreamError)
    assert (model.version, model.weights.tolist()) == (0, [1.0, -1.0])


def test_weights_beyond_float32_are_diverged_though_float64_holds_them():
    plan = replace(PLAN, optimizer=OptimizerSpec("sgd", 1e43))
    model = start(plan)
    give(model, full(5), plan)
    with pytest.raises(DivergedError):
        model.step(0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "shape"), ([[1.0, 2.0]], "shape"), ([1.0, math.nan], "NaN"), ([1.0, 1e39], "float32")],
)
def test_initial_weights_that_no_client_could_use_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        GlobalModel.start(PLAN, np.array(weights), merge_deadline_ms=0)


def test_a_negative_deadline_is_refused():
    with pytest.raises(ValueError, match="merge_deadline_ms"):
        GlobalModel.start(PLAN, np.zeros(2), merge_deadline_ms=-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan_id": bytes(16)}, "belongs to plan 0000"),
        ({"optimizer": "adam"}, "the plan needs"),
        ({"vectors": np.zeros((2, 3))}, "the plan needs"),
        ({"vectors": np.zeros((3, 2))}, "the plan needs"),
        ({"merged_through": (-1, -1)}, "the plan needs"),
        ({"clip_norms": (ClipNorm(0, 0, 1.0),)}, r"clusters with a clip norm\).*, the plan needs"),
    ],
)
def test_a_state_of_another_plan_is_refused_with_the_remedy(change, message):
    state = replace(start().initial(0).state, **change)
    with pytest.raises(PlanError, match=message) as error:
        restore(state)
    assert "topic_prefix" in str(error.value)


def learning_rates(model: GlobalModel, plan: PrivacyPlan, windows: int) -> list[float]:
    """The learning rates of successive steps, each taken by a model that was just restored."""
    rates = []
    for window in range(windows):
        give(model, full(window), plan)
        stepped = model.step(0)
        moved = model.weights[0] - stepped.state.vectors[0][0]
        total = sum(int(release(*cell, plan).vector[0]) for cell in full(window))
        rates.append(moved / (total * plan.grid_step / plan.expected_clients))
        model = restore(stepped.state, plan)
    return rates


@pytest.mark.parametrize("decay", ["linear", "cosine", "exponential"])
def test_the_learning_rate_of_a_step_is_the_schedules_and_survives_restarts(decay):
    spec = replace(LEARNING_RATE, learning_rate_decay=decay)
    plan = replace(PLAN, optimizer=OptimizerSpec("sgd", 0.5), schedule_spec=spec, horizon_windows=5)
    expected = [0.5 * float(learning_rate_factor(spec, 5, step)) for step in range(7)]
    assert learning_rates(start(plan), plan, 7) == pytest.approx(expected, rel=1e-6)
    assert expected[0] == 0.5
    assert expected[4:] == pytest.approx([0.05] * 3)


def test_with_another_schedule_the_learning_rate_is_the_plans():
    spec = ScheduleSpec(kind="linear", final_noise_ratio=0.25)
    plan = replace(PLAN, optimizer=OptimizerSpec("sgd", 0.5), schedule_spec=spec, horizon_windows=5)
    assert learning_rates(start(plan), plan, 4) == pytest.approx([0.5] * 4, rel=1e-9)


def test_the_momentum_goes_on_under_a_learning_rate_that_falls():
    plan = replace(PLAN, schedule_spec=LEARNING_RATE, horizon_windows=3)
    model, weight, velocity = start(plan), 1.0, 0.0
    for window in range(3):
        give(model, full(window), plan)
        model.commit(model.step(0))
        total = sum(int(release(*cell).vector[0]) for cell in full(window))
        velocity = 0.5 * velocity + total * plan.grid_step / plan.expected_clients
        weight -= 0.5 * float(learning_rate_factor(LEARNING_RATE, 3, window)) * velocity
        assert model.weights[0] == pytest.approx(weight, rel=1e-12)


def test_without_adaptive_clipping_models_name_no_clip_norm():
    model = start()
    give(model, full(0))
    stepped = model.step(0)
    assert model.initial(0).snapshot.clip_norms == ()
    assert stepped.snapshot.clip_norms == stepped.state.clip_norms == ()


def test_the_first_model_names_the_plans_clip_norm_for_every_cluster():
    first = start(ADAPTIVE).initial(0)
    assert first.snapshot.clip_norms == tuple(ClipNorm(cluster, 0, 1.0) for cluster in range(3))
    assert restore(first.state, ADAPTIVE).initial(0).snapshot.clip_norms == first.state.clip_norms


def test_a_model_names_the_norm_in_force_and_the_next_one_of_each_cluster():
    model = start(ADAPTIVE)
    give(model, [(0, 0), (1, 0), (2, 0)], ADAPTIVE)
    stepped = model.step(0)
    model = restore(stepped.state, ADAPTIVE)
    told = [(cluster, at, norm_of(cluster, at // 3)) for cluster in range(3) for at in (0, 3)]
    assert stepped.snapshot.clip_norms == tuple(ClipNorm(*item) for item in told)
    give(model, [(0, 3), (1, 1)], ADAPTIVE)  # and one cluster that is silent
    clip_norms = model.step(0).snapshot.clip_norms
    assert clip_norms == stepped.snapshot.clip_norms  # window 1 alone was merged
    model.commit(model.step(0))
    clip_norms = model.step(0).snapshot.clip_norms
    assert clip_norms[:2] == (
        ClipNorm(0, 3, norm_of(0, 1)),
        ClipNorm(0, 6, norm_of(0, 2)),
    )
    assert clip_norms[2:] == stepped.snapshot.clip_norms[2:]


def test_the_norms_of_a_thousand_clusters_fit_a_models_header():
    plan = replace(ADAPTIVE, cluster_count=1000)
    model = start(plan)
    last = 3 * 10**9 + 2
    assert model.offer(0, release(7, 0, plan), LONG_AFTER_MS) == "accepted"
    cells = tuple(ClipNorm(c, at, 0.1) for c in range(1000) for at in (last - 2, last + 1))
    state = replace(model.step(0).state, clip_norms=cells, merged_through=(last,) * 1000)
    assert decode_model_state(encode_model_state(state)).clip_norms == cells
    assert encode_model_snapshot(replace(model.step(0).snapshot, clip_norms=cells))


def test_clusters_of_different_clip_norms_are_averaged_in_gradient_units():
    plan = replace(ADAPTIVE, optimizer=OptimizerSpec("sgd", 1.0))
    model = start(plan)
    give(model, full(3), plan)
    before = model.weights
    model.commit(model.step(0))
    total = sum(norm_of(c, 1) * release(c, 3, plan).vector[:2].astype(float) for c in range(3))
    mean = total / plan.client_scale / plan.expected_clients
    assert before - model.weights == pytest.approx(mean, rel=1e-9)


def test_a_state_without_the_norm_of_a_cluster_is_refused():
    state = start(ADAPTIVE).initial(0).state
    with pytest.raises(PlanError, match="clusters with a clip norm"):
        restore(replace(state, clip_norms=state.clip_norms[1:]), ADAPTIVE)


class CrashError(Exception):
    """The process ends here."""


class Agent:
    """A shell in miniature, on a list for a log: read, step when ready, write, commit.

    Beside windows that are ready it steps after the offsets in ``forced``, as a deadline would,
    so that there are late cells. Each crash point ``(offset, moment)`` strikes once.
    """

    def __init__(self, plan: PrivacyPlan, log: list[Release], forced: set[int]) -> None:
        self.plan, self.log, self.forced = plan, log, set(forced)
        self.crashes: set[tuple[int, str]] = set()
        self.written: list[bytes] = []

    def run(self, crashes: Iterable[tuple[int, str]] = ()) -> list[bytes]:
        self.crashes = set(crashes)
        while True:
            try:
                self._live()
            except CrashError:
                continue
            return self.written

    def _live(self) -> None:
        model = start(self.plan)
        if self.written:
            model = restore(decode_model_state(self.written[-1]), self.plan)
        while (offset := model.position) < len(self.log):
            model.offer(offset, self.log[offset], LONG_AFTER_MS)
            self._crash(offset, "read")
            while model.ready() is not None:
                self._step(model, offset)
            if offset in self.forced:
                self._force(model, offset)

    def _force(self, model: GlobalModel, offset: int) -> None:
        try:
            stepped = model.step(0)
        except ValueError:
            return
        self._write(model, offset, stepped, forced=True)

    def _step(self, model: GlobalModel, offset: int) -> None:
        self._write(model, offset, model.step(0), forced=False)

    def _write(self, model: GlobalModel, offset: int, stepped: Stepped, forced: bool) -> None:
        self._crash(offset, "stepped")
        self.written.append(encode_model_state(stepped.state))
        if forced:
            self.forced.discard(offset)
        self._crash(offset, "written")
        model.commit(stepped)

    def _crash(self, offset: int, moment: str) -> None:
        if (offset, moment) in self.crashes:
            self.crashes.discard((offset, moment))
            raise CrashError


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Cells in window order per cluster, with holes and with repeats of the newest."""
    newest = [-1, -1, -1]
    cells = []
    for _ in range(draw(st.integers(0, 24))):
        cluster = draw(st.integers(0, 2))
        ahead = draw(st.sampled_from([1, 1, 1, 2, 0]))
        newest[cluster] = max(0, newest[cluster] + ahead)
        cells.append((cluster, newest[cluster]))
    return cells


MOMENTS = st.sampled_from(["read", "stepped", "written"])


LEARNING_RATE = ScheduleSpec(
    kind="learning_rate", learning_rate_decay="cosine", final_learning_rate_ratio=0.1
)


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM])
@pytest.mark.parametrize(
    "change",
    [{}, {"clipping": ADAPTIVE.clipping}, {"schedule_spec": LEARNING_RATE, "horizon_windows": 5}],
)
@given(
    cells=logs(),
    forced=st.sets(st.integers(0, 23)),
    crashes=st.sets(st.tuples(st.integers(0, 23), MOMENTS), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_a_run_with_crashes_writes_the_same_bytes_as_one_without(
    optimizer, change, cells, forced, crashes
):
    plan = replace(PLAN, optimizer=optimizer, **change)
    log = [release(*cell, plan) for cell in cells]
    undisturbed = Agent(plan, log, forced).run()
    assert Agent(plan, log, forced).run(crashes) == undisturbed


class Lifetime(RuleBasedStateMachine):
    """A log, a clock, and an agent that may crash between any two calls."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 0
        self.log: list[tuple[tuple[int, int], int]] = []
        self.newest = [-1, -1, -1]
        self.steps: list[tuple[tuple[int, int], ...]] = []
        self.model = start()
        self.durable = self.model.initial(0).state

    @rule(cluster=st.integers(0, 2), skipped=st.sampled_from([0, 0, 0, 1]))
    def publish(self, cluster: int, skipped: int) -> None:
        self.newest[cluster] += 1 + skipped
        window = self.newest[cluster]
        self.now_ms = max(self.now_ms, PLAN.window_end_ms(window) + PLAN.release_delay_ms)
        self.log.append(((cluster, window), self.now_ms))

    @rule(cluster=st.integers(0, 2))
    def repeat(self, cluster: int) -> None:
        if self.newest[cluster] >= 0:
            self.log.append(((cluster, self.newest[cluster]), self.now_ms))

    @rule(milliseconds=st.integers(1, 2000))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @precondition(lambda self: self.model.position < len(self.log))
    @rule(count=st.integers(1, 5))
    def read(self, count: int) -> None:
        for _ in range(count):
            offset = self.model.position
            if offset < len(self.log):
                cell, appended_ms = self.log[offset]
                outcome = self.model.offer(offset, release(*cell), appended_ms)
                assert outcome in (ReleaseOutcome.ACCEPTED, ReleaseOutcome.DUPLICATE)

    @precondition(lambda self: self.model.due(self.now_ms))
    @rule()
    def ask_for_the_end(self) -> None:
        self.model.expect(self.now_ms, len(self.log))

    @precondition(lambda self: self.model.ready() is not None)
    @rule(crash=st.sampled_from(["never", "never", "before the write", "after the write"]))
    def step(self, crash: str) -> None:
        window = self.model.ready()
        stepped = self.model.step(self.now_ms)
        if crash == "before the write":
            self.crash()
            return
        assert stepped.state.model_version == self.durable.model_version + 1
        self.durable = stepped.state
        self.steps.append(stepped.cells)
        self.check_that_nothing_in_time_was_left_out(window)
        if crash == "after the write":
            self.crash()
        else:
            self.model.commit(stepped)

    @rule()
    def crash(self) -> None:
        self.model = restore(self.durable)

    def check_that_nothing_in_time_was_left_out(self, window: int) -> None:
        deadline_ms = PLAN.window_end_ms(window) + PLAN.release_delay_ms + MERGE_DEADLINE_MS
        merged = {cell for cells in self.steps for cell in cells}
        for cell, appended_ms in self.log:
            assert cell in merged or cell[1] > window or appended_ms > deadline_ms

    @invariant()
    def each_cell_is_merged_at_most_once_and_nothing_unread_is_behind_the_offset(self) -> None:
        merged = [cell for cells in self.steps for cell in cells]
        assert len(merged) == len(set(merged))
        behind = {cell for cell, _ in self.log[: self.durable.next_offset]}
        assert behind <= set(merged)

    @invariant()
    def the_model_is_the_sum_of_its_steps(self) -> None:
        assert self.durable.model_version == self.durable.step == len(self.steps)
        expected = expected_weights(self.steps)
        assert self.durable.vectors[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)

    def teardown(self) -> None:
        self.now_ms += 10**6
        while self.model.position < len(self.log):
            self.read(1)
        while self.model.due(self.now_ms) or self.model.ready() is not None:
            if self.model.due(self.now_ms):
                self.ask_for_the_end()
            self.step("never")
        merged = {cell for cells in self.steps for cell in cells}
        assert merged == {cell for cell, _ in self.log}
        self.each_cell_is_merged_at_most_once_and_nothing_unread_is_behind_the_offset()
        self.the_model_is_the_sum_of_its_steps()


Lifetime.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLifetime = Lifetime.TestCase
