"""Every update that a gateway is given goes out once, to its own cluster, and none is forgotten."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import BATCH_OVERHEAD_BYTES, decode_update_batch
from stream.client import GradientClient
from stream.errors import DeliveryError
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import LoopbackProducer
from stream.update_batcher import UpdateBatcher


class Refusing(LoopbackProducer):
    """A producer that takes nothing while its queue is full."""

    is_full = True

    def send(self, topic, partition, key, value):
        if self.is_full:
            raise DeliveryError("the local queue stayed full")
        super().send(topic, partition, key, value)


def updates_in(sender, *, topic="t", partition=None):
    return [
        update
        for record in sender.sent
        if record.topic == topic and partition in (None, record.partition)
        for update in decode_update_batch(record.value)
    ]


@given(
    sent=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=40),
    max_updates=st.integers(1, 7),
    max_bytes=st.integers(40, 120),
)
def test_each_update_goes_out_once_in_order_within_the_limits(sent, max_updates, max_bytes):
    sender = LoopbackProducer()
    batcher = UpdateBatcher(sender, max_updates=max_updates, max_message_bytes=max_bytes)
    values = [(where, bytes([0x0A]) + bytes([n]) * size) for n, (where, size) in enumerate(sent)]
    for where, value in values:
        batcher.send("t", where, b"key", value)
    batcher.flush(1)
    for partition in range(3):
        ours = [value for where, value in values if where == partition]
        small = [value for value in ours if len(value) + BATCH_OVERHEAD_BYTES <= max_bytes]
        found = updates_in(sender, partition=partition)
        assert Counter(found) == Counter(ours)
        assert [value for value in found if value in small] == small
    for record in sender.sent:
        updates = decode_update_batch(record.value)
        assert len(updates) <= max_updates
        assert len(record.value) <= max_bytes or updates == [record.value]


def test_a_full_batch_goes_out_at_once_and_the_rest_with_a_flush():
    sender = LoopbackProducer()
    batcher = UpdateBatcher(sender, max_updates=2)
    for value in (b"\x0a1", b"\x0a2", b"\x0a3"):
        batcher.send("t", 0, b"key", value)
    assert updates_in(sender) == [b"\x0a1", b"\x0a2"]
    batcher.flush(1)
    batcher.flush(1)
    assert updates_in(sender) == [b"\x0a1", b"\x0a2", b"\x0a3"]


def test_what_the_producer_does_not_take_waits_for_another_try():
    sender = Refusing()
    batcher = UpdateBatcher(sender, max_updates=2)
    batcher.send("t", 0, b"key", b"\x0a1")
    with pytest.raises(DeliveryError):
        batcher.send("t", 0, b"key", b"\x0a2")
    sender.is_full = False
    batcher.flush(1)
    assert updates_in(sender) == [b"\x0a1", b"\x0a2"]


def test_the_end_of_the_block_sends_what_waits_and_tells_what_failed():
    sender = LoopbackProducer()
    with UpdateBatcher(sender) as batcher:
        batcher.send("t", 0, b"key", b"\x0a1")
    assert updates_in(sender) == [b"\x0a1"]
    refusing = Refusing()
    with pytest.raises(DeliveryError), UpdateBatcher(refusing) as batcher:
        batcher.send("t", 0, b"key", b"\x0a1")
    batcher = UpdateBatcher(refusing)
    batcher.send("t", 0, b"key", b"\x0a1")
    error = KeyError("of the block")
    batcher.__exit__(KeyError, error, None)
    assert "queue stayed full" in error.__notes__[0]


@pytest.mark.parametrize("limits", [{"max_updates": 0}, {"max_message_bytes": 0}])
def test_a_limit_below_one_is_refused(limits):
    with pytest.raises(ValueError, match="at least 1"):
        UpdateBatcher(LoopbackProducer(), **limits)


def test_clients_of_a_gateway_share_it_as_their_producer():
    plan = PrivacyPlan(
        name="gateway",
        dimension=4,
        cluster_count=2,
        assignment="prefix",
        prefixes=("north", "south"),
        expected_clients=10,
        start_ms=0,
        window_length_ms=1000,
        grace_ms=100,
        release_delay_ms=300,
        l2_clip_norm=1.0,
        grid_l2_bound=100,
        count_weight=10,
        update_dtype="int8",
        epsilon=8.0,
        delta=1e-5,
        horizon_windows=3,
        optimizer=OptimizerSpec("sgd", 0.1),
        normalizer="expected_clients",
    )
    sender = LoopbackProducer()
    with UpdateBatcher(sender) as batcher:
        for n in range(10):
            client = GradientClient(plan, f"{'north' if n % 2 else 'south'}/{n}", batcher)
            client.publish(np.ones(4), model_version=0)
    assert [record.partition for record in sender.sent] == [1, 0]
    assert len(updates_in(sender, topic=sender.sent[0].topic)) == 10
