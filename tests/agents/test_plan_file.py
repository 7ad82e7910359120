from pathlib import Path

import pytest

from agents.plan_file import read_plan
from stream.errors import PlanError
from stream.privacy.plan import PrivacyPlan

EXAMPLE = Path(__file__).parents[2] / "deploy" / "plan.toml"
PLAN = PrivacyPlan.from_toml(EXAMPLE.read_text(encoding="utf-8"))


@pytest.fixture
def plan_file(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.to_toml(), encoding="utf-8")
    return file


def test_a_plan_is_read_from_its_file(plan_file):
    assert read_plan(plan_file) == PLAN


def test_a_plan_that_is_not_there_is_told_with_its_path(tmp_path):
    for missing in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(PlanError, match=r"cannot be read: .*") as caught:
            read_plan(missing)
        assert str(missing) in str(caught.value)


def test_a_plan_that_is_no_text_is_told_with_its_path(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_bytes(b'name = "\xff\xfe"')
    with pytest.raises(PlanError, match=r"plan\.toml cannot be read: .*utf-8"):
        read_plan(file)


def test_a_misspelt_name_in_a_plan_is_refused(plan_file):
    plan_file.write_text(plan_file.read_text().replace("epsilon =", "epsilom ="))
    with pytest.raises(PlanError, match="epsilom"):
        read_plan(plan_file)
