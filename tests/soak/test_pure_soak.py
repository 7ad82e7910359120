"""Tens of thousands of windows through the thinking halves: what they hold does not grow.

Two measures, both exact and free while windows run (tracemalloc would make each take three times
as long): the bytes of all that can be reached from the object, and the blocks that Python's
allocators have given out for whatever else is kept, caches of modules included.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import ClassVar

import numpy as np
import pytest

from agents import publisher
from schemas import LedgerKind, Release, Update, encode_ledger_record, encode_update
from stream.aggregation import admission
from stream.aggregation.intake import BatchOutcome, Record, RejectedUpdate
from stream.aggregation.validation import Reason, Rejection
from stream.budget.client_budgets import ClientBudgets
from stream.clip_progress import clip_norm_of
from stream.cluster_head import ClusterHead, SealedCell
from stream.global_model import GlobalModel
from stream.ledger_chain import genesis
from stream.metrics import GlobalMetrics, HeadMetrics, Registries
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_spec import ScheduleSpec
from stream.testing import UnsafeNoNoise

WARM_UP, WINDOWS = 5_000, 20_000
# The fewest bytes that can be kept of a window are a place in a list: 120,000 from the warm-up on.
# What may be more is longer numbers in the state, and free lists of Python and numpy that fill.
MOST_BYTES, MOST_BLOCKS = 2_000, 1_000
PLAN = PrivacyPlan(
    name="soak",
    dimension=6,
    cluster_count=2,
    assignment="prefix",
    prefixes=("north", "south"),
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=20_000,  # a day touches 4,321 of them: fewer than the warm-up has
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=400,
    count_weight=3,
    update_dtype="int16",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=30_000,
    optimizer=OptimizerSpec("adam", 0.001),
    normalizer="expected_clients",
)
EVERYTHING = replace(
    PLAN,
    hour_epsilon=0.3,
    day_epsilon=1.2,
    schedule_spec=ScheduleSpec(
        "snr",
        target_snr=1.0,
        smoothing=0.5,
        min_noise_multiplier=90.0,
        max_noise_multiplier=400.0,
        saving_windows=4,
    ),
    clipping=ClippingSpec(target_quantile=0.5, learning_rate=0.1, bit_weight=20, epoch_windows=4),
)
OF_CLIENTS = replace(PLAN, scope="client", horizon_windows=50)
POPULATION = 100


@dataclass(frozen=True)
class Growth:
    """How much more is held than after the warm-up.

    Attributes:
        reachable: Bytes of what can be reached from the objects under test.
        blocks: Blocks of Python's allocators.
        metrics: Samples of all metrics.
    """

    reachable: int
    blocks: int
    metrics: int

    @property
    def is_flat(self) -> bool:
        is_more = self.reachable > MOST_BYTES or self.blocks > MOST_BLOCKS
        return not is_more and self.metrics == 0


def growth(
    step: Callable[[int], None],
    roots: list[object],
    registries: Registries | None = None,
    warm_up: int = WARM_UP,
    windows: int = WINDOWS,
) -> Growth:
    """Call ``step`` with each window's number, and look at what is held."""

    def look() -> tuple[int, int, int]:
        gc.collect()
        return reachable_bytes(roots), sys.getallocatedblocks(), metric_samples(registries)

    for window in range(warm_up):
        step(window)
    before = look()
    for window in range(warm_up, windows):
        step(window)
    return Growth(*(now - then for now, then in zip(look(), before, strict=True)))


def reachable_bytes(roots: list[object]) -> int:
    """Return the size of ``roots`` and all that they lead to, code aside."""
    code = (type, ModuleType, FunctionType, BuiltinFunctionType)
    seen: set[int] = set()
    total, waiting = 0, list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, code):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        waiting += gc.get_referents(each)
    return total


def metric_samples(registries: Registries | None) -> int:
    parts = () if registries is None else (registries.operator, registries.public)
    return sum(len(family.samples) for part in parts for family in part.collect())


class Cluster:
    """A head with its metrics: each window has a good update, some a repeat and one too late."""

    def __init__(self, plan: PrivacyPlan, head_type: type[ClusterHead] = ClusterHead) -> None:
        self.plan = plan
        self.registries = Registries(plan)
        self.kinds: dict[LedgerKind | None, int] = {}
        self.outcomes: dict[str, int] = {}
        self.metrics = HeadMetrics(self.registries, plan)
        first = genesis(plan, 0, 0, 0, 0)
        self._clip = first.clip
        self.head = head_type(
            plan,
            0,
            UnsafeNoNoise(),
            [encode_ledger_record(first)],
            is_complete=True,
            max_open_windows=4,
            clients=ClientBudgets(plan.cap_units) if plan.scope == "client" else None,
        )
        self.metrics.observe_opened(0, first, 0, 0)

    def step(self, window: int) -> None:
        head, metrics, now_ms = self.head, self.metrics, self.plan.window_end_ms(window) + 100
        offset, good = head.position, self._update(window)
        begin_ms, length_ms = now_ms - self.plan.window_length_ms, self.plan.window_length_ms
        times = [begin_ms] + [begin_ms, begin_ms - length_ms] * (window % 8 == 7)
        outcome = head.offer([Record(offset + i, time_ms, good) for i, time_ms in enumerate(times)])
        metrics.observe_batch(0, outcome)
        self._count(outcome)
        head.expect(window, head.position)
        metrics.observe_lag(0, 0)
        cell = head.seal(now_ms)
        head.commit(cell)
        metrics.observe_stage("seal", 0.001)
        metrics.observe_sealed(cell, now_ms)
        if window % 16 == 0:  # it computes an epsilon, which takes longer than all the rest
            metrics.observe_published(window, now_ms + 200)
        self.kinds[cell.kind] = self.kinds.get(cell.kind, 0) + 1
        if cell.record is not None:
            self._clip = cell.record.clip

    def _update(self, window: int) -> bytes:
        """New clients for ever, unless each has a budget, whose record is for ever too."""
        number = window % POPULATION if self.plan.scope == "client" else window
        norm = clip_norm_of(self.plan, self._clip, window - 1, window) if self._clip else None
        return encode_update(
            Update(
                self.plan.plan_id,
                f"north/{number}",
                0,
                np.ones(self.plan.coordinate_count, np.int16),
                clip_norm=norm or 0.0,
                is_below_clip=bool(norm and window % 2),
            )
        )

    def _count(self, outcome: BatchOutcome) -> None:
        for name in [r.rejection.reason for r in outcome.rejected] + [
            "accepted"
        ] * outcome.accepted:
            self.outcomes[name] = self.outcomes.get(name, 0) + 1


class KeepsAPlace(ClusterHead):
    """Keeps the least that can be kept of a window: what was there already, once more."""

    kept: list[object]

    def commit(self, cell: SealedCell) -> int | None:
        self.__dict__.setdefault("kept", []).append(None)
        return super().commit(cell)


class KeepsAnObject(ClusterHead):
    """Keeps a small object of each window, outside of itself."""

    kept: ClassVar[list[object]] = []

    def commit(self, cell: SealedCell) -> int | None:
        self.kept.append((cell.window,))
        return super().commit(cell)


class KeepsBytes(ClusterHead):
    """Keeps one object, a few bytes longer after each window."""

    kept = b""

    def commit(self, cell: SealedCell) -> int | None:
        self.kept += cell.window.to_bytes(8)
        return super().commit(cell)


def test_a_head_with_limits_a_schedule_and_adaptive_clipping_forgets_what_it_needs_no_more(
    monkeypatch,
):
    # So many clients keep their numbers, and no more: so few that the warm-up fills it.
    monkeypatch.setattr(admission, "_MOST_CLIENTS", 64)
    cluster = Cluster(EVERYTHING)
    held = growth(cluster.step, [cluster.head, cluster.metrics], cluster.registries)
    assert held.is_flat, held
    kinds, outcomes = cluster.kinds, cluster.outcomes
    assert set(kinds) == {LedgerKind.RELEASE, LedgerKind.THROTTLED}
    assert min(kinds.values()) > 1_000
    assert outcomes["accepted"] == WINDOWS
    assert outcomes["duplicate"] + outcomes["late"] > WINDOWS // 10


def test_clients_budgets_grow_with_clients_and_not_with_windows():
    cluster = Cluster(OF_CLIENTS)
    roots = [cluster.head, cluster.metrics]
    held = growth(cluster.step, roots, cluster.registries, 3_000, 6_000)
    assert held.is_flat, held
    assert set(cluster.kinds) == {LedgerKind.RELEASE}
    allowed = OF_CLIENTS.windows_allowed
    assert cluster.outcomes["accepted"] == POPULATION * allowed
    assert cluster.outcomes["client_exhausted"] > 1_000


@pytest.mark.parametrize("head_type", [KeepsAPlace, KeepsAnObject, KeepsBytes])
def test_a_head_that_keeps_anything_of_a_window_is_found(head_type):
    cluster = Cluster(PLAN, head_type)
    held = growth(cluster.step, [cluster.head], cluster.registries, 200, 1_500)
    assert not held.is_flat, held


def test_the_global_model_holds_as_much_after_many_windows():
    registries = Registries(PLAN)
    metrics = GlobalMetrics(registries)
    model = GlobalModel.start(PLAN, np.zeros(PLAN.dimension), merge_deadline_ms=0)

    def step(window: int) -> None:
        """Every third window has a repeat, every fifth one cluster too late."""
        due_ms = PLAN.release_due_ms(window)
        cells = [(0, window)] + [(1, window)] * (window % 5 > 0) + [(0, window)] * (window % 3 == 0)
        cells += [(1, window - 1)] * (window % 5 == 1)
        for cell in cells:
            metrics.observe_release(model.offer(model.position, release_of(*cell), due_ms))
        if model.due(due_ms):
            model.expect(due_ms, model.position)
        while model.ready() is not None:
            stepped = model.step(due_ms)
            model.commit(stepped)
            metrics.observe_model(model.version, stepped.window)
            metrics.observe_step(len(stepped.cells), 0, 0.1, stepped.noisy_count, 1.0)

    held = growth(step, [model, metrics], registries, 2_500, 8_000)
    assert held.is_flat, held
    assert model.version >= 8_000


def release_of(cluster: int, window: int) -> Release:
    return Release(
        PLAN.plan_id,
        cluster,
        window,
        window + 1,
        PLAN.charge_units,
        (window + 1) * PLAN.charge_units,
        PLAN.cap_units,
        Fraction(window + 1, 7),
        PLAN.l2_sensitivity_squared,
        np.ones(PLAN.release_size, PLAN.release_dtype),
    )


class NowhereProducer:
    """Takes everything and keeps nothing."""

    def __init__(self, config: object) -> None:
        self.count = 0

    def produce(self, *_: object, **__: object) -> None:
        self.count += 1

    def poll(self, _: float) -> None:
        pass


@pytest.mark.parametrize("first_window", [0, -100_000])
def test_what_was_written_of_rejects_is_forgotten_with_its_window(monkeypatch, first_window):
    """Also while the plan has not begun, and updates come all the same."""
    monkeypatch.setattr(publisher, "Producer", NowhereProducer)
    made = publisher.Publisher({}, PLAN, request_timeout_s=1.0, max_message_bytes=1_000)

    def step(number: int) -> None:
        window = first_window + number
        rejection = Rejection(Reason.MALFORMED, "nonsense")
        made.report_rejected(0, [RejectedUpdate(number, window, f"guest-{number}", rejection)])

    held = growth(step, [made])
    assert held.is_flat, held
    assert made._producer.count == WINDOWS


def test_a_cluster_that_is_ahead_does_not_let_another_one_report_more(monkeypatch):
    monkeypatch.setattr(publisher, "Producer", NowhereProducer)
    made = publisher.Publisher({}, PLAN, request_timeout_s=1.0, max_message_bytes=1_000)
    rejection = Rejection(Reason.MALFORMED, "nonsense")
    for number in range(1_000):
        # Cluster 1 catches up with one old window, while cluster 0 goes from window to window.
        made.report_rejected(0, [RejectedUpdate(number, 50 + number // 250, "", rejection)])
        made.report_rejected(1, [RejectedUpdate(number, 7, "", rejection)])
    assert made._producer.count == (4 + 1) * publisher.REPORTS_PER_WINDOW
