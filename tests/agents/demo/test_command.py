"""The command's options; the run itself is in test_run."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from agents.broker import BrokerError
from agents.demo import run
from agents.demo.command import demo
from agents.demo.run import DemoOptions


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[DemoOptions]:
    """The options that reach a run that passes at once."""
    seen: list[DemoOptions] = []

    def run_demo(options: DemoOptions, console: Console) -> list[str]:
        seen.append(options)
        return []

    monkeypatch.setattr(run, "run_demo", run_demo)
    return seen


def test_the_full_size_must_reach_the_accuracy_of_the_main_job(
    asked_for: list[DemoOptions],
) -> None:
    assert CliRunner().invoke(demo, []).exit_code == 0
    assert asked_for[0] == DemoOptions(
        clients=2000,
        windows=40,
        window_ms=3000,
        minimum_accuracy=0.80,
        json_path=None,
        png_path=Path("sdp-demo.png"),
        keeps_logs=False,
    )


@pytest.mark.parametrize("size", [["--windows", "4"], ["--clients", "200"]])
def test_another_size_need_not_reach_an_accuracy_unless_told(
    asked_for: list[DemoOptions], size: list[str]
) -> None:
    runner = CliRunner()
    assert runner.invoke(demo, size).exit_code == 0
    assert runner.invoke(demo, [*size, "--minimum-accuracy", "0.3"]).exit_code == 0
    assert [options.minimum_accuracy for options in asked_for] == [0.0, 0.3]


def test_a_folder_that_is_not_there_is_told_before_anything_starts(
    asked_for: list[DemoOptions], tmp_path: Path
) -> None:
    result = CliRunner().invoke(demo, ["--json", str(tmp_path / "missing" / "report.json")])
    assert result.exit_code == 2
    assert "there is no folder" in result.output
    assert asked_for == []


def test_a_failed_run_says_why_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_demo", lambda *_: ["159 of 160 cells were released"])
    result = CliRunner().invoke(demo, [])
    assert result.exit_code == 1
    assert "159 of 160 cells were released" in result.output


def test_a_broker_that_cannot_be_had_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_demo(options: DemoOptions, console: Console) -> list[str]:
        raise BrokerError("no java on the PATH")

    monkeypatch.setattr(run, "run_demo", run_demo)
    result = CliRunner().invoke(demo, [])
    assert result.exit_code == 1
    assert result.output == "Error: no java on the PATH\n"


def test_the_help_says_what_the_exit_code_means() -> None:
    text = CliRunner().invoke(demo, ["--help"]).output
    assert "Exit code 0" in text
    assert "--minimum-accuracy" in text
