"""Names and rows of the table of topics; the table itself is in test_topics.py."""

from dataclasses import FrozenInstanceError, fields

import pytest

from schemas import Role, TopicNames, TopicSpec

SPEC = TopicSpec(
    name="sdp.x",
    key="cluster",
    partitions=2,
    retention_ms=1000,
    cleanup_policy="delete",
    timestamp_type="CreateTime",
    writers=(Role.HEAD,),
    readers=(Role.HEAD,),
    private=True,
    max_message_bytes=5,
    extra=(("segment.ms", "7"), ("retention.bytes", "9")),
)
SUFFIXES = {
    "updates": "updates",
    "ledger": "ledger",
    "outbox": "outbox",
    "rejects": "rejects",
    "releases": "releases",
    "model": "model",
    "model_state": "model-state",
    "participation": "participation",
}


def test_every_name_is_the_prefix_and_its_own_suffix():
    properties = {
        name for name in dir(TopicNames) if isinstance(vars(TopicNames).get(name), property)
    }
    assert properties == set(SUFFIXES)
    for name, suffix in SUFFIXES.items():
        assert getattr(TopicNames("a-b_c.d"), name) == f"a-b_c.d.{suffix}"


def test_the_longest_prefix_still_gives_names_that_kafka_takes():
    names = TopicNames("a" * 200)
    assert max(len(getattr(names, name)) for name in SUFFIXES) <= 249


@pytest.mark.parametrize("prefix", ["", "a b", "a/b", "sdp\n", "a" * 201, "\u00e9"])
def test_a_prefix_that_kafka_would_refuse_is_refused(prefix):
    with pytest.raises(ValueError, match="a topic prefix has"):
        TopicNames(prefix)


def test_a_row_in_the_words_of_kafka():
    assert SPEC.config() == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": "5",
        "message.timestamp.type": "CreateTime",
        "retention.bytes": "9",
        "retention.ms": "1000",
        "segment.ms": "7",
        "unclean.leader.election.enable": "false",
    }


def test_a_row_cannot_be_changed():
    for field in fields(SPEC):
        with pytest.raises(FrozenInstanceError):
            setattr(SPEC, field.name, None)
