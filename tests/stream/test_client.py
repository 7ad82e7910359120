import inspect
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from numpy.typing import NDArray

from schemas import ClipNorm, ModelSnapshot, TopicNames, decode_update
from stream.client import GradientClient, connect_producer, system_clock
from stream.errors import DeliveryError, GradientError, PlanError
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.rotation import unrotate
from stream.testing import FakeClock, LoopbackProducer

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


def make_client(
    producer: LoopbackProducer, plan: PrivacyPlan | None = None, **options: object
) -> GradientClient:
    rng = np.random.default_rng(0)
    return GradientClient(plan or make_plan(), "south/device-1", producer, rng, **options)


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


def published(
    gradient: object, plan: PrivacyPlan | None = None, **options: object
) -> NDArray[np.int64]:
    """Publish ``gradient``; return its vector, where rounding changes nothing on the grid."""
    producer = LoopbackProducer()
    make_client(producer, plan, **options).publish(gradient, model_version=3)
    (record,) = producer.sent
    return decode_update(record.value).vector.astype(np.int64)


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


WIDE = {"dimension": 1000, "grid_l2_bound": 1000, "count_weight": 100}


def length_of(vector: NDArray[np.int64], plan: PrivacyPlan) -> float:
    """Return the norm of an update in gradient units."""
    return math.sqrt(int(vector @ vector)) * plan.grid_step


@pytest.mark.parametrize("clip_norm", [0.25, 0.5, 1.0])
def test_a_client_may_clip_lower_than_the_plan_in_the_plans_own_grid(clip_norm):
    plan = make_plan(**WIDE)
    vector = published(np.full(1000, 3.0), plan, clip_norm=clip_norm)
    # Rounding adds at most d/4 to the squared norm in the mean, here 250 of 62 500 or more.
    assert length_of(vector, plan) == pytest.approx(clip_norm, rel=0.01)


def test_a_gradient_within_its_clients_clip_norm_keeps_its_length():
    plan = make_plan(**WIDE)
    vector = published(np.full(1000, 0.2 / math.sqrt(1000)), plan, clip_norm=0.5)
    assert length_of(vector, plan) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(
    ("clip_norm", "message"),
    [
        (1.0001, r"exceeds the plan's l2_clip_norm = 1\.0.*lower it, or leave it out"),
        (0.0, "above 0, or leave it out"),
        (-1.0, "above 0"),
        (math.nan, "above 0"),
        (math.inf, "above 0"),
    ],
)
def test_a_clip_norm_that_the_plan_cannot_hold_is_refused(clip_norm, message):
    with pytest.raises(ValueError, match=message):
        make_client(LoopbackProducer(), clip_norm=clip_norm)


LAYERS = [np.full((2, 2), 9.0), Tensor([0.1, -0.1])]


@pytest.mark.parametrize("kind", [list, tuple])
def test_layers_may_be_clipped_one_by_one(kind):
    vector = published(kind(LAYERS), layer_clip_norms=[0.6, 0.8])
    wanted = np.array([0.3, 0.3, 0.3, 0.3, 0.1, -0.1]) / make_plan().grid_step
    assert np.abs(vector - wanted).max() <= 1
    flat = published(kind(LAYERS))
    assert np.abs(flat[4:]).max() <= 2  # clipped as a whole, the second layer is silenced


def test_an_empty_layer_is_a_layer():
    layers = [LAYERS[0], np.zeros((0, 3)), LAYERS[1]]
    vector = published(layers, layer_clip_norms=[0.6, 0.1, 0.7])
    np.testing.assert_array_equal(vector, published(LAYERS, layer_clip_norms=[0.6, 0.7]))


@pytest.mark.parametrize(
    "gradient", [np.zeros(DIMENSION), [np.zeros(DIMENSION)], [np.zeros(2)] * 3, [0.0] * DIMENSION]
)
def test_layer_clip_norms_need_as_many_layers(gradient):
    producer = LoopbackProducer()
    client = make_client(producer, layer_clip_norms=[0.6, 0.8])
    with pytest.raises(GradientError, match="are for 2 layers: pass a list of as many"):
        client.publish(gradient, model_version=0)
    assert producer.sent == []


@pytest.mark.parametrize(
    ("norms", "clip_norm", "message"),
    [
        ([0.8, 0.8], None, r"norm 1\.131371, and the clip norm is 1: multiply each by 0\.8838835"),
        ([0.6, 0.8], 0.5, r"norm 1, and the clip norm is 0\.5: multiply each by 0\.5"),
        ([], None, "one number above 0 for each layer"),
    ],
)
def test_layer_clip_norms_that_exceed_the_clip_norm_together_are_refused(norms, clip_norm, message):
    with pytest.raises(ValueError, match=message):
        make_client(LoopbackProducer(), layer_clip_norms=norms, clip_norm=clip_norm)


def test_a_client_may_keep_a_random_part_of_the_coordinates():
    plan = make_plan(**WIDE)
    vector = published(np.full(1000, 30 * plan.grid_step / 4), plan, keep_fraction=0.25)
    assert np.count_nonzero(vector) == 250
    assert np.unique(vector[vector != 0]) == pytest.approx(30, abs=1)


def test_what_sparsifying_scales_up_is_clipped_afterwards():
    plan = make_plan(**WIDE)
    vector = published(np.full(1000, 1 / math.sqrt(1000)), plan, keep_fraction=0.25, clip_norm=0.9)
    assert length_of(vector, plan) == pytest.approx(0.9, rel=0.01)


@pytest.mark.parametrize("keep_fraction", [0.0, -1.0, 1.5, math.nan, 0.001])
def test_a_fraction_that_keeps_no_part_is_refused(keep_fraction):
    with pytest.raises(ValueError, match="keep_fraction"):
        make_client(LoopbackProducer(), keep_fraction=keep_fraction)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.5},
        {"layer_clip_norms": [0.6, 0.8]},
        {"keep_fraction": 0.5},
        {"keep_fraction": 0.5, "layer_clip_norms": [0.3, 0.4], "clip_norm": 0.5},
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_with_any_option_a_bad_gradient_is_refused_and_a_huge_one_keeps_the_bound(options, bad):
    producer = LoopbackProducer()
    client = make_client(producer, **options)
    layers = [np.array([0, 0, bad], np.float64), np.zeros(3, np.float64)]
    if math.isfinite(bad):
        client.publish(layers, model_version=0)
        vector = decode_update(producer.sent[0].value).vector.astype(np.int64)
        assert int(vector @ vector) <= make_plan().grid_l2_bound ** 2
        return
    with pytest.raises(GradientError, match="NaN or an infinity; nothing was sent"):
        client.publish(layers, model_version=0)
    assert producer.sent == []


def test_a_connected_client_takes_the_same_options():
    connect = inspect.signature(GradientClient.connect).parameters
    direct = inspect.signature(GradientClient).parameters
    options = {name for name, p in direct.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert options == {"clip_norm", "layer_clip_norms", "keep_fraction", "clock"}
    assert all(connect[name] == direct[name] for name in options)
    with pytest.raises(ValueError, match="keep_fraction"):
        GradientClient.connect(make_plan(), "north/1", "127.0.0.1:9", keep_fraction=0.0)


ROTATED = {**WIDE, "rotation": "hadamard"}


def recovered(vector: NDArray[np.int64], plan: PrivacyPlan) -> NDArray[np.float64]:
    """Return a rotated update as a gradient again."""
    return unrotate(vector * plan.grid_step, plan.dimension, plan.plan_id)


def spiky_gradient() -> NDArray[np.float64]:
    gradient = np.random.default_rng(2).standard_normal(1000) / 1000
    gradient[::250] = 0.49
    return gradient / np.linalg.norm(gradient)


def test_a_rotated_update_has_the_next_power_of_two_as_its_length():
    plan = make_plan(**ROTATED)
    vector = published(np.zeros(1000), plan)
    assert vector.shape == (plan.coordinate_count,) == (1024,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_rotated_update_keeps_the_spikes_that_int8_would_cut(dtype):
    gradient = spiky_gradient()
    plan, plain = make_plan(**ROTATED), make_plan(**WIDE)
    error = np.linalg.norm(recovered(published(gradient.astype(dtype), plan), plan) - gradient)
    error_of_plain = np.linalg.norm(published(gradient, plain) * plain.grid_step - gradient)
    assert error < 0.02  # rounding alone: at most sqrt(1024 / 4) of 1000 grid steps
    assert error_of_plain > 0.5


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"keep_fraction": 0.3}])
@pytest.mark.parametrize("magnitude", [1.0, 1e20, 3e38])
def test_a_rotated_update_keeps_the_bound_however_long_the_gradient(options, magnitude):
    plan = make_plan(**ROTATED)
    gradient = (np.sign(spiky_gradient()) * magnitude).astype(np.float32)
    if magnitude == 3e38 and "keep_fraction" in options:
        gradient /= 10  # scaled up, it would be no float32
    vector = published(gradient, plan, **options)
    assert int(vector @ vector) <= plan.grid_l2_bound**2
    wanted = options.get("clip_norm", plan.l2_clip_norm)
    assert length_of(vector, plan) == pytest.approx(wanted, rel=0.01)


def test_layers_are_clipped_before_the_rotation_mixes_them():
    plan = make_plan(**ROTATED)
    layers = [np.full((20, 25), 9.0), np.full(500, 9.0)]
    vector = published(layers, plan, layer_clip_norms=[0.8, 0.6])
    gradient = recovered(vector, plan)
    assert np.linalg.norm(gradient[:500]) == pytest.approx(0.8, rel=0.01)
    assert np.linalg.norm(gradient[500:]) == pytest.approx(0.6, rel=0.01)


def test_sparsifying_comes_before_the_rotation():
    plan = make_plan(**ROTATED)
    gradient = recovered(published(np.full(1000, 0.01), plan, keep_fraction=0.25), plan)
    assert np.count_nonzero(np.abs(gradient) > 0.02) == 250
    assert np.abs(gradient).max() == pytest.approx(0.04, abs=0.005)


CLIPPING = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=3)
ADAPTIVE = {**WIDE, "clipping": CLIPPING}
# South is cluster 1; its second epoch begins at 3000 ms.
NORMS = (ClipNorm(0, 0, 9.0), ClipNorm(1, 0, 1.0), ClipNorm(1, 3, 1 / 3))


def model_of(plan: PrivacyPlan, clip_norms: tuple[ClipNorm, ...] = NORMS) -> ModelSnapshot:
    vector = np.zeros(plan.dimension, np.float32)
    return ModelSnapshot(plan.plan_id, 7, 1, 0, vector, clip_norms)


def sent(plan, gradient, now_ms=0, clip_norms=NORMS, model_version=None, **options):
    """Publish ``gradient`` with a model, at a time; return the update."""
    producer = LoopbackProducer()
    client = make_client(producer, plan, clock=FakeClock(now_ms), **options)
    client.publish(gradient, model=model_of(plan, clip_norms), model_version=model_version)
    (record,) = producer.sent
    return decode_update(record.value)


@pytest.mark.parametrize(
    ("now_ms", "clip_norm"), [(0, 1.0), (2999, 1.0), (3000, 1 / 3), (10**9, 1 / 3), (-1, 1.0)]
)
def test_with_adaptive_clipping_the_window_of_the_moment_gives_the_clip_norm(now_ms, clip_norm):
    plan = make_plan(**ADAPTIVE)
    update = sent(plan, np.full(1000, 3.0), now_ms)
    # The very float that the model tells: the head compares bits.
    assert (update.clip_norm, update.is_below_clip) == (clip_norm, False)
    vector = update.vector.astype(np.int64)
    assert math.sqrt(int(vector @ vector)) == pytest.approx(plan.client_scale, rel=0.01)


def test_a_model_gives_an_update_its_version_unless_the_gradient_is_older():
    plan = make_plan(**ADAPTIVE)
    assert sent(plan, np.zeros(1000)).model_version == 7
    assert sent(plan, np.zeros(1000), model_version=5).model_version == 5


@pytest.mark.parametrize(
    ("norm", "is_below"), [(0.2, True), (1 / 3 - 1e-9, True), (1 / 3 + 1e-9, False), (0.9, False)]
)
@pytest.mark.parametrize("rotation", ["none", "hadamard"])
def test_the_clip_bit_says_whether_the_gradient_was_within_the_clip_norm(norm, is_below, rotation):
    plan = make_plan(**ADAPTIVE, rotation=rotation)
    gradient = np.zeros(1000)
    gradient[:2] = 0.6 * norm, -0.8 * norm
    assert sent(plan, gradient, 3000).is_below_clip is is_below


def test_the_clip_bit_is_that_of_what_sparsifying_scaled_up():
    plan = make_plan(**ADAPTIVE)
    gradient = np.full(1000, 0.9 / math.sqrt(1000))
    assert sent(plan, gradient).is_below_clip
    assert not sent(plan, gradient, keep_fraction=0.25).is_below_clip


def test_the_clip_bit_does_not_ask_for_a_clients_own_clip_norm():
    plan = make_plan(**ADAPTIVE)
    gradient = np.full(1000, 0.5 / math.sqrt(1000))
    assert sent(plan, gradient, clip_norm=0.25).is_below_clip
    assert not sent(plan, 4 * gradient, clip_norm=0.25).is_below_clip


@pytest.mark.parametrize("rotation", ["none", "hadamard"])
@pytest.mark.parametrize(
    ("now_ms", "clip_norm", "length"), [(0, 0.5, 0.5), (3000, 0.5, 1 / 3), (3000, 2.0, 1 / 3)]
)
def test_of_the_clip_norms_of_client_and_plan_the_smaller_counts(
    rotation, now_ms, clip_norm, length
):
    plan = make_plan(**ADAPTIVE, rotation=rotation)
    update = sent(plan, np.full(1000, 3.0), now_ms, clip_norm=clip_norm)
    vector = update.vector.astype(np.int64)
    steps = math.sqrt(int(vector @ vector))
    assert steps * update.clip_norm / plan.client_scale == pytest.approx(length, rel=0.01)


def test_where_clipping_is_fixed_a_model_will_do_and_no_scale_is_named():
    plan = make_plan()
    producer = LoopbackProducer()
    make_client(producer, plan).publish(np.zeros(DIMENSION), model=model_of(plan, ()))
    update = decode_update(producer.sent[0].value)
    assert (update.model_version, update.clip_norm, update.is_below_clip) == (7, 0.0, False)


@pytest.mark.parametrize(
    ("fields", "make", "message"),
    [
        (ADAPTIVE, lambda plan: {"model_version": 3}, "clip norm adapts.*pass model="),
        (ADAPTIVE, lambda plan: {}, "pass the model that the gradient was taken at"),
        (WIDE, lambda plan: {}, "pass the model that the gradient was taken at"),
        (ADAPTIVE, lambda plan: {"model": model_of(make_plan(**WIDE))}, "belongs to plan .* not"),
        (WIDE, lambda plan: {"model": model_of(make_plan(**ADAPTIVE))}, "belongs to plan .* not"),
        (ADAPTIVE, lambda plan: {"model": model_of(plan, NORMS[:1])}, "no clip norm of cluster 1"),
        (ADAPTIVE, lambda plan: {"model": model_of(plan, ())}, "pass it as it came"),
    ],
)
def test_without_the_clip_norm_nothing_is_sent_and_the_fix_is_named(fields, make, message):
    plan, producer = make_plan(**fields), LoopbackProducer()
    with pytest.raises(ValueError, match=message):
        make_client(producer, plan).publish(np.zeros(1000), **make(plan))
    assert producer.sent == []


def test_the_clock_of_a_client_is_that_of_its_machine():
    assert system_clock() == pytest.approx(1000 * time.time(), abs=1000)
    assert inspect.signature(GradientClient).parameters["clock"].default is system_clock


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


@pytest.mark.parametrize("rotation", ["none", "hadamard"])
def test_the_largest_update_of_the_plan_fits_its_producer(rotation):
    plan = make_plan(
        dimension=3_000_000, grid_l2_bound=16384, update_dtype="int16", rotation=rotation
    )
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
