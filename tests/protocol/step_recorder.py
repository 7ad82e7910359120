"""A head (without noise) or a global agent that says which steps it passes, for tests only.

``python step_recorder.py head FILE`` with SDP_* settings appends a step's name a line.
"""

import sys
from pathlib import Path

from agents.plan_file import read_plan
from agents.protocol_steps import Step
from agents.settings import load_settings
from agents.workers import read_initial_weights, run_global, run_head
from stream.testing import UnsafeNoNoise


def main() -> None:
    role, target = sys.argv[1], Path(sys.argv[2])

    def watch(step: Step) -> None:
        with target.open("a", encoding="utf-8") as steps:
            steps.write(f"{step}\n")

    settings = load_settings()
    plan = read_plan(settings.plan)
    if role == "head":
        run_head(settings, plan, noise=UnsafeNoNoise(), watch=watch)
    run_global(settings, plan, read_initial_weights(None, plan), watch=watch)


if __name__ == "__main__":
    main()
