import contextlib
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.errors import PlanError
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_toml import plan_arguments, plan_text
from stream.privacy.schedule_spec import ScheduleSpec

TEXT = """\
version = 1
name = "fraud-eu"
dimension = 20

[clusters]
count = 2
expected_clients = 10
assignment = "hash"
key = "public"

[window]
start = 2026-12-01T00:00:00Z
length_ms = 1000
grace_ms = 100
release_delay_ms = 300

[gradient]
l2_clip_norm = 1.0
grid_l2_bound = 256
count_weight = 25
dtype = "int8"

[budget]
epsilon = 8.0
delta = 1e-5
windows = 8

[optimizer]
kind = "sgd"
learning_rate = 0.1
momentum = 0.9
normalizer = "expected_clients"
"""
WITH_ALL = (
    TEXT.replace('dtype = "int8"\n', 'dtype = "int8"\nrotation = "hadamard"\n').replace(
        "windows = 8\n",
        'windows = 8\nnoise = "discrete_gaussian"\nscope = "cluster"\n'
        "hour_epsilon = 5\nday_epsilon = 6.5\n",
    )
    + """
[schedule]
kind = "step"
milestones = [2, 5]
noise_ratios = [4, 2.5, 1]
saving_windows = 3

[clipping]
target_quantile = 0.5
learning_rate = 1
bit_weight = 20
epoch_windows = 10
"""
)
REQUIRED = [
    line.split(" = ")[0] for line in TEXT.splitlines() if " = " in line
]  # every key above but these two
REQUIRED.remove("key")
REQUIRED.remove("momentum")


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def refused(text: str) -> str:
    """The message with which a text is refused."""
    with pytest.raises(PlanError) as caught:
        PrivacyPlan.from_toml(text)
    return str(caught.value)


def test_a_text_becomes_the_arguments_of_a_plan_and_of_its_optimizer():
    plan, parts = plan_arguments(TEXT)
    assert plan == {
        "name": "fraud-eu",
        "dimension": 20,
        "cluster_count": 2,
        "expected_clients": 10,
        "assignment": "hash",
        "assignment_key": "public",
        "start_ms": 1_796_083_200_000,
        "window_length_ms": 1000,
        "grace_ms": 100,
        "release_delay_ms": 300,
        "l2_clip_norm": 1.0,
        "grid_l2_bound": 256,
        "count_weight": 25,
        "update_dtype": "int8",
        "epsilon": 8.0,
        "delta": 1e-5,
        "horizon_windows": 8,
        "normalizer": "expected_clients",
    }
    assert parts == {"optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9}}


def test_what_is_optional_becomes_arguments_of_the_plan_and_of_its_parts():
    plan, parts = plan_arguments(WITH_ALL)
    assert plan == plan_arguments(TEXT)[0] | {
        "rotation": "hadamard",
        "noise": "discrete_gaussian",
        "scope": "cluster",
        "hour_epsilon": 5.0,
        "day_epsilon": 6.5,
    }
    assert parts == {
        "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "schedule": {
            "kind": "step",
            "milestones": (2, 5),
            "noise_ratios": (4.0, 2.5, 1.0),
            "saving_windows": 3,
        },
        "clipping": {
            "target_quantile": 0.5,
            "learning_rate": 1.0,
            "bit_weight": 20,
            "epoch_windows": 10,
        },
    }


def test_a_text_of_before_there_were_options_is_the_plan_without_them():
    plan = PrivacyPlan.from_toml(TEXT)
    assert (plan.noise, plan.scope, plan.rotation) == ("rounded_gaussian", "cluster", "none")
    assert (plan.hour_epsilon, plan.day_epsilon, plan.clipping) == (0.0, 0.0, None)
    assert plan.schedule_spec == ScheduleSpec()


def test_the_text_of_a_plan_with_everything_is_pinned():
    text = PrivacyPlan.from_toml(WITH_ALL).to_toml()
    assert text.count("\n[") == 7
    for lines in (
        "[gradient]\nl2_clip_norm = 1.0\ngrid_l2_bound = 256\ncount_weight = 25\n"
        'dtype = "int8"\nrotation = "hadamard"\n',
        "[clipping]\ntarget_quantile = 0.5\nlearning_rate = 1.0\nbit_weight = 20\n"
        "epoch_windows = 10\n",
        'windows = 8\nnoise = "discrete_gaussian"\nhour_epsilon = 5.0\nday_epsilon = 6.5\n',
        '[schedule]\nkind = "step"\nmilestones = [2, 5]\nnoise_ratios = [4.0, 2.5, 1.0]\n'
        "saving_windows = 3\n",
    ):
        assert lines in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "step"', 'kind = "steps"', r"\[schedule\] kind is 'steps': write one of"),
        ('kind = "step"\n', "", r"the plan lacks \[schedule\] kind: write for example kind = "),
        ("milestones = [2, 5]", "milestones = 2", "milestones must be a list of whole numbers"),
        ("milestones = [2, 5]", "milestones = [2, 5.0]", "must be a list of whole numbers"),
        ("milestones = [2, 5]", "milestones = [2, true]", "must be a list of whole numbers"),
        ("milestones = [2, 5]", "milestones = [5, 2]", "increasing whole numbers"),
        ("milestones = [2, 5]", f"milestones = [2, {10**400}]", "milestones does not fit 64 bits"),
        ("noise_ratios = [4, 2.5, 1]", 'noise_ratios = ["4"]', "must be a list of numbers"),
        ("noise_ratios = [4, 2.5, 1]", "noise_ratios = [4, nan, 1]", "nan is not from"),
        (
            "noise_ratios = [4, 2.5, 1]",
            f"noise_ratios = [4, 1, {10**400}]",
            "does not fit 64 bits",
        ),
        ("saving_windows", "saving_window", "did you mean saving_windows"),
        ("saving_windows = 3", "noise_decay = 0.5", "noise_decay has no effect"),
        ("[schedule]", "[schedules]", "did you mean schedule"),
        ("target_quantile = 0.5", "target_quantile = 1", "target_quantile is 1.0: write"),
        ("bit_weight = 20", "bit_weight = 21", "bit_weight is 21: write an even number"),
        ("epoch_windows = 10", "epoch_windows = 2", "epoch_windows is 2: write a whole"),
        ("epoch_windows = 10\n", "", r"the plan lacks \[clipping\] epoch_windows"),
        ('scope = "cluster"', 'scope = "client"', "remove \\[schedule\\]"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(old, new, message):
    assert WITH_ALL.count(old) == 1
    assert re.search(message, refused(WITH_ALL.replace(old, new)))


def test_the_text_of_a_plan_is_pinned():
    assert PrivacyPlan.from_toml(TEXT).to_toml() == changed(
        "dimension = 20\n", 'dimension = 20\ntopic_prefix = "sdp"\n'
    ).replace("00:00:00Z", "00:00:00.000Z").replace("1e-5", "1e-05")


# --- Typos ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ("dimension =", "dimensions =", "dimension"),
        ("expected_clients =", "expected_client =", "expected_clients"),
        ("length_ms =", "lenght_ms =", "length_ms"),
        ("l2_clip_norm =", "l2_clipnorm =", "l2_clip_norm"),
        ("epsilon =", "epsillon =", "epsilon"),
        ("momentum =", "momentun =", "momentum"),
        ("[clusters]", "[cluster]", "clusters"),
        ("[optimizer]", "[optimiser]", "optimizer"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_one(old, new, meant):
    message = refused(changed(old, new))
    assert message.endswith(f"did you mean {meant}?")
    assert new.strip("[] =") in message


def test_a_name_like_no_other_is_refused_with_those_that_are_known():
    message = refused(TEXT + "zzz = 1\n")
    assert "unknown key [optimizer] zzz" in message
    assert "beta1, beta2, epsilon, kind" in message
    message = refused(TEXT + "\n[zzz]\n")
    assert "unknown table [zzz]" in message
    assert "budget, clipping, clusters, gradient, optimizer, schedule, window" in message


@pytest.mark.parametrize("extra", ['[""]\nx = 1\n', "[clusters.key]\n", "[dimension]\n"])
def test_a_table_that_does_not_belong_is_never_passed_over(extra):
    refused(TEXT.replace("dimension = 20\n", "") + extra)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named_with_an_example(key):
    line = next(line for line in TEXT.splitlines() if line.startswith(f"{key} = "))
    assert f"{key}: write for example {key} = " in refused(changed(line + "\n", ""))


@pytest.mark.parametrize("table", ["clusters", "window", "gradient", "budget", "optimizer"])
def test_a_missing_table_is_named_with_its_keys(table):
    begin = TEXT.index(f"[{table}]")
    end = TEXT.find("\n[", begin)
    message = refused(TEXT[:begin] + (TEXT[end + 1 :] if end > 0 else ""))
    assert f"no table [{table}]: add it, with " in message


@pytest.mark.parametrize("value", ["3", "[]", '"x"'])
def test_a_value_where_a_table_is_meant_is_refused(value):
    begin, end = TEXT.index("[budget]"), TEXT.index("[optimizer]")
    message = refused(f"budget = {value}\n" + TEXT[:begin] + TEXT[end:])
    assert "write a line [budget] above its keys" in message


def test_a_list_of_tables_is_no_table():
    assert "[budget] must be a table" in refused(changed("[budget]", "[[budget]]"))


# --- Types ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("dimension = 20", 'dimension = "20"', "dimension"),
        ("dimension = 20", "dimension = 20.0", "dimension"),
        ("dimension = 20", "dimension = true", "dimension"),
        ("count = 2", "count = true", "[clusters] count"),
        ("epsilon = 8.0", "epsilon = true", "[budget] epsilon"),
        ("epsilon = 8.0", 'epsilon = "8"', "[budget] epsilon"),
        ('name = "fraud-eu"', "name = 1", "name"),
        ('dtype = "int8"', "dtype = 8", "[gradient] dtype"),
        ("version = 1", "version = 1.0", "version"),
        ("version = 1", "version = true", "version"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_an_example(old, new, key):
    message = refused(changed(old, new))
    assert message.startswith(f"{key} is of type ")
    assert f"write for example {key.split()[-1]} = " in message


def test_a_whole_number_is_taken_where_a_float_is_meant():
    plan = PrivacyPlan.from_toml(changed("epsilon = 8.0", "epsilon = 8"))
    assert plan == PrivacyPlan.from_toml(TEXT)
    assert type(plan.epsilon) is float


@pytest.mark.parametrize("prefixes", ['"a"', '["a", 1]', "{a = 1}"])
def test_prefixes_must_be_texts(prefixes):
    text = changed('key = "public"', f"prefixes = {prefixes}")
    assert "[clusters] prefixes must be a list of texts" in refused(text)


@pytest.mark.parametrize(
    "start", ["2026-12-01", "2026-12-01T00:00:00", '"2026-12-01T00:00:00Z"', "0", "true"]
)
def test_a_start_without_time_or_offset_is_refused(start):
    message = refused(changed("2026-12-01T00:00:00Z", start))
    assert "[window] start must be a date and time with an offset" in message
    assert "write for example start = 2026-12-01T00:00:00Z" in message


def test_a_start_finer_than_a_millisecond_is_refused():
    message = refused(changed("00:00:00Z", "00:00:00.0005Z"))
    assert "finer than a millisecond" in message


def test_a_start_before_1970_is_refused():
    assert "start" in refused(changed("2026-12-01", "1969-12-31"))


@pytest.mark.parametrize("number", ["1" + "0" * 400, "0x" + "f" * 5000, "9223372036854775808"])
@pytest.mark.parametrize("line", ["dimension = 20", "epsilon = 8.0", "version = 1"])
def test_a_number_beyond_64_bits_is_refused(line, number):
    key = line.split(" = ")[0]
    assert len(refused(changed(line, f"{key} = {number}"))) < 600


def test_a_number_that_cannot_even_be_printed_is_refused():
    refused(changed("epsilon = 8.0", "epsilon = [0x" + "f" * 5000 + "]"))


@pytest.mark.parametrize("start_ms", [0, 1, 1_796_083_200_001, 253_402_300_799_999])
def test_no_millisecond_of_the_start_is_lost(start_ms):
    plan, optimizer = plan_arguments(TEXT)
    text = plan_text(plan | {"start_ms": start_ms}, optimizer)
    assert plan_arguments(text)[0]["start_ms"] == start_ms


@given(
    moment_ms=st.integers(86_400_000, 253_402_214_400_000),
    offset=st.integers(-12 * 60, 12 * 60),
)
@settings(max_examples=50)
def test_the_start_is_the_same_moment_in_every_time_zone(moment_ms, offset):
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment_ms)
    sign = "-" if offset < 0 else "+"
    local = (moment + timedelta(minutes=offset)).replace(tzinfo=None)
    zone = f"{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    text = changed("2026-12-01T00:00:00Z", local.isoformat() + zone)
    assert plan_arguments(text)[0]["start_ms"] == moment_ms


# --- Versions, options, garbage ------------------------------------------------------------


@pytest.mark.parametrize("version", ["0", "2", "-1"])
def test_another_version_is_refused_before_its_keys_are_looked_at(version):
    text = changed("version = 1", f"version = {version}") + "\n[schedule]\nkind = 1\n"
    message = refused(text)
    assert "of a version that this program does not understand" in message
    assert "write version = 1, or upgrade sdp" in message


@pytest.mark.parametrize(
    ("kind", "option"), [("sgd", "beta1"), ("sgd", "beta2"), ("sgd", "epsilon")]
)
def test_an_option_without_effect_is_refused_even_at_its_default(kind, option):
    default = {"beta1": "0.9", "beta2": "0.999", "epsilon": "1e-8"}[option]
    message = refused(TEXT + f"{option} = {default}\n")
    assert f"[optimizer] {option} has no effect with kind = {kind!r}: remove it" in message


def test_momentum_is_refused_with_adam():
    message = refused(changed('kind = "sgd"', 'kind = "adam"'))
    assert "momentum has no effect with kind = 'adam'" in message


def test_an_unknown_kind_of_optimizer_is_refused_for_what_it_is():
    assert 'write "sgd" or "adam"' in refused(changed('kind = "sgd"', 'kind = "yogi"'))


@pytest.mark.parametrize("text", ["", "version = ", "a = 1\na = 2", "a = " + "[" * 10**5, "\0"])
def test_what_is_no_plan_is_a_plan_error(text):
    refused(text)


@given(text=st.text(max_size=200))
def test_any_text_is_a_plan_or_a_plan_error(text):
    with contextlib.suppress(PlanError):
        PrivacyPlan.from_toml(text)


@given(data=st.data())
@settings(max_examples=200)
def test_a_damaged_text_is_a_plan_or_a_plan_error(data):
    begin = data.draw(st.integers(0, len(WITH_ALL)))
    end = data.draw(st.integers(begin, min(len(WITH_ALL), begin + 8)))
    put_in = data.draw(st.text(max_size=4) | st.sampled_from(["1e400", "[", "nan", "-", "'''"]))
    with contextlib.suppress(PlanError):
        PrivacyPlan.from_toml(WITH_ALL[:begin] + put_in + WITH_ALL[end:])


@pytest.mark.parametrize("key", ["hour_epsilon", "day_epsilon"])
def test_a_limit_of_nothing_is_refused_rather_than_left_out(key):
    text = changed("windows = 8", f"windows = 8\n{key} = 0")
    assert f"[budget] {key} is 0, which is no limit" in refused(text)
