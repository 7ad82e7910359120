"""Which updates need no parser: their headers differ from a checked one's in the client alone.

What a header says beside the client (plan, type, length, model, clip norm) is the same for most
clients of a window. The first update of each kind is parsed and checked; others with the same
bytes in these places have the same verdict. Who is not recognised here is parsed, so nothing is
refused by this and nothing is let in that a parser would refuse.
"""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas import MAX_CLIENT_ID_BYTES, UpdateShape
from stream.privacy.plan import PrivacyPlan

from .client_numbers import UNKNOWN, ClientNumbers
from .update_blocks import UpdateBlock

# A model's versions may be many, and anybody may make them up.
_MOST_KINDS = 64


class FamiliarGroup(NamedTuple):
    """Updates whose headers are right for their window; no vector has been looked at.

    Attributes:
        places: Where they are among those that were looked at, in order.
        numbers: Those of their clients, shape ``(n,)``.
        is_below_clip: What they say of their gradients' norms.
    """

    places: Sequence[int]
    numbers: NDArray[np.int32]
    is_below_clip: bool


class FamiliarUpdates:
    """Recognises the updates of one cluster that are like one that has passed all checks."""

    def __init__(self, plan: PrivacyPlan, cluster: int, numbers: ClientNumbers) -> None:
        """Set up; nothing is familiar yet, but that clients with numbers are of the cluster."""
        self._shape = UpdateShape(plan.plan_id, np.dtype(plan.update_dtype), plan.coordinate_count)
        self._plan = plan
        self._cluster = cluster
        self._window: int | None = None
        self._kinds: dict[bytes, bool] = {}
        self._numbers = numbers

    def begin_window(self, window: int) -> None:
        """Forget what is right in another window than ``window``."""
        if window != self._window:
            self._window = window
            self._kinds.clear()

    def learn(self, value: bytes, *, is_below_clip: bool) -> bool:
        """Note an update of the window that has passed all checks; say whether it is new."""
        rest = self._shape.rest_of(value)
        if rest is None or rest in self._kinds:
            return False
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[rest] = is_below_clip
        return True

    def find(self, block: UpdateBlock) -> Iterator[FamiliarGroup]:
        """Find those of a block that need no parser."""
        for rows, clients, rest in self._shape.groups(block.rows[:, block.skip :], block.length):
            is_below_clip = self._kinds.get(rest)
            if is_below_clip is None:
                continue
            places: Sequence[int] = rows
            if not isinstance(block.places, range):
                places = [block.places[row] for row in rows]
            numbers = self._numbers.find(clients)
            if (numbers == UNKNOWN).any():
                self._add_new(clients, numbers)
                are_known = numbers != UNKNOWN
                places, numbers = list(compress(places, are_known)), numbers[are_known]
            yield FamiliarGroup(places, numbers, is_below_clip)

    def _add_new(self, client_ids: NDArray[np.uint8], numbers: NDArray[np.int32]) -> None:
        """Number those clients that have no number and belong to the cluster."""
        new = {
            row: client
            for row in np.flatnonzero(numbers == UNKNOWN).tolist()
            if self._is_at_home(client := client_ids[row].tobytes())
        }
        numbers[list(new)] = self._numbers.add(list(new.values()))

    def _is_at_home(self, client: bytes) -> bool:
        try:
            cluster = self._plan.cluster_of(client.decode())
        except UnicodeDecodeError:
            return False
        return cluster == self._cluster and len(client) <= MAX_CLIENT_ID_BYTES
