"""``sdp audit``: what it prints, and what its exit code says."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agents.cli import main
from stream.aggregation.window import WindowSum
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="audited",
    dimension=100,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=50,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
CERTAIN = ("--games", "6000", "--confidence", "0.9999999999")


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.to_toml())
    return str(file)


def run(*arguments: str, **environment: str):
    return CliRunner().invoke(main, ["audit", *arguments], env=environment)


def test_json_has_the_claim_beside_what_was_found(plan_file):
    """False alarm: 1e-10."""
    result = run("--plan", plan_file, "--json", *CERTAIN)
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert found["plan_id"] == PLAN.plan_id_hex
    assert 0 < found["mu_lower"] <= found["claimed_mu"] <= found["mu_upper"]
    assert 0 < found["epsilon_lower"] <= found["epsilon_claimed"] == PLAN.epsilon
    assert found["confidence"] == 0.9999999999
    assert found["delta"] == PLAN.delta
    assert found["passed"] is True
    assert found["faults"] == {}
    assert [attack["name"] for attack in found["attacks"]] == [
        "canaries",
        "two_worlds",
        "difference",
    ]
    assert found["filter"] == "gdp"
    assert "rounded Gaussian noise" in found["compared"]
    assert found["releases"] > 600 < found["updates"]


def test_the_text_says_it_too_whether_the_plan_is_an_argument_or_in_the_environment(plan_file):
    """False alarm: 1e-10 each."""
    for result in (run(plan_file, *CERTAIN), run(*CERTAIN, SDP_PLAN=plan_file)):
        assert result.exit_code == 0
        assert result.output.startswith("claimed")
        assert "epsilon 8" in result.output
        assert "nothing contradicts the claim" in result.output


def test_a_broken_claim_is_named_and_exits_3(plan_file, monkeypatch):
    monkeypatch.setattr(WindowSum, "has", lambda *_: False)
    result = run(plan_file, "--games", "500")
    assert result.exit_code == 3
    assert "THE CLAIM IS BROKEN" in result.output
    assert "a release is not the exact sum plus the noise that was drawn" in result.output
    assert json.loads(run(plan_file, "--games", "500", "--json").output)["passed"] is False


def test_an_attack_that_is_always_right_has_no_upper_bound_in_json(plan_file, monkeypatch):
    monkeypatch.setattr(
        "stream.cluster_head.privatize",
        lambda exact_sum, receipt, noise, dtype: exact_sum.astype(dtype),
    )
    result = run(plan_file, "--games", "500", "--json")
    assert result.exit_code == 3
    assert json.loads(result.output)["mu_upper"] is None


def test_what_cannot_be_audited_is_wrong_usage(tmp_path, plan_file):
    assert run().exit_code == 2
    missing = run(str(tmp_path / "none.toml"))
    assert missing.exit_code == 2
    assert "cannot be audited" in missing.output
    (tmp_path / "bad.toml").write_text("nonsense")
    assert run(str(tmp_path / "bad.toml")).exit_code == 2
    assert run(plan_file, "--games", "0").exit_code == 2
    assert run(plan_file, "--confidence", "1").exit_code == 2


def test_of_discrete_noise_it_says_that_the_claim_is_of_zcdp(tmp_path):
    """False alarm: 1e-10 each."""
    file = tmp_path / "discrete.toml"
    file.write_text(dataclasses.replace(PLAN, noise="discrete_gaussian").to_toml())
    found = json.loads(run(str(file), "--json", *CERTAIN).output)
    assert found["filter"] == "zcdp"
    assert found["passed"] is True
    assert found["epsilon_lower"] < found["epsilon_claimed"] == PLAN.epsilon
    text = " ".join(run(str(file), *CERTAIN).output.split())
    assert "the claim is rho-zCDP" in text
