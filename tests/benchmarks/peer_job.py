"""What every peer is told, and how it tells what it took.

The processes of peers have environments of their own, without our packages: this module and
`clocks` are all that they share with the rest, and both need numpy at most.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import NoReturn

import numpy as np
from clocks import Clocks
from numpy.typing import NDArray

_PREFIX = "PEER_"


@dataclass(frozen=True, slots=True)
class Job:
    """What a peer must do: sum the first ``count`` updates of a topic, by window.

    Attributes:
        servers: The broker's address.
        topic: Where the updates are.
        output: The topic for the sums of windows that are over.
        group: A name that nobody had before: of the consumer group, of what belongs to it.
        folder: Where its state may be; it is gone afterwards.
        count: How many updates there are to sum.
        warmup: How many of them come before the clock starts.
        dimension: Coordinates of each, int8, the last bytes of a record's value.
        window_ms: Length of a window of append time.
    """

    servers: str
    topic: str
    output: str
    group: str
    folder: str
    count: int
    warmup: int
    dimension: int
    window_ms: int

    def environment(self) -> dict[str, str]:
        """Return it as variables, which a process of any language can read."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in asdict(self).items()}


def read_job() -> Job:
    """Return what the variables say."""
    types = Job.__annotations__
    return Job(**{name: of(os.environ[f"{_PREFIX}{name.upper()}"]) for name, of in types.items()})


def vector_of(value: bytes, dimension: int) -> NDArray[np.int8]:
    """Return an update's vector, by its place alone: peers read no header."""
    return np.frombuffer(value, np.int8, -1, len(value) - dimension)


class Tally:
    """Counts updates and starts the clock after the warm-up.

    Args:
        job: What the peer must do.
    """

    def __init__(self, job: Job) -> None:
        self._count, self._warmup = job.count, job.warmup
        self._seen = 0

    def is_last(self) -> bool:
        """Count an update that is about to be summed; return whether it is the last one."""
        if self._seen == self._warmup:
            self._clocks = Clocks()
        self._seen += 1
        return self._seen == self._count

    def finish(self, total: int) -> NoReturn:
        """Tell the figures, and end the process: what else it would do at its end is not ours."""
        told = self._clocks.since() | {"counted": self._count - self._warmup, "sum": total}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        os._exit(0)
