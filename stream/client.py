"""The client's role: make a gradient admissible, publish it, and follow the model.

::

    plan = PrivacyPlan.from_toml(text)
    with (
        ModelSubscriber(plan, "kafka:9092") as models,
        GradientClient.connect(plan, "device-123", "kafka:9092") as client,
    ):
        for model in models:
            client.publish(my_gradient(model.vector), model=model)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from schemas import ModelSnapshot, TopicNames, Update, encode_update, topic_table

from .client_gradient import GradientPreparation
from .clip_progress import clip_norm_in_force
from .errors import PlanError
from .privacy.plan import PrivacyPlan
from .producer import RecordSender, Setting, UpdateProducer
from .subscriber import ModelSubscriber
from .update_batcher import UpdateBatcher

__all__ = ["GradientClient", "ModelSubscriber", "UpdateBatcher", "connect_producer"]


def system_clock() -> int:
    """Return this machine's time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def connect_producer(
    plan: PrivacyPlan, bootstrap_servers: str, config: Mapping[str, Setting] | None = None
) -> UpdateProducer:
    """Return a producer for updates under ``plan``, for any number of identities to share."""
    itemsize = np.dtype(plan.update_dtype).itemsize
    names = TopicNames(plan.topic_prefix)
    table = topic_table(plan.topic_prefix, plan.cluster_count, plan.coordinate_count, itemsize)
    largest = next(spec.max_message_bytes for spec in table if spec.name == names.updates)
    return UpdateProducer(bootstrap_servers, max_message_bytes=largest, config=config)


class GradientClient:
    """One client identity: clips, quantizes and publishes its gradients.

    A gradient goes through, in this order: flatten its layers; sparsify (``keep_fraction``);
    clip, as a whole or layer by layer, to this client's norm; rotate (if the plan says so);
    scale to the plan's grid, round at random, saturate. Sparsifying scales up, so it comes before
    clipping; rotating keeps the norm, and so may follow.

    ``clip_norm``, ``layer_clip_norms`` and ``keep_fraction`` are this client's own affair: other
    clients may have others, the grid step stays the plan's, and so does the sensitivity. None of
    them adds privacy or costs any.

    Args:
        plan: The plan that everyone is given.
        client_id: The unit of privacy; the broker must let nobody else use it.
        producer: Where updates go; shared, and closed by whoever made it.
        rng: Source of the rounding and of what is kept; no privacy rests on it. None makes one
            for this client.
        clip_norm: This client's own clip norm, at most the plan's; None takes the plan's. Where
            the plan's adapts, the smaller one of both counts.
        layer_clip_norms: A clip norm for each layer instead of one for the whole gradient; their
            squares sum to at most the square of the clip norm. `publish` then needs layers. They
            are scaled along with a clip norm that adapts.
        keep_fraction: Share of the coordinates that a random choice keeps, scaled up so that the
            mean stays; 1 keeps all.
        clock: Epoch milliseconds; tells the window, and so the clip norm, where that adapts.

    Raises:
        PlanError: the plan assigns ``client_id`` to no cluster.
        ValueError: ``client_id`` has not 1 to 128 bytes of UTF-8, or an option is out of range.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        client_id: str,
        producer: RecordSender,
        rng: np.random.Generator | None = None,
        *,
        clip_norm: float | None = None,
        layer_clip_norms: Sequence[float] | None = None,
        keep_fraction: float = 1.0,
        clock: Callable[[], int] = system_clock,
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
        self._clock = clock
        self._preparation = GradientPreparation(
            plan,
            np.random.default_rng() if rng is None else rng,
            clip_norm=clip_norm,
            layer_clip_norms=layer_clip_norms,
            keep_fraction=keep_fraction,
        )

    @classmethod
    def connect(
        cls,
        plan: PrivacyPlan,
        client_id: str,
        bootstrap_servers: str,
        config: Mapping[str, Setting] | None = None,
        *,
        clip_norm: float | None = None,
        layer_clip_norms: Sequence[float] | None = None,
        keep_fraction: float = 1.0,
        clock: Callable[[], int] = system_clock,
    ) -> Self:
        """Return a client with a producer of its own, which `close` ends."""
        producer = connect_producer(plan, bootstrap_servers, config)
        client = cls(
            plan,
            client_id,
            producer,
            clip_norm=clip_norm,
            layer_clip_norms=layer_clip_norms,
            keep_fraction=keep_fraction,
            clock=clock,
        )
        client._owned_producer = producer
        return client

    def publish(
        self,
        gradient: ArrayLike,
        *,
        model: ModelSnapshot | None = None,
        model_version: int | None = None,
    ) -> None:
        """Send the update of one window.

        The head counts the first update of a client in a window and refuses the rest. Where
        clipping adapts, it refuses another clip norm than the window's, which the newest model
        tells: an update that arrives in another window than it was made in, or that was made
        with a model several windows old, may be lost.

        Args:
            gradient: The sum or mean of this client's gradients, in gradient units: a numpy
                array of shape ``(dimension,)``, anything with ``__array__`` (torch on the CPU,
                jax), or a list of layers, flattened in list order, each in C order.
            model: The newest model. Not needed where clipping is fixed.
            model_version: The model that the gradient was taken at; None for ``model``.

        Raises:
            GradientError: the gradient has a NaN, an infinity, another shape, other layers than
                ``layer_clip_norms`` or no real numbers. Nothing was sent.
            DeliveryError: an earlier update was not delivered, or this one cannot be taken.
                This update was not sent.
            ValueError: ``model`` is of another plan, or missing and needed; ``model_version`` is
                not in [0, 2**64), or missing without ``model``. Nothing was sent.
        """
        plan, version = self._plan, _version(model, model_version)
        clip_norm = self._clip_norm(model)
        ready = self._preparation.prepare(gradient, clip_norm)
        update = Update(
            plan_id=plan.plan_id,
            client_id=self.client_id,
            model_version=version,
            vector=ready.vector,
            clip_norm=0.0 if plan.clipping is None else clip_norm,
            is_below_clip=ready.is_below_clip,
        )
        self._producer.send(self._topic, self.cluster, self._key, encode_update(update))

    def _clip_norm(self, model: ModelSnapshot | None) -> float:
        """Return the plan's clip norm, or what ``model`` tells of it for this moment's window."""
        plan = self._plan
        if model is not None and model.plan_id != plan.plan_id:
            raise ValueError(f"the model belongs to plan {model.plan_id.hex()}, not to this one")
        if plan.clipping is None:
            return plan.l2_clip_norm
        if model is None:
            raise ValueError("the plan's clip norm adapts, and a model tells it: pass model=...")
        window = plan.window_of(self._clock())
        clip_norm = clip_norm_in_force(model.clip_norms, self.cluster, window)
        if clip_norm is None:
            raise ValueError(
                f"model {model.model_version} tells no clip norm of cluster {self.cluster}: pass "
                "it as it came, with its clip_norms"
            )
        return clip_norm

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


def _version(model: ModelSnapshot | None, model_version: int | None) -> int:
    if model_version is not None:
        return model_version
    if model is None:
        raise ValueError("pass the model that the gradient was taken at: model=..., as it came")
    return model.model_version
