import math
from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from itertools import islice

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.budget import Ledger
from stream.errors import BudgetExhaustedError, PlanError
from stream.privacy import accounting
from stream.privacy.accounting import UNITS_PER_RHO, epsilon_from_units, zcdp_epsilon
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.calibration import PrivacyFilter
from stream.privacy.event import GaussianEvent
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_spec import SCHEDULE_KEYS, ScheduleSpec

SGD = OptimizerSpec("sgd", 0.1, momentum=0.9)
PLAN = PrivacyPlan(
    name="fraud-eu",
    dimension=20,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=1_796_083_200_000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=256,
    count_weight=25,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=8,
    optimizer=SGD,
    normalizer="expected_clients",
)
BY_PREFIX = replace(PLAN, assignment="prefix", assignment_key="", prefixes=("north", "south"))
BY_COUNT = replace(PLAN, normalizer="noisy_count", minimum_count=3)

SCHEDULES = {
    "constant": ScheduleSpec(saving_windows=3, max_noise_multiplier=1e6),
    "exponential": ScheduleSpec("exponential", noise_decay=0.995),
    "linear": ScheduleSpec("linear", final_noise_ratio=0.25),
    "cosine": ScheduleSpec("cosine", final_noise_ratio=4.0),
    "step": ScheduleSpec("step", milestones=(2, 5), noise_ratios=(4.0, 2.5, 1.0)),
    "learning_rate": ScheduleSpec(
        "learning_rate", learning_rate_decay="cosine", final_learning_rate_ratio=0.05
    ),
    "paced": ScheduleSpec("paced", saving_windows=7),
    "infinite": ScheduleSpec("infinite", max_noise_multiplier=1e3),
    "snr": ScheduleSpec(
        "snr",
        target_snr=1.0,
        smoothing=0.5,
        min_noise_multiplier=0.5,
        max_noise_multiplier=1000.0,
    ),
}
CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=10)

# For every field: values that must be refused, and what the message says to write instead.
BAD = {
    "name": (["", "a b", "-a", ".", "a" * 65, "a\n"], "name is .*: write 1 to 64 letters"),
    "topic_prefix": (["", "a/b", "_a", "é"], "topic_prefix is .*: write 1 to 64 letters"),
    "dimension": ([0, -1, 2**31 - 1, True, 20.0], "dimension is .*: write a whole number from 1"),
    "cluster_count": ([0, 10_001, True], r"\[clusters\] count is .*: write a whole number from 1"),
    "assignment": (["", "Hash", "load"], r'\[clusters\] assignment is .*: write "hash" or'),
    "assignment_key": (["", "k" * 65, "é" * 33], r"\[clusters\] key must be a text of 1 to 64"),
    "prefixes": ([("a", "b")], r'\[clusters\] prefixes needs assignment = "prefix"'),
    "expected_clients": ([0, 10**9 + 1, False], r"\[clusters\] expected_clients is .*: write"),
    "start_ms": ([-1, 253_402_300_800_000, 0.5], r"\[window\] start, .* is .*: write a whole"),
    "window_length_ms": ([99, 0, -1, 31 * 86_400_000 + 1], r"\[window\] length_ms is .*: write"),
    "grace_ms": ([-1, 1001], r"\[window\] grace_ms is .*: write a whole number from 0 to 1000"),
    "release_delay_ms": ([99, 1001], r"\[window\] release_delay_ms .*from 100 to 1000"),
    "l2_clip_norm": (
        [0, -1.0, math.nan, math.inf, True, "1"],
        r"\[gradient\] l2_clip_norm is .*: write a (finite )?number",
    ),
    "grid_l2_bound": (
        [0, 1, 5, 568, True],  # 127 sqrt(20) = 567.9...
        r"\[gradient\] grid_l2_bound(: .*use at least| is .*: write a whole number from 1 to 567)",
    ),
    "count_weight": ([0, -1, 2**31, 1.5], r"\[gradient\] count_weight is .*: write a whole"),
    "update_dtype": (["int32", "float32", ""], r'\[gradient\] dtype is .*: write "int8" or'),
    "epsilon": (
        [0, -1.0, math.nan, math.inf, 100.1, True, None],
        r"\[budget\] epsilon is .*: write a number",
    ),
    "delta": (
        [0, 1, 1e-101, -1.0, math.nan, math.inf, False],
        r"\[budget\] delta is .*: write a number",
    ),
    "horizon_windows": ([0, -1, 2**31, 8.0], r"\[budget\] windows is .*: write a whole number"),
    "normalizer": (["", "count"], r'\[optimizer\] normalizer is .*: write "expected_clients" or'),
    "minimum_count": ([1], r'\[optimizer\] minimum_count needs normalizer = "noisy_count"'),
    "noise": (["", "laplace", "Rounded_gaussian", None], r'\[budget\] noise is .*: write "rounded'),
    "scope": (["", "clients", "CLIENT", None], r'\[budget\] scope is .*: write "cluster" or'),
    "hour_epsilon": (
        [-1.0, math.nan, math.inf, 8.000_001, True, "1"],
        r"\[budget\] hour_epsilon is .*: write a number",
    ),
    "day_epsilon": (
        [-1.0, math.nan, math.inf, 8.000_001, False, "1"],
        r"\[budget\] day_epsilon is .*: write a number",
    ),
    "schedule_spec": (
        [
            ScheduleSpec("step", milestones=(8,), noise_ratios=(2.0, 1.0)),
            ScheduleSpec(max_noise_multiplier=0.1),
            ScheduleSpec("exponential", noise_decay=1e-9),
        ],
        r"\[schedule\] .*: (raise windows|change that)|budget: lower it|outside 1/8",
    ),
    "rotation": (["", "Hadamard", "fft", None], r'\[gradient\] rotation is .*: write "none" or'),
}
BAD_CASES = [
    pytest.param({field: value}, message, id=f"{field}={str(value)[:12]!r}")
    for field, (values, message) in BAD.items()
    for value in values
]

# For every field: another valid plan that differs in it.
OTHER = {
    "name": replace(PLAN, name="fraud-us"),
    "dimension": replace(PLAN, dimension=21),
    "cluster_count": replace(PLAN, cluster_count=3),
    "assignment": BY_PREFIX,
    "assignment_key": replace(PLAN, assignment_key="public "),
    "prefixes": replace(BY_PREFIX, prefixes=("south", "north")),
    "expected_clients": replace(PLAN, expected_clients=11),
    "start_ms": replace(PLAN, start_ms=PLAN.start_ms + 1),
    "window_length_ms": replace(PLAN, window_length_ms=1001),
    "grace_ms": replace(PLAN, grace_ms=101),
    "release_delay_ms": replace(PLAN, release_delay_ms=301),
    "l2_clip_norm": replace(PLAN, l2_clip_norm=math.nextafter(1.0, 2)),
    "grid_l2_bound": replace(PLAN, grid_l2_bound=257),
    "count_weight": replace(PLAN, count_weight=26),
    "update_dtype": replace(PLAN, update_dtype="int16"),
    "epsilon": replace(PLAN, epsilon=math.nextafter(8.0, 9)),
    "delta": replace(PLAN, delta=math.nextafter(1e-5, 1)),
    "horizon_windows": replace(PLAN, horizon_windows=9),
    "optimizer": replace(PLAN, optimizer=OptimizerSpec("sgd", 0.2, momentum=0.9)),
    "normalizer": replace(PLAN, normalizer="noisy_count", minimum_count=1),
    "minimum_count": BY_COUNT,
    "topic_prefix": replace(PLAN, topic_prefix="sdp2"),
    "noise": replace(PLAN, noise="discrete_gaussian"),
    "scope": replace(PLAN, scope="client"),
    "hour_epsilon": replace(PLAN, hour_epsilon=math.nextafter(8.0, 7)),
    "day_epsilon": replace(PLAN, day_epsilon=8.0),
    "schedule_spec": replace(PLAN, schedule_spec=SCHEDULES["paced"]),
    "rotation": replace(PLAN, rotation="hadamard"),
    "clipping": replace(PLAN, clipping=CLIPPING),
}
OPTIMIZERS = [
    SGD,
    OptimizerSpec("sgd", 0.1),
    OptimizerSpec("adam", 0.1),
    OptimizerSpec("adam", 0.1, beta1=0.8),
    OptimizerSpec("adam", 0.1, beta2=0.99),
    OptimizerSpec("adam", 0.1, epsilon=1e-7),
]

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16)
rates = st.floats(1e-9, 1e9)
fractions = st.floats(0, 1, exclude_max=True)
optimizers = st.one_of(
    st.builds(OptimizerSpec, st.just("sgd"), rates, momentum=fractions),
    st.builds(
        OptimizerSpec, st.just("adam"), rates, beta1=fractions, beta2=fractions, epsilon=rates
    ),
)
budgets = st.fixed_dictionaries(
    {
        "epsilon": st.floats(0.01, 100),
        "delta": st.floats(1e-12, 0.5),
        "horizon_windows": st.integers(1, 10_000),
        "grid_l2_bound": st.integers(200, 567),
        "count_weight": st.integers(1, 1000),
    }
)


# --- What is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(("change", "message"), BAD_CASES)
def test_a_value_that_cannot_be_honoured_is_refused_and_told_what_to_write(change, message):
    with pytest.raises(PlanError, match=message):
        replace(PLAN, **change)


def test_every_field_has_a_value_that_is_refused():
    # What these two refuse is tested with `OptimizerSpec` and `ClippingSpec`.
    parts = {"optimizer", "clipping"}
    assert {field.name for field in fields(PrivacyPlan)} - parts == BAD.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"assignment_key": "k"}, r'key needs assignment = "hash"'),
        ({"prefixes": ("north",)}, "must list 2 different texts"),
        ({"prefixes": ("north", "south", "west")}, "must list 2 different texts"),
        ({"prefixes": ("north", "north")}, "must list 2 different texts"),
        ({"prefixes": ("north", "")}, "must not be empty"),
        ({"prefixes": ("north", "a/b")}, 'hold a "/"'),
    ],
)
def test_prefixes_that_do_not_name_each_cluster_once_are_refused(change, message):
    with pytest.raises(PlanError, match=message):
        replace(BY_PREFIX, **change)


@pytest.mark.parametrize("minimum", [0, -1, True])
def test_a_noisy_count_without_a_floor_is_refused(minimum):
    with pytest.raises(PlanError, match=r"\[optimizer\] minimum_count is .*: write"):
        replace(BY_COUNT, minimum_count=minimum)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"epsilon": 1e-9, "delta": 1e-100}, id="no budget at all"),
        pytest.param({"epsilon": 1e-6, "delta": 1e-99, "horizon_windows": 2**31 - 1}, id="spread"),
    ],
)
def test_a_plan_that_cannot_release_once_is_refused(change):
    with pytest.raises(PlanError, match=r"\[budget\]"):
        replace(PLAN, **change)


def test_too_much_noise_is_refused():
    with pytest.raises(PlanError, match=r"outside 1/8 to 2\^30"):
        replace(PLAN, epsilon=0.001, horizon_windows=2**31 - 1)


def test_a_plan_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        PLAN.epsilon = 9.0


# --- Identity ------------------------------------------------------------------------------


def test_the_plan_id_is_pinned():
    assert PLAN.plan_id_hex == "0a428bfe3aac37c11446dcdab2dd0905"
    assert (
        replace(BY_PREFIX, optimizer=OptimizerSpec("adam", 0.5)).plan_id_hex
        == "929cf53ec3c209b5e7693cb23330e035"
    )
    assert PLAN.plan_id == bytes.fromhex(PLAN.plan_id_hex)


@pytest.mark.parametrize("field", [field.name for field in fields(PrivacyPlan)])
def test_the_plan_id_changes_with(field):
    other = OTHER[field]
    reference = {"prefixes": BY_PREFIX, "minimum_count": OTHER["normalizer"]}.get(field, PLAN)
    assert getattr(other, field) != getattr(reference, field)
    assert other.plan_id != reference.plan_id


def test_no_two_different_plans_share_an_id():
    plans = [PLAN, *OTHER.values(), *(replace(PLAN, optimizer=spec) for spec in OPTIMIZERS[1:])]
    specs = [spec for kind, spec in SCHEDULES.items() if kind != "paced"]
    plans += [replace(PLAN, schedule_spec=spec) for spec in specs]
    assert len({plan.plan_id for plan in plans}) == len(plans)


def test_a_whole_number_where_a_float_is_meant_is_the_same_plan():
    whole = replace(PLAN, l2_clip_norm=1, epsilon=8, optimizer=OptimizerSpec("sgd", 1))
    real = replace(PLAN, l2_clip_norm=1.0, epsilon=8.0, optimizer=OptimizerSpec("sgd", 1.0))
    assert whole == real
    assert whole.plan_id == real.plan_id


@settings(max_examples=60)
@given(
    name=names,
    key=keys,
    budget=budgets,
    optimizer=optimizers,
    clip=rates,
    start=st.integers(0, 253_402_300_799_999),
    prefix=names,
)
def test_a_plan_survives_its_text(name, key, budget, optimizer, clip, start, prefix):
    plan = replace(
        PLAN,
        name=name,
        assignment_key=key,
        optimizer=optimizer,
        l2_clip_norm=clip,
        start_ms=start,
        topic_prefix=prefix,
        **budget,
    )
    again = PrivacyPlan.from_toml(plan.to_toml())
    assert again == plan
    assert again.plan_id == plan.plan_id


@given(prefixes=st.sets(keys.map(lambda text: text.replace("/", "-")), min_size=2, max_size=2))
@settings(max_examples=60)
def test_a_plan_of_prefixes_survives_its_text(prefixes):
    plan = replace(BY_PREFIX, prefixes=tuple(sorted(prefixes)))
    assert PrivacyPlan.from_toml(plan.to_toml()) == plan


@pytest.mark.parametrize("plan", OTHER.values(), ids=OTHER.keys())
def test_each_other_plan_survives_its_text_too(plan):
    assert PrivacyPlan.from_toml(plan.to_toml()) == plan


def test_every_kind_of_schedule_survives_its_text():
    assert SCHEDULES.keys() == SCHEDULE_KEYS.keys()
    for spec in SCHEDULES.values():
        plan = replace(PLAN, schedule_spec=spec)
        again = PrivacyPlan.from_toml(plan.to_toml())
        assert again == plan
        assert again.plan_id == plan.plan_id


@settings(max_examples=100)
@given(
    noise=st.sampled_from(["rounded_gaussian", "discrete_gaussian"]),
    limits=st.tuples(*[st.just(0.0) | st.floats(21.0, 60.0)] * 2),
    scope=st.sampled_from(["cluster", "client"]),
    rotation=st.sampled_from(["none", "hadamard"]),
    kind=st.sampled_from(sorted(SCHEDULES)),
    clipping=st.none()
    | st.builds(
        ClippingSpec,
        st.floats(0.01, 0.99),
        st.floats(1e-9, 10),
        st.integers(1, 2**20).map(lambda half: 2 * half),
        st.integers(3, 2**31 - 1),
    ),
)
def test_a_plan_with_everything_survives_its_text(noise, limits, scope, rotation, kind, clipping):
    plan = replace(
        PLAN,
        horizon_windows=100,
        epsilon=60.0,
        noise=noise,
        hour_epsilon=limits[0],
        day_epsilon=limits[1],
        rotation=rotation,
        clipping=clipping,
        schedule_spec=SCHEDULES[kind],
    )
    if scope == "client":
        small = {"epsilon": 9.0, "hour_epsilon": limits[0] / 7, "day_epsilon": limits[1] / 7}
        plan = replace(plan, scope=scope, schedule_spec=ScheduleSpec(), **small)
    again = PrivacyPlan.from_toml(plan.to_toml())
    assert again == plan
    assert again.plan_id == plan.plan_id


# --- What is derived -----------------------------------------------------------------------


@settings(max_examples=100)
@given(budget=budgets)
def test_what_is_derived_fits_together(budget):
    plan = replace(PLAN, **budget)
    assert plan.l2_sensitivity_squared == plan.grid_l2_bound**2 + plan.count_weight**2
    exact_units = Fraction(plan.l2_sensitivity_squared * UNITS_PER_RHO) / (2 * plan.noise_variance)
    assert exact_units <= plan.charge_units < exact_units + 1
    assert plan.windows_allowed * plan.charge_units <= plan.cap_units
    assert (plan.windows_allowed + 1) * plan.charge_units > plan.cap_units
    assert epsilon_from_units(plan.cap_units, plan.delta) <= plan.epsilon
    event = GaussianEvent(plan.l2_sensitivity_squared, plan.noise_variance)
    assert event.units == plan.charge_units


@settings(max_examples=100)
@given(budget=budgets)
def test_the_budget_pays_for_exactly_the_windows_asked_for(budget):
    plan = replace(PLAN, **budget)
    assert plan.windows_allowed == plan.horizon_windows


@pytest.mark.parametrize("windows", [1, 3, 4, 7])
def test_the_ledger_admits_exactly_the_windows_asked_for(windows):
    plan = replace(PLAN, horizon_windows=windows)
    event = GaussianEvent(plan.l2_sensitivity_squared, plan.noise_variance)
    ledger = Ledger(plan.cap_units)
    for _ in range(windows):
        ledger = ledger.after(ledger.charge(event))
    with pytest.raises(BudgetExhaustedError):
        ledger.charge(event)


@pytest.mark.parametrize(
    ("epsilon", "delta", "windows"),
    [(8.0, 1e-5, 8), (1.0, 1e-6, 100), (0.1, 1e-9, 1000), (50.0, 1e-3, 1), (3.0, 1e-12, 40)],
)
def test_the_noise_is_that_of_an_independent_calibration(epsilon, delta, windows):
    # T equal Gaussian releases are as private as one with sqrt(T) times less noise.
    plan = replace(PLAN, epsilon=epsilon, delta=delta, horizon_windows=windows)
    once = dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-12)
    assert plan.noise_multiplier / math.sqrt(windows) == pytest.approx(once, rel=1e-6)


def test_the_calibration_test_sees_a_noise_that_is_too_small_by_a_millionth():
    plan = replace(PLAN, epsilon=8.000_03)
    once = dp_accounting.get_sigma_gaussian(8.0, 1e-5, tol=1e-12)
    assert plan.noise_multiplier / math.sqrt(8) != pytest.approx(once, rel=1e-6)


def test_a_hundred_windows_of_the_reference_budget_need_the_reference_noise():
    plan = replace(
        PLAN,
        dimension=10**6,
        grid_l2_bound=4000,
        count_weight=400,
        epsilon=1.066411,  # PRIVACY, K4: 1.0664107257 exactly
        delta=1e-6,
        horizon_windows=100,
    )
    assert plan.l2_sensitivity_squared == 16_160_000
    assert math.sqrt(plan.noise_variance) == pytest.approx(160_000, rel=1e-6)
    assert plan.charge_units == pytest.approx(363890849891537, rel=1e-6)
    # PRIVACY 1.2: at (D, d) = (4000, 1e6) rounding costs 0.88 % of the bound.
    assert 1 - plan.client_scale / 4000 == pytest.approx(0.0088, abs=5e-5)


def test_more_epsilon_means_less_noise_and_a_higher_charge():
    plans = [replace(PLAN, epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0, 8.0, 20.0)]
    variances = [plan.noise_variance for plan in plans]
    charges = [plan.charge_units for plan in plans]
    assert variances == sorted(variances, reverse=True)
    assert charges == sorted(charges)
    assert len(set(charges)) == len(charges)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        ({}, "int32"),
        ({"expected_clients": 10**9}, "int64"),
        ({"epsilon": 0.01, "horizon_windows": 10**8}, "int64"),
        ({"expected_clients": 260_000}, "int32"),
        ({"expected_clients": 265_000}, "int64"),
    ],
)
def test_releases_are_as_wide_as_the_sums_and_the_noise_need(change, dtype):
    assert replace(PLAN, **change).release_dtype == dtype


def test_a_gradient_at_the_clip_norm_is_scaled_to_the_client_scale():
    plan = replace(PLAN, l2_clip_norm=0.5)
    assert plan.grid_step * plan.client_scale == pytest.approx(0.5, rel=1e-15)
    assert plan.client_scale < plan.grid_l2_bound


def test_the_guarantee_says_who_is_protected_how_well_and_under_which_trust():
    sentence = replace(PLAN, epsilon=7.123456, delta=2e-7).guarantee
    for words in (
        "(7.123456, 2e-07)-differentially private",
        "add-or-remove-one",
        "one identity",
        "8 windows",
        "heads, the transport and the client's own host are trusted",
    ):
        assert words in sentence


def test_the_guarantee_says_whose_budget_ends_what():
    cluster, client = PLAN.guarantee, replace(PLAN, scope="client").guarantee
    assert "2 clusters ever release under this plan (at most 8 windows each) and" in cluster
    assert "for ever (a client takes part in at most 8 windows) and" in client
    assert "windows each" not in client
    for kind in ("infinite", "snr"):
        endless = replace(PLAN, schedule_spec=SCHEDULES[kind])
        assert endless.windows_allowed is None
        assert "2 clusters ever release under this plan and every model" in endless.guarantee
        assert "None" not in endless.guarantee


def test_the_guarantee_never_promises_more_than_the_plan():
    assert "(8.1234568," in replace(PLAN, epsilon=8.1234568).guarantee


# --- Clusters and windows ------------------------------------------------------------------


def test_the_cluster_of_an_identity_is_pinned():
    plan = replace(PLAN, cluster_count=1000)
    assert [plan.cluster_of(f"client-{i}") for i in range(6)] == [407, 765, 363, 669, 356, 160]
    assert plan.cluster_of("é") == 584


def test_all_clients_are_of_the_only_cluster():
    plan = replace(PLAN, cluster_count=1)
    assert {plan.cluster_of(f"client-{i}") for i in range(100)} == {0}


def test_another_key_gives_other_clusters():
    plan = replace(PLAN, cluster_count=1000)
    other = replace(plan, assignment_key="other")
    ids = [f"client-{i}" for i in range(200)]
    assert sum(plan.cluster_of(i) == other.cluster_of(i) for i in ids) < 10


@pytest.mark.parametrize("clusters", [2, 7, 64])
def test_clusters_are_of_roughly_equal_size(clusters):
    plan = replace(PLAN, cluster_count=clusters)
    sizes = Counter(plan.cluster_of(f"client-{i}") for i in range(6400))
    mean = 6400 / clusters
    assert set(sizes) == set(range(clusters))
    # Fixed ids and a fixed key: this cannot fail by chance.
    assert max(abs(size - mean) for size in sizes.values()) < 5 * math.sqrt(mean)


@pytest.mark.parametrize(
    ("client_id", "cluster"),
    [
        ("north/1", 0),
        ("south/device/7", 1),
        ("north", 0),
        ("west/1", None),
        ("", None),
        ("/north", None),
        ("NORTH/1", None),
        ("northern/1", None),
    ],
)
def test_a_prefix_names_the_cluster(client_id, cluster):
    assert BY_PREFIX.cluster_of(client_id) == cluster


@pytest.mark.parametrize(
    ("after_start_ms", "window"),
    [(0, 0), (999, 0), (1000, 1), (1999, 1), (-1, -1), (-1000, -1), (-1001, -2), (10**12, 10**9)],
)
def test_windows_are_half_open(after_start_ms, window):
    assert PLAN.window_of(PLAN.start_ms + after_start_ms) == window


@given(timestamp=st.integers(-(2**60), 2**60))
def test_a_window_ends_where_the_next_one_begins(timestamp):
    window = PLAN.window_of(timestamp)
    end = PLAN.window_end_ms(window)
    assert end - PLAN.window_length_ms <= timestamp < end
    assert PLAN.window_of(end) == window + 1


# --- Noise, limits, scope, rotation, clipping ----------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "by_zcdp", "by_gdp"),
    [
        (0.5, 0.006641524, 0.007701168),
        (1.0, 0.024355970, 0.028014482),
        (2.0, 0.088152688, 0.100502020),
        (4.0, 0.311064955, 0.351003648),
        (8.0, 1.052358005, 1.172815224),
    ],
)
def test_the_cap_is_that_of_the_reference_for_either_noise(epsilon, by_zcdp, by_gdp):
    # PRIVACY 2.2, K6.
    rounded = replace(PLAN, epsilon=epsilon, delta=1e-6)
    discrete = replace(rounded, noise="discrete_gaussian")
    assert discrete.cap_units / UNITS_PER_RHO == pytest.approx(by_zcdp, rel=0, abs=6e-10)
    assert rounded.cap_units / UNITS_PER_RHO == pytest.approx(by_gdp, rel=0, abs=6e-10)
    # The discrete Gaussian is not (sensitivity / sigma)-GDP: the wider cap is not its own.
    assert zcdp_epsilon(discrete.cap_units / UNITS_PER_RHO, 1e-6) <= epsilon
    assert zcdp_epsilon(rounded.cap_units / UNITS_PER_RHO, 1e-6) > epsilon


def test_each_noise_has_its_own_filter():
    assert PLAN.privacy_filter is PrivacyFilter.GDP
    assert replace(PLAN, noise="discrete_gaussian").privacy_filter is PrivacyFilter.ZCDP


@pytest.mark.parametrize(
    ("length_ms", "hour", "day"),
    [(1000, 3601, 86_401), (7000, 516, 12_344), (3_600_000, 2, 25), (31 * 86_400_000, 2, 2)],
)
def test_a_limit_looks_at_every_window_that_an_hour_or_a_day_can_touch(length_ms, hour, day):
    plan = replace(PLAN, window_length_ms=length_ms, hour_epsilon=3.0, day_epsilon=4.0)
    caps = [plan.privacy_filter.cap_units(epsilon, plan.delta) for epsilon in (3.0, 4.0)]
    assert plan.sliding_caps == (("hour", hour, caps[0]), ("day", day, caps[1]))
    # An hour that begins in the last millisecond of a window ends within the last of these.
    assert length_ms - 1 + 3_600_000 <= hour * length_ms
    assert PLAN.sliding_caps == ()


def test_a_limit_has_the_filter_of_the_noise():
    plan = replace(PLAN, hour_epsilon=4.0, delta=1e-6, noise="discrete_gaussian")
    ((_, _, cap),) = plan.sliding_caps
    assert cap / UNITS_PER_RHO == pytest.approx(0.311064955, rel=0, abs=6e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hour_epsilon": 0.01}, "hour_epsilon is .*, but a window is planned that costs"),
        ({"day_epsilon": 0.01}, "day_epsilon is .*, but a window is planned that costs"),
        # The first window is cheap, and those at the end are not.
        (
            {"schedule_spec": ScheduleSpec("exponential", noise_decay=0.5), "hour_epsilon": 3.0},
            "hour_epsilon is .*, but a window is planned that costs",
        ),
        # So small that no total of charges keeps it.
        ({"hour_epsilon": 1e-9, "delta": 1e-90}, "hour_epsilon: .* nothing can be granted"),
    ],
)
def test_a_limit_that_would_hold_a_planned_window_back_for_ever_is_refused(change, message):
    with pytest.raises(PlanError, match=rf"\[budget\] {message}"):
        replace(PLAN, **change)


@pytest.mark.parametrize("kind", sorted(SCHEDULES))
def test_a_limit_admits_each_window_of_a_schedule_that_is_accepted(kind):
    plan = replace(PLAN, schedule_spec=SCHEDULES[kind], hour_epsilon=7.0)
    ((_, _, cap),) = plan.sliding_caps
    planned = [units for _, units in islice(plan.schedule.planned(), 100)]
    assert 0 < max(planned) <= cap


@pytest.mark.parametrize("kind", sorted(set(SCHEDULES) - {"constant"}))
def test_a_clients_own_budget_needs_windows_that_cost_the_same(kind):
    with pytest.raises(PlanError, match=r'scope = "client" needs every window to cost the same'):
        replace(PLAN, scope="client", schedule_spec=SCHEDULES[kind])


def test_a_clients_own_budget_must_fit_its_64_bits():
    assert replace(PLAN, scope="client", epsilon=20.0).cap_units < 2**63
    with pytest.raises(PlanError, match=r"epsilon is 100.0: a client's own budget counts up to"):
        replace(PLAN, scope="client", epsilon=100)


@pytest.mark.parametrize("dimension", [20, 32, 33])
def test_the_bound_of_a_rotated_gradient_may_use_every_padded_coordinate(dimension):
    plan = replace(PLAN, dimension=dimension, rotation="hadamard")
    padded = 64 if dimension > 32 else 32
    assert (plan.coordinate_count, plan.release_size) == (padded, padded + 1)
    largest = math.isqrt(127**2 * padded)
    assert replace(plan, grid_l2_bound=largest).l2_sensitivity_squared == largest**2 + 25**2
    with pytest.raises(PlanError, match=f"grid_l2_bound is .*from 1 to {largest}"):
        replace(plan, grid_l2_bound=largest + 1)


def test_without_rotation_the_bound_is_that_of_the_dimension():
    assert PLAN.coordinate_count == PLAN.dimension
    with pytest.raises(PlanError, match="from 1 to 567"):
        replace(PLAN, grid_l2_bound=568)


def test_the_client_scale_is_that_of_the_padded_length():
    rotated = replace(PLAN, rotation="hadamard")
    assert rotated.client_scale == replace(PLAN, dimension=32).client_scale < PLAN.client_scale


def test_the_clip_bits_are_part_of_the_sensitivity_and_of_the_release():
    plan = replace(PLAN, clipping=CLIPPING)
    assert plan.l2_sensitivity_squared == 256**2 + 25**2 + 10**2
    assert plan.release_size == 22
    # The same budget: the noise grows with the sensitivity, the charge does not.
    assert plan.noise_variance > PLAN.noise_variance
    assert plan.charge_units == pytest.approx(PLAN.charge_units, rel=1e-11)


def test_a_heavy_clip_bit_widens_the_release():
    clipping = replace(CLIPPING, bit_weight=2**30)
    assert replace(PLAN, clipping=clipping).release_dtype == "int64"


@pytest.mark.parametrize("direction", [-math.inf, math.inf])
@pytest.mark.parametrize("noise", ["rounded_gaussian", "discrete_gaussian"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-5), (4.0, 1e-6), (8.0, 1e-5)])
def test_machines_whose_last_digits_differ_find_the_same_cap(
    epsilon, delta, noise, direction, monkeypatch
):
    change = {"epsilon": epsilon, "delta": delta, "noise": noise}
    cap = replace(PLAN, **change).cap_units
    exact = replace(PLAN, **change).privacy_filter.cap_units(epsilon, delta)
    assert 0 <= exact - cap < 3e-11 * cap
    for name in ("erfcx", "ndtr"):
        original = getattr(accounting, name)
        monkeypatch.setattr(
            accounting,
            name,
            lambda x, original=original: math.nextafter(float(original(x)), direction),
        )
    original_log = math.log
    monkeypatch.setattr(math, "log", lambda *x: math.nextafter(original_log(*x), direction))
    assert replace(PLAN, **change).cap_units == cap


def test_a_release_is_due_the_plans_delay_after_its_windows_end():
    assert PLAN.release_due_ms(3) == PLAN.start_ms + 4 * PLAN.window_length_ms + 300
    assert PLAN.release_delay_ms == 300
