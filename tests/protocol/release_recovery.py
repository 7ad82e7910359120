"""What a killed broker has lost of a head's committed transactions: `agents.recovery`.

A record that follows the ledger's chain, and with which all that its transaction wrote is in the
logs, counts, whatever became of the transaction: its writer may have been told that it committed.
"""

from typing import Any

from release_state import (
    GENESIS,
    LEDGER,
    OUTBOX,
    PARTICIPATION,
    Record,
    Release,
    Setup,
    State,
)

Batch = tuple[tuple[int, Any], ...]


def lost_records(
    state: State, newest: Record | None, setup: Setup
) -> tuple[tuple[Record, ...], Batch]:
    """Return the ledger records to count beside the committed ones, and all to write again."""
    if not setup.rules.restores:
        return (), ()
    chain = continuation(state, newest, setup)
    again = [newest] if newest and _is_lacking(state, newest, setup) else []
    batch: list[tuple[int, Any]] = [(LEDGER, each) for each in chain]
    batch += [
        (OUTBOX, each.release)
        for each in (*again, *chain)
        if each.release and each.release in state.logs[OUTBOX].all
    ]
    if setup.clients_pay:
        unpaid = _unpaid(state) if setup.rules.restores_each_window else again
        batch += [
            (PARTICIPATION, each.sequence)
            for each in (*unpaid, *chain)
            if each.release and each.sequence in state.logs[PARTICIPATION].all
        ]
    return tuple(chain), tuple(batch)


def continuation(state: State, newest: Record | None, setup: Setup) -> list[Record]:
    """Return the records that go on with the chain: `stream.ledger_chain.continuation`."""
    ledger = state.logs[LEDGER]
    records = (each for each in ledger.all if isinstance(each, Record))
    candidates = [each for each in records if each not in ledger.committed]
    chain: list[Record] = []
    if newest is None and setup.rules.restores_first_record:
        chain = [each for each in candidates if each.kind == GENESIS][-1:]
    end = chain[-1] if chain else newest
    while end is not None:
        whole = (each for each in candidates if is_whole(state, each, setup))
        following = [each for each in whole if each.follows(end)]
        end = following[-1] if following else None
        chain += following[-1:]
    return chain


def is_whole(state: State, record: Record, setup: Setup) -> bool:
    """Say whether all that a record's transaction wrote is in the logs, decided or not."""
    if record.release is None or not setup.rules.restores_whole_only:
        return True
    has_paid = not setup.clients_pay or record.sequence in state.logs[PARTICIPATION].all
    return has_paid and record.release in state.logs[OUTBOX].all


def _is_lacking(state: State, newest: Record, setup: Setup) -> bool:
    """Say whether another log ends before what goes with the newest record, and has it."""
    if newest.release is None or not is_whole(state, newest, setup):
        return False
    shown = [each.sequence for each in state.logs[OUTBOX].committed if isinstance(each, Release)]
    lacks_release = not shown or shown[-1] < newest.sequence
    return lacks_release or (setup.clients_pay and not _has_paid(state, newest))


def _has_paid(state: State, record: Record) -> bool:
    return record.sequence in state.logs[PARTICIPATION].committed


def _unpaid(state: State) -> list[Record]:
    """Return the committed windows whose participation is not."""
    return [each for each in state.logs[LEDGER].committed if not _has_paid(state, each)]
