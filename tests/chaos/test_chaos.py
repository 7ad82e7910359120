"""Twenty crashes at the named steps of the release protocol, on a real Kafka and under load.

`make chaos` injects more, and of more kinds. The judges are shown to find what they look for.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from deployment import small_plan
from scripts import importing_from

from agents.protocol_steps import Step
from schemas import (
    ModelState,
    Release,
    Update,
    decode_release,
    encode_ledger_record,
    encode_update,
)
from stream.aggregation.intake import Record
from stream.ledger_chain import genesis

FOLDER = Path(__file__).parent
# Those that a head passes at its opening of the topics' very first state.
OPENING = (Step.GENESIS, Step.BEGIN_TRANSACTION, Step.COMMIT, Step.COMMITTED)


@pytest.fixture(scope="module")
def load():
    """Import a module of the suite, which finds its siblings as a script does."""
    with importing_from(FOLDER) as import_module:
        yield import_module


@pytest.fixture(scope="module")
def report(load):
    return load("report")


@pytest.fixture(scope="module")
def replay(load):
    return load("replay")


@pytest.mark.integration
@pytest.mark.slow
def test_a_crash_at_each_step_costs_nothing_but_time(load, broker):
    stage_module, faults = load("stage"), load("faults")
    planted = stage_module.planted
    stage = stage_module.Stage(broker, seed=1, cluster_count=8, window_length_ms=1000)
    try:
        # Before there is any ledger or model, and then in the middle of releases.
        victims = [stage.start_head(*planted(step, 1, "kill")) for step in OPENING]
        victims.append(stage.start_global(*planted(Step.GENESIS, 1, "kill")))
        stage.wait_for("all of them die", lambda: all(_was_killed(v) for v in victims))
        stage.start()
        stage.wait_for_release()

        heads = [stage.start_head(*planted(step, 2, "kill")) for step in faults.HEAD_STEPS]
        for step in (Step.MERGE, Step.PRODUCE, Step.COMMIT, Step.COMMITTED):
            faults.crash_global(step, stage)
        stage.wait_for("all of them die", lambda: all(_was_killed(v) for v in heads))
        assert len(victims) + len(heads) + 4 >= 20
        stage.wait_for_release()
        problems, lost = stage.finish()
        assert problems == []
        assert lost == 0
    finally:
        stage.close()


@pytest.mark.integration
@pytest.mark.slow
def test_brokers_that_are_killed_in_a_transaction_or_are_too_few_cost_nothing_but_time(
    load, native_kafka
):
    """Three of them: the leader goes, then two of them, so min.insync.replicas is not met."""
    faults = load("cluster_faults").all_cluster_faults()
    kafka = load("kafka_cluster")
    with kafka.KafkaCluster(say=print) as brokers:
        stage = load("stage").Stage(
            brokers, 1, replication_factor=kafka.REPLICAS, cluster_count=2, window_length_ms=1000
        )
        try:
            stage.start(heads=1)
            for kind in ("leader killed at commit", "two of three brokers killed"):
                faults[kind](stage)
                assert stage.recovery_s() is not None, kind
            problems, lost = stage.finish()
            assert problems == []
            assert lost == 0
        finally:
            stage.close()


def _was_killed(worker):
    code = worker.process.poll()
    assert code in (None, -9), worker.log.read_text()[-3000:]
    return code is not None


def test_every_step_is_struck_by_some_fault(load):
    faults = load("faults")
    assert {*faults.HEAD_STEPS, *faults.GLOBAL_STEPS, *OPENING} == set(Step)


def test_a_planted_fault_strikes_once_and_at_its_passing(load):
    struck = []
    planted = load("worker").Planted(Step.COMMIT, 2, lambda: struck.append(True))
    for step in (Step.COMMIT, Step.CHARGE, Step.COMMIT, Step.COMMIT):
        planted(step)
    assert struck == [True]


PLAN = small_plan(dimension=2, grid_l2_bound=100, cluster_count=1, expected_clients=2, start_ms=0)


def _record(offset, window, client, vector):
    update = Update(PLAN.plan_id, client, 0, np.array(vector, np.int8))
    return Record(offset, PLAN.window_end_ms(window) - 1, encode_update(update))


RECORDS = (
    _record(0, 0, "a", [1, 0]),
    _record(1, 0, "a", [1, 0]),
    _record(2, 1, "a", [1, 0]),
    _record(3, 1, "b", [0, 1]),
)


def _calm(replay, records=RECORDS):
    first = encode_ledger_record(genesis(PLAN, 0, 0, 0, 0))
    return replay.releases_without_a_crash(PLAN, 0, first, records, 2)


def test_the_calm_run_has_each_update_once_in_its_window(replay):
    vectors = [decode_release(data).vector.tolist() for data in _calm(replay).values()]
    assert vectors == [[1, 0, 1], [1, 1, 2], [0, 0, 0]]


def test_the_calm_run_differs_where_an_update_is_missing(replay):
    whole, lacking = _calm(replay), _calm(replay, RECORDS[:3])
    assert [window for window in whole if whole[window] != lacking[window]] == [1]


def _states(weights, merged):
    return [
        ModelState(
            plan_id=PLAN.plan_id,
            model_version=version,
            window=window,
            next_offset=0,
            merged_through=(window,),
            optimizer="sgd",
            step=version,
            vectors=np.array([values]),
        )
        for version, (values, window) in enumerate(zip(weights, merged, strict=True))
    ]


def _releases(replay) -> dict[tuple[int, int], Release]:
    return replay.decoded({(0, window): data for window, data in _calm(replay).items()})


def test_a_model_is_the_one_before_it_and_a_step_over_whole_releases(replay):
    step = PLAN.optimizer.learning_rate * PLAN.grid_step / PLAN.expected_clients
    good = _states([[0, 0], [-step, 0], [-2 * step, -step]], [-1, 0, 1])
    assert replay.model_faults(PLAN, good, _releases(replay)) == []
    merged_twice = _states([[0, 0], [-2 * step, 0], [-3 * step, -step]], [-1, 0, 1])
    (fault,) = replay.model_faults(PLAN, merged_twice, _releases(replay))
    assert "version 1 is not version 0" in fault
    gap = [good[0], dataclasses.replace(good[1], model_version=2)]
    assert "model versions are [0, 2]" in replay.model_faults(PLAN, gap, _releases(replay))


def test_the_report_counts_faults_and_the_last_line_says_so(report):
    entries = [
        report.Injected("head killed", 2.0),
        report.Injected("head killed", 4.0, ("a cell was released twice",), 1),
        report.Injected("broker killed", None, ("no release",)),
        report.Injected("end of a round", None, (), 2, is_fault=False),
    ]
    figures = report.as_json(entries)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["faults"] == 3
    assert figures["by_kind"] == {"broker killed": 1, "head killed": 2}
    assert (figures["violations"], figures["updates_lost"]) == (2, 3)
    assert figures["recovery_s"] == {"p50": 3.0, "max": 4.0}
    assert report.last_line(entries) == "3 faults, 2 violations, 3 updates lost"
    assert "head killed" in report.table(entries)


def test_each_kind_of_fault_has_its_turn(load):
    run, kinds = load("run"), [*load("faults").all_faults()]
    kinds += load("cluster_faults").all_cluster_faults()

    def chosen(count, **only):
        return [kind for one in run.rounds(count, 5, **only) for kind, _ in one.faults]

    twice = chosen(2 * len(kinds))
    assert sorted(twice) == sorted(2 * kinds)
    assert chosen(7) == twice[:7]
    assert set(chosen(5, only="frozen at commit")) == {
        "head frozen at commit",
        "head frozen at committed",
        "global agent frozen at commit",
        "global agent frozen at committed",
    }
