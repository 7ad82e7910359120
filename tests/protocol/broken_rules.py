"""Each rule of the protocol broken on purpose, and the promise that does not survive it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from checker import COMPLETION
from merge_model import MergeModel
from merge_state import MODEL, STATE, MergeRules, MergeSetup
from release_model import ReleaseModel
from release_state import LEDGER, OFFSETS, OUTBOX, PARTICIPATION, Rules, Setup

# No marker is lost, no backup restored: crashes, zombies, fences and unknown outcomes are left.
CALM = Setup(1, 1, may_roll_back=False, losable=())
TWO_WINDOWS = Setup(2, 2, may_roll_back=False, losable=())
BACKUP = Setup(1, 1, losable=())
ANY_MARKER = replace(CALM, losable=(LEDGER, OUTBOX, OFFSETS))
PAID = replace(CALM, clients_pay=True, losable=(PARTICIPATION,))
CALM_MERGE = MergeSetup(3, losable=())


class Broken(NamedTuple):
    """Rules without which a promise is broken.

    Attributes:
        rules: Their names, with a plus between them.
        promise: The promise.
        faults: The fewest faults that break it.
        setup: A setting where that happens.
    """

    rules: str
    promise: str
    faults: int
    setup: Any

    @property
    def model(self) -> Any:
        """Return the model without the rules."""
        return broken_model(self.rules, self.setup)


def broken_model(rules: str, setup: Any) -> Any:
    """Return a model without ``rules``, names with a plus between them."""
    off = dict.fromkeys(rules.split("+"), False)
    if isinstance(setup, Setup):
        return ReleaseModel(replace(setup, rules=Rules(**off)))
    return MergeModel(replace(setup, rules=MergeRules(**off)))


BROKEN = (
    Broken("fences", "I2", 1, CALM),
    Broken("fences", "I6", 1, CALM),
    Broken("settles", COMPLETION, 2, replace(CALM, losable=(LEDGER,))),
    Broken("reads_committed", "I1", 1, CALM),
    Broken("waits_for_undecided", COMPLETION, 2, replace(CALM, losable=(OUTBOX,))),
    Broken("restores", "I2", 2, ANY_MARKER),
    Broken("restores", "I7", 2, ANY_MARKER),
    Broken("restores_whole_only", COMPLETION, 1, CALM),
    Broken("restores_when_decided", "fences", 2, PAID),
    Broken("restores_when_decided", "refusals", 2, PAID),
    Broken("restores_first_record", COMPLETION, 2, replace(CALM, losable=(LEDGER,))),
    Broken("compares_with_public", "I7", 2, BACKUP),
    Broken("compares_with_outbox", "I7", 2, BACKUP),
    Broken("refuses_when_current", "refusals", 1, CALM),
    Broken("republishes", COMPLETION, 1, CALM),
    Broken("republishes_bytes", "I1", 1, CALM),
    Broken("republishes_bytes", "I2", 1, CALM),
    Broken("offsets_in_transaction", "refusals", 1, CALM),
    Broken("offsets_in_transaction+resumes_from_ledger+compares_with_offsets", "sums", 1, CALM),
    Broken("skips_sealed_windows", "I5", 0, TWO_WINDOWS),
    Broken("reads_to_the_end", "sums", 0, CALM),
    Broken("stops_at_cap", "cap", 0, replace(TWO_WINDOWS, cap=1)),
    Broken("draws_each_time", "I4", 0, TWO_WINDOWS),
    Broken("one_transaction", COMPLETION, 1, CALM),
    Broken("writes_to_private_only", "I1", 0, CALM),
    Broken("writes_to_private_only", "I3", 1, CALM),
    Broken("publishes_after_commit", "I1", 0, CALM),
    Broken("doubts_success", "I1", 1, CALM),
    Broken("doubts_failure", "I6", 1, CALM),
    Broken("waits_for_public", COMPLETION, 0, TWO_WINDOWS),
    Broken("keeps_charges", "I7", 0, TWO_WINDOWS),
    Broken("keeps_charges", "I8", 0, TWO_WINDOWS),
    Broken("fences", "versions", 1, CALM_MERGE),
    Broken("settles", COMPLETION, 2, replace(CALM_MERGE, losable=(STATE,))),
    Broken("one_transaction", "refusals", 1, CALM_MERGE),
    Broken("restores", "refusals", 2, replace(CALM_MERGE, losable=(STATE,))),
    Broken("restores_each_version", "versions", 3, replace(CALM_MERGE, losable=(MODEL,))),
    Broken("drops_merged", "merged once", 0, CALM_MERGE),
    Broken("offsets_in_transaction+reads_on_from_state", COMPLETION, 1, CALM_MERGE),
    Broken("doubts_failure", "versions", 1, CALM_MERGE),
)

# What takes longer to find; `make protocol` looks for it.
BROKEN_DEEP = (
    Broken("restores_each_window", "refusals", 3, replace(PAID, windows=2, cap=2)),
    Broken("restores_first_record", "I7", 3, replace(ANY_MARKER, windows=2, cap=2)),
    Broken("begins_again", "refusals", 3, replace(CALM_MERGE, losable=(MODEL, STATE))),
    Broken("reads_on_from_state", COMPLETION, 2, MergeSetup(3)),
    Broken("fences", "agree", 1, CALM_MERGE),
)

# Rules without which every promise holds all the same, within two faults: something else sees to
# it. They stay, since each costs nothing and saves work, or stands in for the other.
HARMLESS = (
    # The new owner's fence shuts the old one out in any case; this only tells it sooner.
    ("checks_generation", CALM),
    # An older offset is read again, and what it brings belongs to windows that are sealed.
    ("resumes_from_ledger", CALM),
    # What the note would show is public, or in the outbox, by all faults that are modelled.
    ("compares_with_offsets", BACKUP),
    ("checks_generation", CALM_MERGE),
    # The offset that counts is that of the state, in the same transaction.
    ("offsets_in_transaction", CALM_MERGE),
    # The next transaction of the same producer commits what the unknown one wrote, or neither.
    ("doubts_success", CALM_MERGE),
)


def rule_names(rules: Iterator[str]) -> set[str]:
    """Return the single names."""
    return {name for each in rules for name in each.split("+")}
