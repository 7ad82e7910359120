"""What no head can beat: a consumer that only sums the vectors, tuned like ours.

``python limit_worker.py SERVERS TOPIC COUNT DIMENSION`` prints one line of JSON.
"""

import json
import sys

import numpy as np
from clocks import Clocks
from confluent_kafka import Consumer, TopicPartition

_BATCH_BYTES = 4 << 20


def main() -> None:
    servers, topic = sys.argv[1:3]
    count, dimension = map(int, sys.argv[3:5])
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "limit",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32 * 1024,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    total = np.zeros(dimension, np.int32)
    batch = max(1, min(2000, _BATCH_BYTES // dimension))
    first = consumer.poll(60)
    clocks = Clocks()
    done = 0
    while done < count:
        # As our feed does: wait for one, and take what has come with it.
        for message in [first, *consumer.consume(batch - 1, 0)]:
            value = message.value()
            if value is not None:
                vector = np.frombuffer(value, np.int8, -1, len(value) - dimension)
                np.add(total, vector, out=total)
                done += 1
        first = consumer.poll(1) if done < count else None
    sys.stdout.write(json.dumps(clocks.since() | {"sum": int(total.sum())}) + "\n")


if __name__ == "__main__":
    main()
