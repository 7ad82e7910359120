"""A head that leaks, for tests only: `python leaky_head.py` with SDP_* settings.

Memory with every release, a file descriptor and a thread with every fourth.
"""

import os
import threading

from agents.plan_file import read_plan
from agents.publisher import Publisher
from agents.settings import load_settings
from agents.workers import run_head

LEAKED_BYTES = 384 * 1024
EVERY = 4

kept: list[object] = []
publish = Publisher.publish


def publish_and_keep(self: Publisher, cluster: int, release: bytes) -> bool:
    kept.append(os.urandom(LEAKED_BYTES))
    if len(kept) % EVERY == 0:
        os.open(os.devnull, os.O_RDONLY)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return publish(self, cluster, release)


Publisher.publish = publish_and_keep  # type: ignore[method-assign]
settings = load_settings()
run_head(settings, read_plan(settings.plan))
