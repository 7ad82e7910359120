"""The client's role: make a gradient admissible, publish it, and follow the model.

::

    plan = PrivacyPlan.from_toml(text)
    with (
        ModelSubscriber(plan, "kafka:9092") as models,
        GradientClient.connect(plan, "device-123", "kafka:9092") as client,
    ):
        for model in models:
            client.publish(my_gradient(model.vector), model_version=model.model_version)
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas import TopicNames, Update, encode_update, topic_table

from .errors import GradientError, PlanError
from .privacy.clipping import flatten
from .privacy.plan import PrivacyPlan
from .privacy.quantization import quantize
from .producer import RecordSender, Setting, UpdateProducer
from .subscriber import ModelSubscriber

__all__ = ["GradientClient", "ModelSubscriber", "connect_producer"]


def connect_producer(
    plan: PrivacyPlan, bootstrap_servers: str, config: Mapping[str, Setting] | None = None
) -> UpdateProducer:
    """Return a producer for updates under ``plan``, for any number of identities to share."""
    itemsize = np.dtype(plan.update_dtype).itemsize
    names = TopicNames(plan.topic_prefix)
    table = topic_table(plan.topic_prefix, plan.cluster_count, plan.dimension, itemsize)
    largest = next(spec.max_message_bytes for spec in table if spec.name == names.updates)
    return UpdateProducer(bootstrap_servers, max_message_bytes=largest, config=config)


class GradientClient:
    """One client identity: clips, quantizes and publishes its gradients.

    Args:
        plan: The plan that everyone is given.
        client_id: The unit of privacy; the broker must let nobody else use it.
        producer: Where updates go; shared, and closed by whoever made it.
        rng: Source of the rounding; no privacy rests on it. None makes one for this client.

    Raises:
        PlanError: the plan assigns ``client_id`` to no cluster.
        ValueError: ``client_id`` has not 1 to 128 bytes of UTF-8.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        client_id: str,
        producer: RecordSender,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._key = client_id.encode()
        if not 1 <= len(self._key) <= 128:
            raise ValueError(f"client_id has {len(self._key)} bytes of UTF-8: use 1 to 128")
        cluster = plan.cluster_of(client_id)
        if cluster is None:
            raise PlanError(
                f"the plan {plan.name!r} has no cluster for client {client_id!r}: begin the id "
                f"with one of its prefixes and a slash ({', '.join(plan.prefixes)})"
            )
        self.client_id = client_id
        self.cluster = cluster
        self._plan = plan
        self._topic = TopicNames(plan.topic_prefix).updates
        self._producer = producer
        self._owned_producer: UpdateProducer | None = None
        self._rng = np.random.default_rng() if rng is None else rng

    @classmethod
    def connect(
        cls,
        plan: PrivacyPlan,
        client_id: str,
        bootstrap_servers: str,
        config: Mapping[str, Setting] | None = None,
    ) -> Self:
        """Return a client with a producer of its own, which `close` ends."""
        producer = connect_producer(plan, bootstrap_servers, config)
        client = cls(plan, client_id, producer)
        client._owned_producer = producer
        return client

    def publish(self, gradient: ArrayLike, *, model_version: int) -> None:
        """Send the update of one window.

        The head counts the first update of a client in a window and refuses the rest.

        Args:
            gradient: The sum or mean of this client's gradients, in gradient units: a numpy
                array of shape ``(dimension,)``, anything with ``__array__`` (torch on the CPU,
                jax), or a list of layers, flattened in list order, each in C order.
            model_version: The model that the gradient was taken at.

        Raises:
            GradientError: the gradient has a NaN, an infinity, another shape or no real
                numbers. Nothing was sent.
            DeliveryError: an earlier update was not delivered, or this one cannot be taken.
                This update was not sent.
            ValueError: ``model_version`` is not in [0, 2**64).
        """
        plan = self._plan
        vector = _as_vector(gradient, plan.dimension)
        try:
            grid = quantize(
                vector,
                l2_clip_norm=plan.l2_clip_norm,
                grid_l2_bound=plan.grid_l2_bound,
                coordinate_limit=plan.coordinate_limit,
                dtype=plan.update_dtype,
                rng=self._rng,
            )
        except ValueError as error:
            raise GradientError(
                f"{error}; nothing was sent: skip this step, and look for the loss that diverged"
            ) from error
        update = Update(plan.plan_id, self.client_id, model_version, grid)
        self._producer.send(self._topic, self.cluster, self._key, encode_update(update))

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until Kafka has acknowledged all that this client's producer was given.

        Raises:
            DeliveryError: an update was not delivered, or some still wait after ``timeout_s``.
        """
        self._producer.flush(timeout_s)

    def close(self) -> None:
        """End the producer if `connect` made it, after delivering what waits.

        Raises:
            DeliveryError: an update was not delivered.
        """
        if self._owned_producer is not None:
            self._owned_producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._owned_producer is not None:
            self._owned_producer.__exit__(kind, error, traceback)


def _as_vector(gradient: ArrayLike, dimension: int) -> NDArray[np.float32 | np.float64]:
    """Return ``gradient`` as real numbers of shape ``(dimension,)``, or raise GradientError."""
    try:
        vector = flatten(gradient) if isinstance(gradient, list | tuple) else np.asarray(gradient)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GradientError(
            f"the gradient is no array ({error}); pass a numpy array, anything with __array__ "
            "(torch: gradient.detach().cpu().float()) or a list of layers"
        ) from error
    if vector.dtype.kind not in "fiu":
        raise GradientError(
            f"the gradient has dtype {vector.dtype}, not real numbers; cast it to float32"
        )
    if vector.shape != (dimension,):
        raise GradientError(
            f"the gradient has shape {vector.shape}, the plan wants ({dimension},); pass a list "
            "of layers to have them flattened"
        )
    if vector.dtype == np.float32 or vector.dtype.itemsize <= 2:
        return vector.astype(np.float32, copy=False)
    # What float64 cannot hold becomes infinite and is refused as such.
    with np.errstate(over="ignore"):
        return vector.astype(np.float64, copy=False)
