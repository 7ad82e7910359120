"""What can go wrong with a deployment's topics, done to it with Kafka's own calls."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from functools import partial

from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deployment import Deployment, Worker
from durable_head import DurableHead

from agents.cli import main
from agents.kafka_edge import LogEnds, retry_while_away
from agents.topics import topics_of

# Windows that a loaded machine still keeps up with, and a restart does not wait for.
SHORT = {"window_length_ms": 300, "grace_ms": 50, "release_delay_ms": 100}


def produce(
    deployment: Deployment, topic: str, *values: bytes | None, partition: int = 0, key: bytes = b"x"
) -> None:
    write(deployment, topic, partition, [(key, value) for value in values])


def copy(deployment: Deployment, topic: str, partition: int, messages: Iterable[Message]) -> None:
    """Write what was read of a partition into another one, or into one that was made again."""
    write(deployment, topic, partition, [(m.key(), m.value()) for m in messages])


def write(
    deployment: Deployment,
    topic: str,
    partition: int,
    pairs: Iterable[tuple[bytes | None, bytes | None]],
) -> None:
    """Write keys and values, outside any transaction; each of them must arrive."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(deployment.config)
    for key, value in pairs:
        producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert not failures, failures


def truncate(deployment: Deployment, topic: str, partition: int = 0, offset: int = -1) -> None:
    """Delete the records below an offset; by default all."""
    where = TopicPartition(topic, partition, offset)
    # A local name keeps the client alive: its futures never end without it.
    admin = AdminClient(deployment.config)
    admin.delete_records([where])[where].result(30)


def delete(deployment: Deployment, *topics: str) -> None:
    """Delete topics, and wait until the broker has."""
    admin = AdminClient(deployment.config)
    for future in admin.delete_topics(list(topics)).values():
        future.result(30)
    deployment.eventually("they are gone", lambda: not existing(deployment) & set(topics))


def make_again(deployment: Deployment, *topics: str) -> None:
    """Make topics that were deleted, as `sdp topics create` does."""
    admin = AdminClient(deployment.config)
    specs = [spec for spec in topics_of(deployment.plan) if spec.name in topics]
    new = [NewTopic(spec.name, spec.partitions, 1, config=spec.config()) for spec in specs]
    for future in admin.create_topics(new).values():
        future.result(30)
    deployment.eventually("they are there", lambda: set(topics) <= existing(deployment))
    wait_until_led(deployment, *topics)


def existing(deployment: Deployment) -> set[str]:
    """The topics whose partitions all have a leader."""
    found = AdminClient(deployment.config).list_topics(timeout=30).topics
    return {
        name
        for name, topic in found.items()
        if topic.partitions and all(p.leader >= 0 for p in topic.partitions.values())
    }


def wait_until_led(deployment: Deployment, *topics: str) -> None:
    """Wait until every partition answers: a broker learns of new topics a moment after all."""
    ends = LogEnds(deployment.config, 10)
    for spec in topics_of(deployment.plan):
        for partition in range(spec.partitions if spec.name in topics or not topics else 0):
            retry_while_away("asking", partial(ends.end_offset, spec.name, partition))


def recreate(deployment: Deployment, *topics: str) -> None:
    """Delete topics and make them again, empty."""
    delete(deployment, *topics)
    make_again(deployment, *topics)


def commit_unpublished(deployment: Deployment, cluster: int) -> None:
    """Seal and commit one more window, as a head does that dies before its release is public."""
    head = DurableHead(deployment, cluster)
    before = head.open().unpublished
    if before is not None:
        head.publish(before.data)
    head.release()


def body(worker: Worker) -> dict[str, object]:
    """What /healthz says, be it well or not; empty while there is none."""
    try:
        url = f"http://127.0.0.1:{worker.operator_port}/healthz"
        with urllib.request.urlopen(url, timeout=2) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)
    except OSError:
        return {}


def refused(worker: Worker) -> dict[int, str]:
    """The clusters that a head refuses, and why."""
    return {int(cluster): why for cluster, why in body(worker).get("refused", {}).items()}


def windows(deployment: Deployment, cluster: int) -> list[int]:
    """The windows of a cluster that are public; fails where one was released twice."""
    return sorted(window for c, window in deployment.releases() if c == cluster)


def has_no_gap(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[-1] + 1))


def wait_for_windows(deployment: Deployment, count: int, clusters: Iterable[int]) -> None:
    """Wait until each of these clusters has released so many windows more."""
    wanted = {cluster: len(windows(deployment, cluster)) + count for cluster in clusters}
    deployment.eventually(
        f"clusters {sorted(wanted)} release {count} more windows",
        lambda: all(len(windows(deployment, c)) >= n for c, n in wanted.items()),
        90,
    )


def sdp(deployment: Deployment, *arguments: str) -> Result:
    """Run the command line in this process: another one takes a second or two to start."""
    environment = {name: None for name in os.environ if name.startswith("SDP_")}
    settings = {k: v for k, v in deployment.environment().items() if k.startswith("SDP_")}
    return CliRunner().invoke(main, arguments, env=environment | settings)


def verify(deployment: Deployment, *, is_fine: bool = True) -> list[str]:
    """Run `sdp ledger verify`, which must answer 0 or else 3; return the problems it names."""
    verified = sdp(deployment, "ledger", "verify", "--json")
    assert verified.exit_code == (0 if is_fine else 3), verified.output
    return json.loads(verified.stdout)["problems"]
