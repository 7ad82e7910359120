"""`sdp plan`: what scripts and people are told, and the exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agents.cli import main
from agents.cli_plan import plan
from agents.plan_curve import curve_report, curve_text
from agents.plan_report import describe, report
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="commands",
    dimension=400,
    cluster_count=4,
    assignment="hash",
    assignment_key="public",
    expected_clients=1000,
    start_ms=0,
    window_length_ms=60_000,
    grace_ms=1000,
    release_delay_ms=5000,
    l2_clip_norm=2.0,
    grid_l2_bound=500,
    count_weight=50,
    update_dtype="int8",
    epsilon=4.0,
    delta=1e-6,
    horizon_windows=1000,
    optimizer=OptimizerSpec("sgd", learning_rate=0.1),
    normalizer="expected_clients",
)


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.to_toml())
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments)


def solve(*arguments: str) -> Result:
    return run("solve", "--delta", "1e-6", *arguments)


def test_the_group_is_a_part_of_sdp() -> None:
    assert main.commands["plan"] is plan
    assert set(plan.commands) == {"check", "curve", "solve"}


# --- check ---------------------------------------------------------------------------------


def test_check_prints_the_report(plan_file: str) -> None:
    assert run("check", plan_file).stdout == describe(PLAN) + "\n"
    assert json.loads(run("check", plan_file, "--json").stdout) == report(PLAN)


@pytest.mark.parametrize("command", ["check", "curve"])
def test_a_plan_that_cannot_be_had_is_one_line_and_exit_code_2(
    command: str, plan_file: str, tmp_path: Path
) -> None:
    missing = run(command, str(tmp_path / "missing.toml"))
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr.startswith("sdp: the plan ")
    Path(plan_file).write_text(PLAN.to_toml().replace("epsilon = 4.0", "epsilon = 0"))
    refused = run(command, plan_file)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("sdp: [budget] epsilon is 0")


# --- curve ---------------------------------------------------------------------------------


def test_curve_prints_both_curves(plan_file: str) -> None:
    assert run("curve", plan_file).stdout == curve_text(PLAN) + "\n"
    assert json.loads(run("curve", plan_file, "--json").stdout) == curve_report(PLAN)


def test_curve_writes_a_png_beside_what_it_prints(plan_file: str, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    result = run("curve", plan_file, "--png", str(picture), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == curve_report(PLAN)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_that_cannot_be_written_is_one_clear_error(
    plan_file: str, tmp_path: Path
) -> None:
    result = run("curve", plan_file, "--png", str(tmp_path / "missing" / "curve.png"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the picture ")
    assert "cannot be written" in result.stderr
    assert result.stdout == ""


def test_a_picture_without_matplotlib_names_the_extra_that_brings_it(
    plan_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    result = run("curve", plan_file, "--png", str(tmp_path / "curve.png"))
    assert result.exit_code == 1
    assert "matplotlib" in result.stderr
    assert "pip install 'sdp-stream[agents,demo]'" in result.stderr
    assert run("curve", plan_file).exit_code == 0


# --- solve ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("filter_", "windows"), [("gdp", 70), ("zcdp", 62)])
def test_solve_gives_the_reference_windows_under_the_promised_keys(
    filter_: str, windows: int
) -> None:
    result = solve("--epsilon", "4", "--noise-multiplier", "10", "--filter", filter_, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "epsilon": 4.0,
        "delta": 1e-6,
        "windows": windows,
        "noise_multiplier": 10.0,
        "rho": pytest.approx(windows / 200),
        "filter": filter_,
    }


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--epsilon", "4", "--noise-multiplier", "10"], "windows: 70"),
        (["--windows", "70", "--noise-multiplier", "10"], "epsilon: 3.99356"),
        (["--epsilon", "4", "--windows", "70"], "noise multiplier: 9.98569293"),
        (["--epsilon", "4", "--windows", "70", "--noise-multiplier", "10"], "fits epsilon 4"),
    ],
)
def test_solve_begins_with_the_missing_one(given: list[str], line: str) -> None:
    result = solve(*given)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == line


def test_what_solve_prints_fits_when_it_is_typed_in_again() -> None:
    printed = solve("--epsilon", "4", "--windows", "70").stdout.splitlines()[0]
    multiplier = printed.removeprefix("noise multiplier: ")
    again = solve("--epsilon", "4", "--windows", "70", "--noise-multiplier", multiplier, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["fits"] is True


def test_three_that_do_not_fit_exit_with_3_and_say_what_would() -> None:
    given = ["--epsilon", "4", "--windows", "71", "--noise-multiplier", "10"]
    result = solve(*given)
    assert result.exit_code == 3
    assert result.stdout.startswith("does not fit epsilon 4\nwould fit: epsilon 4.0")
    as_json = solve(*given, "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["fits"] is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give two or three of epsilon, windows and noise multiplier"),
        (["--epsilon", "4"], "give two or three of epsilon, windows and noise multiplier"),
        (["--windows", "4", "5", "--epsilon", "4"], "unexpected extra argument (5)"),
        (["--windows", "1.5", "--epsilon", "4"], "'1.5' is not a valid integer"),
        (["--windows", "0", "--epsilon", "4"], "windows must be a whole number from 1"),
        (["--windows", "-3", "--epsilon", "4"], "windows must be a whole number from 1"),
        (["--windows", "3", "--epsilon", "nan"], "epsilon must be above 0"),
        (["--windows", "3", "--epsilon", "-1"], "epsilon must be above 0"),
        (["--windows", "3", "--noise-multiplier", "0"], "noise multiplier must be from"),
        (["--windows", "3", "--noise-multiplier", "inf"], "noise multiplier must be from"),
        (["--epsilon", "4", "--windows", "3", "--delta", "1"], "delta must be at least"),
        (["--epsilon", "4", "--windows", "3", "--delta", "nan"], "delta must be at least"),
        (["--epsilon", "4", "--noise-multiplier", "0.5"], "does not pay for one window"),
        (["--epsilon", "4", "--windows", "3", "--filter", "rdp"], "'rdp' is not one of"),
    ],
)
def test_numbers_that_make_no_sense_are_one_clear_error(given: list[str], message: str) -> None:
    result = solve(*given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_delta_has_no_default() -> None:
    result = run("solve", "--epsilon", "4", "--windows", "70")
    assert result.exit_code == 2
    assert "Missing option '--delta'" in result.stderr


def test_the_help_says_which_filter_is_for_which_noise() -> None:
    text = " ".join(run("solve", "--help").stdout.split())
    assert "gdp is exact, for rounded Gaussian noise, which sdp adds by default" in text
    assert "zcdp is the best conversion for discrete Gaussian noise" in text


def test_solve_does_not_wait_for_faust_or_matplotlib() -> None:
    code = (
        "import sys; from agents.cli_plan import plan; "
        "plan(['solve', '--delta', '1e-6', '--epsilon', '4', '--windows', '70'], "
        "standalone_mode=False); print({'faust', 'matplotlib'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "set()", result.stderr
