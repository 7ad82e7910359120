"""The table of topics, as DESIGN.md and the privacy boundary need it."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import (
    MAX_STATE_ROWS,
    ModelState,
    Release,
    Role,
    TopicNames,
    TopicSpec,
    Update,
    encode_model_state,
    encode_release,
    encode_update,
    topic_table,
)

HOUR_MS = 3_600_000
TABLE = topic_table("sdp", cluster_count=4, dimension=10, update_itemsize=1)
BY_NAME = {topic.name: topic for topic in TABLE}
WHOLE_TABLE = topic_table("sdp", 4, 10, 1, has_participation=True)
BATCH_OVERHEAD_BYTES = 61 + 21 + 128


def test_the_table_does_not_change():
    rows = [
        (topic.name, topic.key, topic.partitions, topic.retention_ms, topic.cleanup_policy)
        for topic in TABLE
    ]
    assert rows == [
        ("sdp.updates", "client_id", 4, 24 * HOUR_MS, "delete"),
        ("sdp.ledger", "cluster", 4, None, "delete"),
        ("sdp.outbox", "cluster", 4, 24 * HOUR_MS, "delete"),
        ("sdp.rejects", "cluster", 4, 6 * HOUR_MS, "delete"),
        ("sdp.releases", "cluster", 1, None, "delete"),
        ("sdp.model", "model", 1, None, "compact"),
        ("sdp.model-state", "model", 1, None, "compact"),
    ]


def test_who_may_do_what_does_not_change():
    rows = [(topic.name, topic.writers, topic.readers, topic.private) for topic in TABLE]
    assert rows == [
        ("sdp.updates", (Role.CLIENT, Role.HEAD), (Role.HEAD,), True),
        ("sdp.ledger", (Role.HEAD,), (Role.HEAD, Role.AUDITOR), True),
        ("sdp.outbox", (Role.HEAD,), (Role.HEAD,), True),
        ("sdp.rejects", (Role.HEAD,), (Role.OPERATOR,), True),
        ("sdp.releases", (Role.HEAD,), (Role.GLOBAL, Role.AUDITOR, Role.ANYONE), False),
        ("sdp.model", (Role.GLOBAL,), (Role.CLIENT, Role.ANYONE), False),
        ("sdp.model-state", (Role.GLOBAL,), (Role.GLOBAL,), False),
    ]


def test_the_configuration_of_updates_does_not_change():
    assert BY_NAME["sdp.updates"].config() == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "LogAppendTime",
        "retention.bytes": "-1",
        "retention.ms": "86400000",
        "segment.ms": "3600000",
        "unclean.leader.election.enable": "false",
    }


def test_the_configuration_of_the_model_does_not_change():
    assert BY_NAME["sdp.model"].config() == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "LogAppendTime",
        "min.compaction.lag.ms": "604800000",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "unclean.leader.election.enable": "false",
    }


def test_the_brokers_clock_stamps_what_is_windowed_or_measured():
    stamped = {topic.name for topic in TABLE if topic.timestamp_type == "LogAppendTime"}
    assert stamped == {"sdp.updates", "sdp.releases", "sdp.model"}


def test_only_heads_write_or_read_what_holds_gradients():
    for name in ("sdp.updates", "sdp.outbox"):
        assert BY_NAME[name].readers == (Role.HEAD,)
    assert all(Role.ANYONE not in topic.readers for topic in TABLE if topic.private)


def test_no_topic_forgets_by_size_or_elects_a_lagging_replica():
    for topic in TABLE:
        assert topic.config()["retention.bytes"] == "-1"
        assert topic.config()["unclean.leader.election.enable"] == "false"
        assert "min.insync.replicas" not in topic.config()


def test_what_expires_is_deleted_within_an_hour_of_its_retention():
    for topic in TABLE:
        expires = topic.retention_ms is not None
        assert ("segment.ms" in topic.config()) == expires


def test_the_ledger_is_kept_for_ever():
    config = BY_NAME["sdp.ledger"].config()
    assert (config["retention.ms"], config["cleanup.policy"]) == ("-1", "delete")


def test_participation_is_one_more_topic_for_plans_that_need_it():
    assert WHOLE_TABLE[:-1] == TABLE
    assert topic_table("sdp", 4, 10, 1, has_participation=False) == TABLE
    assert WHOLE_TABLE[-1] == TopicSpec(
        name="sdp.participation",
        key="participation",
        partitions=4,
        retention_ms=None,
        cleanup_policy="compact",
        timestamp_type="CreateTime",
        writers=(Role.HEAD,),
        readers=(Role.HEAD, Role.AUDITOR),
        private=True,
        max_message_bytes=32_000_000 + 65_536 + 4096,
        extra=(("max.compaction.lag.ms", "3600000"), ("segment.ms", "600000")),
    )


def test_participation_is_kept_for_ever_and_compacted_within_the_hour():
    assert WHOLE_TABLE[-1].config() == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "max.compaction.lag.ms": "3600000",
        "max.message.bytes": "32069632",
        "message.timestamp.type": "CreateTime",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.ms": "600000",
        "unclean.leader.election.enable": "false",
    }


@given(
    clusters=st.integers(1, 1000),
    dimension=st.integers(1, 60_000_000),
    itemsize=st.sampled_from((1, 2)),
)
def test_every_topic_takes_its_largest_message(clusters, dimension, itemsize):
    table = topic_table("a-b_c.d", clusters, dimension, itemsize)
    rooms = [topic.max_message_bytes - 64 * 1024 - 22 - BATCH_OVERHEAD_BYTES for topic in table]
    updates, _, outbox, _, releases, model, state = rooms
    assert updates >= dimension * itemsize
    assert outbox == releases >= (dimension + 2) * 8
    assert model >= dimension * 4
    assert state >= MAX_STATE_ROWS * dimension * 8
    for topic in table:
        assert 1_048_588 <= topic.max_message_bytes <= 2**31 - 1
        assert topic.partitions in (1, clusters)
        assert len(topic.name) <= 249
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", topic.name)
        assert all(type(value) is str for value in topic.config().values())


def test_a_release_has_room_for_the_count_and_the_bit_coordinate():
    table = topic_table("sdp", 1, 1_000_000, 1)
    rooms = {
        topic.max_message_bytes for topic in table if topic.name in ("sdp.outbox", "sdp.releases")
    }
    assert rooms == {1_000_002 * 8 + 65_536 + 4096}


def test_the_largest_messages_fit_with_their_headers():
    dimension = 2**20
    table = topic_table("sdp", 1, dimension, 1)
    update = Update(bytes(16), "é" * 64, 2**64 - 1, np.ones(dimension, np.int8), 0.1, True)
    state = ModelState(
        bytes(16), 1, 1, 1, (2**62,) * 6000, "a" * 64, 1, np.ones((MAX_STATE_ROWS, dimension))
    )
    release = Release(
        *(bytes(16), 2**31 - 1, 2**63 - 1, 2**64 - 1, 2**255, 2**255, 2**255),
        Fraction(2**255, 2**255 - 1),
        2**64 - 1,
        np.ones(dimension + 2, np.int64),
        1.25,
        0.1,
        2**63 - 1,
    )
    assert len(encode_release(release)) + BATCH_OVERHEAD_BYTES <= table[4].max_message_bytes
    assert len(encode_update(update)) + BATCH_OVERHEAD_BYTES <= table[0].max_message_bytes
    assert len(encode_model_state(state)) + BATCH_OVERHEAD_BYTES <= table[-1].max_message_bytes


@pytest.mark.parametrize(
    "arguments",
    [
        ("", 1, 1, 1),
        ("a b", 1, 1, 1),
        ("a/b", 1, 1, 1),
        ("sdp\n", 1, 1, 1),
        ("a" * 201, 1, 1, 1),
        ("sdp", 0, 1, 1),
        ("sdp", 2**31, 1, 1),
        ("sdp", 1, 0, 1),
        ("sdp", 1, 2**31, 1),
        ("sdp", 1, 2**28, 1),
        ("sdp", 1, 1, 4),
    ],
    ids=str,
)
def test_a_table_that_kafka_could_not_hold_is_refused(arguments):
    with pytest.raises(ValueError, match=r"prefix|out of range|must be|Kafka has"):
        topic_table(*arguments)


def test_names_and_table_agree():
    names = TopicNames("sdp")
    assert [topic.name for topic in WHOLE_TABLE] == [
        names.updates,
        names.ledger,
        names.outbox,
        names.rejects,
        names.releases,
        names.model,
        names.model_state,
        names.participation,
    ]
