"""Which states of the release protocol are the same: names, order and garbage aside.

What is dropped here is what no step can depend on; a test walks the model at random and compares
what can follow a state with what can follow its canonical form.
"""

from typing import Any

from kafka_model import Logs, replaced
from release_opening import releases_in
from release_state import LEDGER, OFFSETS, OUTBOX, PARTICIPATION, Record, Release, Rules, State
from writer_steps import with_small_epochs, without_doomed


def canonical(state: State, rules: Rules) -> State:
    """Return the one state that stands for all that are like ``state``."""
    state = with_small_epochs(_without_garbage(without_doomed(state), rules))
    first, second = state.processes
    if first.at > second.at or first == second:
        return _named_in_order(state)
    swapped = _named_in_order(state._replace(processes=(second, first)))
    return swapped if first.at < second.at else max(swapped, _named_in_order(state), key=repr)


def _named_in_order(state: State) -> State:
    """Return the state with its draws named 0, 1, ..., in the order in which they are found."""
    names: dict[int, int] = {}
    for release in releases_in(state):
        names.setdefault(release.draw, len(names))
    if all(old == new for old, new in names.items()):
        return state
    return _renamed(state, {-1: -1, **names})


def _renamed(state: State, names: dict[int, int]) -> State:
    def new(thing: Any) -> Any:
        if isinstance(thing, Release):
            return thing._replace(draw=names[thing.draw])
        if isinstance(thing, Record):
            previous = names.setdefault(thing.previous, len(names) - 1)
            return thing._replace(release=new(thing.release), previous=previous)
        if isinstance(thing, tuple):
            values = (new(each) for each in thing)
            return type(thing)(*values) if hasattr(thing, "_fields") else tuple(values)
        return thing

    renamed = new(state._replace(transaction=None))
    return renamed._replace(transaction=state.transaction)


def _without_garbage(state: State, rules: Rules) -> State:
    """Drop what nobody can read any more, or need."""
    logs = state.logs
    if logs[OFFSETS].aborted or len(logs[OFFSETS].committed) > 1:
        newest = logs[OFFSETS]._replace(committed=logs[OFFSETS].committed[-1:], aborted=())
        logs = replaced(logs, OFFSETS, newest)
    if any(log.aborted for log in logs):
        logs = _without_fragments(state, logs, rules)
    for number in (OUTBOX, PARTICIPATION)[: len(logs) - 2]:
        logs = _without_repeats(logs, number)
    late = state.late
    if late or len(state.public) > 1:
        late = sorted((each for each in late if each not in state.public), key=_window)
        public = sorted(state.public, key=_window)
        state = state._replace(public=tuple(public), late=tuple(late))
    return state if logs is state.logs else state._replace(logs=logs)


def _window(release: Release) -> int:
    return release.window


def _without_repeats(logs: Logs, number: int) -> Logs:
    """Drop what a log holds twice: its readers pass over repeats."""
    log = logs[number]
    committed = tuple(dict.fromkeys(log.committed))
    aborted = tuple(each for each in dict.fromkeys(log.aborted) if each not in committed)
    if len(committed) == len(log.committed) and len(aborted) == len(log.aborted):
        return logs
    return replaced(logs, number, log._replace(committed=committed, aborted=aborted))


def _without_fragments(state: State, logs: Logs, rules: Rules) -> Logs:
    """Drop aborted records that no restoring can count any more."""
    ledger, outbox = logs[LEDGER], logs[OUTBOX]
    if not ledger.committed:
        return logs  # they tell how late it is, should a ledger begin anew
    newest = ledger.committed[-1].sequence
    charges = [each for each in dict.fromkeys(ledger.aborted) if each.sequence > newest]
    releases = [each for each in outbox.aborted if each.sequence >= newest]
    payments = [log.aborted for log in logs[PARTICIPATION:]]
    if rules.reads_committed and rules.restores_whole_only and rules.writes_to_private_only:
        # A charge without its release, and the reverse, once the other half can come no more.
        coming = {record for head in state.processes for _, record in head.batch}
        written = {None, *outbox.all, *coming}
        charges = [each for each in charges if each.release in written]
        records = (*ledger.committed, *charges, *ledger.open, *coming)
        paid = {each.release for each in records if isinstance(each, Record)}
        releases = [each for each in releases if each in paid]
        sequences = {each.sequence for each in paid if each is not None}
        payments = [tuple(each for each in log if each in sequences) for log in payments]
    rest = zip(logs[PARTICIPATION:], payments, strict=True)
    return (
        ledger._replace(aborted=tuple(charges)),
        outbox._replace(aborted=tuple(releases)),
        logs[OFFSETS],
        *(log._replace(aborted=kept) for log, kept in rest),
    )
