"""Flower's federated averaging in its wrapper for central privacy, on updates in memory.

``python peer_flower.py COUNT DIMENSION`` prints one line of JSON. There is no broker: this is what
a server of Flower computes once it has everybody's update.
"""

import json
import logging
import sys

import numpy as np
from clocks import Clocks
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

_DISTINCT_VECTORS = 16
_ROUND = 2  # the first one warns of metrics that are not there


def main() -> None:
    count, dimension = map(int, sys.argv[1:3])
    logging.getLogger("flwr").setLevel(logging.WARNING)  # or it would tell of every update
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_DISTINCT_VECTORS, dimension), np.float32)
    ok = Status(Code.OK, "")
    results = [
        (None, FitRes(ok, ndarrays_to_parameters([vectors[i % len(vectors)]]), 1, {}))
        for i in range(count)
    ]
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=1.0, clipping_norm=float(dimension), num_sampled_clients=count
    )
    # What `configure_fit` keeps of the model that it sends to the clients.
    strategy.current_round_params = [np.zeros(dimension, np.float32)]
    clocks = Clocks()
    parameters, _ = strategy.aggregate_fit(_ROUND, results, [])
    told = clocks.since() | {"counted": count, "bytes": len(parameters.tensors[0])}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
