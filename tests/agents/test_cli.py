"""The command line: what it says, and what its exit codes mean."""

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from agents.cli import main

PLAN = """\
version = 1
name = "cli"
dimension = 12
topic_prefix = "cli"

[clusters]
count = 2
expected_clients = 1000
assignment = "hash"
key = "public"

[window]
start = 2026-01-01T00:00:00Z
length_ms = 60000
grace_ms = 1000
release_delay_ms = 5000

[gradient]
l2_clip_norm = 1.0
grid_l2_bound = 100
count_weight = 30
dtype = "int8"

[budget]
epsilon = 8.0
delta = 1e-5
windows = 1000

[optimizer]
kind = "sgd"
learning_rate = 0.1
normalizer = "expected_clients"
"""
PROMISED_TO_SCRIPTS = {
    "plan_id",
    "epsilon",
    "delta",
    "windows",
    "noise_multiplier",
    "rho_cap",
    "guarantee",
}
# Each takes a part of a second to import, and most commands need none of them.
HEAVY = ("dp_accounting", "faust", "matplotlib", "mlxtend", "mode", "rich", "sklearn")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.upper().startswith("SDP_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def plan_file(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    return file


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="sdp")


def commands(command=main, path=()):
    """Every command with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*c, id=" ".join(("sdp", *c[0]))) for c in commands()]
)
def test_every_command_explains_itself_and_its_options(path, command):
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert max(parameter.opts, key=len) in result.output
            assert parameter.help, f"{parameter.opts} says nothing"
    if isinstance(command, click.Group):
        assert all(name in result.output for name in command.commands)


def test_the_commands_are_those_that_operators_are_promised():
    assert {"demo", "plan", "topics", "head", "global", "ledger", "kafka"} <= main.commands.keys()


def test_the_version_is_told():
    result = run("--version")
    assert (result.exit_code, result.output) == (0, "sdp, version 0.1.0\n")


def test_an_unknown_command_or_option_is_a_usage_error():
    assert run("haed").exit_code == 2
    assert "haed" in run("haed").stderr
    assert run("head", "--plann", "x").exit_code == 2


def test_a_good_plan_is_described_in_a_sentence(plan_file):
    result = run("plan", "check", plan_file)
    assert result.exit_code == 0
    assert "(8, 1e-05)-differentially private" in " ".join(result.stdout.split())


def test_a_good_plan_is_described_to_scripts(plan_file):
    result = run("plan", "check", plan_file, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found.keys() >= PROMISED_TO_SCRIPTS
    assert (found["epsilon"], found["delta"], found["windows"]) == (8.0, 1e-5, 1000)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("epsilon = 8.0", "epsilom = 8.0", "epsilom"),
        ("epsilon = 8.0", "epsilon = -1.0", "epsilon"),
        ('dtype = "int8"', 'dtype = "int4"', "dtype"),
        ("[budget]", "[budget", "TOML"),
    ],
    ids=["typo", "negative", "unknown type", "no toml"],
)
def test_a_bad_plan_is_refused_with_2(plan_file, right, wrong, told):
    plan_file.write_text(PLAN.replace(right, wrong))
    for arguments in ((), ("--json",)):
        result = run("plan", "check", plan_file, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("sdp: ")
        assert told in result.stderr


def test_a_plan_file_that_is_not_there_is_refused_with_2(tmp_path):
    result = run("plan", "check", tmp_path / "missing.toml")
    assert result.exit_code == 2
    assert "missing.toml cannot be read" in result.stderr


WITH_SETTINGS = [("head",), ("global",), ("topics", "create"), ("ledger", "show")]


@pytest.mark.parametrize("command", WITH_SETTINGS, ids=" ".join)
def test_a_misspelt_variable_stops_every_command(monkeypatch, plan_file, command):
    monkeypatch.setenv("SDP_OPERATER_PORT", "1234")
    result = run(*command, "--plan", plan_file, "--bootstrap-servers", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "SDP_OPERATER_PORT" in result.stderr


@pytest.mark.parametrize("command", WITH_SETTINGS, ids=" ".join)
def test_what_is_missing_is_named_with_its_variable(plan_file, command):
    result = run(*command, "--bootstrap-servers", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "SDP_PLAN" in result.stderr
    result = run(*command, "--plan", plan_file)
    assert result.exit_code == 2
    assert "SDP_BOOTSTRAP_SERVERS" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--log-level", "LOUD"), ("--operator-port", 99_999)]
)
def test_a_setting_out_of_range_is_named(plan_file, option, value):
    result = run("head", "--plan", plan_file, "--bootstrap-servers", "127.0.0.1:1", option, value)
    assert result.exit_code == 2
    assert option.strip("-").replace("-", "_") in result.stderr


def test_weights_that_do_not_fit_stop_the_global_agent(plan_file, tmp_path):
    weights = tmp_path / "weights.npy"
    weights.write_bytes(b"no array")
    result = run(
        *("global", "--plan", plan_file, "--bootstrap-servers", "127.0.0.1:1"),
        *("--initial-weights", weights),
    )
    assert result.exit_code == 2
    assert "weights.npy cannot be read" in result.stderr


def test_without_a_broker_the_exit_code_is_1_and_the_remedy_is_told(monkeypatch, plan_file):
    monkeypatch.setenv("SDP_REQUEST_TIMEOUT_S", "1")
    result = run("topics", "create", "--plan", plan_file, "--bootstrap-servers", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "Kafka does not answer at 127.0.0.1:1" in result.stderr
    assert "sdp kafka up" in result.stderr


def test_more_replicas_wanted_than_there_will_be_is_a_usage_error(plan_file):
    result = run(
        *("topics", "create", "--plan", plan_file, "--bootstrap-servers", "127.0.0.1:1"),
        *("--replication-factor", 2, "--min-insync-replicas", 3),
    )
    assert result.exit_code == 2
    assert "no record would ever count" in result.stderr


@pytest.mark.integration
def test_topics_are_made_once_and_refused_where_they_do_not_fit(
    bootstrap_servers, topic_prefix, plan_file
):
    def create(clusters):
        text = PLAN.replace('prefix = "cli"', f'prefix = "{topic_prefix}"')
        plan_file.write_text(text.replace("count = 2", f"count = {clusters}"))
        return run(
            "topics", "create", "--plan", plan_file, "--bootstrap-servers", bootstrap_servers
        )

    made = create(2)
    assert made.exit_code == 0
    assert f"created {topic_prefix}.updates" in made.stdout
    again = create(2)
    assert (again.exit_code, again.stdout) == (0, "all topics are there already\n")
    other = create(3)
    assert other.exit_code == 2
    assert "the plan needs 3" in other.stderr


def test_help_is_quick_because_it_imports_nothing_that_it_does_not_need():
    code = (
        "import contextlib, sys\n"
        "from agents.__main__ import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(sys.argv[1:], prog_name='sdp')\n"
        f"print('imported:', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[0].startswith("Usage: sdp")
    assert result.stdout.splitlines()[-1] == "imported: []"
