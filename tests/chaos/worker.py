"""A head (without noise) or a global agent that fails at a step, for tests only.

``python worker.py head --step commit --nth 3 --act kill`` with SDP_* settings. Without a step it
is the real role in every respect but the noise.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import agents.cluster_head
import agents.partition
from agents.plan_file import read_plan
from agents.protocol_steps import Step, nobody
from agents.settings import load_settings
from agents.workers import read_initial_weights, run_global, run_head
from stream.testing import UnsafeNoNoise

ACTS = ("kill", "stop", "delay")


class Planted:
    """A watcher that acts once, when a step is passed for the n-th time."""

    def __init__(self, step: Step, nth: int, act: Callable[[], None]) -> None:
        self._step = step
        self._left = nth
        self._act = act
        self._lock = threading.Lock()

    def __call__(self, step: Step) -> None:
        if step is not self._step:
            return
        with self._lock:
            self._left -= 1
            is_due = self._left == 0
        if is_due:
            sys.stderr.write(f"planted at {step}\n")
            sys.stderr.flush()
            self._act()


def acting(act: str, seconds: float) -> Callable[[], None]:
    """Return what a planted fault does: end, or stand still, or only its thread stand still."""
    if act == "delay":
        return partial(time.sleep, seconds)
    number = signal.SIGKILL if act == "kill" else signal.SIGSTOP
    return partial(os.kill, os.getpid(), number)


def use_other_group() -> None:
    """Join a consumer group of our own, so that two heads hold the same cluster at once."""
    genuine = agents.partition.group_of
    for module in (agents.partition, agents.cluster_head):
        module.group_of = lambda plan: f"{genuine(plan)}-other"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("head", "global"))
    parser.add_argument("--step", choices=[*Step])
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--act", choices=ACTS, default="kill")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--other-group", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    watch = nobody
    if given.step is not None:
        watch = Planted(Step(given.step), given.nth, acting(given.act, given.seconds))
    if given.other_group:
        use_other_group()
    settings = load_settings()
    plan = read_plan(settings.plan)
    if given.role == "head":
        run_head(settings, plan, noise=UnsafeNoNoise(), watch=watch)
    run_global(settings, plan, read_initial_weights(None, plan), watch=watch)


if __name__ == "__main__":
    main()
