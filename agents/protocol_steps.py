"""The steps of the release protocol by name, and who may watch a process pass them.

The names are those of the protocol's model (tests/protocol), which is checked exhaustively: a
crash at any of them must be harmless, so each stands right before the act that it is named after.
A production process is watched by nobody; crash tests start the same roles with a watcher that
kills, stops or delays the process at a step.
"""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """What a head or a global agent is about to do, or (past tense) has just done.

    Attributes:
        FENCE: Shut out every earlier producer of the partition's identity.
        SETTLE: Decide what an earlier one left open in the partitions themselves.
        READ_STATE: Read what is durable: the newest ledger records, or the model's state.
        RESTORE: Write again what a broker lost of committed transactions.
        GENESIS: Write the first record of a ledger, or the first model.
        CONSUME: Go on reading, the state being restored.
        CHARGE: Charge a window's budget, draw its noise, make its release.
        MERGE: Merge a window's releases into the next model.
        BEGIN_TRANSACTION: Begin a transaction.
        PRODUCE: Write its records.
        SEND_OFFSETS: Add the input's offset to it.
        COMMIT: Commit it.
        COMMITTED: It has committed, and the process does not know it yet.
        PUBLISH: Publish the committed release.
        PUBLISHED: It is public, and the process does not know it yet.
    """

    FENCE = "fence"
    SETTLE = "settle"
    READ_STATE = "read_state"
    RESTORE = "restore"
    GENESIS = "genesis"
    CONSUME = "consume"
    CHARGE = "charge"
    MERGE = "merge"
    BEGIN_TRANSACTION = "begin_transaction"
    PRODUCE = "produce"
    SEND_OFFSETS = "send_offsets"
    COMMIT = "commit"
    COMMITTED = "committed"
    PUBLISH = "publish"
    PUBLISHED = "published"


Watcher = Callable[[Step], None]
"""Called at each step, in the thread that takes it; what it raises is raised there."""


def nobody(step: Step) -> None:
    """Watch nothing: the watcher of every production process."""
