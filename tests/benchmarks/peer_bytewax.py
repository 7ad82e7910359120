"""Bytewax: its Kafka source, a fold by tumbling window, its Kafka sink, with recovery."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as win
import numpy as np
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from peer_job import Tally, read_job, vector_of

_BATCH_BYTES = 4 << 20
_LARGEST_MESSAGE = "16777216"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def main() -> None:
    job = read_job()
    length = timedelta(milliseconds=job.window_ms)
    tally = Tally(job)
    totals: list[np.ndarray] = []  # of each window, in order

    def begin():
        totals.append(np.zeros(job.dimension, np.int32))
        return totals[-1]

    def add(total, message):
        is_last = tally.is_last()
        total += vector_of(message.value, job.dimension)
        if is_last:
            tally.finish(sum(int(total.sum()) for total in totals))
        return total

    source = KafkaSource(
        [job.servers],
        [job.topic],
        add_config={"fetch.queue.backoff.ms": "5", "fetch.wait.max.ms": "50"},
        batch_size=max(1, min(2000, _BATCH_BYTES // job.dimension)),
    )
    flow = Dataflow("peer")
    updates = op.filter("values", op.input("updates", flow, source), lambda m: m.value is not None)
    fold = win.fold_window(
        "sums",
        op.key_on("cluster", updates, lambda message: "0"),
        # By record append time, in the order of the log; a window may be read slower than it was
        # written.
        win.EventClock(
            lambda message: _EPOCH + timedelta(milliseconds=message.timestamp[1]), length
        ),
        win.TumblingWindower(length, _EPOCH),
        begin,
        add,
        np.add,
        ordered=False,
    )
    sums = op.map("bytes", fold.down, lambda over: KafkaSinkMessage(b"0", over[1][1].tobytes()))
    limit = {"message.max.bytes": _LARGEST_MESSAGE}
    op.output("publish", sums, KafkaSink([job.servers], job.output, limit))
    folder = Path(job.folder)
    init_db_dir(folder, 1)
    cli_main(flow, epoch_interval=length, recovery_config=RecoveryConfig(str(folder)))


if __name__ == "__main__":
    main()
