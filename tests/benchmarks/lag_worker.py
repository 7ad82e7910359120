"""A real head whose event loop is watched: ``python lag_worker.py FILE``.

It is `sdp head` in every respect, with SDP_* settings and real noise, and a task beside it that
asks to sleep a few milliseconds again and again. When it is stopped, FILE has a line of JSON: of
each sleep, when it began by the monotonic clock, and how much too long it was, in seconds.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from agents.cluster_head import HeadService
from agents.plan_file import read_plan
from agents.settings import load_settings
from agents.workers import run_head

SLEEP_S = 0.005


def main() -> None:
    sleeps: list[tuple[float, float]] = []
    start, shut_down = HeadService.on_start, HeadService.on_shutdown

    async def watch(self: HeadService) -> None:
        while not self.should_stop:
            begin = time.monotonic()
            await asyncio.sleep(SLEEP_S)
            sleeps.append((begin, time.monotonic() - begin - SLEEP_S))

    async def on_start(self: HeadService) -> None:
        await start(self)
        self.add_future(watch(self))

    async def on_shutdown(self: HeadService) -> None:
        await shut_down(self)
        tell(sleeps)

    HeadService.on_start, HeadService.on_shutdown = on_start, on_shutdown
    settings = load_settings()
    run_head(settings, read_plan(settings.plan))


def tell(sleeps: list[tuple[float, float]]) -> None:
    Path(sys.argv[1]).write_text(json.dumps(sleeps))


if __name__ == "__main__":
    main()
