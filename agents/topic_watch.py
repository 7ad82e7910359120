"""Topics that are not what they were: deleted, made again, or cut off, while a worker uses them.

A topic that was made again takes what is written as if nothing had happened: a ledger would go
on without its beginning, and no restart could trust it. Kafka gives each topic an id when it is
made, which tells.
"""

import asyncio
import logging
from collections.abc import Callable

from confluent_kafka import KafkaException
from mode import Service

from .topic_ids import Topics, TopicsSeen, gone_text

log = logging.getLogger(__name__)

# Each look costs confluent-kafka a few hundred bytes that it never frees: seldom enough that a
# year of looking is nothing, and often enough that little is written to a topic made again.
_EVERY_S = 10.0
_AGAIN_S = 1.0


class TopicWatch(Service):
    """Looks at a worker's topics every ten seconds, and tells of each change.

    Attributes:
        gone: The topics that are not there.
    """

    def __init__(self, topics: Topics, on_change: Callable[[], None]) -> None:
        """Set up; ``on_change`` is called in the event loop, after each change."""
        super().__init__()
        self.gone: tuple[str, ...] = ()
        self._topics = topics
        self._on_change = on_change
        self._known: TopicsSeen | None = None
        self._newest: TopicsSeen | None = None

    async def on_start(self) -> None:
        """Note what is there, before anything of it is read."""
        self._known = await self._look()

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            is_doubtful = self._newest not in (None, self._known)
            await self.sleep(_AGAIN_S if is_doubtful else _EVERY_S)
            seen = await self._look()
            # A broker may be behind the others for a moment: what is seen twice is believed.
            is_sure, self._newest = seen == self._newest, seen
            if seen is not None and is_sure and seen != self._known:
                self._believe(seen)

    async def _look(self) -> TopicsSeen | None:
        try:
            return await asyncio.to_thread(self._topics.look)
        except KafkaException as error:
            log.debug("the topics cannot be looked at: %s", error)  # others tell of that
            return None

    def _believe(self, seen: TopicsSeen) -> None:
        before, self._known = self._known, seen
        self.gone = tuple(name for name in self._topics.names if name not in seen.ids)
        if before is None:
            return
        if self.gone:
            log.error("%s", gone_text(self.gone))
        else:
            log.error("%s: everything is opened anew", _changes(before, seen))
        self._on_change()


def _changes(before: TopicsSeen, seen: TopicsSeen) -> str:
    made = sorted(name for name, made_id in seen.ids.items() if before.ids.get(name) != made_id)
    if made:
        return f"deleted and made again: {', '.join(made)}"
    return "the oldest records of the ledger were deleted"
