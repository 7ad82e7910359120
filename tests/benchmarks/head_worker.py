"""A real head that ends when it has counted so many updates: ``python head_worker.py COUNT``.

It is `sdp head` in every respect, with SDP_* settings and real noise; only what it tells to its
metrics is read along. Prints one line of JSON.
"""

import json
import os
import signal
import sys

from clocks import Clocks

import agents.feed
from agents.plan_file import read_plan
from agents.settings import load_settings
from agents.workers import run_head
from stream.metrics import HeadMetrics


def main() -> None:
    count = int(sys.argv[1])
    clocks: list[Clocks] = []
    is_told: list[bool] = []
    done = 0
    observe = HeadMetrics.observe_batch

    def watched(self, cluster, outcome) -> None:
        nonlocal done
        observe(self, cluster, outcome)
        done += outcome.accepted + len(outcome.rejected)
        if done >= count and not is_told:
            is_told.append(True)
            told = clocks[0].since() | {"rejected": len(outcome.rejected)}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGTERM)

    HeadMetrics.observe_batch = watched
    start_clocks_with_first_batch(clocks)
    settings = load_settings()
    run_head(settings, read_plan(settings.plan))


def start_clocks_with_first_batch(clocks: list[Clocks]) -> None:
    """Start the clocks when the feed has its first records."""
    plain_records = agents.feed.plain_records

    def watched(messages, **options):
        if not clocks and messages:
            clocks.append(Clocks())
        return plain_records(messages, **options)

    agents.feed.plain_records = watched


if __name__ == "__main__":
    main()
