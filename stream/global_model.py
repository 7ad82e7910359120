"""The global model, thinking half: releases in, steps out. No Kafka, no clock, no randomness.

The shell gives each record of the releases topic to `offer`, in order (or moves past it with
`advance`). Whenever `ready` names a window, it makes a `step`, writes what that holds in one
transaction, and only then `commit`s it:

    offer -> due -> (ask for the log's end) expect -> ready -> step -> (transaction) -> commit

Guarantee: each cell (cluster, window) is in exactly one step, wherever a crash falls. A step
does not change the object; the state that is written with the model says which cells are in it
and from which offset to read on, so a restart goes on at the last step that was written.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas import ModelSnapshot, ModelState, Release

from .aggregation.waiting import ReleaseOutcome as ReleaseOutcome
from .aggregation.waiting import WaitingReleases
from .clip_progress import first_clip_norms
from .errors import PlanError, StreamError
from .optimizer import Adam, Optimizer, Sgd
from .privacy.plan import PrivacyPlan
from .privacy.schedule_shares import learning_rate_factor


class DivergedError(StreamError):
    """The optimizer's result is not finite; nothing was changed, nothing may be published."""


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """A step that has been computed and is not in force before `GlobalModel.commit`.

    Attributes:
        snapshot: The new model, for clients.
        state: What `GlobalModel.restore` needs, to be written in the same transaction.
        window: The newest window that is over for the model.
        cells: The ``(cluster, window)`` that this step merged, sorted.
        noisy_count: Estimate of the number of updates in the step; may be below zero.
        update_norm: L2 norm of the change of the weights.
    """

    snapshot: ModelSnapshot
    state: ModelState
    window: int
    cells: tuple[tuple[int, int], ...]
    noisy_count: float
    update_norm: float


class GlobalModel:
    """Merges the clusters' releases window by window and steps the server optimizer."""

    def __init__(self, plan: PrivacyPlan, state: ModelState, merge_deadline_ms: int) -> None:
        """Take over at ``state``; use `start` or `restore`, which check it."""
        self._plan = plan
        self._state = state
        self._waiting = WaitingReleases(
            plan, state.merged_through, state.window, state.next_offset, merge_deadline_ms
        )

    @classmethod
    def start(
        cls, plan: PrivacyPlan, initial_weights: NDArray[np.float64], *, merge_deadline_ms: int
    ) -> "GlobalModel":
        """Return version 0 of a new model, before the first release.

        Args:
            plan: The plan of the releases to come.
            initial_weights: Shape ``(plan.dimension,)``, finite as float32.
            merge_deadline_ms: How long a window waits for releases that are overdue.

        Raises:
            ValueError: the weights or the deadline cannot be used.
        """
        weights = np.asarray(initial_weights, dtype=np.float64)
        if weights.shape != (plan.dimension,):
            raise ValueError(
                f"initial weights have shape {weights.shape}: the plan needs ({plan.dimension},)"
            )
        if not np.isfinite(_as_float32(weights)).all():
            raise ValueError("initial weights hold a NaN, an infinity, or exceed float32")
        optimizer = _make_optimizer(plan, step=0)
        state = ModelState(
            plan_id=plan.plan_id,
            model_version=0,
            window=-1,
            next_offset=0,
            merged_through=(-1,) * plan.cluster_count,
            optimizer=optimizer.name,
            step=0,
            vectors=np.vstack((weights, np.zeros((optimizer.slot_count, plan.dimension)))),
            clip_norms=first_clip_norms(plan),
        )
        return cls.restore(plan, state, merge_deadline_ms=merge_deadline_ms)

    @classmethod
    def restore(
        cls, plan: PrivacyPlan, state: ModelState, *, merge_deadline_ms: int
    ) -> "GlobalModel":
        """Return the model as it was when ``state`` was written; read on at `position`.

        Raises:
            PlanError: the state belongs to another plan, or does not fit this one.
            ValueError: the deadline is below zero.
        """
        if merge_deadline_ms < 0:
            raise ValueError(f"merge_deadline_ms is {merge_deadline_ms}: it must be at least 0")
        _check_state(plan, state)
        return cls(plan, state, merge_deadline_ms)

    @property
    def position(self) -> int:
        """Offset of the next record of the releases topic to be read."""
        return self._waiting.position

    @property
    def version(self) -> int:
        """Number of steps behind the weights."""
        return self._state.model_version

    @property
    def window(self) -> int:
        """The newest window that is over for the model, -1 before the first."""
        return self._state.window

    @property
    def weights(self) -> NDArray[np.float64]:
        """A copy of the weights, shape ``(dimension,)``."""
        return np.array(self._state.vectors[0])

    def initial(self, now_ms: int) -> Stepped:
        """Return version 0 to be published and written, so that clients have a model.

        There is nothing to commit: this object is at version 0 already.

        Raises:
            ValueError: the model is past version 0.
        """
        if self.version != 0:
            raise ValueError(f"the model is at version {self.version}, not at its start")
        return _stepped(self._state, now_ms, (), noisy_count=0.0, update_norm=0.0)

    def snapshot(self, now_ms: int) -> ModelSnapshot:
        """Return the model as it stands, to be published where it was lost."""
        return _stepped(self._state, now_ms, (), noisy_count=0.0, update_norm=0.0).snapshot

    def is_new(self, release: Release, appended_ms: int) -> bool:
        """Say whether ``release``, wherever it stands, is one that no step up to here has merged.

        A release that would be dropped is not new.
        """
        nothing_read = WaitingReleases(self._plan, self._state.merged_through, -1, 0, 0)
        return nothing_read.offer(0, release, appended_ms) is ReleaseOutcome.ACCEPTED

    def offer(self, offset: int, release: Release, appended_ms: int) -> ReleaseOutcome:
        """Take the release at ``offset`` of the releases topic, if it fits the plan and is new.

        Args:
            offset: Its offset; below `position` it has been read before.
            release: What the record holds.
            appended_ms: When the broker appended it (LogAppendTime).
        """
        return self._waiting.offer(offset, release, appended_ms)

    def advance(self, offset: int) -> None:
        """Note that the reader is at ``offset``, and that there was nothing to offer before."""
        self._waiting.advance(offset)

    def due(self, now_ms: int) -> bool:
        """Return whether a window is past its deadline and needs the log's end to be asked."""
        return self._waiting.due(now_ms)

    def expect(self, asked_ms: int, end_offset: int) -> None:
        """Note the log's end offset, which was asked for at ``asked_ms`` or later."""
        self._waiting.expect(asked_ms, end_offset)

    def ready(self) -> int | None:
        """Return the window that `step` should merge now, or None; ask after every `offer`."""
        return self._waiting.ready()

    def step(self, now_ms: int) -> Stepped:
        """Merge the oldest waiting window and all late cells; this object does not change.

        Raises:
            DivergedError: the next model would not be finite.
            ValueError: no release is waiting.
        """
        window = self._waiting.next_window
        if window is None:
            raise ValueError("no release is waiting to be merged")
        mean = self._waiting.sum_through(window).mean_gradient(self._plan)
        vectors = self._stepped_vectors(mean.gradient)
        merged_through = self._waiting.merged_through_after(window)
        state = ModelState(
            plan_id=self._plan.plan_id,
            model_version=self.version + 1,
            window=window,
            next_offset=self._waiting.next_offset_after(window),
            merged_through=merged_through,
            optimizer=self._state.optimizer,
            step=self._state.step + 1,
            vectors=vectors,
            clip_norms=self._waiting.clip_norms_after(window, self._state.clip_norms),
        )
        cells = self._waiting.cells_through(window)
        update_norm = float(np.linalg.norm(vectors[0] - self._state.vectors[0]))
        return _stepped(state, now_ms, cells, noisy_count=mean.noisy_count, update_norm=update_norm)

    def commit(self, stepped: Stepped) -> None:
        """Put ``stepped`` in force, after what it holds has been written.

        Raises:
            ValueError: it is not the step that this object would make now. A step is committed
                once, and a release for one of its windows must not be offered in between.
        """
        is_next = stepped.state.model_version == self.version + 1
        if not is_next or stepped.cells != self._waiting.cells_through(stepped.window):
            raise ValueError(f"version {stepped.state.model_version} is not the step to commit")
        self._waiting.forget_through(stepped.window)
        self._state = stepped.state

    def _stepped_vectors(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        before, step = self._state.vectors, self._state.step
        optimizer = _make_optimizer(self._plan, step)
        weights, slots = optimizer.step(before[0], before[1:], gradient, step + 1)
        vectors = np.vstack((weights, slots))
        # Weights that are finite in float64 may still be infinite as clients see them.
        if not (np.isfinite(vectors).all() and np.isfinite(_as_float32(weights)).all()):
            raise DivergedError(
                f"model version {self.version + 1} would not be finite: the optimizer diverged. "
                "Make a plan with a smaller l2_clip_norm, or with a learning_rate below "
                f"{self._plan.optimizer.learning_rate:g}"
            )
        return vectors


def _stepped(
    state: ModelState,
    now_ms: int,
    cells: tuple[tuple[int, int], ...],
    *,
    noisy_count: float,
    update_norm: float,
) -> Stepped:
    snapshot = ModelSnapshot(
        plan_id=state.plan_id,
        model_version=state.model_version,
        window=state.window,
        published_at_ms=now_ms,
        vector=_as_float32(state.vectors[0]),
        clip_norms=state.clip_norms,
    )
    return Stepped(snapshot, state, state.window, cells, noisy_count, update_norm)


def _as_float32(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return weights.astype(np.float32)


def _make_optimizer(plan: PrivacyPlan, step: int) -> Optimizer:
    """Return the optimizer of ``step``, counted from 0; only its learning rate depends on it."""
    spec = plan.optimizer
    factor = learning_rate_factor(plan.schedule_spec, plan.horizon_windows, step)
    learning_rate = spec.learning_rate * float(factor)
    if spec.kind == "adam":
        return Adam(learning_rate, spec.beta1, spec.beta2, spec.epsilon)
    return Sgd(learning_rate, spec.momentum)


def _check_state(plan: PrivacyPlan, state: ModelState) -> None:
    remedy = "use the plan that it was made under, or another topic_prefix for a new model"
    if state.plan_id != plan.plan_id:
        raise PlanError(
            f"the stored model belongs to plan {state.plan_id.hex()}, this is plan "
            f"{plan.plan_id_hex}: {remedy}"
        )
    optimizer = _make_optimizer(plan, state.step)
    shape = (optimizer.slot_count + 1, plan.dimension)
    clipped = len(first_clip_norms(plan))
    expected = (optimizer.name, shape, plan.cluster_count, clipped)
    with_norms = len({clip.cluster for clip in state.clip_norms})
    found = (state.optimizer, state.vectors.shape, len(state.merged_through), with_norms)
    if found != expected:
        raise PlanError(
            f"the stored model has (optimizer, shape, clusters, clusters with a clip norm) "
            f"{found}, the plan needs {expected}: {remedy}"
        )
    if state.window < max(state.merged_through):
        raise PlanError(
            f"the stored model is at window {state.window}, and has merged window "
            f"{max(state.merged_through)}: {remedy}"
        )
