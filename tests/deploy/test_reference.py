"""The operator's reference says what the code does: no more, no less."""

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from agents.settings import PREFIX, Settings
from stream.aggregation.validation import Reason
from stream.metrics import ClientMetrics, GlobalMetrics, HeadMetrics, Registries
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_fields import PlanFields
from stream.privacy.schedule_spec import COMMON_SCHEDULE_KEYS, SCHEDULE_KEYS, ScheduleSpec

DEPLOY = Path(__file__).parents[2] / "deploy"
REFERENCE = (DEPLOY / "README.md").read_text(encoding="utf-8")


def documented_settings():
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \| (?:`(.*?)`|(required)) \|", REFERENCE, re.M)
    return {name: default or required for name, default, required in rows}


def default_of(field):
    if field.default_factory is not None:
        return str(field.default_factory())
    return "required" if field.default is PydanticUndefined else str(field.default)


def test_every_setting_is_documented_with_its_default():
    assert documented_settings() == {
        PREFIX + name.upper(): default_of(field) for name, field in Settings.model_fields.items()
    }


def exported(registry):
    return {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in registry.collect()
    }


def documented_metrics(port):
    rows = re.findall(rf"^\| (`sdp_.*?) \| {port} \|", REFERENCE, re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_metric_is_documented_with_its_port():
    plan = PrivacyPlan.from_toml((DEPLOY / "plan.toml").read_text(encoding="utf-8"))
    registries = Registries(plan)
    HeadMetrics(registries, plan)
    GlobalMetrics(registries)
    assert documented_metrics("public") == exported(registries.public) - {"sdp_plan_info"}
    assert documented_metrics("operator") == exported(registries.operator)


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.toml")), ids=lambda path: path.name)
def test_every_plan_that_we_ship_can_be_honoured(file):
    plan = PrivacyPlan.from_toml(file.read_text(encoding="utf-8"))
    assert plan.windows_allowed is None or plan.windows_allowed >= plan.horizon_windows


def table_below(heading):
    """The rows of the first table after a line that begins so, without its head."""
    text = REFERENCE[REFERENCE.index(heading) :]
    rows = re.search(r"(?:^\|.*\|\n)+", text, re.M).group().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_kind_of_schedule_is_documented_with_the_keys_that_it_needs():
    documented = {
        kind: re.findall(r"`(\w+)`", keys)
        for kinds, keys, _ in table_below("Schedules, with the keys")
        for kind in re.findall(r"`(\w+)`", kinds)
    }
    needed = {kind: list(keys) for kind, keys in SCHEDULE_KEYS.items()}
    # One key of every kind, which this kind alone cannot do without.
    needed["snr"].append("max_noise_multiplier")
    assert {kind: sorted(keys) for kind, keys in documented.items()} == {
        kind: sorted(keys) for kind, keys in needed.items()
    }


def test_every_key_that_a_plan_may_leave_out_is_documented_with_its_default():
    documented = {
        re.search(r"(\w+)`", key).group(1): default
        for key, default, _ in table_below("## The plan")
    }
    fields = {**PlanFields.__dataclass_fields__, **ScheduleSpec.__dataclass_fields__}
    common = {"kind", *COMMON_SCHEDULE_KEYS}
    optional = {"noise", "scope", "hour_epsilon", "day_epsilon", "rotation", *common}
    assert documented.keys() == optional
    for key, default in documented.items():
        code = fields[key].default
        assert default.startswith(f'`"{code}"`' if code else ("none", "0")), key


def test_every_key_of_adaptive_clipping_is_documented():
    documented = [row[0].strip("`") for row in table_below("`[clipping]` lets")]
    assert documented == list(ClippingSpec.__dataclass_fields__)


def test_every_reason_of_refusal_that_an_operator_must_know_is_one():
    for reason in re.findall(r"`(wrong_scale|client_exhausted)`", REFERENCE):
        assert reason in set(Reason)


def test_a_clients_metrics_name_no_client():
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    ClientMetrics(registry).observe_published()
    assert all(not s.labels for metric in registry.collect() for s in metric.samples)
