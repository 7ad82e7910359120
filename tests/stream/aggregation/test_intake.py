from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import ClipState, Update, encode_update
from stream.aggregation.intake import Record, WindowIntake
from stream.aggregation.validation import Reason
from stream.budget.client_budgets import ClientBudgets, client_key
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

CLIENTS = [f"north/{i}" for i in range(6)]
PLAN = PrivacyPlan(
    name="intake",
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
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


def one_hot(client: int, steps: int = 1) -> bytes:
    vector = np.zeros(6, np.int8)
    vector[client] = steps
    return encode_update(Update(PLAN.plan_id, CLIENTS[client], 0, vector))


def at(window: int, offset: int, value: bytes | None, ms: int = 500) -> Record:
    return Record(offset, PLAN.window_end_ms(window - 1) + ms, value)


def make_intake(next_window=0, position=0, max_open_windows=2, plan=PLAN) -> WindowIntake:
    return WindowIntake(
        plan, 0, next_window=next_window, position=position, max_open_windows=max_open_windows
    )


def reasons(outcome) -> list[Reason]:
    return [rejected.rejection.reason for rejected in outcome.rejected]


def log_of(cells: list[tuple[int, int]]) -> list[Record]:
    """One-hot updates of (window, client), in this order."""
    return [at(window, offset, one_hot(client)) for offset, (window, client) in enumerate(cells)]


# --- Which window, and who counts ----------------------------------------------------------


def test_an_update_counts_in_the_window_of_its_append_time():
    intake = make_intake()
    outcome = intake.offer([at(0, 0, one_hot(0)), at(1, 1, one_hot(1)), at(0, 2, one_hot(2))])
    assert (outcome.accepted, outcome.rejected) == (3, [])
    assert intake.exact_sum().tolist() == [1, 0, 1, 0, 0, 0, 20]
    intake.close_window()
    assert intake.exact_sum().tolist() == [0, 1, 0, 0, 0, 0, 10]


def test_a_window_is_half_open():
    intake = make_intake()
    intake.offer(
        [at(0, 0, one_hot(0), ms=0), at(0, 1, one_hot(1), ms=999), at(1, 2, one_hot(2), 0)]
    )
    assert intake.exact_sum().tolist() == [1, 1, 0, 0, 0, 0, 20]


def test_what_was_appended_before_the_start_never_counts():
    intake = make_intake()
    outcome = intake.offer([Record(0, PLAN.start_ms - 1, one_hot(0)), at(0, 1, one_hot(0), ms=0)])
    assert outcome.accepted == 1
    assert reasons(outcome) == [Reason.NOT_STARTED]
    assert outcome.rejected[0].window == -1


def test_an_update_of_a_sealed_window_is_late():
    intake = make_intake(next_window=3)
    outcome = intake.offer([at(2, 0, one_hot(0), ms=999), at(3, 1, one_hot(1), ms=0)])
    assert outcome.accepted == 1
    assert reasons(outcome) == [Reason.LATE]
    assert intake.exact_sum().tolist() == [0, 1, 0, 0, 0, 0, 10]


def test_a_client_counts_once_a_window_and_again_in_the_next():
    intake = make_intake()
    outcome = intake.offer(
        [
            at(0, 0, one_hot(0)),
            at(0, 1, one_hot(0, 5)),
            at(1, 2, one_hot(0, 7)),
            at(1, 3, one_hot(1)),
        ]
    )
    assert outcome.accepted == 3
    assert reasons(outcome) == [Reason.DUPLICATE]
    assert outcome.rejected[0].client_id == CLIENTS[0]
    assert intake.exact_sum().tolist() == [1, 0, 0, 0, 0, 0, 10]
    intake.close_window()
    assert intake.exact_sum().tolist() == [7, 1, 0, 0, 0, 0, 20]


def test_a_refused_update_does_not_use_up_its_clients_turn():
    intake = make_intake()
    outcome = intake.offer([at(0, 0, one_hot(0, -128)), at(0, 1, one_hot(0))])
    assert outcome.accepted == 1
    assert reasons(outcome) == [Reason.FORBIDDEN_VALUE]


def test_ten_thousand_updates_of_one_client_count_once_and_change_nobody_else():
    quiet, flooded = make_intake(), make_intake()
    others = [at(0, offset, one_hot(client)) for offset, client in ((0, 1), (20_000, 2))]
    flood = [at(0, 1 + i, one_hot(0, 1 + i % 50)) for i in range(10_000)]
    quiet.offer(others)
    outcome = flooded.offer([others[0], *flood, others[1]])
    assert outcome.accepted == 3
    assert Counter(reasons(outcome)) == {Reason.DUPLICATE: 9_999}
    difference = flooded.exact_sum() - quiet.exact_sum()
    assert difference.tolist() == [1, 0, 0, 0, 0, 0, 10]


@pytest.mark.parametrize("value", [b"", b"\xff", one_hot(0)[:-1], one_hot(0) + b"\0"])
def test_bytes_that_are_no_update_are_malformed_and_name_no_client(value):
    intake = make_intake()
    outcome = intake.offer([at(0, 0, value), at(0, 1, one_hot(1))])
    assert reasons(outcome) == [Reason.MALFORMED]
    assert outcome.rejected[0].client_id == ""
    assert outcome.rejected[0].offset == 0
    assert intake.exact_sum().tolist() == [0, 1, 0, 0, 0, 0, 10]


@pytest.mark.parametrize("window", [-1, 0, 1, 99])
def test_a_head_s_mark_is_read_and_nothing_else(window):
    intake = make_intake()
    outcome = intake.offer([at(window, 7, None)])
    assert (outcome.accepted, outcome.rejected) == (0, [])
    assert intake.position == intake.resume_offset() == 8


def test_a_rejection_says_where_whose_and_why_and_holds_no_gradient():
    foreign = encode_update(Update(PLAN.plan_id, "south/1", 0, np.full(6, 77, np.int8)))
    outcome = make_intake().offer([at(1, 5, foreign)])
    (rejected,) = outcome.rejected
    assert (rejected.offset, rejected.window, rejected.client_id) == (5, 1, "south/1")
    assert rejected.rejection.reason is Reason.FOREIGN_CLUSTER
    assert "77" not in rejected.rejection.detail


def test_offsets_that_were_taken_already_are_passed_over():
    intake = make_intake(position=5)
    log = [at(0, offset, one_hot(offset % 6)) for offset in range(10)]
    assert intake.offer(log[:8]).accepted == 3
    again = intake.offer(log)
    assert again.accepted == 2
    assert not again.rejected
    assert intake.position == 10
    assert intake.exact_sum().tolist() == [1, 1, 1, 1, 0, 1, 50]


@given(order=st.permutations(range(6)), batches=st.lists(st.integers(1, 4), min_size=6))
def test_neither_the_order_nor_the_batches_change_a_sum(order, batches):
    log = [at(0, offset, one_hot(client, client + 1)) for offset, client in enumerate(order)]
    intake = make_intake()
    for size in batches:
        intake.offer(log[intake.position : intake.position + size])
    intake.offer(log[intake.position :])
    assert intake.exact_sum().tolist() == [1, 2, 3, 4, 5, 6, 60]


# --- When a window may be sealed -----------------------------------------------------------


def test_the_end_of_the_log_is_asked_for_once_a_windows_grace_is_over():
    intake = make_intake()
    end = PLAN.window_end_ms(0)
    assert intake.needs_end_offset(end + 99) is None
    assert intake.needs_end_offset(end + 100) == 0
    intake.expect(0, 7)
    assert intake.needs_end_offset(end + 100) is None
    assert intake.needs_end_offset(end + 1099) is None
    assert intake.needs_end_offset(end + 1100) == 1


def test_after_an_outage_the_end_is_asked_for_once_for_all_windows():
    intake = make_intake()
    assert intake.needs_end_offset(PLAN.window_end_ms(41) + 100) == 41
    intake.expect(41, 3)
    assert intake.needs_end_offset(PLAN.window_end_ms(41) + 100) is None
    intake.advance(3)
    for _ in range(42):
        assert intake.is_ready()
        intake.close_window()
    assert not intake.is_ready()


def test_nothing_is_asked_before_the_plan_starts():
    assert make_intake().needs_end_offset(PLAN.start_ms - 5000) is None


def test_a_window_needs_both_its_time_and_its_end_of_the_log():
    intake = make_intake()
    intake.offer(log_of([(0, 0), (0, 1), (1, 2)]))
    assert not intake.is_ready()  # read, but nobody said that its time is over
    intake.expect(0, 4)
    assert not intake.is_ready()  # over, but offset 3 has not been seen
    intake.advance(4)
    assert intake.is_ready()


def test_the_end_of_one_window_says_nothing_of_the_next():
    intake = make_intake()
    intake.expect(0, 0)
    assert intake.is_ready()
    intake.close_window()
    assert not intake.is_ready()


def test_an_empty_window_is_ready_and_its_sum_is_zero():
    intake = make_intake()
    intake.expect(0, 0)
    assert intake.is_ready()
    assert intake.exact_sum().tolist() == [0] * 7


def test_reading_never_goes_back_by_itself():
    intake = make_intake(position=9)
    intake.advance(4)
    assert intake.position == 9


def test_a_window_that_is_being_sealed_takes_nothing_more_and_the_next_ones_fill():
    intake = make_intake()
    intake.offer(log_of([(0, 0), (1, 1)]))
    assert intake.begin_seal() == 1
    sealed = intake.exact_sum()
    outcome = intake.offer([at(0, 2, one_hot(2)), at(1, 3, one_hot(3))])
    assert (outcome.accepted, reasons(outcome)) == (1, [Reason.LATE])
    assert intake.exact_sum().tolist() == sealed.tolist() == [1, 0, 0, 0, 0, 0, 10]
    assert intake.begin_seal() == 1, "what is charged and what is committed name one offset"
    intake.close_window()
    assert intake.exact_sum().tolist() == [0, 1, 0, 1, 0, 0, 20]
    assert intake.offer([at(1, 4, one_hot(4))]).accepted == 1


# --- Resuming ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "resume"),
    [
        ([], 0),
        ([(0, 0), (0, 1)], 2),
        ([(0, 0), (1, 1), (0, 2)], 1),
        ([(1, 0), (0, 1)], 0),
        ([(0, 0), (2, 1), (1, 2)], 1),  # window 2 is left for later: see below
    ],
)
def test_reading_resumes_at_the_first_record_that_a_later_window_needs(cells, resume):
    intake = make_intake()
    intake.offer(log_of(cells))
    assert intake.resume_offset() == resume


def test_a_rejected_record_is_not_needed_again():
    intake = make_intake()
    intake.offer([at(1, 0, b"garbage"), at(0, 1, one_hot(0))])
    assert intake.resume_offset() == 2


@pytest.mark.parametrize("max_open_windows", [0, 1])
def test_fewer_than_two_open_windows_cannot_work(max_open_windows):
    with pytest.raises(ValueError, match="at least 2"):
        make_intake(max_open_windows=max_open_windows)


# --- More windows than memory --------------------------------------------------------------


def test_windows_beyond_the_limit_are_read_again_when_there_is_room():
    intake = make_intake(max_open_windows=2)
    log = log_of([(0, 0), (2, 1), (1, 2), (3, 3), (2, 4)])
    assert intake.offer(log).accepted == 2
    intake.expect(3, 5)
    assert intake.close_window() is None
    assert intake.resume_offset() == 1
    assert intake.close_window() == 1
    assert intake.position == 1
    assert not intake.is_ready()  # the second pass has yet to be read
    second = intake.offer(log[1:])
    assert second.accepted == 3
    assert not second.rejected
    assert intake.is_ready()
    assert intake.exact_sum().tolist() == [0, 1, 0, 0, 1, 0, 20]
    intake.close_window()
    assert intake.exact_sum().tolist() == [0, 0, 0, 1, 0, 0, 10]


def test_without_a_deferred_record_the_limit_moves_with_each_window():
    intake = make_intake(max_open_windows=2)
    for window in range(5):
        assert intake.offer([at(window + 1, window, one_hot(window))]).accepted == 1
        assert intake.close_window() is None


def test_no_rejection_is_told_twice_by_a_second_pass():
    intake = make_intake(max_open_windows=2, next_window=1)
    log = [
        at(0, 0, one_hot(0)),
        at(3, 1, one_hot(1)),
        at(0, 2, one_hot(2)),
        at(1, 3, b"garbage"),
        at(3, 4, one_hot(1)),
        at(-1, 5, one_hot(1)),
    ]
    first = intake.offer(log)
    expected = [Reason.LATE, Reason.LATE, Reason.MALFORMED, Reason.NOT_STARTED]
    assert reasons(first) == expected
    intake.close_window()
    rewind = intake.close_window()
    assert rewind == 1
    second = intake.offer([*log[1:], at(0, 6, one_hot(3))])
    assert second.accepted == 1
    # The duplicate was deferred in the first pass; the last record is new.
    assert reasons(second) == [Reason.DUPLICATE, Reason.LATE]


def catch_up(log, windows, max_open_windows, sizes, crashes):
    """Read a whole log after an outage; return each window's sum and the outcomes.

    A crash before a window is sealed begins again from what the last commit stored.
    """
    intake = make_intake(max_open_windows=max_open_windows)
    resume, crashes = 0, set(crashes)
    sums, told = [], []
    sizes = iter(sizes * (len(log) + 1) * (windows + 1) * 3)
    while intake.next_window < windows:
        if (window := intake.next_window) in crashes and intake.position > resume:
            crashes.remove(window)
            intake = make_intake(window, resume, max_open_windows)
            told.clear()
        if intake.needs_end_offset(PLAN.window_end_ms(windows)) is not None:
            intake.expect(windows - 1, len(log))
        if not intake.is_ready():
            told.append(intake.offer(log[intake.position :][: next(sizes)]))
            continue
        sums.append(intake.exact_sum().copy())
        before, resume = resume, intake.resume_offset()
        assert before <= resume <= intake.position
        rewind = intake.close_window()
        assert rewind is None or resume <= rewind == intake.position
    return sums, told


logs = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=40)


@settings(max_examples=200)
@given(
    cells=logs,
    max_open_windows=st.integers(2, 5),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_after_an_outage_every_update_counts_exactly_once(cells, max_open_windows, sizes):
    sums, told = catch_up(log_of(cells), 8, max_open_windows, sizes, crashes=())
    for window, total in enumerate(sums):
        present = [int((window, client) in cells) for client in range(6)]
        assert total.tolist() == [*present, 10 * sum(present)]
    assert sum(outcome.accepted for outcome in told) == len(set(cells))
    rejected = [reason for outcome in told for reason in reasons(outcome)]
    assert Counter(rejected) == Counter([Reason.DUPLICATE] * (len(cells) - len(set(cells))))


@settings(max_examples=200)
@given(
    cells=logs,
    max_open_windows=st.integers(2, 5),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    crashes=st.sets(st.integers(0, 7)),
)
def test_a_crash_anywhere_in_the_catching_up_changes_no_sum(
    cells, max_open_windows, sizes, crashes
):
    log = log_of(cells)
    sums, _ = catch_up(log, 8, max_open_windows, sizes, crashes)
    undisturbed, _ = catch_up(log, 8, 9, [100], ())
    assert np.array_equal(sums, undisturbed)


# --- A spent budget ------------------------------------------------------------------------


def test_draining_counts_nothing_and_keeps_nothing():
    intake = make_intake()
    intake.offer(log_of([(0, 0), (1, 1), (5, 2)]))
    intake.drain()
    assert intake.is_draining
    assert intake.exact_sum().tolist() == [0] * 7
    outcome = intake.offer([at(0, 3, one_hot(3)), at(9, 4, b"garbage")])
    assert outcome.accepted == 0
    assert reasons(outcome) == [Reason.EXHAUSTED, Reason.EXHAUSTED]
    assert intake.resume_offset() == intake.position == 5
    assert intake.close_window() is None
    assert intake.exact_sum().tolist() == [0] * 7


def test_the_reason_labels_are_pinned():
    # They are label values of metrics and stand in reject records: dashboards know them.
    assert sorted(str(reason) for reason in Reason) == [
        "client_exhausted",
        "duplicate",
        "exhausted",
        "forbidden_value",
        "foreign_cluster",
        "future_model",
        "late",
        "malformed",
        "norm_too_large",
        "not_started",
        "throttled",
        "unknown_cluster",
        "wrong_dimension",
        "wrong_dtype",
        "wrong_plan",
        "wrong_scale",
    ]


def test_a_plan_of_hashed_clusters_is_checked_by_the_same_hash():
    plan = replace(PLAN, assignment="hash", assignment_key="k", prefixes=())
    mine = next(f"c{i}" for i in range(100) if plan.cluster_of(f"c{i}") == 0)
    foreign = next(f"c{i}" for i in range(100) if plan.cluster_of(f"c{i}") == 1)
    log = [
        at(0, i, encode_update(Update(plan.plan_id, client, 0, np.ones(6, np.int8))))
        for i, client in enumerate((mine, foreign))
    ]
    outcome = make_intake(plan=plan).offer(log)
    assert outcome.accepted == 1
    assert reasons(outcome) == [Reason.FOREIGN_CLUSTER]


# --- Clip norms ----------------------------------------------------------------------------

ADAPTIVE = replace(PLAN, clipping=ClippingSpec(0.5, 0.2, bit_weight=20, epoch_windows=4))


def scaled(client: int, clip_norm: float, *, is_below: bool = True) -> bytes:
    vector = np.zeros(6, np.int8)
    vector[client] = 1
    is_below = is_below and clip_norm > 0
    update = Update(ADAPTIVE.plan_id, CLIENTS[client], 0, vector, clip_norm, is_below)
    return encode_update(update)


def adaptive_intake(clip: ClipState, next_window=0, max_open_windows=9) -> WindowIntake:
    return WindowIntake(
        ADAPTIVE,
        0,
        next_window=next_window,
        position=0,
        max_open_windows=max_open_windows,
        clip=clip,
    )


def test_an_update_counts_in_the_scale_of_its_own_window():
    # Window 3 is the last of an epoch; the next one has twice the norm.
    intake = adaptive_intake(ClipState(1.0, 2.0, 0, 0), next_window=3)
    cells = [(3, 0, 1.0), (3, 1, 2.0), (4, 2, 1.0), (4, 3, 2.0), (4, 4, 0.0)]
    outcome = intake.offer([at(w, i, scaled(c, norm)) for i, (w, c, norm) in enumerate(cells)])
    assert reasons(outcome) == [Reason.WRONG_SCALE] * 3
    assert [rejected.offset for rejected in outcome.rejected] == [1, 2, 4]
    assert intake.exact_sum().tolist() == [1, 0, 0, 0, 0, 0, 10, 10]
    intake.close_window(ClipState(1.0, 2.0, 0, 0))
    assert intake.exact_sum().tolist() == [0, 0, 0, 1, 0, 0, 10, 10]


def test_a_bit_that_says_no_takes_its_half_away():
    intake = adaptive_intake(ClipState(1.0, 1.0, 0, 0))
    bits = [True, False, False]
    intake.offer([at(0, i, scaled(i, 1.0, is_below=bit)) for i, bit in enumerate(bits)])
    assert intake.exact_sum().tolist() == [1, 1, 1, 0, 0, 0, 30, -10]


def test_a_window_whose_norm_is_not_fixed_is_read_again_when_it_is():
    # Of epochs of four windows, the second one's release fixes the next norm.
    intake = adaptive_intake(ClipState(1.0, 0.0, 0, 0), next_window=1)
    log = [at(w, i, scaled(i, norm)) for i, (w, norm) in enumerate([(1, 1.0), (4, 3.0), (3, 1.0)])]
    assert intake.offer(log).accepted == 2
    states = [ClipState(1.0, 3.0, 0, 0)] * 3
    assert [intake.close_window(state) for state in states] == [None, None, 1]
    second = intake.offer(log[1:])
    # The record of window 3 counted in the first pass, and is not called late in the second.
    assert (second.accepted, second.rejected) == (1, [])
    assert intake.exact_sum().tolist() == [0, 1, 0, 0, 0, 0, 10, 10]


def test_a_norm_that_is_fixed_in_time_is_known_before_its_first_record():
    # Live, the window that fixes it is sealed long before the epoch begins: no second pass.
    intake = adaptive_intake(ClipState(1.0, 0.0, 0, 0), next_window=1)
    assert intake.close_window(ClipState(1.0, 3.0, 0, 0)) is None
    assert intake.offer([at(4, 0, scaled(0, 3.0)), at(7, 1, scaled(1, 3.0))]).accepted == 2
    assert intake.offer([at(8, 2, scaled(2, 3.0))]).rejected == []
    assert intake.resume_offset() == 0


# --- Clients' budgets ----------------------------------------------------------------------

PER_CLIENT = replace(PLAN, scope="client")


def budgeted(client: int) -> bytes:
    vector = np.zeros(6, np.int8)
    vector[client] = 1
    return encode_update(Update(PER_CLIENT.plan_id, CLIENTS[client], 0, vector))


def key_of(client: int) -> int:
    return client_key(PER_CLIENT.plan_id, CLIENTS[client])


def budgeted_intake(windows_spent: dict[int, int]) -> WindowIntake:
    budgets = ClientBudgets(PER_CLIENT.cap_units)
    for client, windows in windows_spent.items():
        for _ in range(windows):
            budgets.charge(np.array([key_of(client)], np.uint64), PER_CLIENT.charge_units)
    return WindowIntake(
        PER_CLIENT, 0, next_window=0, position=0, max_open_windows=3, clients=budgets
    )


def test_the_keys_of_those_who_count_are_sorted_and_unique():
    intake = budgeted_intake({})
    intake.offer([at(0, i, budgeted(client)) for i, client in enumerate([5, 0, 3, 0, 1])])
    keys = intake.client_keys().tolist()
    assert keys == sorted(map(key_of, [5, 0, 3, 1]))
    intake.close_window(clients=ClientBudgets(PER_CLIENT.cap_units))
    assert intake.client_keys().tolist() == []
    assert intake.client_keys().dtype == np.uint64


@pytest.mark.parametrize("spent", range(4))
def test_a_client_enters_as_many_open_windows_as_it_can_pay_for(spent):
    intake = budgeted_intake({0: spent})
    outcome = intake.offer([at(window, window, budgeted(0)) for window in range(3)])
    assert outcome.accepted == 3 - spent
    assert reasons(outcome) == [Reason.CLIENT_EXHAUSTED] * spent
    assert [rejected.window for rejected in outcome.rejected] == list(range(3 - spent, 3))


def test_what_others_have_spent_refuses_nobody():
    alone, among_others = budgeted_intake({0: 2}), budgeted_intake({0: 2, 1: 3, 2: 3, 3: 1})
    for intake in (alone, among_others):
        intake.offer([at(0, i, budgeted(client)) for i, client in enumerate([1, 2, 3])])
        outcome = intake.offer([at(0, 3, budgeted(0)), at(1, 4, budgeted(0))])
        assert (outcome.accepted, reasons(outcome)) == (1, [Reason.CLIENT_EXHAUSTED])


def test_a_second_update_is_a_duplicate_before_it_is_unaffordable():
    intake = budgeted_intake({0: 2})
    outcome = intake.offer([at(0, 0, budgeted(0)), at(0, 1, budgeted(0)), at(1, 2, budgeted(0))])
    assert reasons(outcome) == [Reason.DUPLICATE, Reason.CLIENT_EXHAUSTED]


def test_a_window_that_has_passed_owes_nothing_more():
    intake = budgeted_intake({0: 2})
    intake.offer([at(0, 0, budgeted(0))])
    # Sealed without a release: it was not charged.
    budgets = ClientBudgets(PER_CLIENT.cap_units)
    budgets.charge(np.array([key_of(0)], np.uint64), 2 * PER_CLIENT.charge_units)
    intake.close_window(clients=budgets)
    assert intake.offer([at(1, 1, budgeted(0))]).accepted == 1
