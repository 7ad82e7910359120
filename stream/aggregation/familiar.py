"""Which updates need no parser: their headers differ from a checked one's in the client alone.

What a header says beside the client (plan, type, length, model, clip norm) is the same for most
clients of a window. The first update of each kind is parsed and checked; others with the same
bytes in these places have the same verdict. Who is not recognised here is parsed, so nothing is
refused by this and nothing is let in that a parser would refuse.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from schemas import MAX_CLIENT_ID_BYTES, UpdateShape
from stream.privacy.plan import PrivacyPlan

# Clients whose cluster is remembered, about 10 MB.
_CLIENTS_KNOWN = 1 << 16
# A model's versions may be many, and anybody may make them up.
_MOST_KINDS = 64


class FamiliarUpdate(NamedTuple):
    """An update whose header is right for its window; its vector has not been looked at.

    Attributes:
        offset: Where it stands.
        value: Its bytes.
        client: The bytes of its client id.
        start: Where its vector begins.
        is_below_clip: What it says of its gradient's norm.
    """

    offset: int
    value: bytes
    client: bytes
    start: int
    is_below_clip: bool


class FamiliarUpdates:
    """Recognises the updates of one cluster that are like one that has passed all checks."""

    def __init__(self, plan: PrivacyPlan, cluster: int) -> None:
        """Set up; nothing is familiar yet."""
        self._split = UpdateShape(
            plan.plan_id, np.dtype(plan.update_dtype), plan.coordinate_count
        ).split
        self._window: int | None = None
        self._kinds: dict[bytes, bool] = {}

        @lru_cache(maxsize=_CLIENTS_KNOWN)
        def is_at_home(client: bytes) -> bool:
            try:
                client_id = client.decode()
            except UnicodeDecodeError:
                return False
            return len(client) <= MAX_CLIENT_ID_BYTES and plan.cluster_of(client_id) == cluster

        self._is_at_home = is_at_home

    def begin_window(self, window: int) -> None:
        """Forget what is right in another window than ``window``."""
        if window != self._window:
            self._window = window
            self._kinds.clear()

    def learn(self, value: bytes, *, is_below_clip: bool) -> None:
        """Note an update of the window that has passed all checks."""
        parts = self._split(value)
        if parts is not None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            self._kinds[parts.rest] = is_below_clip

    def find(self, offset: int, value: bytes) -> FamiliarUpdate | None:
        """Return the update, or None where it has to be parsed."""
        parts = self._split(value)
        if parts is None:
            return None
        client, rest, start = parts
        is_below_clip = self._kinds.get(rest)
        if is_below_clip is None or not self._is_at_home(client):
            return None
        return FamiliarUpdate(offset, value, client, start, is_below_clip)
