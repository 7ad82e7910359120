"""Ledgers of plans with clients' budgets and with limits, read from a real Kafka."""

import dataclasses
import json
import time
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from confluent_kafka import Producer

from agents.kafka_edge import connection
from agents.ledger import show, verify
from agents.ledger_reader import LedgerReader
from agents.topics import create_topics
from schemas import TopicNames, Update, encode_ledger_record, encode_update
from stream.aggregation.intake import Record
from stream.budget.client_budgets import ClientBudgets
from stream.cluster_head import ClusterHead
from stream.errors import LedgerError
from stream.ledger_chain import genesis
from stream.privacy.noise import RoundedGaussian
from stream.privacy.plan import PrivacyPlan
from stream.privacy.plan_checks import OptimizerSpec
from stream.testing import insecure_entropy

pytestmark = pytest.mark.integration


def make_plan(prefix: str, **changes: object) -> PrivacyPlan:
    plan = PrivacyPlan(
        name="read",
        dimension=5,
        cluster_count=1,
        assignment="hash",
        assignment_key="public",
        expected_clients=10,
        start_ms=time.time_ns() // 1_000_000,
        window_length_ms=1_800_000,
        grace_ms=100,
        release_delay_ms=300,
        l2_clip_norm=1.0,
        grid_l2_bound=100,
        count_weight=10,
        update_dtype="int8",
        epsilon=3.0,
        delta=1e-3,
        horizon_windows=4,
        optimizer=OptimizerSpec("sgd", learning_rate=0.1),
        normalizer="expected_clients",
        topic_prefix=prefix,
    )
    return dataclasses.replace(plan, **changes)


def write(servers: str, plan: PrivacyPlan, windows: int, *, skip_participation: int = -1) -> None:
    """Write what a head of cluster 0 writes, with one client that sends in every window."""
    names = TopicNames(plan.topic_prefix)
    producer = Producer({"bootstrap.servers": servers})
    first = encode_ledger_record(genesis(plan, 0, 0, 0, 0))
    producer.produce(names.ledger, first, partition=0)
    head = ClusterHead(
        plan,
        0,
        RoundedGaussian(insecure_entropy(1)),
        [first],
        is_complete=True,
        max_open_windows=2,
        clients=ClientBudgets(plan.cap_units) if plan.scope == "client" else None,
    )
    update = encode_update(Update(plan.plan_id, "client", 0, np.ones(5, np.int8)))
    for window in range(windows):
        head.offer([Record(window, plan.window_end_ms(window) - 1, update)])
        head.expect(window, window + 1)
        cell = head.seal(plan.window_end_ms(window) + 100)
        head.commit(cell)
        producer.produce(names.ledger, cell.ledger_record, partition=0)
        if cell.release is not None:
            producer.produce(names.releases, cell.release, partition=0)
        for key, value in cell.participation:
            if window != skip_participation:
                producer.produce(names.participation, value, key, partition=0)
    assert producer.flush(30) == 0


@pytest.fixture
def config(bootstrap_servers: str) -> dict[str, str]:
    return connection(bootstrap_servers, {})


def test_clients_budgets_are_shown_and_verified(
    config: dict[str, str], bootstrap_servers: str, topic_prefix: str
) -> None:
    plan = make_plan(topic_prefix, scope="client")
    create_topics(config, plan)
    write(bootstrap_servers, plan, windows=6)
    found = verify(config, plan)
    assert found.problems == []
    assert found.cells_released == 6
    shown = show(config, plan)
    assert shown.clusters == found.clusters
    clients = shown.clusters[0].spending.clients
    assert clients is not None
    assert (clients.clients, clients.at_cap) == (1, 1)
    assert clients.largest_units == 4 * plan.charge_units
    assert "do not pass it on" in shown.as_text()
    assert json.loads(json.dumps(shown.as_json()))["clusters"][0]["clients"]["at_cap"] == 1


def test_a_participation_record_that_is_missing_refuses_the_cluster(
    config: dict[str, str], bootstrap_servers: str, topic_prefix: str
) -> None:
    plan = make_plan(topic_prefix, scope="client")
    create_topics(config, plan)
    write(bootstrap_servers, plan, windows=3, skip_participation=1)
    assert any("has lost what record 2" in problem for problem in verify(config, plan).problems)
    (row,) = show(config, plan).clusters
    assert row.state.value == "refused"
    assert "has lost what record 2" in row.reason


def test_limits_are_shown_over_their_whole_span(
    config: dict[str, str], bootstrap_servers: str, topic_prefix: str
) -> None:
    plan = make_plan(topic_prefix, hour_epsilon=1.9, horizon_windows=6)
    create_topics(config, plan)
    write(bootstrap_servers, plan, windows=5)
    verified = verify(config, plan)
    assert verified.problems == []
    (whole,), (row,) = verified.clusters, show(config, plan).clusters
    assert row.spending.limits == whole.spending.limits
    assert whole.spending.throttled > 0
    assert whole.spending.releases == 5 - whole.spending.throttled
    # The newest records are those of the limit's span: how many were released before is not read.
    assert row.spending.releases is None
    assert 0 < row.spending.throttled <= row.spending.throttled_of == plan.sliding_caps[0][1]


def test_a_plan_of_clients_budgets_needs_its_topic_and_looks_there_for_traces(
    config: dict[str, str], bootstrap_servers: str, topic_prefix: str
) -> None:
    create_topics(config, make_plan(topic_prefix))
    plan = make_plan(topic_prefix, scope="client")
    with (
        LedgerReader(config, plan) as reader,
        pytest.raises(LedgerError, match=f"no topic {topic_prefix}.participation"),
    ):
        reader.require_topics()
    create_topics(config, plan)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(TopicNames(topic_prefix).participation, b"left", b"d1", partition=0)
    assert producer.flush(30) == 0
    with LedgerReader(config, plan) as reader:
        reader.require_topics()
        assert reader.traces(0) == [f"{topic_prefix}.participation has been written to"]


def test_a_transaction_that_is_not_decided_yet_is_waited_for(
    config: dict[str, str], bootstrap_servers: str, topic_prefix: str
) -> None:
    plan = make_plan(topic_prefix)
    create_topics(config, plan)
    ledger = TopicNames(topic_prefix).ledger
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic_prefix})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(ledger, b"undecided", partition=0)
    assert producer.flush(30) == 0
    with LedgerReader(config, plan) as reader, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: list(reader.records(ledger, [0])))
        # A reader that takes the last decided record for the end comes back with nothing here.
        wait([reading], timeout=2)
        producer.commit_transaction(30)
        assert reading.result(60) == [(0, 0, b"undecided")]
