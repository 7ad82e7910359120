import math
import subprocess
import sys
import time

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from schemas import TopicNames, decode_update
from stream.client import GradientClient, connect_producer
from stream.errors import DeliveryError, GradientError, PlanError
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.testing import LoopbackProducer

DIMENSION = 6


def make_plan(**changes: object) -> PrivacyPlan:
    arguments: dict[str, object] = {
        "name": "test",
        "dimension": DIMENSION,
        "cluster_count": 2,
        "assignment": "prefix",
        "prefixes": ("north", "south"),
        "expected_clients": 100,
        "start_ms": 0,
        "window_length_ms": 1000,
        "grace_ms": 100,
        "release_delay_ms": 200,
        "l2_clip_norm": 1.0,
        "grid_l2_bound": 200,
        "count_weight": 20,
        "update_dtype": "int8",
        "epsilon": 8.0,
        "delta": 1e-5,
        "horizon_windows": 10,
        "optimizer": OptimizerSpec("sgd", 0.1),
        "normalizer": "expected_clients",
    }
    return PrivacyPlan(**{**arguments, **changes})  # type: ignore[arg-type]


def make_client(producer: LoopbackProducer, plan: PrivacyPlan | None = None) -> GradientClient:
    return GradientClient(plan or make_plan(), "south/device-1", producer, np.random.default_rng(0))


class Tensor:
    """What torch and jax arrays look like from here."""

    def __init__(self, values: object) -> None:
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._values, dtype=dtype)


class TensorOnTheGraph:
    """A torch tensor that requires grad refuses to be an array with a RuntimeError."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def published(gradient: object) -> np.ndarray:
    """Publish ``gradient`` in whole grid steps, where rounding changes nothing."""
    plan = make_plan()
    producer = LoopbackProducer()
    make_client(producer, plan).publish(gradient, model_version=3)
    (record,) = producer.sent
    return decode_update(record.value).vector


def grid_steps(values: object, dtype: type = np.float64) -> np.ndarray:
    return (np.asarray(values) * make_plan().grid_step).astype(dtype)


def test_an_update_goes_to_the_partition_of_its_cluster_and_says_whose_it_is():
    plan = make_plan(topic_prefix="fraud")
    producer = LoopbackProducer()
    make_client(producer, plan).publish(np.zeros(DIMENSION), model_version=41)
    (record,) = producer.sent
    assert (record.topic, record.partition, record.key) == ("fraud.updates", 1, b"south/device-1")
    update = decode_update(record.value)
    assert update.plan_id == plan.plan_id
    assert update.client_id == "south/device-1"
    assert update.model_version == 41


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_an_update_has_the_plans_dtype_and_keeps_its_bound(dtype):
    plan = make_plan(update_dtype=dtype)
    producer = LoopbackProducer()
    make_client(producer, plan).publish(np.full(DIMENSION, 1e20), model_version=0)
    vector = decode_update(producer.sent[0].value).vector
    assert vector.dtype == dtype
    assert 150**2 < sum(int(value) ** 2 for value in vector) <= plan.grid_l2_bound**2


VALUES = [1.0, -2.0, 3.0, 0.0, 50.0, -60.0]


@pytest.mark.parametrize(
    "gradient",
    [
        grid_steps(VALUES),
        grid_steps(VALUES, np.float32),
        grid_steps(VALUES).astype(">f4"),
        np.repeat(grid_steps(VALUES), 2)[::2],
        list(grid_steps(VALUES)),
        Tensor(grid_steps(VALUES)),
        [grid_steps(VALUES[:4]).reshape(2, 2), Tensor(grid_steps(VALUES[4:]))],
        (np.asfortranarray(grid_steps(VALUES[:4]).reshape(2, 2)), grid_steps(VALUES[4:])),
    ],
    ids=["f64", "f32", "big-endian", "strided", "floats", "__array__", "layers", "fortran"],
)
def test_a_gradient_may_be_an_array_or_layers(gradient):
    assert np.abs(published(gradient) - VALUES).max() <= 1
    assert np.abs(published(gradient) - VALUES).sum() <= 2


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, np.int8, np.uint64])
def test_any_real_dtype_will_do(dtype):
    assert not published(np.zeros(DIMENSION, dtype=dtype)).any()
    assert published(np.eye(DIMENSION, dtype=dtype)[2]).tolist() == [0, 0, 127, 0, 0, 0]


BAD_GRADIENTS = {
    "nan": (np.array([math.nan] * DIMENSION), "NaN or an infinity; nothing was sent"),
    "one nan": (np.array([0, 0, 0, 0, 0, math.nan], dtype=np.float32), "NaN or an infinity"),
    "inf": (np.array([math.inf] + [0] * (DIMENSION - 1)), "NaN or an infinity"),
    "nan in a layer": ([np.zeros(5), math.nan], "NaN or an infinity"),
    "too wide": (np.full(DIMENSION, np.longdouble("1e4000")), "NaN or an infinity"),
    "norm": (np.full(DIMENSION, 1.7e308), "largest float64"),
    "short": (np.zeros(DIMENSION - 1), r"shape \(5,\), the plan wants \(6,\)"),
    "long": (np.zeros(DIMENSION + 1), r"shape \(7,\)"),
    "matrix": (np.zeros((2, 3)), "pass a list of layers"),
    "scalar": (1.0, r"shape \(\)"),
    "layers of another size": ([np.zeros(3), np.zeros(4)], r"shape \(7,\)"),
    "no layers": ([], "at least one layer"),
    "complex": (np.zeros(DIMENSION, dtype=complex), "complex128.*cast it to float32"),
    "complex layer": ([np.zeros(5), 1j], "complex128"),
    "bool": (np.zeros(DIMENSION, dtype=bool), "bool.*cast it to float32"),
    "text": (["a"] * DIMENSION, "cast it to float32"),
    "objects": (np.array([object()] * DIMENSION), "object.*cast it to float32"),
    "none": (None, "object"),
    "dict": ({"weights": np.zeros(DIMENSION)}, "object"),
    "ragged": ([[[0.0], [0.0, 1.0]]], "no array.*a list of layers"),
    "on the graph": (TensorOnTheGraph(), r"requires grad.*gradient\.detach\(\)\.cpu\(\)"),
}


@pytest.mark.parametrize(("gradient", "message"), BAD_GRADIENTS.values(), ids=BAD_GRADIENTS.keys())
def test_a_bad_gradient_is_refused_with_the_fix_and_nothing_is_sent(gradient, message):
    producer = LoopbackProducer()
    with pytest.raises(GradientError, match=message):
        make_client(producer).publish(gradient, model_version=0)
    assert producer.sent == []


@pytest.mark.parametrize("model_version", [-1, 2**64])
def test_a_model_version_that_no_message_can_hold_is_refused(model_version):
    producer = LoopbackProducer()
    with pytest.raises(ValueError, match="model_version"):
        make_client(producer).publish(np.zeros(DIMENSION), model_version=model_version)
    assert producer.sent == []


def test_a_client_of_no_cluster_is_refused_with_the_prefixes_that_there_are():
    with pytest.raises(PlanError, match=r"'east/1'.*north, south"):
        GradientClient(make_plan(), "east/1", LoopbackProducer())


def test_a_client_id_that_no_message_can_hold_is_refused():
    GradientClient(make_plan(), "north/" + "x" * 122, LoopbackProducer())
    for bad in ("", "north/" + "x" * 123, "north/\ud800"):
        with pytest.raises(ValueError, match=r"use 1 to 128|surrogates not allowed"):
            GradientClient(make_plan(), bad, LoopbackProducer())


def test_a_client_with_a_shared_producer_does_not_close_it():
    producer = LoopbackProducer()
    with make_client(producer) as client:
        client.publish(np.zeros(DIMENSION), model_version=0)
        client.flush()
    client.publish(np.zeros(DIMENSION), model_version=1)
    assert len(producer.sent) == 2


def test_a_failed_delivery_surfaces_in_the_client():
    config = {"delivery.timeout.ms": 300, "linger.ms": 0}
    with GradientClient.connect(make_plan(), "north/1", "127.0.0.1:9", config) as client:
        client.publish(np.zeros(DIMENSION), model_version=0)
        with pytest.raises(DeliveryError, match=r"'sdp.updates': 1 record"):
            client.flush(10)


def test_the_largest_update_of_the_plan_fits_its_producer():
    plan = make_plan(dimension=3_000_000, grid_l2_bound=16384, update_dtype="int16")
    producer = connect_producer(plan, "127.0.0.1:9")
    client = GradientClient(plan, "north/" + "x" * 122, producer)
    client.publish(np.zeros(3_000_000, dtype=np.float32), model_version=2**64 - 1)
    with pytest.raises(DeliveryError, match=r"1 record was not delivered.*gave it up"):
        producer.close(0)


def test_the_client_imports_without_faust():
    code = "import sys; sys.modules['faust'] = sys.modules['mode'] = None; import stream.client"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def update_ids(bootstrap_servers: str, topic: str, partition: int, count: int) -> list[str]:
    """Return the client ids of the updates in one partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[str] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is not None:
            break
        if message is not None:
            found.append(decode_update(message.value()).client_id)
    consumer.close()
    return found


@pytest.mark.integration
def test_two_thousand_identities_share_one_producer(bootstrap_servers, topic_prefix):
    plan = make_plan(topic_prefix=topic_prefix)
    topic = TopicNames(topic_prefix).updates
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    ids = [f"{'north' if n % 2 else 'south'}/{n}" for n in range(2000)]
    with connect_producer(plan, bootstrap_servers) as producer:
        for client_id in ids:
            client = GradientClient(plan, client_id, producer)
            client.publish(np.ones(DIMENSION), model_version=0)
    for partition, prefix in enumerate(plan.prefixes):
        expected = [client_id for client_id in ids if client_id.startswith(prefix)]
        assert update_ids(bootstrap_servers, topic, partition, 1000) == expected
