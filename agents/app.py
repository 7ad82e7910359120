"""The one place that knows Faust's options.

Faust is the engine around a role: app, agent, channel, services, supervision, signals. It moves no
record, derives no offset, keeps no state and makes no transaction of ours.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import faust
from faust.app.base import BootStrategy
from faust.types import ChannelT, StreamT
from mode import CrashingSupervisor

from .record_batch import RecordBatch

# Batches that wait for the agent; the consumer's thread blocks when it is full.
CHANNEL_BATCHES = 4

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_AGENT_POLL_S = 0.01


class _WithoutKafka(BootStrategy):
    enable_kafka = False
    enable_web = False


class RoleApp(faust.App):
    """A Faust app that starts no Kafka client and no web server of its own."""

    BootStrategy = _WithoutKafka

    async def on_first_start(self) -> None:
        """Make no folders: Faust would want one for tables, and there are none."""


def make_app(name: str) -> RoleApp:
    """Return the app of a role."""
    return RoleApp(
        name,
        # Asked for by Faust, never connected to: see `_WithoutKafka`.
        broker="kafka://127.0.0.1:1",
        store="memory://",
        autodiscover=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        stream_wait_empty=False,
        worker_redirect_stdouts=False,
    )


async def wait_for_agent(app: RoleApp, channel: ChannelT[RecordBatch]) -> None:
    """Return once an agent reads ``channel``: what is put there before is lost to Faust."""
    # With Faust's own consumer switched off, nobody else opens the streams' gate.
    app.flow_control.resume()
    while not channel.subscriber_count:  # noqa: ASYNC110 - Faust has no event for it
        await asyncio.sleep(_AGENT_POLL_S)


def add_agent(
    app: RoleApp,
    channel: ChannelT[RecordBatch],
    handle: Callable[[RecordBatch], Awaitable[None]],
) -> None:
    """Let ``handle`` have every batch of ``channel``; its first error ends the worker."""

    async def take(batches: StreamT[RecordBatch]) -> None:
        async for batch in batches:
            await handle(batch)

    app.agent(channel, name="batches", supervisor_strategy=CrashingSupervisor)(take)


def run_worker(app: RoleApp, log_level: str) -> NoReturn:
    """Run until SIGTERM, SIGINT or a crash, and end the process: 0 in the first two cases, else 1.

    Nothing of the caller runs afterwards.
    """
    logging.basicConfig(level=log_level, format=_LOG_FORMAT, stream=sys.stderr, force=True)
    # Faust and mode tell of every service that starts: not what an operator looks for.
    for noisy in ("faust", "mode"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(log_level)))
    worker = faust.Worker(app, override_logging=False, quiet=True)
    worker.spinner = None
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        # A thread may be waiting for a broker that is away, and Python would wait for the thread.
        # What was to finish has finished, or counts as a crash, which the protocol survives.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)
