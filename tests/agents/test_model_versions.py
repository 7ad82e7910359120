"""How far the model's topics go, on real Kafka, with what is foreign in them."""

import dataclasses

import numpy as np
import pytest
from topic_faults import produce, wait_until_led

from agents.model_versions import (
    newest_state,
    newest_version,
    or_none,
    snapshot_version,
    state_version,
)
from schemas import (
    MalformedMessageError,
    decode_model_state,
    encode_model_snapshot,
    encode_model_state,
)
from stream.global_model import GlobalModel

pytestmark = pytest.mark.integration

FOREIGN = bytes(16)


@pytest.fixture
def deployment(deploy):
    made = deploy()
    wait_until_led(made)
    return made


def initial(deployment, version=0, **changes):
    """The records of a version, as bytes: the model and its state."""
    model = GlobalModel.start(deployment.plan, np.zeros(12), merge_deadline_ms=0)
    changes |= {"model_version": version}
    made = model.initial(0)
    snapshot, state = (dataclasses.replace(each, **changes) for each in (made.snapshot, made.state))
    return encode_model_snapshot(snapshot), encode_model_state(state)


def put(deployment, topic, *values):
    produce(deployment, topic, *values, key=b"model")


def test_an_empty_topic_has_no_version_and_no_state(deployment):
    config, names, plan = deployment.config, deployment.names, deployment.plan
    assert newest_version(config, names.model, snapshot_version(plan)) == -1
    found = newest_state(config, names.model_state, plan)
    assert (found.state, found.foreign) == (None, "")


def test_the_newest_of_the_plan_is_found_behind_whatever_is_foreign(deployment):
    config, names, plan = deployment.config, deployment.names, deployment.plan
    model, state = initial(deployment, 3)
    other_model, other_state = initial(deployment, 9, plan_id=FOREIGN)
    put(deployment, names.model, model, *[b"foreign", None, other_model] * 5)
    put(deployment, names.model_state, state)
    found = newest_state(config, names.model_state, plan)
    assert (found.state.model_version, found.foreign) == (3, "")
    put(deployment, names.model_state, *[None, other_state, b"foreign"] * 5)
    assert newest_version(config, names.model, snapshot_version(plan)) == 3
    assert newest_version(config, names.model_state, state_version(plan)) == 3
    found = newest_state(config, names.model_state, plan)
    assert found.state.model_version == 3
    assert found.foreign.startswith("a record that cannot be read")


def test_without_a_state_of_the_plan_that_of_another_is_given(deployment):
    _, other = initial(deployment, 9, plan_id=FOREIGN)
    put(deployment, deployment.names.model_state, other, b"foreign")
    found = newest_state(deployment.config, deployment.names.model_state, deployment.plan)
    assert found.state.plan_id == FOREIGN == decode_model_state(other).plan_id
    assert found.foreign.startswith("a record that cannot be read")


def test_bytes_that_cannot_be_read_have_no_version():
    def version(data):
        if data:
            return 7
        raise MalformedMessageError("nothing")

    assert (or_none(version)(b"x"), or_none(version)(b"")) == (7, None)
