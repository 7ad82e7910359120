"""The topics of a plan on a broker: make them, or say what is wrong with those that are there."""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from schemas import TopicSpec, topic_table
from stream.privacy.plan import PrivacyPlan

_TIMEOUT_S = 30.0  # of a request that makes topics, or where the caller has no other opinion
_ITEMSIZES = {"int8": 1, "int16": 2}
# Without these, windows could be forged, charges forgotten, or records of any size refused.
_CHECKED = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.type",
    "retention.ms",
)
# What librdkafka calls its mock clusters; Kafka's own ids are 22 letters of base64.
_MOCK_CLUSTER = "mockCluster"


class TopicError(Exception):
    """Topics that are missing, or that do not fit the plan; the message says what to do."""


def topics_of(plan: PrivacyPlan) -> tuple[TopicSpec, ...]:
    """Return the table of topics for ``plan``."""
    return topic_table(
        plan.topic_prefix,
        plan.cluster_count,
        plan.coordinate_count,
        _ITEMSIZES[plan.update_dtype],
        has_participation=plan.scope == "client",
    )


def create_topics(
    config: Mapping[str, str],
    plan: PrivacyPlan,
    *,
    replication_factor: int = 1,
    min_insync_replicas: int = 1,
    request_timeout_s: float = _TIMEOUT_S,
) -> list[str]:
    """Create the topics that are missing; return their names.

    Args:
        config: How to reach the broker.
        plan: The plan.
        replication_factor: Number of brokers that hold each topic.
        min_insync_replicas: Number of them that must have a record before it counts.
        request_timeout_s: Time after which a broker that gives no answer is given up.

    Raises:
        TopicError: one is there already and does not fit the plan; nothing was created.
        KafkaException: the broker cannot be asked.
    """
    admin = AdminClient(dict(config))
    specs = topics_of(plan)
    problems, missing = _compare(admin, specs, request_timeout_s)
    if problems:
        raise TopicError("\n".join(problems))
    new = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=replication_factor,
            config={**spec.config(), "min.insync.replicas": str(min_insync_replicas)},
        )
        for spec in specs
        if spec.name in missing
    ]
    if new:
        for name, future in admin.create_topics(new, operation_timeout=_TIMEOUT_S).items():
            _wait_created(name, future)
    return [topic.topic for topic in new]


def check_topics(
    config: Mapping[str, str], plan: PrivacyPlan, *, request_timeout_s: float = _TIMEOUT_S
) -> None:
    """Make sure that all topics are there and fit the plan.

    Args:
        config: How to reach the broker.
        plan: The plan.
        request_timeout_s: Time after which a broker that gives no answer is given up.

    Raises:
        TopicError: some are missing or do not fit; the message names each one.
        KafkaException: the broker cannot be asked.
    """
    admin = AdminClient(dict(config))
    problems, missing = _compare(admin, topics_of(plan), request_timeout_s)
    if missing:
        problems.append(
            f"missing topics: {', '.join(sorted(missing))}. Run: sdp topics create --plan FILE. "
            "One that has been there before also needs its records back (deploy/README, What to "
            "do when)"
        )
    if problems:
        raise TopicError("\n".join(problems))


def check_mock_topics(config: Mapping[str, str], plan: PrivacyPlan) -> None:
    """Make sure that the broker is librdkafka's mock cluster, and that it has all topics.

    It has no configuration to check, and gives all topics the same number of partitions.

    Raises:
        TopicError: it is a real Kafka, whose topics `check_topics` must check; or topics are
            missing or have too few partitions.
        KafkaException: the broker cannot be asked.
    """
    cluster = AdminClient(dict(config)).list_topics(timeout=_TIMEOUT_S)
    if not str(cluster.cluster_id).startswith(_MOCK_CLUSTER):
        raise TopicError("unsafe_mock_broker is for librdkafka's mock cluster; this is another")
    found = {name: len(topic.partitions) for name, topic in cluster.topics.items()}
    lacking = [s.name for s in topics_of(plan) if found.get(s.name, 0) < s.partitions]
    if lacking:
        raise TopicError(f"missing on the mock cluster, or too small: {', '.join(lacking)}")


def _wait_created(name: str, future: object) -> None:
    try:
        future.result()  # type: ignore[attr-defined]
    except KafkaException as error:
        # Another `sdp topics create` was faster; whether it fits is checked by every worker.
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise TopicError(f"{name} cannot be created: {error.args[0].str()}") from error


def _compare(
    admin: AdminClient, specs: tuple[TopicSpec, ...], timeout_s: float
) -> tuple[list[str], set[str]]:
    """Return what is wrong with the topics that exist, and the names of those that do not."""
    names = [spec.name for spec in specs]
    partitions: dict[str, int] = {}
    described = admin.describe_topics(TopicCollection(names), request_timeout=timeout_s)
    for name, future in described.items():
        try:
            partitions[name] = len(future.result().partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    problems = [
        f"{spec.name} has {partitions[spec.name]} partitions, the plan needs {spec.partitions}: "
        "a partition is a cluster and can be neither added nor removed. Use another topic_prefix "
        "in the plan, or delete the topic with all that it holds."
        for spec in specs
        if partitions.get(spec.name, spec.partitions) != spec.partitions
    ]
    present = [spec for spec in specs if spec.name in partitions]
    return problems + _wrong_configs(admin, present, timeout_s), set(names) - partitions.keys()


def _wrong_configs(admin: AdminClient, specs: list[TopicSpec], timeout_s: float) -> list[str]:
    if not specs:
        return []
    resources = {ConfigResource(ResourceType.TOPIC, spec.name): spec for spec in specs}
    answers = admin.describe_configs(list(resources), request_timeout=timeout_s)
    problems = []
    for resource, future in answers.items():
        spec = resources[resource]
        wanted, found = spec.config(), future.result()
        for key in _CHECKED:
            if found[key].value != wanted[key]:
                problems.append(
                    f"{spec.name} has {key}={found[key].value}, the plan needs {wanted[key]}: "
                    "alter the topic's configuration"
                )
    return problems
