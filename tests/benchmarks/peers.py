"""What a user would pick instead of a head: the same windowed sum of the same updates, in turns.

Each peer is a process that ends with its last update. A slow one reads a part of the backlog, and
what is compared is updates a second. A sum that is not the true one ends the benchmark.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from backlog import Backlog
from measurement import Effort, Floor, Result
from peer_environment import MissingPeerError, java_command, python_command
from throughput import Figures, in_turns

_FOLDER = Path(__file__).parent
_FEWEST = 100


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that sums by window.

    Attributes:
        name: Its name in the figures.
        command: Returns how it is run, and may have to install it.
        most: How many updates it reads at most: a few seconds' worth.
        warmup: The part of them that comes before its clock starts, for a compiler at run time.
        floor: What a head's speed must be, as a multiple of its.
    """

    name: str
    command: Callable[..., list[str]]
    most: int
    warmup: float = 0
    floor: Floor | None = None


_NOT_SLOWER = Floor(">=", 1)
PEERS = (
    Peer("faust", lambda: [sys.executable, "-P", str(_FOLDER / "peer_faust.py")], 10_000),
    Peer("quix", partial(python_command, "quix"), 40_000, floor=_NOT_SLOWER),
    Peer("bytewax", partial(python_command, "bytewax"), 200_000, floor=_NOT_SLOWER),
    Peer("kafka_streams", java_command, 60_000, warmup=1 / 3, floor=_NOT_SLOWER),
)


def peer_results(
    backlog: Backlog, size_name: str, commands: Mapping[str, list[str]], effort: Effort
) -> Iterator[Result]:
    """Yield a head's speed against each peer's, for one size of update.

    Args:
        backlog: The updates.
        size_name: The size's name in the figures.
        commands: How each peer is run; one that is missing here is left out.
        effort: How often, and how much of them.
    """
    peers = [peer for peer in PEERS if peer.name in commands]
    runs = [partial(_run, backlog, peer, commands[peer.name], effort.peer_share) for peer in peers]
    turns = in_turns([backlog.run_head, *runs], effort.peer_rounds) if runs else []
    for place, peer in enumerate(peers, 1):
        rates = [turn[place]["counted"] / turn[place]["seconds"] for turn in turns]
        ours = [backlog.count / turn[0]["seconds"] for turn in turns]
        times = [head / rate for head, rate in zip(ours, rates, strict=True)]
        yield Result(f"head_vs_{peer.name}_{size_name}", "times its speed", times, peer.floor)
        yield Result(f"{peer.name}_{size_name}", "updates/s", rates)


def found_commands() -> dict[str, list[str]]:
    """Return how each peer is run; say which are left out, and why."""
    found = {}
    for peer in PEERS:
        try:
            found[peer.name] = peer.command()
        except MissingPeerError as error:
            sys.stderr.write(f"{peer.name} is left out: {error}\n")
    return found


def _run(backlog: Backlog, peer: Peer, command: list[str], share: float) -> Figures:
    count = min(backlog.count, max(_FEWEST, round(peer.most * share)))
    return backlog.run_peer(command, count, round(count * peer.warmup))
