"""The whole of a plan on real Kafka: adaptive clipping, rotation, discrete noise, a schedule."""

import threading

import numpy as np
import pytest

from schemas import decode_ledger_record, decode_model_snapshot
from stream.client import GradientClient, ModelSubscriber
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.schedule_spec import ScheduleSpec

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLIENTS = 240


class Fleet(threading.Thread):
    """Clients that send a gradient of the same norm for each model they see."""

    def __init__(self, deployment, norm):
        super().__init__()
        self.errors = []
        self._deployment = deployment
        self._gradient = np.zeros(12)
        self._gradient[3] = norm
        self._stop_sending = threading.Event()

    def run(self):
        deployment = self._deployment
        producer = deployment.producer()
        clients = [GradientClient(deployment.plan, f"c{i}", producer) for i in range(CLIENTS)]
        with ModelSubscriber(deployment.plan, deployment.bootstrap_servers) as models:
            for model in models:
                if self._stop_sending.is_set():
                    return
                for client in clients:
                    client.publish(self._gradient, model=model)

    def stop(self):
        self._stop_sending.set()
        self.join(30)


def test_the_clip_norm_comes_to_the_clients_norm_through_kafka(deploy):
    """With real noise. Of 120 clients a cluster all are within 8, which the release tells to 5 %:
    the norm falls by exp(-1) an epoch, and would have to miss 4 in each of 19 epochs by three
    standard deviations or more, which has a probability far below 1e-9."""
    deployment = deploy(
        cluster_count=2,
        horizon_windows=60,
        epsilon=50.0,
        expected_clients=CLIENTS,
        noise="discrete_gaussian",
        rotation="hadamard",
        l2_clip_norm=8.0,
        clipping=ClippingSpec(
            target_quantile=0.5, learning_rate=2.0, bit_weight=60, epoch_windows=3
        ),
        count_weight=60,
        schedule_spec=ScheduleSpec("linear", final_noise_ratio=0.5),
    )
    head = deployment.start_head(noise=True)
    deployment.start_global()
    deployment.wait_until_owned(head)
    fleet = Fleet(deployment, norm=1.0)
    fleet.start()
    try:

        def norms():
            newest = deployment.read(deployment.names.model)
            snapshot = decode_model_snapshot(newest[-1].value()) if newest else None
            return {c.cluster: c.norm for c in snapshot.clip_norms} if snapshot else {}

        deployment.eventually(
            "both clip norms fall from 8 towards 1",
            lambda: len(norms()) == 2 and all(norm < 4 for norm in norms().values()),
            90,
        )
        head.kill()
        again = deployment.start_head(noise=True)
        deployment.wait_until_owned(again)
        before = len(deployment.releases())
        deployment.eventually(
            "windows are released again", lambda: len(deployment.releases()) > before + 4
        )
    finally:
        fleet.stop()
    assert again.stop() == 0
    records = [decode_ledger_record(m.value()) for m in deployment.read(deployment.names.ledger)]
    variances = [record.noise_variance for record in records if record.charge_units]
    assert variances == sorted(variances, reverse=True)
    assert len(set(variances)) == len(variances), "the noise falls from window to window"
    verified = deployment.sdp("ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
