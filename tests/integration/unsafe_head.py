"""A cluster head without noise, for tests only: `python unsafe_head.py` with SDP_* settings.

The product has no switch for this. It is the real head in every other respect.
"""

from agents.plan_file import read_plan
from agents.settings import load_settings
from agents.workers import run_head
from stream.testing import UnsafeNoNoise

settings = load_settings()
run_head(settings, read_plan(settings.plan), noise=UnsafeNoNoise())
