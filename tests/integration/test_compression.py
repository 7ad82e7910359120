"""A few kilobytes that unpack to more than a topic may hold stop nobody."""

import pytest
from confluent_kafka import KafkaError, Producer

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_packed_message_that_unpacks_to_too_much_is_refused_by_the_broker(deploy):
    deployment = deploy(cluster_count=1)
    deployment.start_head()
    deployment.wait_until_owned()
    reports = []
    attacker = Producer(
        deployment.config | {"compression.type": "zstd", "message.max.bytes": 300_000_000}
    )
    attacker.produce(
        deployment.names.updates,
        bytes(150_000_000),
        b"attacker",
        partition=0,
        on_delivery=lambda error, _: reports.append(error),
    )
    assert attacker.flush(60) == 0
    assert reports[0] is not None
    assert reports[0].code() == KafkaError.MSG_SIZE_TOO_LARGE

    deployment.send("a", deployment.update("a", [1] * 12))
    deployment.producer().flush(30)
    deployment.eventually(
        "another client's update is released",
        lambda: any(r.vector[0] for r in deployment.releases().values()),
    )
