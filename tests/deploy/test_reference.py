"""The operator's reference says what the code does: no more, no less."""

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from agents.settings import PREFIX, Settings
from stream.metrics import ClientMetrics, GlobalMetrics, HeadMetrics, Registries
from stream.privacy.plan import PrivacyPlan

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
    assert plan.windows_allowed >= plan.horizon_windows


def test_a_clients_metrics_name_no_client():
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    ClientMetrics(registry).observe_published()
    assert all(not s.labels for metric in registry.collect() for s in metric.samples)
