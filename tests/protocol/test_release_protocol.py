"""The protocol, searched exhaustively within a budget of faults, and each of its rules broken.

`make protocol` searches further, by the same models.
"""

import random
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from scripts import importing_from

from agents.protocol_steps import Step

FOLDER = Path(__file__).parent

with importing_from(FOLDER) as _load:
    checker, broken_rules, step_order = map(_load, ("checker", "broken_rules", "step_order"))
    release_model, release_state = map(_load, ("release_model", "release_state"))
    merge_model, merge_state = map(_load, ("merge_model", "merge_state"))

Setup = release_state.Setup
SEARCHES = {
    "heads, until the budget ends": (release_model.ReleaseModel(Setup(3, 2)), 2),
    "heads, three faults": (release_model.ReleaseModel(Setup(1, 1, may_roll_back=False)), 3),
    "heads, where clients pay": (
        release_model.ReleaseModel(
            Setup(
                2,
                1,
                clients_pay=True,
                losable=(release_state.LEDGER, release_state.OUTBOX, release_state.PARTICIPATION),
            )
        ),
        1,
    ),
    "global agents": (merge_model.MergeModel(merge_state.MergeSetup(3)), 2),
}
# What must have happened, with how it went.
HAPPENED = {
    (Step.COMMIT, "the request is lost"),
    (Step.COMMITTED, "the answer is lost"),
    (Step.FENCE, "markers of it are lost"),
    (Step.SETTLE, "markers of it are lost"),
    (Step.COMMIT, "markers of it are lost"),
    (Step.SETTLE, "fenced"),
    (Step.SEND_OFFSETS, "fenced"),
    (Step.SEND_OFFSETS, "lost the partition"),
    (Step.COMMIT, "fenced"),
    (Step.RESTORE, "writes again"),
    (Step.PUBLISH, "is delayed"),
    (Step.PUBLISHED, "the answer is lost"),
    ("a record arrives", "of a fenced writer"),
    ("a release arrives late", ""),
    ("nobody's fence", "in a transaction"),
    ("nobody's fence", "between transactions"),
    ("the group gives the partition to a process", ""),
    ("a process learns that it has lost the partition", ""),
    (release_model.OLDER_COPY, ""),
    (release_model.OLDER_COPY, "and the outbox has expired"),
}


@pytest.fixture(scope="module")
def reports():
    """Search everything once; the figures show with ``pytest -rP``."""
    found = {name: checker.check(model, faults) for name, (model, faults) in SEARCHES.items()}
    print("\n".join(f"{name}: {report}" for name, report in found.items()))  # noqa: T201
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_no_promise_is_broken_whatever_happens_in_whatever_order(reports, name):
    assert reports[name].violation is None, str(reports[name])
    assert reports[name].is_exhaustive


@pytest.mark.slow
def test_the_searches_met_what_they_are_for(reports):
    for model in (release_model.ReleaseModel, merge_model.MergeModel):
        found = [reports[name] for name, (each, _) in SEARCHES.items() if isinstance(each, model)]
        met = sum((report.landmarks for report in found), Counter())
        wanted = next(each.landmarks for each, _ in SEARCHES.values() if isinstance(each, model))
        assert {name for name in wanted if not met[name]} == set()


@pytest.mark.slow
def test_every_step_was_taken_and_every_fault_happened(reports):
    taken = {way for report in reports.values() for way in report.taken}
    assert {step for step, _ in taken} >= set(Step)
    assert HAPPENED - taken == set()


@pytest.mark.slow
def test_a_crash_may_come_at_each_step_that_others_can_see(reports):
    """A crash right before a step that nobody sees is the crash right after it."""
    taken = {way for report in reports.values() for way in report.taken}
    crashed = {detail for step, detail in taken if step == "a process crashes"}
    unseen = {*release_model.LOCAL, *merge_model.LOCAL}
    assert crashed >= {step.value for step in Step} - {step.value for step in unseen}


def test_the_models_steps_are_those_of_the_code():
    steps = {*release_model.STEPS, *merge_model.STEPS}
    assert steps - {release_model.READ_REST} == set(Step)


@pytest.mark.parametrize("broken", broken_rules.BROKEN, ids=lambda b: f"{b.rules}-{b.promise}")
def test_without_a_rule_a_promise_is_broken(broken):
    report = checker.check(broken.model, broken.faults, [broken.promise])
    assert report.violation is not None, str(report)
    assert report.violation.promise == broken.promise
    assert report.violation.faults == broken.faults


@pytest.mark.parametrize(("rules", "setup"), broken_rules.HARMLESS)
def test_some_rules_are_seen_to_by_others(rules, setup):
    report = checker.check(broken_rules.broken_model(rules, setup), 2)
    assert report.violation is None, str(report)
    assert report.is_exhaustive


def test_every_rule_is_broken_somewhere():
    broken = [*broken_rules.BROKEN, *broken_rules.BROKEN_DEEP]
    tried = broken_rules.rule_names(
        [*(each.rules for each in broken), *(rules for rules, _ in broken_rules.HARMLESS)]
    )
    rules = {
        field.name for field in (*fields(release_state.Rules), *fields(merge_state.MergeRules))
    }
    assert tried == rules
    promises = {each.promise for each in broken}
    known = {*SEARCHES["heads, until the budget ends"][0].invariants, checker.COMPLETION}
    assert promises >= known


@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_dropped_or_renamed_changes_nothing_that_can_follow(name):
    model, rng = SEARCHES[name][0], random.Random(name)
    for _ in range(12):
        state, faults = model.initial(), 0
        for _ in range(70):
            assert _followers(model, state) == _followers(model, model.canonical(state))
            ways = [way for way in model.steps(state) if faults < 4 or not way[0].is_fault]
            if not ways:
                break
            label, state = rng.choice(ways)
            faults += label.is_fault


def _followers(model, state):
    here = model.canonical(state)
    return {here, *(model.canonical(after) for _, after in model.steps(state))}


@pytest.mark.integration
@pytest.mark.parametrize("role", ["head", "global"])
def test_the_code_passes_its_steps_in_an_order_of_the_model(deploy, tmp_path, role):
    deployment = deploy(cluster_count=1)
    recorded = {each: tmp_path / each for each in ("head", "global")}
    recorder = str(FOLDER / "step_recorder.py")
    watched = {
        each: deployment.start(each, [recorder, each, str(recorded[each])]) for each in recorded
    }
    last = {"head": Step.PUBLISHED, "global": Step.MERGE}[role]

    def has_passed(count):
        def probe():
            return recorded[role].exists() and _steps(recorded[role]).count(last) >= count

        return probe

    deployment.eventually("two windows pass", has_passed(2))
    watched[role].kill()
    before = len(_steps(recorded[role]))
    deployment.start(role, [recorder, role, str(recorded[role])])
    deployment.eventually("two more windows pass", has_passed(5))
    steps = _steps(recorded[role])
    models = {"head": "heads, until the budget ends", "global": "global agents"}
    order = step_order.order_of(SEARCHES[models[role]][0], 1)
    for life in (steps[:before], steps[before:]):
        assert life[0] == Step.FENCE
        assert step_order.strangers(order, life) == set()


def _steps(path):
    return path.read_text(encoding="utf-8").split()


def test_steps_in_another_order_are_noticed():
    order = step_order.order_of(SEARCHES["heads, until the budget ends"][0], 1)
    right = ["fence", "settle", "read_state", "restore", "genesis", "begin_transaction", "produce"]
    assert step_order.strangers(order, right) == set()
    assert step_order.strangers(order, ["charge", "publish", "commit"]) == {
        ("charge", "publish"),
        ("publish", "commit"),
    }
