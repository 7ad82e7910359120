"""What the table of topics is made of: roles, names, and one row."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

# Kafka allows 249; the longest suffix has 14.
_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")

CleanupPolicy = Literal["delete", "compact"]
TimestampType = Literal["CreateTime", "LogAppendTime"]


class Role(StrEnum):
    """Who reads or writes a topic."""

    CLIENT = "client"
    HEAD = "head"
    GLOBAL = "global"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    ANYONE = "anyone"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of one deployment's topics.

    Attributes:
        prefix: What they start with, 1 to 200 letters, digits, dots, dashes, underscores.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError("a topic prefix has 1 to 200 of: letters, digits, '.', '-', '_'")

    @property
    def updates(self) -> str:
        """Raw client updates. Private."""
        return f"{self.prefix}.updates"

    @property
    def ledger(self) -> str:
        """The chains of charges. Private."""
        return f"{self.prefix}.ledger"

    @property
    def outbox(self) -> str:
        """Releases that are paid for and not yet published. Private."""
        return f"{self.prefix}.outbox"

    @property
    def rejects(self) -> str:
        """Why updates were not counted. Private."""
        return f"{self.prefix}.rejects"

    @property
    def releases(self) -> str:
        """Noisy sums. Public."""
        return f"{self.prefix}.releases"

    @property
    def model(self) -> str:
        """Model snapshots. Public."""
        return f"{self.prefix}.model"

    @property
    def model_state(self) -> str:
        """The global agent's state. Public."""
        return f"{self.prefix}.model-state"

    @property
    def participation(self) -> str:
        """Who has spent what, where each client has a budget of its own. Private."""
        return f"{self.prefix}.participation"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One row of the table.

    Attributes:
        name: The topic.
        key: What a record's key is: a client id, a cluster, the model, or what
            `participation_key` says.
        partitions: How many; never changed once the topic exists.
        retention_ms: For how long a record is kept; None for ever. Of a compacted topic, the
            newest record of each key is kept for ever.
        cleanup_policy: Whether old records are deleted or compacted.
        timestamp_type: Whose clock stamps a record.
        writers: Who may write.
        readers: Who may read.
        private: Whether the topic is inside the privacy boundary.
        max_message_bytes: The largest record batch.
        extra: More of Kafka's settings, by its names.
    """

    name: str
    key: Literal["client_id", "cluster", "model", "participation"]
    partitions: int
    retention_ms: int | None
    cleanup_policy: CleanupPolicy
    timestamp_type: TimestampType
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]
    private: bool
    max_message_bytes: int
    extra: tuple[tuple[str, str], ...] = ()

    def config(self) -> dict[str, str]:
        """Return the topic's configuration in Kafka's names."""
        return {
            "cleanup.policy": self.cleanup_policy,
            # The broker stores a batch as it came: the writer chose the compression.
            "compression.type": "producer",
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": self.timestamp_type,
            # Or a broker's own limit on size could delete what is kept for ever.
            "retention.bytes": "-1",
            "retention.ms": str(-1 if self.retention_ms is None else self.retention_ms),
            # A replica that lags could lose committed charges, that is, forget spent budget.
            "unclean.leader.election.enable": "false",
            **dict(self.extra),
        }
