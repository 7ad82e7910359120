"""Taking over the model: fence, read the state, or begin with the first version."""

import logging
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from schemas import (
    MalformedMessageError,
    TopicNames,
    decode_release,
    encode_model_snapshot,
    encode_model_state,
)
from stream.errors import LedgerError
from stream.global_model import GlobalModel, Stepped
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import LogEnds, now_ms
from .log_reader import LogReader, LogRecord
from .model_versions import newest_state, newest_version, snapshot_version
from .protocol_steps import Step, Watcher, nobody
from .recovery import Recovery
from .settings import Settings
from .topic_ids import Topics
from .transactions import OutgoingRecord, TransactionalWriter

log = logging.getLogger(__name__)

_KEY = b"model"
_MADE_AGAIN = (
    "it was deleted or made again. Restore all of its records from a backup, in their order, or "
    "start a new plan on new topics"
)


def model_group(plan: PrivacyPlan) -> str:
    """Return the consumer group that all global agents of a plan share."""
    return f"sdp-global-{plan.plan_id_hex}"


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
        topics: Topics | None = None,
        unsafe_mock_broker: bool = False,
        watch: Watcher = nobody,
    ) -> None:
        """Set up; the broker is first asked by `open`.

        ``topics``: What must be there, or the model is not opened.
        ``unsafe_mock_broker``: librdkafka's mock shows aborted records, so none are made there.
        """
        self._topics = topics
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
        if self._topics is not None:
            self._topics.require()
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
            Recovery(self._config, self._names, writer).restore_model(self._plan)
        self._watch(Step.READ_STATE)
        model = self._stored()
        if model is None:
            self._check_never_begun()
            self._watch(Step.GENESIS)
            model = self._start(writer)
        else:
            self._check_releases(model)
            self._show(model, writer)
        self._watch(Step.CONSUME)
        return model, writer

    def _start(self, writer: TransactionalWriter) -> GlobalModel:
        model = GlobalModel.start(
            self._plan, self._initial_weights, merge_deadline_ms=self._settings.merge_deadline_ms
        )
        writer.write(outgoing(self._names, model.initial(now_ms())))
        log.info("the model begins with version 0")
        return model

    def _stored(self) -> GlobalModel | None:
        """Return the model as its newest state has it, None where there is no state at all."""
        topic = self._names.model_state
        found = newest_state(self._config, topic, self._plan)
        if found.state is None:
            if found.foreign:
                raise LedgerError(
                    f"{topic} holds {found.foreign}, and no state: find its writer, and restore "
                    "the topic from a backup, or start a new plan on new topics"
                )
            return None
        model = GlobalModel.restore(
            self._plan, found.state, merge_deadline_ms=self._settings.merge_deadline_ms
        )
        if found.foreign:
            # Safe: had it hidden a state, a newer model would be public, and refused above.
            log.error("%s holds %s: passed over; find its writer", topic, found.foreign)
        return model

    def _check_never_begun(self) -> None:
        """Make sure that a model without a state is one that never had any."""
        names, found = self._names, []
        if newest_version(self._config, names.model, snapshot_version(self._plan)) >= 0:
            found.append(f"{names.model} holds models")
        group = model_group(self._plan)
        if self._settles and self._ends.committed_offset(group, names.releases, 0) is not None:
            found.append(f"the consumer group {group} has committed an offset")
        if found:
            raise LedgerError(
                f"{names.model_state} is empty, though {' and '.join(found)}: restore it from a "
                "backup, or start a new plan on new topics. To begin once more with version 0 and "
                f"the first release, delete the topic {names.model} and that group, and make the "
                "topic again; clients must then be started again too"
            )

    def _check_releases(self, model: GlobalModel) -> None:
        """Make sure that the releases still are the log that the model has read."""
        topic, position = self._names.releases, model.position
        begin, end = (ask(topic, 0) for ask in (self._ends.begin_offset, self._ends.end_offset))
        if not begin <= position <= end:
            raise LedgerError(
                f"the model has read {topic} up to offset {position}, but the topic has offsets "
                f"{begin} to {end}: {_MADE_AGAIN}"
            )
        if begin == position:
            return
        with LogReader(self._config, topic, 0) as releases:
            newest_read = releases.at(position - 1)
        if newest_read is not None and _is_unread(model, newest_read):
            raise LedgerError(
                f"the model has read {topic} up to offset {position}, but the release before it "
                f"is not in the model: {_MADE_AGAIN}"
            )

    def _show(self, model: GlobalModel, writer: TransactionalWriter) -> None:
        """Publish the model once more, where its topic has lost it."""
        version = snapshot_version(self._plan)
        if newest_version(self._config, self._names.model, version) >= model.version:
            return
        snapshot = encode_model_snapshot(model.snapshot(now_ms()))
        writer.write([OutgoingRecord(self._names.model, 0, _KEY, snapshot)])
        log.error(
            "%s had lost version %d of the model: published again, from its state",
            self._names.model,
            model.version,
        )


def _is_unread(model: GlobalModel, record: LogRecord) -> bool:
    try:
        release = decode_release(record.value)
    except MalformedMessageError:
        return False
    return model.is_new(release, record.timestamp_ms)


def outgoing(names: TopicNames, stepped: Stepped) -> list[OutgoingRecord]:
    """Return the records that make ``stepped`` durable and public."""
    return [
        OutgoingRecord(names.model, 0, _KEY, encode_model_snapshot(stepped.snapshot)),
        OutgoingRecord(names.model_state, 0, _KEY, encode_model_state(stepped.state)),
    ]
