"""However long other clusters went on alone, a cluster's own newest release is found."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from confluent_kafka import Producer

from agents.kafka_edge import retry_while_away
from agents.public_charges import newest_public_charge
from schemas import Release, encode_release

pytestmark = pytest.mark.integration


@pytest.fixture
def deployment(deploy):
    return deploy()


def publish(deployment, *values):
    producer = Producer(deployment.config)
    for value in values:
        producer.produce(deployment.names.releases, value, b"0", partition=0)
    assert producer.flush(30) == 0


def release(deployment, cluster, sequence, **changes):
    made = Release(
        plan_id=deployment.plan.plan_id,
        cluster=cluster,
        window=sequence,
        sequence=sequence,
        charge_units=1,
        spent_units=sequence,
        cap_units=10**6,
        noise_variance=Fraction(1),
        l2_sensitivity_squared=1,
        vector=np.zeros(13, np.int32),
    )
    return encode_release(dataclasses.replace(made, **changes))


def newest(deployment, cluster):
    # A broker learns of new topics a moment after the controller has made them.
    found = retry_while_away(
        "looking",
        lambda: newest_public_charge(deployment.config, deployment.names, deployment.plan, cluster),
    )
    return found and (found.cluster, found.sequence, found.spent_units)


def test_a_cluster_that_never_released_has_no_charge(deployment):
    assert newest(deployment, 0) is None
    publish(deployment, release(deployment, 1, 1))
    assert newest(deployment, 0) is None


def test_the_newest_of_a_clusters_releases_is_found_behind_hundreds_of_others(deployment):
    publish(deployment, release(deployment, 0, 4), release(deployment, 0, 5))
    publish(deployment, *(release(deployment, 1, sequence) for sequence in range(1, 300)))
    assert newest(deployment, 0) == (0, 5, 5)
    assert newest(deployment, 1) == (1, 299, 299)


def test_foreign_bytes_and_other_plans_are_passed_over(deployment):
    publish(deployment, release(deployment, 0, 2), b"foreign")
    publish(deployment, release(deployment, 0, 9, plan_id=bytes(16)))
    assert newest(deployment, 0) == (0, 2, 2)
