"""What a real head and a real global model have written, published to a real Kafka."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from numpy.typing import NDArray
from written_cluster import PLAN, WrittenCluster

from agents.cli import main
from agents.kafka_edge import connection
from agents.ledger import verify, verify_deep
from agents.partition import group_of
from agents.sum_audit import DELETED, NOT_PUBLIC
from agents.topics import topics_of
from schemas import (
    TopicNames,
    decode_ledger_record,
    decode_release,
    encode_ledger_record,
    encode_model_snapshot,
    encode_model_state,
    encode_release,
    record_hash,
    release_digest,
)
from stream.errors import LedgerError
from stream.global_model import GlobalModel
from stream.privacy.noise import NoiseSource, noise_source
from stream.privacy.plan import PrivacyPlan
from stream.testing import insecure_entropy

pytestmark = pytest.mark.integration
WINDOWS = 4
CLIENTS = 5


class Scaled:
    """Noise that is not what the ledger says, by a factor."""

    def __init__(self, factor: float) -> None:
        self._noise = noise_source("rounded_gaussian", insecure_entropy(7), "numpy")
        self._factor = factor

    def sample(self, variance: Fraction, size: int) -> NDArray[np.int64]:
        return np.rint(self._factor * self._noise.sample(variance, size)).astype(np.int64)


@dataclass
class Stage:
    """A cluster's topics, as they are to be published.

    Attributes:
        cluster: The head and what it wrote.
        models: The model's topic.
        states: The topic of its states.
        outbox: The outbox.
        offset: What the heads' group commits.
        releases: The topic of releases.
    """

    cluster: WrittenCluster
    models: list[bytes] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    outbox: list[bytes] = field(default_factory=list)
    offset: int = 0
    releases: list[bytes] = field(default_factory=list)

    def write_model(self) -> None:
        """Let a real global model take the releases."""
        plan = self.cluster.plan
        model = GlobalModel.start(plan, np.zeros(plan.dimension), merge_deadline_ms=0)
        steps = [model.initial(plan.start_ms)]
        for offset, data in enumerate(self.releases):
            release = decode_release(data)
            due_ms = plan.release_due_ms(release.window)
            model.offer(offset, release, due_ms)
            steps.append(model.step(due_ms))
            model.commit(steps[-1])
        self.models = [encode_model_snapshot(step.snapshot) for step in steps]
        self.states = [encode_model_state(step.state) for step in steps]

    def forge_record(self, number: int, **changes: object) -> None:
        """Change a ledger record, and chain it and what follows anew."""
        ledger = self.cluster.ledger
        for index in range(number, len(ledger)):
            record = decode_ledger_record(ledger[index])
            more = changes if index == number else {}
            previous = record_hash(ledger[index - 1])
            ledger[index] = encode_ledger_record(replace(record, previous_hash=previous, **more))


def make(
    prefix: str,
    noise: NoiseSource | None = None,
    *,
    plant: Callable[[WrittenCluster], object] = lambda _: None,
    **changes: object,
) -> Stage:
    """Let a head seal four windows of five clients each."""
    plan = replace(PLAN, topic_prefix=prefix, start_ms=time.time_ns() // 10**6 - 60_000, **changes)
    cluster = WrittenCluster(plan, noise)
    for window in range(WINDOWS):
        if window == 1:
            plant(cluster)
        for client in range(CLIENTS):
            cluster.send(window, client + window % 2)
        cluster.send(window, 1)
        cluster.seal()
    stage = Stage(cluster, releases=list(cluster.releases.values()))
    stage.outbox = list(stage.releases)
    stage.offset = decode_ledger_record(cluster.ledger[-1]).next_offset
    stage.write_model()
    return stage


def publish(config: dict[str, str], stage: Stage) -> None:
    """Write it all, with the times of the simulation."""
    plan, names = stage.cluster.plan, TopicNames(stage.cluster.plan.topic_prefix)
    make_topics(config, plan)
    producer = Producer(config)
    topics: dict[str, list[bytes]] = {
        names.ledger: stage.cluster.ledger,
        names.outbox: stage.outbox,
        names.releases: stage.releases,
        names.model: stage.models,
        names.model_state: stage.states,
        names.rejects: stage.cluster.reports,
    }
    if plan.scope == "client":
        topics[names.participation] = stage.cluster.participation
    for topic, values in topics.items():
        for number, data in enumerate(values):
            key = str(number) if topic == names.participation else "key"
            producer.produce(topic, data, key, partition=0)
    for record in stage.cluster.log:
        moment = record.timestamp_ms
        producer.produce(names.updates, record.value, partition=0, timestamp=moment)
    assert producer.flush(30) == 0
    consumer = Consumer({**config, "group.id": group_of(plan)})
    where = TopicPartition(names.updates, 0, stage.offset)
    consumer.commit(offsets=[where], asynchronous=False)
    consumer.close()


def make_topics(config: dict[str, str], plan: PrivacyPlan) -> None:
    """Make the topics of a plan, but with times that we may choose."""
    admin = AdminClient(config)
    times = {"message.timestamp.type": "CreateTime"}
    new = [
        NewTopic(spec.name, spec.partitions, 1, config=spec.config() | times)
        for spec in topics_of(plan)
    ]
    for future in admin.create_topics(new).values():
        future.result(30)


@pytest.fixture
def config(bootstrap_servers: str) -> dict[str, str]:
    return connection(bootstrap_servers, {})


def test_what_real_heads_write_verifies_exactly(config: dict[str, str], topic_prefix: str) -> None:
    stage = make(topic_prefix)
    publish(config, stage)
    found = verify_deep(config, stage.cluster.plan, is_noise_free=True)
    assert found.problems == []
    deep = found.deep
    assert deep is not None
    assert (deep.sums_checked, deep.sums_unchecked) == (WINDOWS, 0)
    (row,) = deep.clusters
    assert (row.updates_read, row.updates_counted) == (24, 20)
    assert row.updates_refused == {"duplicate": 4}
    assert (row.outbox_records, row.committed_offset) == (WINDOWS, 24)
    assert deep.model.versions_read == WINDOWS + 1
    assert deep.model.state_version == WINDOWS
    # What is not noise does not pass for it.
    problems = verify_deep(config, stage.cluster.plan).problems
    assert any("0 % of the energy of the ledger's noise: too little" in line for line in problems)
    # Nor does any of it show in a verification that is not deep.
    shallow = verify(config, stage.cluster.plan)
    assert shallow.verified
    assert "deep" not in shallow.as_json()


def test_clients_with_budgets_verify_exactly(config: dict[str, str], topic_prefix: str) -> None:
    stage = make(topic_prefix, scope="client", horizon_windows=3)
    publish(config, stage)
    found = verify_deep(config, stage.cluster.plan, is_noise_free=True)
    assert found.problems == []
    assert found.deep is not None
    assert found.deep.clusters[0].updates_refused == {"client_exhausted": 5, "duplicate": 3}


def release_otherwise(stage: Stage) -> None:
    release = decode_release(stage.releases[1])
    stage.releases.append(encode_release(replace(release, vector=release.vector + 1)))


def replace_update(offset: int, client: int | None) -> Callable[[Stage], None]:
    """Let the log hold another client's update, or garbage, where the head read one."""

    def plant(stage: Stage) -> None:
        log = stage.cluster.log
        value = b"" if client is None else stage.cluster.update(client)
        log[offset] = log[offset]._replace(value=value)

    return plant


def forge(number: int, **changes: object) -> Callable[[Stage], None]:
    return lambda stage: stage.forge_record(number, **changes)


# What is planted at once, and the sentence that each of it is found with.
PLANTED: dict[str, list[tuple[Callable[[Stage], object], str]]] = {
    "in ledger and releases": [
        (
            release_otherwise,
            "released_twice: window 1 of cluster 0 was published with two different contents",
        ),
        (
            lambda stage: stage.cluster.ledger.pop(),
            "release of cluster 0, window 3: no ledger record pays for it",
        ),
        (forge(1, charge_units=7), "ledger of cluster 0: record 1 charges 7 units, not"),
        (
            forge(2, noise_variance=Fraction(10**9)),
            "ledger of cluster 0: record 2 has other noise than was planned for it",
        ),
        (
            forge(3, release_digest=bytes(32)),
            "release of cluster 0, window 2: differs from ledger record 3 in its digest",
        ),
    ],
    "beside the ledger": [
        (
            lambda stage: stage.forge_record(3, spent_units=stage.cluster.plan.charge_units),
            "ledger of cluster 0: record 3 does not add up with the one before",
        ),
        (
            lambda stage: stage.outbox.append(b"foreign"),
            "outbox of cluster 0: it holds 1 foreign records",
        ),
        (
            lambda stage: (release_otherwise(stage), stage.outbox.append(stage.releases.pop())),
            "outbox of cluster 0: no ledger record names the digest of its release of window 1",
        ),
        (
            lambda stage: setattr(stage, "offset", 25),
            "offset of cluster 0: the heads' group is at 25, ahead of the ledger, which ends at 24",
        ),
    ],
    "in sums and models": [
        (
            replace_update(3, 77),
            "sum of cluster 0, window 0: it counts 5 clients, and 5 of them sent a valid update; 2",
        ),
        (
            replace_update(9, None),
            "sum of cluster 0, window 1: it counts 5 clients, and 4 of them sent a valid update; 2",
        ),
        (
            lambda stage: stage.models.append(stage.models[-1]),
            "model: version 4 is published once more, with the same content",
        ),
        (
            lambda stage: stage.models.pop(2),
            "model: version 2 is missing, and too young to be compacted",
        ),
        (
            lambda stage: stage.states.pop(),
            "model: its state is behind, at version 3, while version 4 is public",
        ),
    ],
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_violation_is_found(
    config: dict[str, str],
    topic_prefix: str,
    name: str,
) -> None:
    stage = make(topic_prefix)
    for plant, _ in PLANTED[name]:
        plant(stage)
    publish(config, stage)
    problems = verify_deep(config, stage.cluster.plan, is_noise_free=True).problems
    for _, sentence in PLANTED[name]:
        assert any(problem.startswith(sentence) for problem in problems), (sentence, problems)


def test_a_release_after_the_cap_is_found(config: dict[str, str], topic_prefix: str) -> None:
    stage = make(topic_prefix, horizon_windows=2)
    publish(config, stage)
    plan, ledger = stage.cluster.plan, stage.cluster.ledger
    found = verify_deep(config, plan, is_noise_free=True)
    assert found.problems == []
    assert found.deep is not None
    assert found.deep.clusters[0].updates_refused == {"duplicate": 2, "exhausted": 12}
    release = replace(decode_release(stage.releases[1]), window=3, sequence=4)
    paid = replace(
        decode_ledger_record(ledger[2]),
        window=3,
        sequence=4,
        previous_hash=record_hash(ledger[-1]),
        release_digest=release_digest(encode_release(release)),
        next_offset=24,
    )
    producer, names = Producer(config), TopicNames(plan.topic_prefix)
    producer.produce(names.ledger, encode_ledger_record(paid), partition=0)
    producer.produce(names.releases, encode_release(release), partition=0)
    assert producer.flush(30) == 0
    problems = verify_deep(config, plan, is_noise_free=True).problems
    sentence = "ledger of cluster 0: record 4 stands after the record that closed the ledger"
    assert sentence in problems


def test_deleted_updates_and_releases_on_their_way_are_named(
    config: dict[str, str], topic_prefix: str
) -> None:
    stage = make(topic_prefix)
    stage.releases.pop()
    stage.write_model()
    publish(config, stage)
    admin = AdminClient(config)
    where = TopicPartition(TopicNames(topic_prefix).updates, 0, 8)
    admin.delete_records([where])[where].result(30)
    found = verify_deep(config, stage.cluster.plan, is_noise_free=True)
    assert found.problems == []
    assert found.deep is not None
    (row,) = found.deep.clusters
    assert [(part.first_window, part.last_window, part.reason) for part in row.sums_unchecked] == [
        (0, 1, DELETED),
        (3, 3, NOT_PUBLIC),
    ]
    assert row.sums_checked == 1


def test_topics_that_a_deep_verification_needs_are_missed(
    config: dict[str, str], topic_prefix: str
) -> None:
    with pytest.raises(LedgerError, match="there is no topic"):
        verify_deep(config, replace(PLAN, topic_prefix=topic_prefix))


@pytest.mark.statistical
@pytest.mark.parametrize(("factor", "exit_code"), [(1.0, 0), (0.9, 3)])
def test_the_command_line_tells_noise_from_less_of_it(
    config: dict[str, str], topic_prefix: str, tmp_path: Path, factor: float, exit_code: int
) -> None:
    """False alarms: at most 1e-9, by the guarantee of `agents.noise_fit`.

    0.9 of the noise has 81 % of its energy, which in four windows of 4001 coordinates varies by
    1.1 %; the seed is fixed besides.
    """
    stage = make(topic_prefix, Scaled(factor), dimension=4000, grid_l2_bound=500)
    publish(config, stage)
    file = tmp_path / "plan.toml"
    file.write_text(stage.cluster.plan.to_toml(), encoding="utf-8")
    options = ["--plan", str(file), "--bootstrap-servers", config["bootstrap.servers"]]
    shown = CliRunner().invoke(main, ["ledger", "verify", "--deep", "--json", *options])
    assert shown.exit_code == exit_code, shown.output
    deep = json.loads(shown.output)["deep"]
    assert deep["sums_checked"] == WINDOWS
    assert deep["false_alarm_probability"] == 1e-9
    assert deep["noise_energy"] == pytest.approx(factor**2, abs=0.1)
    assert math.isfinite(deep["noise_energy"])
    text = CliRunner().invoke(main, ["ledger", "verify", "--deep", *options])
    assert text.exit_code == exit_code
    assert "is inside the privacy boundary: do not pass it on." in text.output
