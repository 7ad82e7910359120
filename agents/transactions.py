"""One transaction per step: records and the input offset they answer for, all or nothing.

The steps carry numbers in the release protocol: ``fence`` is step 1 of taking a partition,
``write`` is step 3 of sealing a window. A producer here belongs to one partition and is the only
one that may write for it: the broker fences any earlier one with the same identity.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from .protocol_steps import Step, Watcher, nobody

# The broker's ways of saying that another worker owns the partition now.
_LOST_OWNERSHIP = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    }
)


# A call that was given a time-out is given up after so many of them.
_PATIENCE = 2.0


class FencedError(Exception):
    """Another producer has taken this identity; this one must never write again.

    The broker does the same to a producer whose transaction outlived its time-out.
    """


class TransactionFailedError(Exception):
    """It is not known that the transaction was written, and this writer is done for.

    What is durable tells: a new writer's `fence` finishes or aborts the transaction, and then
    the topics are read. Trying again here would not do: librdkafka, asked a second time after
    a broker was away, may never answer.
    """


class OwnershipLostError(TransactionFailedError):
    """The consumer group has given the partition to another worker; nothing was written."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to write in a transaction."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class TransactionalWriter:
    """A transactional producer for all that one partition writes, and its offsets. Blocks."""

    def __init__(
        self,
        config: Mapping[str, str],
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        request_timeout_s: float,
        max_message_bytes: int,
        watch: Watcher = nobody,
    ) -> None:
        """Make the producer; the broker is first asked by `fence`."""
        self._watch = watch
        self._transactional_id = transactional_id
        self._timeout_s = request_timeout_s
        self._producer = Producer(
            {
                **config,
                "transactional.id": transactional_id,
                # A topic that a broker made for us would be one that forgets.
                "allow.auto.create.topics": False,
                "transaction.timeout.ms": transaction_timeout_ms,
                "linger.ms": 0,
                "compression.type": "zstd",
                "message.max.bytes": max_message_bytes,
            }
        )

    def fence(self, settle: Sequence[tuple[str, int]] = ()) -> None:
        """Shut out every earlier producer of this identity; decide what it left open.

        A broker that was killed may come back with a record in a partition of which its
        transaction coordinator knows nothing: fencing does not decide it, and the next commit
        of this identity would commit it too. An aborted transaction over the partitions of
        ``settle`` decides it, before anything is read or written.

        Args:
            settle: Topics and partitions that this identity alone writes to.

        Raises:
            FencedError: another producer took the identity at the same time.
            KafkaException: the broker is away or refuses; a new writer may try again.
        """
        self._watch(Step.FENCE)
        try:
            self._bounded(lambda: self._producer.init_transactions(self._timeout_s))
        except KafkaException as exception:
            self._refuse_fenced("fence", exception)
            raise
        if settle:
            self._watch(Step.SETTLE)
            self.settle(settle)

    def settle(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Write and abort a record in each of ``partitions``, as the newest producer only can.

        Raises:
            FencedError: another producer has taken this identity.
            KafkaException: the broker is away or refuses.
        """
        try:
            self._settle(partitions)
        except KafkaException as exception:
            self._refuse_fenced("settling", exception)
            raise

    def _settle(self, partitions: Sequence[tuple[str, int]]) -> None:
        # Every record must have arrived.
        undelivered: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _: object) -> None:
            if error is not None:
                undelivered.append(error)

        self._producer.begin_transaction()
        for topic, partition in partitions:
            # A key, since compacted topics take nothing without one.
            self._producer.produce(
                topic, b"", b"fence", partition=partition, on_delivery=on_delivery
            )
        # A message that is given up counts as flushed, and an abort is content without it.
        try:
            waiting = self._producer.flush(self._timeout_s)
        except SystemError as error:
            # A fatal error of the client is raised across the callbacks that it still makes.
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from error
            raise
        if waiting:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the fence is not written"))
        if undelivered:
            raise KafkaException(undelivered[0])
        self._bounded(lambda: self._producer.abort_transaction(self._timeout_s))

    def write(
        self,
        records: Sequence[OutgoingRecord],
        resume: TopicPartition | None = None,
        group_metadata: object = None,
    ) -> None:
        """Write ``records`` and commit ``resume`` as the group's offset, or write nothing.

        Raises:
            FencedError: another producer has taken this identity.
            OwnershipLostError: the group's generation is over; nothing was written.
            TransactionFailedError: it was aborted, or its outcome is unknown.
        """
        producer = self._producer
        step = "begin"
        self._watch(Step.BEGIN_TRANSACTION)
        try:
            producer.begin_transaction()
            self._watch(Step.PRODUCE)
            for record in records:
                producer.produce(record.topic, record.value, record.key, partition=record.partition)
            if resume is not None:
                step = "offsets"
                self._watch(Step.SEND_OFFSETS)
                self._bounded(
                    lambda: producer.send_offsets_to_transaction(
                        [resume], group_metadata, self._timeout_s
                    )
                )
            step = "commit"
            self._watch(Step.COMMIT)
            self._bounded(lambda: producer.commit_transaction(self._timeout_s))
        except KafkaException as exception:
            self._fail(step, exception)
        self._watch(Step.COMMITTED)

    def _bounded(self, call: Callable[[], None]) -> None:
        """Make a blocking call that ends by its time-out, or else without librdkafka.

        It was seen not to come back from these calls at all when a broker went away and came
        back, whatever time-out it was given. Such a call is left to a thread that nobody waits
        for; the fence of the next writer makes it harmless.
        """
        outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                outcome.put(error)
            else:
                outcome.put(None)

        threading.Thread(target=run, name=self._transactional_id, daemon=True).start()
        try:
            error = outcome.get(timeout=_PATIENCE * self._timeout_s)
        except queue.Empty:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "the client did not come back from the call")
            ) from None
        if error is not None:
            raise error

    def _fail(self, step: str, cause: KafkaException) -> NoReturn:
        self._refuse_fenced(step, cause)
        error = cause.args[0]
        message = f"{self._transactional_id}: {step} of the transaction failed: {error.str()}"
        if error.txn_requires_abort():
            # What is not aborted here is aborted by the next writer's fence.
            with contextlib.suppress(KafkaException):
                self._bounded(lambda: self._producer.abort_transaction(self._timeout_s))
        kind = OwnershipLostError if error.code() in _LOST_OWNERSHIP else TransactionFailedError
        raise kind(message) from cause

    def _refuse_fenced(self, step: str, cause: KafkaException) -> None:
        error = cause.args[0]
        if error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            raise FencedError(
                f"{self._transactional_id}: {step} of the transaction failed: {error.str()}"
            ) from cause
