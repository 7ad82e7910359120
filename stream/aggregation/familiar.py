"""Which updates need no parser: their headers differ from a checked one's in the client alone.

What a header says beside the client (plan, type, length, model, clip norm) is the same for most
clients of a window. The first update of each kind is parsed and checked; others with the same
bytes in these places have the same verdict. Who is not recognised here is parsed, so nothing is
refused by this and nothing is let in that a parser would refuse.
"""

from typing import NamedTuple

import numpy as np

from schemas import MAX_CLIENT_ID_BYTES, UpdateShape
from stream.privacy.plan import PrivacyPlan

# Clients whose cluster is remembered, about 20 MB.
_MOST_CLIENTS = 1 << 17
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
        self._plan = plan
        self._cluster = cluster
        self._window: int | None = None
        self._kinds: dict[bytes, bool] = {}
        # Each under itself, so that windows remember the one object and not one each.
        self._clients: dict[bytes, bytes] = {}

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
        if is_below_clip is None:
            return None
        known = self._clients.get(client) or self._at_home(client)
        if known is None:
            return None
        return FamiliarUpdate(offset, value, known, start, is_below_clip)

    def _at_home(self, client: bytes) -> bytes | None:
        """Return a client that is seen for the first time, if it belongs to the cluster."""
        try:
            cluster = self._plan.cluster_of(client.decode())
        except UnicodeDecodeError:
            return None
        if cluster != self._cluster or len(client) > MAX_CLIENT_ID_BYTES:
            return None
        if len(self._clients) >= _MOST_CLIENTS:
            self._clients.clear()
        self._clients[client] = client
        return client
