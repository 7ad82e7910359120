"""Quix Streams: a tumbling window that reduces vectors, exactly once, with its changelog.

It commits once a window's length, as a head does. The state is kept as the bytes of numpy's array,
from which it is read without a copy: its default, JSON, knows no arrays.
"""

import json

import numpy as np
from peer_job import Tally, read_job, vector_of
from quixstreams import Application
from quixstreams.state.rocksdb import RocksDBOptions

_LARGEST_MESSAGE = 16 << 20


def main() -> None:
    job = read_job()
    tally = Tally(job)
    totals: list[np.ndarray] = [np.zeros(job.dimension, np.int32)]  # of each window, in order

    def add(total, value):
        is_last = tally.is_last()
        totals[-1] = total + vector_of(value, job.dimension)
        if is_last:
            tally.finish(sum(int(total.sum()) for total in totals))
        return totals[-1]

    def begin(value):
        totals.append(totals[0])
        return add(totals[0], value)

    def dumps(state):
        return state.tobytes() if isinstance(state, np.ndarray) else json.dumps(state).encode()

    def loads(data):
        # Besides sums there are only the times of windows, which are short.
        is_sum = len(data) == totals[0].nbytes
        return np.frombuffer(data, np.int32) if is_sum else json.loads(data)

    app = Application(
        job.servers,
        consumer_group=job.group,
        auto_offset_reset="earliest",
        commit_interval=job.window_ms / 1000,
        processing_guarantee="exactly-once",
        state_dir=job.folder,
        rocksdb_options=RocksDBOptions(dumps=dumps, loads=loads),
        consumer_extra_config={
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32 * 1024,
        },
        producer_extra_config={"message.max.bytes": _LARGEST_MESSAGE},
        loglevel="WARNING",
    )
    updates = app.topic(job.topic, key_deserializer="bytes", value_deserializer="bytes")
    sums = app.topic(job.output, key_serializer="bytes", value_serializer="bytes")
    frame = app.dataframe(updates).filter(lambda value: value is not None)
    window = frame.tumbling_window(job.window_ms).reduce(add, begin).final()
    window.apply(lambda over: over["value"].tobytes()).to_topic(sums)
    app.run()


if __name__ == "__main__":
    main()
