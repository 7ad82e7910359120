"""Releases, models or the model's state gone: the global agent says so, or repairs it."""

import contextlib
import dataclasses

import numpy as np
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from topic_faults import (
    SHORT,
    copy,
    delete,
    has_no_gap,
    make_again,
    produce,
    recreate,
    verify,
    wait_for_windows,
)

from agents.model_opener import model_group
from schemas import (
    decode_model_snapshot,
    decode_model_state,
    decode_release,
    encode_release,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def models(deployment):
    return [decode_model_snapshot(m.value()) for m in deployment.read(deployment.names.model)]


def last_words(deployment, code=1):
    """Start a global agent; return what it wrote, once it has ended."""
    merger = deployment.start_global()
    deployment.eventually("it ends", lambda: merger.process.poll() is not None)
    text = merger.log.read_text()
    assert merger.process.returncode == code, text
    assert "Traceback" not in text
    return text


def goes_on(deployment, *, since):
    """Let head and global agent run until there are two models more than version ``since``."""
    head, merger = deployment.start_head(), deployment.start_global()
    deployment.eventually(
        "models go on", lambda: (m := models(deployment)) and m[-1].model_version >= since + 2
    )
    assert head.stop() == 0
    assert merger.stop() == 0


def is_deleted(deployment, group):
    """Delete a consumer group, as soon as its last member is gone."""
    admin = AdminClient(deployment.config)
    with contextlib.suppress(KafkaException):
        admin.delete_consumer_groups([group])[group].result(30)
        return True
    return False


@pytest.fixture
def stopped(deploy):
    """A deployment of one cluster that has made models and was stopped."""
    deployment = deploy(cluster_count=1, **SHORT)
    head, merger = deployment.start_head(), deployment.start_global()
    deployment.eventually("models are made", lambda: len(models(deployment)) >= 4)
    assert (head.stop(), merger.stop()) == (0, 0)
    return deployment


def test_releases_that_are_gone_stop_it_until_all_of_them_are_back(stopped):
    topic = stopped.names.releases
    releases, version = stopped.read(topic), models(stopped)[-1].model_version
    state = decode_model_state(stopped.read(stopped.names.model_state)[-1].value())
    recreate(stopped, topic)
    why = last_words(stopped)
    assert f"has read {topic} up to offset {state.next_offset}" in why
    assert "the topic has offsets 0 to 0: it was deleted or made again" in why
    assert "Restore all of its records from a backup, in their order" in why
    assert "never published" in verify(stopped, is_fine=False)[0]

    # Others in their place are found out as well.
    newest = decode_release(releases[-1].value())
    other = encode_release(dataclasses.replace(newest, window=newest.window + 1))
    produce(stopped, topic, *[other] * len(releases))
    assert "the release before it is not in the model" in last_words(stopped)
    assert models(stopped)[-1].model_version == version

    recreate(stopped, topic)
    copy(stopped, topic, 0, releases)
    goes_on(stopped, since=version)
    assert has_no_gap([model.model_version for model in models(stopped)])
    verify(stopped)


def test_a_model_that_is_gone_is_published_again_and_its_state_is_not_made_up(stopped):
    model, state = stopped.names.model, stopped.names.model_state
    newest = models(stopped)[-1]
    recreate(stopped, model)
    goes_on(stopped, since=newest.model_version)
    (again, *later) = models(stopped)
    assert (again.model_version, again.window) == (newest.model_version, newest.window)
    np.testing.assert_array_equal(again.vector, newest.vector)
    assert has_no_gap([each.model_version for each in (again, *later)])

    states = stopped.read(state)
    recreate(stopped, state)
    why = last_words(stopped)
    assert f"{state} is empty, though {model} holds models" in why
    assert "restore it from a backup" in why
    copy(stopped, state, 0, states[:-1])
    assert "restore that topic from a newer backup" in last_words(stopped)
    copy(stopped, state, 0, states[-1:])
    goes_on(stopped, since=later[-1].model_version)
    assert has_no_gap([each.model_version for each in models(stopped)])
    verify(stopped)


def test_a_model_that_is_gone_with_its_state_is_begun_anew_only_if_the_operator_says_so(stopped):
    both = (stopped.names.model, stopped.names.model_state)
    merger = stopped.start_global()
    stopped.eventually("it runs", lambda: (merger.health() or {}).get("owns_model"))
    window = models(stopped)[-1].window
    delete(stopped, *both)
    stopped.eventually("it ends", lambda: merger.process.poll() == 1)
    assert f"deleted: {both[0]}, {both[1]}. Stop all workers" in merger.log.read_text()
    assert f"missing topics: {both[0]}, {both[1]}" in last_words(stopped, code=2)

    make_again(stopped, *both)
    group = model_group(stopped.plan)
    why = last_words(stopped)
    assert f"the consumer group {group} has committed an offset" in why
    assert "To begin once more with version 0" in why
    assert not models(stopped)

    stopped.eventually("the group is deleted", lambda: is_deleted(stopped, group))
    head = stopped.start_head()
    stopped.start_global()
    stopped.eventually(
        "it has caught up", lambda: (m := models(stopped)) and m[-1].window > window + 1
    )
    made = models(stopped)
    assert [each.model_version for each in made] == list(range(len(made)))
    wait_for_windows(stopped, 1, [0])
    assert head.stop() == 0
    verify(stopped)
