"""Faust as an engine only: it runs our agent and services, and touches nothing else."""

import json
import signal
import subprocess
import sys

import pytest

# A role in small: a service that puts numbers into the channel, an agent that prints them.
_TINY = """\
import asyncio
import sys

touched = []


def note(event, arguments):
    if event in ("socket.connect", "socket.bind", "os.mkdir"):
        touched.append([event, str(arguments)])


sys.addaudithook(note)

import json
import time

from mode import Service

from agents.app import CHANNEL_BATCHES, add_agent, make_app, run_worker, wait_for_agent

app = make_app("tiny")
channel = app.channel(maxsize=CHANNEL_BATCHES)


async def handle(batch):
    if batch == "crash":
        raise RuntimeError("the agent fails")
    if batch == "stuck":
        print(batch, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    if batch == "last":
        print(json.dumps(touched), flush=True)
    else:
        print(batch, flush=True)


class Feeder(Service):
    async def on_start(self):
        await wait_for_agent(app, channel)
        for batch in sys.argv[1:]:
            await channel.put(batch)

    async def on_stop(self):
        print("stopped", flush=True)


app.service(Feeder())
add_agent(app, channel, handle)
run_worker(app, "INFO")
"""


@pytest.fixture
def start(tmp_path):
    """Start the tiny role in an empty folder."""
    started = []

    def start_with(*batches):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _TINY, *batches],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start_with
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_the_agent_gets_every_batch_in_order_and_a_signal_ends_with_0(start, tmp_path, stop):
    batches = [f"batch-{number}" for number in range(20)]
    process = start(*batches, "last")
    assert [process.stdout.readline().strip() for _ in batches] == batches
    touched = json.loads(process.stdout.readline())
    process.send_signal(stop)
    said, told = process.communicate(timeout=20)
    assert process.returncode == 0, told
    assert said == "stopped\n"
    assert "Traceback" not in told
    # No broker of its own, no web server, no folder.
    assert touched == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_agent_ends_the_worker_with_1_and_its_reason(start):
    process = start("batch", "crash", "never handled")
    said, told = process.communicate(timeout=20)
    assert process.returncode == 1
    assert said == "batch\nstopped\n"
    assert "RuntimeError" in told
    assert "the agent fails" in told


def test_a_thread_that_waits_for_a_broker_does_not_keep_the_process(start):
    process = start("stuck")
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 0, told
