"""The release protocol of one cluster as a model: two heads, Kafka, and what can go wrong.

The heads' steps are in `release_opening`, `release_sealing` and `writer_steps`, under the names
that the code's own steps carry (`agents.protocol_steps.Step`). Here they are put together with
the world: requests that arrive late, an operator's old backup, and what befalls any writer.

Anything may happen between any two steps, so a head that is stopped in the middle of a release
and goes on when another has taken over needs no step of its own: it is a head that does nothing
for a while. A step that neither reads nor writes anything that others see (`LOCAL`) is taken at
once: whatever happens before it could as well happen after it. That loses no behaviour, since a
crash before such a step leaves what a crash after it leaves: nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from checker import Label
from kafka_model import Log, replaced
from release_names import canonical
from release_opening import READ_REST, begin_ledger, consume, read_ledger, read_rest, restore
from release_promises import INVARIANTS, LANDMARKS, is_complete, within_cap
from release_sealing import charge, is_due, publish, published, shown
from release_state import LEDGER, OUTBOX, Release, Setup, State
from writer_steps import (
    DOWN,
    REFUSED,
    Ways,
    arrive,
    begin_transaction,
    commit,
    committed,
    faults,
    fence,
    group,
    produce,
    send_offsets,
    settle,
)

from agents.protocol_steps import Step

STEPS: Mapping[str, Callable[[State, int, Setup], Ways]] = {
    Step.FENCE: fence,
    Step.SETTLE: settle,
    Step.READ_STATE: read_ledger,
    Step.RESTORE: restore,
    READ_REST: read_rest,
    Step.GENESIS: begin_ledger,
    Step.CONSUME: consume,
    Step.CHARGE: charge,
    Step.BEGIN_TRANSACTION: begin_transaction,
    Step.PRODUCE: produce,
    Step.SEND_OFFSETS: send_offsets,
    Step.COMMIT: commit,
    Step.COMMITTED: committed,
    Step.PUBLISH: publish,
    Step.PUBLISHED: published,
}
# And CHARGE, if a window is due.
LOCAL = (Step.GENESIS, Step.CONSUME, Step.BEGIN_TRANSACTION, Step.PRODUCE)
OLDER_COPY = "the ledger is replaced by an older copy"


@dataclass(frozen=True)
class ReleaseModel:
    """The model, to be searched by `checker.check`."""

    setup: Setup

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        """Return the promises, by name."""
        return {**INVARIANTS, "cap": within_cap(self.setup)}

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        """Return the states that a search must meet."""
        return LANDMARKS

    def initial(self) -> State:
        """Return the state before the first head starts."""
        return self.setup.begin()

    def canonical(self, state: State) -> State:
        """Return the one state that stands for all that are like ``state``."""
        return canonical(state, self.setup.rules)

    def is_done(self, state: State) -> bool:
        """Say whether all is released, or a person has to look at an old backup."""
        return state.is_rolled_back or is_complete(state, self.setup)

    def steps(self, state: State) -> Ways:
        """Yield everything that can happen next."""
        for who, head in enumerate(state.processes):
            if head.at in LOCAL or (head.at == Step.CHARGE and is_due(head, self.setup)):
                yield from STEPS[head.at](state, who, self.setup)
                return
        for who, head in enumerate(state.processes):
            if head.at not in (DOWN, REFUSED):
                yield from STEPS[head.at](state, who, self.setup)
                yield from self._arrivals(state, who)
            yield from group(state, who)
        yield from faults(state)
        for release in state.late:
            rest = tuple(each for each in state.late if each != release)
            yield Label(-1, "a release arrives late"), shown(state, release)._replace(late=rest)
        if self.setup.may_roll_back and not state.is_rolled_back:
            yield from _older_copy(state)

    def _arrivals(self, state: State, who: int) -> Ways:
        for label, after in arrive(state, who):
            if not self.setup.rules.writes_to_private_only:
                for release in after.logs[OUTBOX].open:
                    if isinstance(release, Release):
                        after = shown(after, release)
            yield label, after


def _older_copy(state: State) -> Ways:
    """An operator puts an older copy in the place of the ledger.

    What was released and it lacks is public, or in the outbox for all to read. Were that lost
    too, by the same backup or by a broker at the same time, nothing in Kafka could tell.
    """
    ledger, outbox = state.logs[LEDGER], state.logs[OUTBOX]
    if ledger.open or len(ledger.committed) < 2:
        return
    older = ledger.committed[:-1]
    kept = [each.release for each in older]
    lacking = {each for each in state.decided if each not in kept}
    logs = replaced(state.logs, LEDGER, Log(committed=older))
    logs = replaced(logs, OUTBOX, outbox._replace(aborted=()))  # without the charges: garbage
    label = Label(-1, OLDER_COPY, "", True)
    if lacking <= {*outbox.committed, *state.public}:
        yield label, state._replace(logs=logs, is_rolled_back=True)
    if lacking <= set(state.public):
        logs = replaced(logs, OUTBOX, Log())
        label = label._replace(detail="and the outbox has expired")
        yield label, state._replace(logs=logs, is_rolled_back=True)
