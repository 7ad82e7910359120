"""Taking over the model: fence, read the state, or begin with the first version."""

import logging
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from schemas import (
    MalformedMessageError,
    TopicNames,
    decode_model_state,
    encode_model_snapshot,
    encode_model_state,
)
from stream.errors import LedgerError
from stream.global_model import GlobalModel, Stepped
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, now_ms, read_tail
from .protocol_steps import Step, Watcher, nobody
from .recovery import Recovery
from .settings import Settings
from .transactions import OutgoingRecord, TransactionalWriter

log = logging.getLogger(__name__)

_KEY = b"model"


class ModelOpener:
    """Takes over the model: fence, read the state, or begin with the first version. Blocks."""

    def __init__(
        self,
        settings: Settings,
        plan: PrivacyPlan,
        config: Mapping[str, str],
        initial_weights: NDArray[np.float64],
        max_message_bytes: int,
        *,
        unsafe_mock_broker: bool = False,
        watch: Watcher = nobody,
    ) -> None:
        """Set up; the broker is first asked by `open`.

        ``unsafe_mock_broker``: librdkafka's mock shows aborted records, so none are made there.
        """
        self._settles = not unsafe_mock_broker
        self._watch = watch
        self._settings = settings
        self._plan = plan
        self._config = config
        self._initial_weights = initial_weights
        self._max_message_bytes = max_message_bytes
        self._names = TopicNames(plan.topic_prefix)
        self._ends = LogEnds(config, settings.request_timeout_s)

    def open(self) -> tuple[GlobalModel, TransactionalWriter]:
        """Return the model as it stands, and its fenced producer.

        Raises:
            LedgerError: the state is missing although models were published, or is unreadable.
            PlanError: the state belongs to another plan.
            KafkaException: the broker cannot be asked.
        """
        writer = TransactionalWriter(
            self._config,
            f"sdp-global-{self._plan.plan_id_hex}",
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            request_timeout_s=self._settings.request_timeout_s,
            max_message_bytes=self._max_message_bytes,
            watch=self._watch,
        )
        own = (self._names.model, self._names.model_state)
        writer.fence([(topic, 0) for topic in own] if self._settles else ())
        if self._settles:
            self._watch(Step.RESTORE)
            Recovery(self._config, self._names, writer).restore_model()
        self._watch(Step.READ_STATE)
        deadline_ms = self._settings.merge_deadline_ms
        states = read_tail(self._config, self._names.model_state, 0, 1, bytes).values
        if states:
            try:
                state = decode_model_state(states[-1])
            except MalformedMessageError as error:
                raise LedgerError(
                    f"{self._names.model_state} holds a state that cannot be read ({error}): find "
                    "its writer, and delete that record"
                ) from error
            self._check_releases(state.next_offset)
            self._watch(Step.CONSUME)
            return GlobalModel.restore(self._plan, state, merge_deadline_ms=deadline_ms), writer
        if read_tail(self._config, self._names.model, 0, 1, bytes).values:
            raise LedgerError(
                f"{self._names.model} holds models, but {self._names.model_state} is empty: "
                "restore it from a backup, or start a new plan on new topics"
            )
        self._watch(Step.GENESIS)
        model = GlobalModel.start(self._plan, self._initial_weights, merge_deadline_ms=deadline_ms)
        writer.write(outgoing(self._names, model.initial(now_ms())))
        log.info("the model begins with version 0")
        self._watch(Step.CONSUME)
        return model, writer

    def _check_releases(self, position: int) -> None:
        """Make sure that the releases still are the log that was read up to ``position``."""
        begin = self._ends.begin_offset(self._names.releases, 0)
        end = self._ends.end_offset(self._names.releases, 0)
        if not begin <= position <= end:
            raise LedgerError(
                f"the model has read {self._names.releases} up to offset {position}, but the "
                f"topic has offsets {begin} to {end}: it was deleted or made again. Restore it "
                "from a backup, or start a new plan on new topics"
            )


def outgoing(names: TopicNames, stepped: Stepped) -> list[OutgoingRecord]:
    """Return the records that make ``stepped`` durable and public."""
    return [
        OutgoingRecord(names.model, 0, _KEY, encode_model_snapshot(stepped.snapshot)),
        OutgoingRecord(names.model_state, 0, _KEY, encode_model_state(stepped.state)),
    ]
