import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from agents.cluster_row import LedgerState
from agents.independent_epsilon import independent_epsilon
from agents.kafka_edge import connection
from agents.ledger import show, verify
from agents.ledger_audit import LedgerAudit
from agents.ledger_checks import is_least_charge
from agents.ledger_report import Verification
from agents.topics import create_topics
from schemas import (
    LedgerRecord,
    TopicNames,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_release,
    record_hash,
)
from stream.cluster_head import ClusterHead
from stream.errors import LedgerError
from stream.ledger_chain import genesis
from stream.privacy.accounting import epsilon_from_units
from stream.privacy.calibration import PrivacyFilter
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.testing import insecure_entropy

WINDOWS = 6


def make_plan(**changes: object) -> PrivacyPlan:
    plan = PrivacyPlan(
        name="audited",
        dimension=5,
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
        epsilon=3.0,
        delta=1e-3,
        horizon_windows=WINDOWS,
        optimizer=OptimizerSpec("sgd", learning_rate=0.1),
        normalizer="expected_clients",
    )
    return dataclasses.replace(plan, **changes)


@dataclass
class Stream:
    """What the heads of a plan have written: the ledgers and the topic of releases."""

    plan: PrivacyPlan
    ledgers: list[list[bytes]] = field(default_factory=list)
    releases: list[bytes] = field(default_factory=list)

    def change_record(self, number: int, **changes: object) -> None:
        """Forge a record of cluster 0, and chain it and what follows anew."""
        ledger = self.ledgers[0]
        for index in range(number, len(ledger)):
            record = decode_ledger_record(ledger[index])
            if index == number:
                record = dataclasses.replace(record, **changes)
            if index:
                record = dataclasses.replace(record, previous_hash=record_hash(ledger[index - 1]))
            ledger[index] = encode_ledger_record(record)

    def record(self, number: int) -> LedgerRecord:
        return decode_ledger_record(self.ledgers[0][number])

    def change_release(self, number: int, **changes: object) -> bytes:
        return encode_release(dataclasses.replace(decode_release(self.releases[number]), **changes))


def write_stream(plan: PrivacyPlan, windows: int = WINDOWS, clusters: int = 2) -> Stream:
    """Let real heads release ``windows`` empty windows of each cluster, in window order."""
    stream = Stream(plan)
    noise = RoundedGaussian(insecure_entropy(1))
    heads = []
    for cluster in range(clusters):
        first = encode_ledger_record(genesis(plan, cluster, 0, 0, 0))
        stream.ledgers.append([first])
        heads.append(
            ClusterHead(plan, cluster, noise, [first], is_complete=True, max_open_windows=2)
        )
    for window in range(windows):
        for head, ledger in zip(heads, stream.ledgers, strict=True):
            head.expect(window, 0)
            cell = head.seal(plan.window_end_ms(window) + 100)
            head.commit(cell)
            if cell.ledger_record is not None:
                ledger.append(cell.ledger_record)
            if cell.release is not None:
                stream.releases.append(cell.release)
    return stream


def audit(stream: Stream) -> Verification:
    found = LedgerAudit(stream.plan)
    for cluster, ledger in enumerate(stream.ledgers):
        found.begin_ledger(cluster, 0)
        for data in ledger:
            found.take_record(cluster, data)
    for data in stream.releases:
        found.take_release(data)
    return found.verification()


@pytest.fixture
def stream() -> Stream:
    return write_stream(make_plan())


def test_what_real_heads_write_verifies(stream: Stream) -> None:
    found = audit(stream)
    assert found.problems == []
    assert found.verified
    assert found.cells_released == 2 * WINDOWS
    assert found.cells_released_twice == found.repeats == found.unpublished == 0
    assert [row.spending.releases for row in found.clusters] == [WINDOWS, WINDOWS]
    assert {row.state for row in found.clusters} == {LedgerState.OPEN}
    assert found.clusters[1].sequence == WINDOWS
    assert found.clusters[1].window == WINDOWS - 1


def test_a_budget_that_is_spent_verifies_and_is_exhausted() -> None:
    found = audit(write_stream(make_plan(), windows=WINDOWS + 3))
    assert found.verified
    assert {row.state for row in found.clusters} == {LedgerState.EXHAUSTED}
    assert found.cells_released == 2 * WINDOWS


def test_both_paths_find_the_epsilon_that_the_plan_promises(stream: Stream) -> None:
    found = audit(stream)
    # 6 of 6 windows are spent; the cap is not shared between clusters (disjoint clients).
    assert found.epsilon == pytest.approx(3.0, abs=1e-5)
    assert found.epsilon <= 3.0
    assert found.epsilon_independent == pytest.approx(found.epsilon, abs=2e-6)


def test_epsilon_is_that_of_the_cluster_that_spent_most() -> None:
    plan = make_plan()
    both, short = write_stream(plan), write_stream(plan, windows=2)
    both.ledgers[0] = short.ledgers[0]
    both.releases = [r for r in both.releases if decode_release(r).cluster == 1]
    both.releases += [r for r in short.releases if decode_release(r).cluster == 0]
    found = audit(both)
    assert found.verified
    assert [row.epsilon for row in found.clusters] == [
        epsilon_from_units(2 * plan.charge_units, plan.delta),
        epsilon_from_units(WINDOWS * plan.charge_units, plan.delta),
    ]
    assert found.epsilon == found.clusters[1].epsilon


def test_nothing_begun_costs_nothing() -> None:
    found = audit(Stream(make_plan()))
    assert found.verified
    assert found.epsilon == found.epsilon_independent == 0.0
    assert {row.state for row in found.clusters} == {LedgerState.NOT_BEGUN}


def test_a_ledger_that_only_began_costs_nothing() -> None:
    found = audit(write_stream(make_plan(), windows=0))
    assert found.verified
    assert found.epsilon == found.epsilon_independent == 0.0


def test_an_empty_ledger_that_has_left_traces_is_a_problem() -> None:
    found = LedgerAudit(make_plan())
    assert found.is_empty(0)
    found.take_traces(0, ["the outbox has been written to"])
    found.take_traces(1, [])
    verification = found.verification()
    assert verification.problems == [
        "ledger of cluster 0: it is empty, though it must have existed: "
        "the outbox has been written to"
    ]
    assert [row.state for row in verification.clusters] == [
        LedgerState.REFUSED,
        LedgerState.NOT_BEGUN,
    ]


def flip_byte(stream: Stream) -> None:
    data = bytearray(stream.ledgers[0][3])
    data[data.index(stream.record(3).release_digest)] ^= 1
    stream.ledgers[0][3] = bytes(data)


def swap_records(stream: Stream) -> None:
    ledger = stream.ledgers[0]
    ledger[2], ledger[3] = ledger[3], ledger[2]


def lower_charge(stream: Stream) -> None:
    record = stream.record(3)
    stream.change_record(
        3, charge_units=record.charge_units - 1, spent_units=record.spent_units - 1
    )


def raise_sigma(stream: Stream) -> None:
    """More noise in the record than the charge is for: the charge is too high, by one unit."""
    record = stream.record(3)
    stream.change_record(3, noise_variance=record.noise_variance * Fraction(1001, 1000))


def publish_other_content(stream: Stream) -> None:
    vector = decode_release(stream.releases[4]).vector + np.int32(1)
    stream.releases.append(stream.change_release(4, vector=vector))


def replace_content(stream: Stream) -> None:
    vector = decode_release(stream.releases[4]).vector + np.int32(1)
    stream.releases[4] = stream.change_release(4, vector=vector)


PLANTED: dict[str, tuple[Callable[[Stream], object], str]] = {
    "changed byte": (flip_byte, "record 4 does not name the hash of the one before"),
    "missing record": (lambda s: s.ledgers[0].pop(3), "record 4 follows record 2"),
    "swapped records": (swap_records, "record 2 follows record 3"),
    "duplicate record": (
        lambda s: s.ledgers[0].insert(3, s.ledgers[0][3]),
        "record 3 follows record 3",
    ),
    "duplicate sequence": (lambda s: s.change_record(3, sequence=2), "record 2 follows record 2"),
    "charge below the noise": (lower_charge, "record 3 charges"),
    "charge of another sigma": (raise_sigma, "record 3 charges"),
    "other sensitivity": (
        lambda s: s.change_record(3, l2_sensitivity_squared=1),
        "record 3 has another sensitivity",
    ),
    "spent too little": (
        lambda s: s.change_record(3, spent_units=s.record(3).spent_units - 1),
        "record 3 does not add up",
    ),
    "spent forgotten at the end": (
        lambda s: s.change_record(6, spent_units=s.record(5).spent_units),
        "the charges sum to",
    ),
    "raised cap": (
        lambda s: s.change_record(3, cap_units=s.plan.cap_units + 1),
        "record 3 has another cap",
    ),
    "start is gone": (lambda s: s.ledgers[0].pop(0), "it begins with record 1"),
    "unreadable record": (
        lambda s: s.ledgers[0].__setitem__(3, b"garbage"),
        "the record after 2 cannot be read",
    ),
    "tombstone": (lambda s: s.ledgers[0].append(b""), "the record after 6 cannot be read"),
    "record of another plan": (
        lambda s: s.ledgers[0].append(write_stream(make_plan(name="other")).ledgers[0][1]),
        "record 1 belongs to plan",
    ),
    "record of another cluster": (
        lambda s: s.ledgers[0].append(s.ledgers[1][1]),
        "record 1 belongs to cluster 1",
    ),
    "window twice": (
        lambda s: s.change_record(3, window=1),
        "record 3 pays for window 1 once more",
    ),
    "window skipped": (lambda s: s.change_record(6, window=6), "record 6 seals window 6 after 4"),
    "ledger is gone": (lambda s: s.ledgers[0].clear(), "no ledger record pays for it"),
    "record is gone": (
        lambda s: s.ledgers[0].pop(),
        "release of cluster 0, window 5: no ledger record pays for it",
    ),
    "release of a cluster that is none": (
        lambda s: s.releases.append(s.change_release(0, cluster=7)),
        "release of cluster 7, window 0: no ledger record pays for it",
    ),
    "release never published": (
        lambda s: s.releases.pop(4),
        "release of cluster 0, window 2: ledger record 3 pays for it, but it was never published",
    ),
    "other content": (
        replace_content,
        "release of cluster 0, window 2: differs from ledger record 3 in its digest",
    ),
    "other charge in the release": (
        lambda s: s.releases.__setitem__(4, s.change_release(4, charge_units=1)),
        "differs from ledger record 3 in its digest, charge",
    ),
    "two contents": (
        publish_other_content,
        "released_twice: window 2 of cluster 0 was published with two different contents",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str, stream: Stream) -> None:
    plant, sentence = PLANTED[name]
    plant(stream)
    found = audit(stream)
    assert not found.verified
    assert any(sentence in problem for problem in found.problems), found.problems
    assert all(problem.count("\n") == 0 for problem in found.problems)


def test_only_what_is_wrong_is_reported(stream: Stream) -> None:
    lower_charge(stream)
    problems = audit(stream).problems
    assert [problem.split(": ", 1)[0] for problem in problems] == [
        "ledger of cluster 0",  # the charge
        "ledger of cluster 0",  # the next record goes on from the true total
        "release of cluster 0, window 2",  # its header says the true charge
        "ledger of cluster 0",  # the sum of all charges
    ]


def test_two_contents_of_a_cell_are_counted_once(stream: Stream) -> None:
    publish_other_content(stream)
    publish_other_content(stream)
    found = audit(stream)
    assert found.cells_released_twice == 1
    assert found.cells_released == 2 * WINDOWS
    assert len(found.problems) == 1


def test_identical_repeats_are_counted_and_harmless(stream: Stream) -> None:
    stream.releases += stream.releases[3:6]
    found = audit(stream)
    assert found.verified
    assert found.repeats == 3
    assert found.cells_released == 2 * WINDOWS


def test_the_newest_release_of_a_cluster_may_still_be_on_its_way(stream: Stream) -> None:
    del stream.releases[-2:]
    found = audit(stream)
    assert found.verified
    assert found.unpublished == 2
    del stream.releases[-1]
    assert not audit(stream).verified


def test_records_that_came_during_the_audit_need_no_release(stream: Stream) -> None:
    found = LedgerAudit(stream.plan)
    for number, data in enumerate(stream.ledgers[0]):
        found.take_record(0, data, is_settled=number < 4)
    for data in stream.releases[:4:2]:  # windows 0 and 1 of cluster 0
        found.take_release(data)
    verification = found.verification()
    assert verification.verified
    assert verification.unpublished == 4  # the newest settled one and the three after it


def test_strange_records_among_the_releases_are_counted_and_no_failure(stream: Stream) -> None:
    stream.releases += [b"", b"garbage", write_stream(make_plan(name="other")).releases[0]]
    found = audit(stream)
    assert found.verified
    assert found.malformed_releases == 2
    assert found.foreign_releases == 1


def test_a_truncated_start_is_a_problem(stream: Stream) -> None:
    found = LedgerAudit(stream.plan)
    found.begin_ledger(0, 3)
    for data in stream.ledgers[0][2:]:
        found.take_record(0, data)
    verification = found.verification()
    assert any("truncated: the records below offset 3" in line for line in verification.problems)
    # What is left still says how much was spent before.
    assert verification.clusters[0].spending.spent_units == stream.record(6).spent_units


def test_a_long_list_of_problems_is_cut_short(stream: Stream) -> None:
    stream.releases += [stream.change_release(0, window=w) for w in range(100, 350)]
    problems = audit(stream).problems
    assert len(problems) == 101
    assert problems[-1] == "and 150 more"


def test_a_charge_is_least_and_sufficient() -> None:
    plan = make_plan()
    squared, variance, units = plan.l2_sensitivity_squared, plan.noise_variance, plan.charge_units
    assert is_least_charge(units, squared, variance)
    assert not is_least_charge(units - 1, squared, variance)
    assert not is_least_charge(units + 1, squared, variance)
    # An exact cost is not rounded up: 2 / (2 * 1) rho.
    assert is_least_charge(1 << 60, 2, Fraction(1))


def test_unequal_sigmas_compose_as_a_privacy_loss_distribution_does() -> None:
    from dp_accounting import GaussianDpEvent, NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(4.0), 3)
    accountant.compose(GaussianDpEvent(6.0), 5)
    events = Counter({(4, Fraction(64)): 3, (1, Fraction(36)): 5})
    assert independent_epsilon([events, Counter()], 1e-5, PrivacyFilter.GDP) == pytest.approx(
        accountant.get_epsilon(1e-5), abs=1e-6
    )


def test_two_accountants_that_disagree_are_a_problem(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.ledger_audit.independent_epsilon", lambda *_: 2.9)
    (problem,) = audit(stream).problems
    assert "two accountants disagree" in problem


def test_findings_are_json_and_text(stream: Stream) -> None:
    publish_other_content(stream)
    found = audit(stream)
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert plain["verified"] is False
    assert plain["cells_released_twice"] == 1
    assert plain["clusters"][0]["state"] == "open"
    assert plain["clusters"][0]["spent_rho"] == pytest.approx(plain["clusters"][0]["cap_rho"])
    text = found.as_text()
    assert "NOT VERIFIED" in text
    assert "- released_twice" in text
    assert "epsilon 2.99" in text or "epsilon 3.00" in text


def publish(servers: str, stream: Stream) -> None:
    """Write ledgers in transactions, a record each, as heads do; then the releases."""
    names = TopicNames(stream.plan.topic_prefix)
    for cluster, ledger in enumerate(stream.ledgers):
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": f"test-{stream.plan.plan_id_hex}-{cluster}",
            }
        )
        producer.init_transactions(30)
        for data in ledger:
            producer.begin_transaction()
            producer.produce(names.ledger, data, str(cluster), partition=cluster)
            producer.commit_transaction(30)
        # What an aborted transaction leaves in the log is not part of the ledger.
        producer.begin_transaction()
        producer.produce(names.ledger, b"aborted", str(cluster), partition=cluster)
        producer.flush(30)
        producer.abort_transaction(30)
    plain = Producer({"bootstrap.servers": servers})
    for data in stream.releases:
        plain.produce(names.releases, data, partition=0)
    assert plain.flush(30) == 0


@pytest.fixture
def live(bootstrap_servers: str, topic_prefix: str) -> tuple[dict[str, str], PrivacyPlan]:
    """A reachable broker with the topics of a plan."""
    plan = make_plan(topic_prefix=topic_prefix, start_ms=time.time_ns() // 1_000_000)
    config = connection(bootstrap_servers, {})
    create_topics(config, plan)
    return config, plan


@pytest.mark.integration
@pytest.mark.parametrize("windows", [4, WINDOWS + 2])
def test_ledgers_in_kafka_verify(live: tuple[dict[str, str], PrivacyPlan], windows: int) -> None:
    config, plan = live
    publish(config["bootstrap.servers"], write_stream(plan, windows))
    found = verify(config, plan)
    assert found.problems == []
    assert found.cells_released == 2 * min(windows, WINDOWS)
    shown = show(config, plan)
    assert shown.clusters == found.clusters
    assert shown.epsilon == found.epsilon
    assert plan.plan_id_hex in shown.as_text()
    assert json.loads(json.dumps(shown.as_json()))["clusters"][1]["window"] == min(
        windows - 1, WINDOWS
    )


@pytest.mark.integration
def test_violations_in_kafka_are_found(live: tuple[dict[str, str], PrivacyPlan]) -> None:
    config, plan = live
    stream = write_stream(plan, windows=4)
    stream.ledgers[1].pop(2)
    replace_content(stream)
    publish(config["bootstrap.servers"], stream)
    problems = verify(config, plan).problems
    assert any("ledger of cluster 1: record 3 follows record 1" in line for line in problems)
    assert any("window 2: differs from ledger record 3" in line for line in problems)
    # The last two records of cluster 1 fit together: showing them looks no further back.
    assert show(config, plan).clusters[1].state is LedgerState.OPEN


@pytest.mark.integration
def test_a_plan_that_nobody_ran_has_not_begun(live: tuple[dict[str, str], PrivacyPlan]) -> None:
    config, plan = live
    found = verify(config, plan)
    assert found.verified
    assert {row.state for row in found.clusters} == {LedgerState.NOT_BEGUN}
    assert {row.state for row in show(config, plan).clusters} == {LedgerState.NOT_BEGUN}


@pytest.mark.integration
def test_a_ledger_that_vanished_is_refused(live: tuple[dict[str, str], PrivacyPlan]) -> None:
    config, plan = live
    producer = Producer(config)
    producer.produce(TopicNames(plan.topic_prefix).outbox, b"left", partition=1)
    assert producer.flush(30) == 0
    assert any("cluster 1: it is empty" in line for line in verify(config, plan).problems)
    rows = show(config, plan).clusters
    assert rows[0].state is LedgerState.NOT_BEGUN
    assert rows[1].state is LedgerState.REFUSED
    assert "outbox has been written to" in rows[1].reason


@pytest.mark.integration
def test_a_ledger_that_the_broker_cut_off_is_refused(
    live: tuple[dict[str, str], PrivacyPlan],
) -> None:
    config, plan = live
    publish(config["bootstrap.servers"], write_stream(plan, windows=4))
    where = TopicPartition(TopicNames(plan.topic_prefix).ledger, 1, 4)
    admin = AdminClient(config)  # its futures end only while it lives
    admin.delete_records([where])[where].result(30)
    assert any(
        "ledger of cluster 1: truncated: the records below offset 4 are gone" in line
        for line in verify(config, plan).problems
    )
    refused = show(config, plan).clusters[1]
    assert refused.state is LedgerState.REFUSED
    assert "truncated" in refused.reason


@pytest.mark.integration
def test_missing_topics_are_named(bootstrap_servers: str, topic_prefix: str) -> None:
    config = connection(bootstrap_servers, {})
    with pytest.raises(LedgerError, match=f"there is no topic {topic_prefix}.ledger"):
        verify(config, make_plan(topic_prefix=topic_prefix))


@pytest.mark.integration
def test_topics_of_another_plan_are_refused(live: tuple[dict[str, str], PrivacyPlan]) -> None:
    config, plan = live
    with pytest.raises(LedgerError, match="has 2 partitions, the plan needs 3"):
        show(config, dataclasses.replace(plan, cluster_count=3))


@pytest.mark.integration
def test_the_command_line_verifies(
    live: tuple[dict[str, str], PrivacyPlan], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from agents.cli import main

    config, plan = live
    servers = config["bootstrap.servers"]
    file = tmp_path_factory.mktemp("plan") / "plan.toml"
    file.write_text(plan.to_toml(), encoding="utf-8")
    options = ["--plan", str(file), "--bootstrap-servers", servers, "--json"]
    stream = write_stream(plan, windows=3)
    publish(servers, stream)
    good = CliRunner().invoke(main, ["ledger", "verify", *options])
    assert good.exit_code == 0, good.output
    assert json.loads(good.output)["verified"] is True
    publish_other_content(stream)
    publish_again = Producer(config)
    publish_again.produce(TopicNames(plan.topic_prefix).releases, stream.releases[-1], partition=0)
    assert publish_again.flush(30) == 0
    bad = CliRunner().invoke(main, ["ledger", "verify", *options])
    assert bad.exit_code == 3
    assert json.loads(bad.output)["cells_released_twice"] == 1
    shown = CliRunner().invoke(main, ["ledger", "show", *options])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["clusters"][0]["releases"] == 3
