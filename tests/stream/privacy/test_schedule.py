"""Reference: PRIVACY notes 3, and rows G1 to G5 of 2.2; mpmath for the closed forms."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream.budget import Ledger
from stream.errors import BudgetExhaustedError, PlanError
from stream.privacy.accounting import UNITS_PER_RHO, epsilon_from_units, gaussian_charge_units
from stream.privacy.event import GaussianEvent
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule import BudgetLevel, Schedule, noise_variance
from stream.privacy.schedule_signal import Released
from stream.privacy.schedule_spec import SCHEDULE_KEYS, ScheduleSpec

SENSITIVITY_SQUARED = 1024**2 + 100**2
G1 = ScheduleSpec("exponential", noise_decay=0.995)
G2 = ScheduleSpec("exponential", noise_decay=0.99)
G3 = ScheduleSpec("cosine", final_noise_ratio=0.25)
G4 = ScheduleSpec("step", milestones=(100, 200), noise_ratios=(32.0, 16.0, 8.0))
G5 = ScheduleSpec("linear", final_noise_ratio=0.25)
SPECS = {
    "constant": ScheduleSpec(),
    "exponential": G1,
    "linear": G5,
    "cosine": G3,
    "step": ScheduleSpec("step", milestones=(2, 5), noise_ratios=(4.0, 2.0, 1.0)),
    "learning_rate": ScheduleSpec(
        "learning_rate", learning_rate_decay="cosine", final_learning_rate_ratio=0.05
    ),
    "paced": ScheduleSpec("paced"),
    "infinite": ScheduleSpec("infinite"),
    "snr": ScheduleSpec(
        "snr",
        target_snr=1.0,
        smoothing=0.5,
        min_noise_multiplier=0.5,
        max_noise_multiplier=1000.0,
    ),
}
EVENLY = ("constant", "paced", "infinite", "snr")


def schedule_of(spec, *, cap=UNITS_PER_RHO, horizon=10, sensitivity=SENSITIVITY_SQUARED):
    return Schedule(spec, cap_units=cap, horizon=horizon, l2_sensitivity_squared=sensitivity)


def units_of(schedule, count=None):
    return [units for _, units in islice(schedule.planned(), count)]


def multiplier_of(units):
    return math.sqrt(UNITS_PER_RHO / (2 * units))


def released(values, variance=1):
    return Released(np.array(values, dtype=np.int64), Fraction(variance))


def live(schedule, are_released, vectors):
    """Run a cluster with the real ledger; return (planned units, ledger) of each window."""
    ledger, units, history = Ledger(schedule.cap_units), schedule.first_units(), []
    for step, is_released in enumerate(are_released):
        if not units:
            break
        newest = None
        if is_released:
            variance = schedule.noise_variance(units)
            event = GaussianEvent(schedule.l2_sensitivity_squared, variance)
            ledger = ledger.after(ledger.charge(event))
            newest = Released(vectors[step % len(vectors)], variance)
        history.append((units, ledger))
        units = schedule.next_units(step + 1, ledger.spent_units, units, newest)
    return history


# --- Reference values ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "horizon", "rho", "first", "last", "epsilon"),
    [
        (G1, 500, 4.630235647, 40, 40 * 0.995**499, 18.495535),
        (G2, 300, 6.384175771, 40, 40 * 0.99**299, 22.735924),
        (G3, 200, 0.313593750, 40, 10, 3.754569),
        (G4, 300, 1.025390625, 32, 8, 7.393678),
        (G5, 200, 0.251418616, 40, 10, 3.318054),
    ],
)
def test_rows_g1_to_g5_are_these_schedules_at_their_budget(
    spec, horizon, rho, first, last, epsilon
):
    schedule = schedule_of(spec, cap=round(Fraction(str(rho)) * UNITS_PER_RHO), horizon=horizon)
    units = units_of(schedule)
    assert len(units) == horizon
    assert multiplier_of(units[0]) == pytest.approx(first, rel=2e-9)
    assert multiplier_of(units[-1]) == pytest.approx(last, rel=2e-9)
    assert sum(units) / UNITS_PER_RHO == pytest.approx(rho, rel=1e-15)
    assert epsilon_from_units(sum(units), 1e-6) == pytest.approx(epsilon, abs=2.5e-6)


def test_the_published_decay_is_solved_so_that_its_windows_fit():
    units = units_of(schedule_of(G1, cap=UNITS_PER_RHO // 2, horizon=500))
    assert multiplier_of(units[0]) == pytest.approx(121.724, abs=5e-4)
    assert multiplier_of(units[-1]) == pytest.approx(9.979, abs=5e-4)
    constant = units_of(schedule_of(ScheduleSpec(), cap=UNITS_PER_RHO // 2, horizon=500))
    assert multiplier_of(constant[0]) == pytest.approx(22.361, abs=5e-4)


def test_the_published_decay_has_almost_six_times_the_noise_of_constant_noise():
    cap = UNITS_PER_RHO // 2
    decayed = sum(Fraction(1, units) for units in units_of(schedule_of(G1, cap=cap, horizon=500)))
    constant = Fraction(500, cap // 500)
    assert float(decayed / constant) == pytest.approx(5.90, abs=0.005)


def test_noise_that_follows_a_cosine_learning_rate_adds_up_to_a_third_less():
    spec = replace(SPECS["learning_rate"], final_learning_rate_ratio=1e-6)
    units = units_of(schedule_of(spec, horizon=500))
    rates = [unit / units[0] for unit in units]
    model_noise = sum(rate**2 / unit for rate, unit in zip(rates, units, strict=True))
    constant = sum(rate**2 for rate in rates) / (UNITS_PER_RHO // 500)
    assert model_noise / constant == pytest.approx(2 / 3, abs=0.002)


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential", "step", "learning_rate"])
def test_the_shares_are_the_closed_form_to_the_last_unit(kind):
    horizon, cap = 137, 12345678901234567890
    spec = SPECS[kind]
    with mpmath.workdps(50):
        weights = [closed_form_weight(kind, mpmath.mpf(t), horizon) for t in range(horizon)]
        expected = [int(mpmath.floor(cap * w / mpmath.fsum(weights))) for w in weights]
    actual = units_of(schedule_of(spec, cap=cap, horizon=horizon))
    assert max(abs(a - e) for a, e in zip(actual, expected, strict=True)) <= 1


def closed_form_weight(kind, t, horizon):
    x = t / (horizon - 1)
    cosine = (1 + mpmath.cos(mpmath.pi * x)) / 2
    noise = {
        "linear": 1 - x * mpmath.mpf("0.75"),
        "cosine": mpmath.mpf("0.25") + cosine * mpmath.mpf("0.75"),
        "exponential": mpmath.mpf("0.995") ** t,
        "step": 4 if t < 2 else 2 if t < 5 else 1,
    }
    if kind == "learning_rate":
        return mpmath.mpf("0.05") + cosine * mpmath.mpf("0.95")
    return 1 / mpmath.mpf(noise[kind]) ** 2


@pytest.mark.parametrize(  # What heads agree on; a difference is another protocol.
    ("kind", "expected"),
    [
        ("constant", [115292150460684697] * 3),
        ("exponential", [110160889867946197, 111270816260141104, 112391925719190025]),
        ("linear", [25419025924229393, 30250741595777129, 36603397330890326]),
        ("cosine", [21549933224519298, 22558739388415367, 25894189165209254]),
        ("step", [12265122389434542, 12265122389434542, 49060489557738169]),
        ("learning_rate", [219604096115589900, 213313316052419815, 195199736780553654]),
        ("paced", [115292150460684697, 115292150460703162, 115292150460705470]),
        ("infinite", [115292150460684697, 103762935414632846, 93386641873172719]),
        ("snr", [115292150460684697] * 3),
    ],
)
def test_every_machine_plans_the_same_integers(kind, expected):
    assert units_of(schedule_of(SPECS[kind]), 3) == expected


def test_every_machine_answers_a_release_with_the_same_integer():
    schedule = schedule_of(SPECS["snr"])
    first = schedule.first_units()
    vector = released([-3000, 4000, 5, 2], variance=Fraction(12345678901, 2**20))
    planned = schedule.next_units(1, first, first, vector)
    assert planned == 106556357123765253
    # In words: half of the plan, and half of what the energy of the vector asks for.
    energy = 3000**2 + 4000**2 + 5**2 + 2**2 - 4 * Fraction(12345678901, 2**20)
    asked = SENSITIVITY_SQUARED * UNITS_PER_RHO * 4 / (2 * energy)
    assert planned == (first + math.floor(asked)) // 2


# --- Today's plans -------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [1, 7, 1000, 2**31 - 1])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_without_a_schedule_a_plan_has_the_noise_that_it_always_had(epsilon, windows):
    plan = PrivacyPlan(
        name="p",
        dimension=1000,
        cluster_count=1,
        assignment="hash",
        assignment_key="k",
        expected_clients=10,
        start_ms=0,
        window_length_ms=1000,
        grace_ms=0,
        release_delay_ms=0,
        l2_clip_norm=1.0,
        grid_l2_bound=1024,
        count_weight=100,
        update_dtype="int8",
        epsilon=epsilon,
        delta=1e-6,
        horizon_windows=windows,
        optimizer=OptimizerSpec("sgd", 0.1),
        normalizer="expected_clients",
    )
    schedule = schedule_of(ScheduleSpec(), cap=plan.cap_units, horizon=windows)
    assert schedule.noise_variance(schedule.first_units()) == plan.noise_variance
    assert schedule.largest_noise_variance == plan.noise_variance
    assert schedule.windows_allowed == plan.windows_allowed


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        (1, Fraction(610227517330348822233088)),
        (3 * 2**50, Fraction(369999129259, 2**11)),
        (2**62 + 1, Fraction(132322)),
    ],
)
def test_the_variance_is_the_least_one_of_a_short_denominator(units, expected):
    variance = noise_variance(units, SENSITIVITY_SQUARED)
    exact = Fraction(SENSITIVITY_SQUARED * UNITS_PER_RHO, 2 * units)
    step = Fraction(1, 1 << max(0, 40 - int(exact).bit_length()))
    assert variance == expected
    assert exact <= variance < exact + step
    assert gaussian_charge_units(SENSITIVITY_SQUARED, variance) <= units


def test_constant_noise_goes_on_until_the_budget_cannot_pay():
    schedule = schedule_of(ScheduleSpec(), horizon=3)
    history = live(schedule, [False] * 50 + [True] * 50, [np.zeros(2, np.int64)])
    assert sum(units == schedule.first_units() for units, _ in history) == 50 + 3
    assert history[-1][1].sequence == schedule.windows_allowed == 3


# --- Never more than the budget ------------------------------------------------------------

ratios = st.floats(1e-2, 1e2)
specs = st.one_of(
    st.builds(ScheduleSpec, kind=st.sampled_from(["constant", "paced", "infinite"])),
    st.builds(ScheduleSpec, kind=st.just("exponential"), noise_decay=st.floats(0.7, 0.9999)),
    st.builds(ScheduleSpec, kind=st.sampled_from(["linear", "cosine"]), final_noise_ratio=ratios),
    st.builds(
        ScheduleSpec,
        kind=st.just("step"),
        milestones=st.just((1, 3)),
        noise_ratios=st.tuples(ratios, ratios, ratios),
    ),
    st.builds(
        ScheduleSpec,
        kind=st.just("learning_rate"),
        learning_rate_decay=st.sampled_from(["cosine", "linear", "exponential"]),
        final_learning_rate_ratio=st.floats(1e-3, 1),
    ),
    st.builds(
        ScheduleSpec,
        kind=st.just("snr"),
        target_snr=st.floats(1e-3, 1e3),
        smoothing=st.floats(0, 0.99),
        min_noise_multiplier=st.floats(0.05, 0.5),
        max_noise_multiplier=st.floats(100, 10_000),
    ),
)
vectors = st.lists(
    st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3).map(
        lambda values: np.array(values, dtype=np.int64)
    ),
    min_size=1,
    max_size=8,
)


@given(
    specs,
    st.integers(2**50, 2**62),
    st.integers(4, 40),
    st.one_of(st.just(0), st.integers(1, 30)),
    st.lists(st.booleans(), min_size=100, max_size=100),
    vectors,
)
def test_the_ledger_never_refuses_what_a_schedule_plans(
    spec, cap, horizon, saving, are_released, vectors
):
    try:
        schedule = schedule_of(replace(spec, saving_windows=saving), cap=cap, horizon=horizon)
    except PlanError:
        return
    history = live(schedule, are_released, vectors)  # Ledger.charge raises beyond the cap
    assert history[-1][1].spent_units <= cap
    for units, _ in history:
        variance = schedule.noise_variance(units)
        assert Fraction(1, 64) <= variance <= schedule.largest_noise_variance <= 2**60
    if schedule.windows_allowed is not None:
        assert history[-1][1].sequence <= schedule.windows_allowed


def test_not_every_generated_schedule_is_refused():
    made = [schedule_of(spec, horizon=6) for spec in SPECS.values()]
    assert {schedule.spec.kind for schedule in made} == set(SCHEDULE_KEYS)


class OverspendingSchedule(Schedule):
    """The planted fault: twice the shares, and nobody who looks at what is left."""

    def _admissible(self, wanted, spent_units):
        return 2 * wanted


@pytest.mark.parametrize("spec", [ScheduleSpec(), G1, G3, G5, SPECS["learning_rate"]])
def test_the_ledger_refuses_a_schedule_that_overspends(spec):
    schedule = OverspendingSchedule(
        spec, cap_units=UNITS_PER_RHO, horizon=10, l2_sensitivity_squared=SENSITIVITY_SQUARED
    )
    with pytest.raises(BudgetExhaustedError):
        live(schedule, [True] * 10, [np.zeros(2, np.int64)])


def test_the_ledger_refuses_the_published_decay_with_a_free_start():
    ledger, steps = Ledger(100 * UNITS_PER_RHO), 0
    events = [GaussianEvent(1, Fraction(0.995**step) ** 2) for step in range(1000)]
    while ledger.spent_units + events[steps].units <= ledger.cap_units:
        ledger = ledger.after(ledger.charge(events[steps]))
        steps += 1
    assert steps < 150
    with pytest.raises(BudgetExhaustedError):
        ledger.charge(events[steps])


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind not in ("infinite", "snr")])
@pytest.mark.parametrize("horizon", [6, 499, 2000])
def test_a_horizon_without_throttling_spends_the_budget_up_to_rounding(kind, horizon):
    schedule = schedule_of(SPECS[kind], horizon=horizon)
    history = live(schedule, [True] * (horizon + 1), [np.zeros(2, np.int64)])
    spent = history[-1][1].spent_units
    assert len(history) == horizon == schedule.windows_allowed
    assert UNITS_PER_RHO * (1 - 2e-12) - horizon <= spent <= UNITS_PER_RHO


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind not in EVENLY])
def test_a_fixed_horizon_ends_after_its_windows_even_if_some_were_throttled(kind):
    schedule = schedule_of(SPECS[kind], horizon=20)
    history = live(schedule, [step % 3 > 0 for step in range(40)], [np.zeros(2, np.int64)])
    assert [units for units, _ in history] == units_of(schedule)


# --- Paced and infinite --------------------------------------------------------------------


@given(st.integers(2, 300), st.sets(st.integers(0, 298)))
@example(300, set())
def test_pacing_spends_everything_at_the_horizon_whatever_was_throttled(horizon, throttled):
    schedule = schedule_of(ScheduleSpec("paced"), horizon=horizon)
    are_released = [step not in throttled for step in range(horizon - 1)] + [True]
    history = live(schedule, [*are_released, True], [np.zeros(2, np.int64)])
    plans = [units for units, _ in history]
    assert len(plans) == horizon
    # The last window is given all that is left; its variance is rounded up by 2^-40.
    left = UNITS_PER_RHO - history[-1][1].spent_units
    assert 0 <= left <= plans[-1] * 2e-12 + 1
    assert plans == sorted(plans)


def test_an_infinite_schedule_never_ends_and_never_overspends():
    schedule = schedule_of(ScheduleSpec("infinite"), horizon=10_000)
    spent, units, plans = 0, schedule.first_units(), []
    for step in range(100_000):
        plans.append(units)
        spent += units  # at least what the window costs
        units = schedule.next_units(step + 1, spent, units, None)
    assert 0 < units < plans[-1]
    assert spent < UNITS_PER_RHO
    assert plans == sorted(plans, reverse=True)
    # The closed form: R (1 - q^n) with q = 1 - 1/H.
    assert spent / UNITS_PER_RHO == pytest.approx(-math.expm1(100_000 * math.log1p(-1e-4)))


def test_an_infinite_schedule_ends_where_its_noise_would_be_useless():
    spec = ScheduleSpec("infinite", max_noise_multiplier=100.0)
    plans = units_of(schedule_of(spec, horizon=100))
    assert multiplier_of(plans[0]) == pytest.approx(math.sqrt(50))
    assert 99 < multiplier_of(plans[-1]) <= 100
    # q^n = z_0^2 / z_n^2
    assert len(plans) == pytest.approx(math.log(50 / 10_000) / math.log1p(-0.01), abs=1)


# --- SNR-adaptive --------------------------------------------------------------------------


def snr(**changes):
    changes = {"smoothing": 0.0, "min_noise_multiplier": 1.0, **changes}
    return schedule_of(replace(SPECS["snr"], **changes), horizon=100)


def test_the_charge_buys_the_target_ratio_of_signal_to_noise():
    schedule = snr(target_snr=2.0)
    size, signal, variance = 1000, 50_000, 10_000
    # A vector with exactly the energy that signal and noise have in expectation.
    vector = np.zeros(size, np.int64)
    vector[:4] = exact_squares(signal**2 + size * variance)
    units = schedule.next_units(1, 0, schedule.first_units(), Released(vector, Fraction(variance)))
    assert signal**2 / (size * schedule.noise_variance(units)) == pytest.approx(2.0, rel=1e-11)


def exact_squares(total):
    """Return four integers whose squares add up to ``total``, largest first."""
    first = math.isqrt(total)
    for a in range(first, 0, -1):
        for b in range(math.isqrt(total - a * a), -1, -1):
            rest = total - a * a - b * b
            c = math.isqrt(rest)
            d = math.isqrt(rest - c * c)
            if c * c + d * d == rest:
                return [a, b, c, d]
    raise AssertionError


def test_only_the_released_vector_and_the_ledger_decide():
    schedule = snr()
    first = schedule.first_units()
    vector = np.array([40_000, -3, 7], dtype=np.int32)
    plans = {
        snr().next_units(step, 12345, first, Released(values, Fraction(9)))
        for step in (1, 50)
        for values in (vector, vector.astype(np.int64), -vector, vector[::-1])
    }
    assert len(plans) == 1
    assert schedule.next_units(1, 12345, first, Released(2 * vector, Fraction(9))) not in plans


def test_less_signal_is_given_less_noise():
    schedule = snr()
    plans = [
        schedule.next_units(1, 0, schedule.first_units(), released([10**power, 0, 0]))
        for power in range(12)
    ]
    assert plans == sorted(plans, reverse=True)
    assert multiplier_of(plans[0]) == pytest.approx(1)
    assert multiplier_of(plans[-1]) == pytest.approx(1000)
    assert len(set(plans)) >= 4


def test_a_release_that_is_all_noise_is_given_the_least_noise():
    schedule = snr()
    units = schedule.next_units(1, 0, schedule.first_units(), released([1, 1], variance=100))
    assert multiplier_of(units) == pytest.approx(1)


def test_smoothing_moves_only_a_part_of_the_way():
    first = snr().first_units()
    vector = released([2 * 10**4, 0])
    goal = snr().next_units(1, 0, first, vector)
    moved = snr(smoothing=0.75).next_units(1, 0, first, vector)
    assert moved == (3 * first + goal) // 4


def test_a_throttled_window_leaves_the_plan_as_it_is():
    assert snr().next_units(7, 123, 10**15, None) == 10**15


def test_the_reserve_of_saving_holds_from_the_start():
    schedule = snr(saving_windows=50)
    quiet = released([0, 0], variance=100)
    assert schedule.next_units(1, UNITS_PER_RHO // 2, 10**15, quiet) == UNITS_PER_RHO // 100


def test_the_schedule_ends_where_what_is_left_buys_too_much_noise():
    schedule, smallest = snr(), gaussian_charge_units(1, Fraction(10**6))
    assert schedule.next_units(9, UNITS_PER_RHO - smallest, 10**15, None) == smallest
    assert schedule.next_units(9, UNITS_PER_RHO - smallest + 1, 10**15, None) == 0


# --- Levels, saving, floor -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("spent", "plain", "saving"),
    [
        (0, "normal", "normal"),
        (799, "normal", "normal"),
        (800, "warning", "warning"),
        (899, "warning", "warning"),
        (900, "critical", "saving"),
        (1000, "critical", "saving"),
    ],
)
def test_levels_begin_at_eighty_and_ninety_percent_exactly(spent, plain, saving):
    cap = 10**18
    for windows, expected in ((0, plain), (10, saving)):
        schedule = schedule_of(ScheduleSpec(saving_windows=windows), cap=cap)
        assert schedule.level(spent * cap // 1000) is BudgetLevel(expected)


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind not in ("infinite", "snr")])
def test_the_saving_mode_makes_the_last_tenth_last_longer(kind):
    spec = replace(SPECS[kind], saving_windows=20, max_noise_multiplier=200.0)
    schedule = schedule_of(spec, horizon=20)
    plans = units_of(schedule)
    assert len(plans) > len(units_of(schedule_of(SPECS[kind], horizon=20)))
    spent = 0
    for units in plans:
        if 10 * spent >= 9 * UNITS_PER_RHO:
            assert units <= (UNITS_PER_RHO - spent) // 20
        spent += gaussian_charge_units(SENSITIVITY_SQUARED, schedule.noise_variance(units))
    assert 194 < multiplier_of(plans[-1]) <= 200


def test_a_large_window_stops_at_ninety_percent_and_saving_begins():
    spec = ScheduleSpec("step", milestones=(1,), noise_ratios=(1.0, 1.2), saving_windows=4)
    schedule = schedule_of(spec, horizon=2)
    spent, mark = UNITS_PER_RHO * 6 // 10, UNITS_PER_RHO * 9 // 10
    assert schedule.next_units(1, spent, 1, None) == mark - spent
    assert schedule.next_units(2, mark, 1, None) == (UNITS_PER_RHO - mark) // 4
    assert schedule.next_units(2, mark - 1, 1, None) == (UNITS_PER_RHO - mark + 1) // 4
    plain = schedule_of(replace(spec, saving_windows=0), horizon=2)
    assert plain.next_units(1, spent, 1, None) == 0


# --- Plans that cannot be honoured ---------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (ScheduleSpec(), {"cap": 9}, r"windows is too large .* \(window 0 "),
        (ScheduleSpec("paced"), {"cap": 9}, "windows is too large"),
        (ScheduleSpec("infinite"), {"cap": 9}, "windows is too large"),
        (SPECS["snr"], {"cap": 9}, "windows is too large"),
        (replace(G1, noise_decay=0.5), {"horizon": 25}, r"window 0 .* outside 1/8 to 2\^30"),
        (replace(G1, noise_decay=0.5), {"horizon": 90}, "window 0 would have no charge"),
        (replace(G5, final_noise_ratio=1e6), {"cap": 10**10}, "window 9 would have no charge"),
        (ScheduleSpec(), {"cap": 2**70, "sensitivity": 1}, r"deviation of 0\.0\d+ grid steps"),
        (ScheduleSpec(max_noise_multiplier=2.0), {}, "multiplier of 2.236, above"),
        (replace(SPECS["snr"], min_noise_multiplier=2.3), {}, "multiplier of 2.236, below"),
        (replace(SPECS["snr"], saving_windows=10**7), {}, "saving_windows leaves nothing"),
        (SPECS["step"], {"horizon": 5}, r"milestones ends at window 5, beyond the 5"),
    ],
)
def test_a_schedule_that_cannot_be_honoured_is_refused(spec, changes, message):
    with pytest.raises(PlanError, match=message):
        schedule_of(spec, **changes)


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind != "step"])
def test_one_window_may_have_the_whole_budget(kind):
    schedule = schedule_of(SPECS[kind], horizon=1)
    assert schedule.first_units() == pytest.approx(UNITS_PER_RHO, rel=1e-15)
    assert schedule.is_deterministic is (kind != "snr")
