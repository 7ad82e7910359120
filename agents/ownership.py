"""What every role keeps for a partition that the consumer group has given to it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .transactions import TransactionalWriter

log = logging.getLogger(__name__)

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


async def finish(pool: ThreadPoolExecutor, last: Callable[[], None] | None = None) -> None:
    """Wait for what runs in ``pool``, then for ``last``, but not for a broker that is away."""
    if last is not None:
        pool.submit(last)
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(loop.run_in_executor(None, pool.shutdown), FINISH_S)
    except TimeoutError:
        log.warning("something still waits for Kafka; it is left, and counts as a crash")
