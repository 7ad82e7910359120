"""What is recognised without a parser is sound for its window; the rest is left to the parser."""

from dataclasses import replace

import numpy as np
import pytest

from schemas import Update, encode_update
from stream.aggregation import familiar
from stream.aggregation.client_numbers import ClientNumbers
from stream.aggregation.familiar import FamiliarUpdates
from stream.aggregation.update_blocks import blocks_of
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="familiar",
    dimension=6,
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
GOOD = Update(PLAN.plan_id, "north/1", 3, np.arange(6, dtype=np.int8))


@pytest.fixture
def numbers():
    return ClientNumbers()


@pytest.fixture
def updates(numbers):
    """Window 5 of cluster 0, of which one update has passed all checks."""
    found = FamiliarUpdates(PLAN, 0, numbers)
    found.begin_window(5)
    found.learn(encode_update(GOOD), is_below_clip=False)
    return found


def find_all(updates, values):
    """Yield of each that is recognised its place, its client and its clip bit."""
    for block in blocks_of(values, None):
        for group in updates.find(block):
            for place, number in zip(group.places, group.numbers.tolist(), strict=True):
                yield place, updates._numbers.name(number), group.is_below_clip


def find(updates, value):
    """Return how one update is recognised, alone: its client and its clip bit, or None."""
    found = [(client, is_below) for _, client, is_below in find_all(updates, [value])]
    assert len(found) <= 1
    return found[0] if found else None


def test_another_client_with_the_same_header_is_recognised(updates):
    value = encode_update(replace(GOOD, client_id="north/two", vector=-GOOD.vector))
    assert find(updates, value) == (b"north/two", False)


def test_many_are_recognised_at_once_and_each_keeps_its_place(updates):
    below = replace(GOOD, clip_norm=2.0, is_below_clip=True)
    assert updates.learn(encode_update(below), is_below_clip=True)
    good = [replace(GOOD, client_id=f"north/{n}") for n in range(8, 12)]
    strange = [replace(GOOD, model_version=4), replace(GOOD, client_id="south/1")]
    sent = [good[0], strange[0], good[1], below, strange[1], good[2], good[3], GOOD]
    found = {
        place: (client, is_below)
        for place, client, is_below in find_all(
            updates, [*map(encode_update, sent), b"", b"garbage"]
        )
    }
    assert found == {
        place: (each.client_id.encode(), each.is_below_clip)
        for place, each in enumerate(sent)
        if each not in strange
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "south/1"},
        {"client_id": "west/1"},
        {"client_id": "north/" + "x" * 122},
        {"model_version": 4},
        {"clip_norm": 1.0},
        {"clip_norm": 1.0, "is_below_clip": True},
        {"plan_id": bytes(16)},
        {"vector": np.arange(7, dtype=np.int8)},
        {"vector": np.arange(6, dtype=np.int16)},
    ],
)
def test_what_differs_is_left_to_the_parser(updates, changes):
    assert find(updates, encode_update(replace(GOOD, **changes))) is None


def test_a_client_id_that_is_no_text_is_left_to_the_parser(updates):
    value = encode_update(replace(GOOD, client_id="north/a"))
    assert find(updates, value.replace(b"north/a", b"north/\xff")) is None


def test_each_kind_is_known_with_what_it_says_of_its_norm(updates):
    for is_below in (True, False):
        value = encode_update(replace(GOOD, clip_norm=2.0, is_below_clip=is_below))
        updates.learn(value, is_below_clip=is_below)
        assert find(updates, value) == (b"north/1", is_below)


def test_what_is_right_in_one_window_is_unknown_in_the_next(updates):
    updates.begin_window(5)
    assert find(updates, encode_update(GOOD)) is not None
    updates.begin_window(6)
    assert find(updates, encode_update(GOOD)) is None


def test_many_kinds_do_not_make_it_grow(updates):
    for version in range(10 * familiar._MOST_KINDS):
        updates.learn(encode_update(replace(GOOD, model_version=version)), is_below_clip=False)
    assert len(updates._kinds) <= familiar._MOST_KINDS


def test_only_clients_of_the_cluster_get_a_number(updates, numbers):
    clients = ("north/1", "south/1", "west/1", "north/1", "north/2", "north/" + "x" * 122)
    for client in clients:
        find(updates, encode_update(replace(GOOD, client_id=client)))
    assert [numbers.name(number) for number in range(len(numbers))] == [b"north/1", b"north/2"]
