"""The release protocol, searched exhaustively, and each of its rules broken on purpose."""

from pathlib import Path

import pytest
from scripts import importing_from

from agents.protocol_steps import Step

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def load():
    """Import a module of the model, which finds its siblings as a script does."""
    with importing_from(FOLDER) as import_module:
        yield import_module


def test_no_promise_is_broken_by_two_faults_in_any_order(load):
    model = load("release_model").ReleaseModel(load("release_state").Setup(2, 1))
    report = load("checker").check(model, 2)
    assert report.violation is None, str(report)
    assert report.is_exhaustive
    assert all(report.landmarks[name] for name in model.landmarks), "a situation was not met"


# A rule, the promise that breaks without it, and windows, cap and faults that suffice for it.
BROKEN = (
    ("settles", "completion", 1, 1, 2),
    ("restores_whole_only", "completion", 1, 1, 1),
    ("republishes", "completion", 1, 1, 1),
    ("republishes_bytes", "I2", 1, 1, 1),
    ("stops_at_cap", "cap", 2, 1, 0),
    ("draws_each_time", "I4", 2, 2, 0),
    ("one_transaction", "completion", 1, 1, 1),
    ("writes_to_private_only", "I1", 1, 1, 0),
    ("publishes_after_commit", "I1", 1, 1, 0),
    ("doubts_success", "I1", 1, 1, 1),
    ("doubts_failure", "I6", 1, 1, 1),
    ("keeps_charges", "I8", 2, 2, 0),
    ("skips_sealed_windows", "I5", 2, 2, 0),
)


@pytest.mark.parametrize(("rule", "promise", "windows", "cap", "faults"), BROKEN)
def test_without_a_rule_a_promise_is_broken(load, rule, promise, windows, cap, faults):
    state, checker = load("release_state"), load("checker")
    setup = state.Setup(windows, cap, rules=state.Rules(**{rule: False}))
    report = checker.check(load("release_model").ReleaseModel(setup), faults, [promise])
    assert report.violation is not None
    assert report.violation.promise == promise


def test_the_models_steps_are_those_of_the_code(load):
    steps = {*load("release_model").STEPS, *load("merge_model").STEPS}
    assert set(Step) <= {step for step in steps if step in set(Step)}
