"""Updates that are looked at together, and what is known of each."""

from collections.abc import Callable, Sequence

from .client_numbers import ClientNumbers
from .familiar import FamiliarGroup
from .update_blocks import UpdateBlock
from .validation import Rejection


class Together:
    """Some updates of one window, in the order of the log, and what is known of them so far.

    Attributes:
        size: How many they are.
        blocks: All of them.
        value_of: Gives the bytes of the update at a place.
        clients: By place, the numbers of who sent them; only of those that may be counted.
        below_clip: The places of those that are below the clip norm, and perhaps of others.
        refused: By place, who sent it and why it does not count.
    """

    def __init__(
        self, size: int, blocks: Sequence[UpdateBlock], value_of: Callable[[int], bytes]
    ) -> None:
        self.size = size
        self.blocks = blocks
        self.value_of = value_of
        self.clients: dict[int, int] = {}
        self._parsed: dict[int, bytes] = {}
        self.below_clip: set[int] = set()
        self.refused: dict[int, tuple[str, Rejection]] = {}

    def unknown(self) -> list[int]:
        """Return the places of those of which nothing is known yet."""
        if len(self.clients) == self.size:
            return []
        return [place for place in range(self.size) if place not in self.clients]

    def take(self, places: Sequence[int], group: FamiliarGroup) -> None:
        """Note who sent the updates of a group, which stand at ``places``."""
        self.clients.update(zip(places, group.numbers.tolist(), strict=True))
        if group.is_below_clip:
            self.below_clip.update(places)

    def take_all(self, groups: Sequence[FamiliarGroup]) -> None:
        """Note all groups, whose places are those of the updates."""
        for group in groups:
            self.take(group.places, group)

    def take_parsed(self, place: int, client: bytes, *, is_below_clip: bool) -> None:
        """Note what a parser says; the client has no number before `number_parsed`."""
        self._parsed[place] = client
        if is_below_clip:
            self.below_clip.add(place)

    def number_parsed(self, numbers: ClientNumbers) -> None:
        """Number the clients of the updates that were parsed, all at once."""
        found = numbers.add(list(self._parsed.values())).tolist()
        self.clients.update(zip(self._parsed, found, strict=True))
        self._parsed.clear()

    def refuse(self, place: int, client_id: str, rejection: Rejection) -> None:
        """Note why an update does not count."""
        self.clients.pop(place, None)
        self._parsed.pop(place, None)
        self.refused[place] = client_id, rejection
