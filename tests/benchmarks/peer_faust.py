"""A plain Faust agent: one event a message, Faust's own consumer, a numpy sum by window."""

import logging
import sys

import faust
import numpy as np
from mode import CrashingSupervisor
from peer_job import Tally, read_job, vector_of

_LARGEST_MESSAGE = 16 << 20


def main() -> None:
    job = read_job()
    app = faust.App(
        job.group,
        broker=f"kafka://{job.servers}",
        store="memory://",
        datadir=job.folder,
        autodiscover=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        value_serializer="raw",
        producer_max_request_size=_LARGEST_MESSAGE,
        # What is waited for when somebody else joins the group; nobody does.
        stream_wait_empty=False,
    )
    updates = app.topic(job.topic, value_type=bytes)
    sums = app.topic(job.output, value_type=bytes)
    totals: dict[int, np.ndarray] = {}
    tally = Tally(job)

    @app.agent(updates, supervisor_strategy=CrashingSupervisor)
    async def add(stream):
        async for event in stream.events():
            if event.value is None:
                continue
            is_last = tally.is_last()
            window = int(event.message.timestamp * 1000) // job.window_ms
            if window not in totals:
                for over in list(totals)[-1:]:
                    await sums.send(key=str(over), value=totals[over].tobytes())
                totals[window] = np.zeros(job.dimension, np.int32)
            totals[window] += vector_of(event.value, job.dimension)
            if is_last:
                tally.finish(sum(int(total.sum()) for total in totals.values()))

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    worker = faust.Worker(app, override_logging=False, quiet=True, redirect_stdouts=False)
    worker.spinner = None
    worker.execute_from_commandline()


if __name__ == "__main__":
    main()
