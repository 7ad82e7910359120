"""How far the model's two topics go; whatever in them is not of this plan is passed over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas import (
    MalformedMessageError,
    ModelState,
    decode_model_snapshot,
    decode_model_state,
)
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import read_tail

# How many more records are read each time that none of the newest is ours.
_GROWTH = 8

Version = Callable[[bytes], int | None]
"""Tells the version from a record's bytes; None for bytes that have none."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the topic of states ends with.

    Attributes:
        state: The newest state of the plan; without one, the newest of another plan, which its
            reader refuses; None for neither.
        foreign: What else is there after it; empty for nothing.
    """

    state: ModelState | None
    foreign: str


def newest_version(config: Mapping[str, str], topic: str, version: Version) -> int:
    """Return the newest committed version of a topic, -1 for none.

    Raises:
        KafkaException: the broker cannot be asked.
    """
    count = 1
    while True:
        tail = read_tail(config, topic, 0, count, version)
        found = [number for number in tail.values if number is not None]
        if found or tail.is_complete:
            return max(found, default=-1)
        count *= _GROWTH


def newest_state(config: Mapping[str, str], topic: str, plan: PrivacyPlan) -> StoredState:
    """Return the newest committed state; keeps two of them in memory, however far back it is.

    Raises:
        KafkaException: the broker cannot be asked.
    """
    count = 1
    while True:
        search = _StateSearch(plan)
        tail = read_tail(config, topic, 0, count, search.take)
        if search.ours is not None or tail.is_complete:
            return StoredState(search.ours or search.others, search.foreign)
        count *= _GROWTH


def snapshot_version(plan: PrivacyPlan) -> Version:
    """Return what tells the version of a model of ``plan``."""

    def version(data: bytes) -> int | None:
        snapshot = decode_model_snapshot(data)
        return snapshot.model_version if snapshot.plan_id == plan.plan_id else None

    return or_none(version)


def state_version(plan: PrivacyPlan) -> Version:
    """Return what tells the version of a state of ``plan``."""

    def version(data: bytes) -> int | None:
        state = decode_model_state(data)
        return state.model_version if state.plan_id == plan.plan_id else None

    return or_none(version)


def or_none(version: Version) -> Version:
    """Return ``version`` with None for bytes that cannot be read."""

    def read(data: bytes) -> int | None:
        try:
            return version(data)
        except MalformedMessageError:
            return None

    return read


class _StateSearch:
    """Takes states, oldest first; keeps the newest of the plan, and what came after it."""

    def __init__(self, plan: PrivacyPlan) -> None:
        self.ours: ModelState | None = None
        self.others: ModelState | None = None
        self.foreign = ""
        self._plan_id = plan.plan_id

    def take(self, data: bytes) -> None:
        try:
            state = decode_model_state(data)
        except MalformedMessageError as error:
            self.foreign = f"a record that cannot be read ({error})"
            return
        if state.plan_id == self._plan_id:
            self.ours, self.foreign = state, ""
        else:
            self.others, self.foreign = state, f"a state of plan {state.plan_id.hex()}"
