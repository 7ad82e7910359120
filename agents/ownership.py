"""What every role keeps for a partition that the consumer group has given to it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol, TypeVar

from .kafka_edge import retry_while_away
from .transactions import FencedError, TransactionalWriter, TransactionFailedError

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Long enough for a commit, short enough for a supervisor that kills after ten seconds.
FINISH_S = 4.0


class Owned:
    """A partition that this worker owns until the group's generation is over.

    Attributes:
        writer: Its fenced producer.
        epoch: The opening or seek whose batches count; those of an older one are void.
        metadata: The group's, for transactions; valid as long as this object.
        lock: Held by whoever changes the partition's state.
        is_closed: Whether the partition was let go; nothing may be done with it any more.
    """

    def __init__(self, writer: TransactionalWriter, epoch: int, metadata: object) -> None:
        """Own a partition from ``epoch`` on."""
        self.writer = writer
        self.epoch = epoch
        self.metadata = metadata
        self.lock = asyncio.Lock()
        self.is_closed = False


class Rejoins(Protocol):
    """What asks the consumer group for a new assignment: the feed."""

    def rejoin(self) -> None:
        """Ask for a new assignment, so that every partition is opened anew."""


async def take_over(feed: Rejoins, pool: Executor, what: str, open_: Callable[[], _T]) -> _T | None:
    """Return what ``open_`` opens; None where the group is asked anew who the owner is.

    A fence can be overtaken by one that was given up while the broker was away and that it
    still carries out, or by the fence of another owner: only the group knows which.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(pool, retry_while_away, what, open_)
    except (FencedError, TransactionFailedError) as error:
        log.warning("%s begins anew: %s", what, error)
        feed.rejoin()
        return None


async def finish(pool: ThreadPoolExecutor, last: Callable[[], None] | None = None) -> None:
    """Wait for what runs in ``pool``, then for ``last``, but not for a broker that is away."""
    if last is not None:
        pool.submit(last)
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(loop.run_in_executor(None, pool.shutdown), FINISH_S)
    except TimeoutError:
        log.warning("something still waits for Kafka; it is left, and counts as a crash")
