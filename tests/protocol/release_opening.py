"""A head takes a cluster over: `agents.partition.ClusterOpener.open`, step by step.

FENCE and SETTLE come first (`writer_steps`). Each function is what happens at one step: it yields
every way in which the step can go.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from checker import Label
from kafka_model import Log
from release_recovery import lost_records
from release_state import (
    GENESIS,
    LEDGER,
    OFFSETS,
    OUTBOX,
    PARTICIPATION,
    UPDATES,
    Record,
    Release,
    Rules,
    Setup,
    State,
)
from writer_steps import Ways, gives_up, goes_to, refuses

from agents.protocol_steps import Step

# The ledger is read before what was lost of it is restored, all else after; both READ_STATE.
READ_REST = "read_state, the rest"


def read_ledger(state: State, who: int, setup: Setup) -> Ways:
    """Read the ledger as far as it is committed, and check its chain."""
    log, rules = state.logs[LEDGER], setup.rules
    if _is_waiting(log, rules):
        yield gives_up(state, who, Step.READ_STATE, "waits in vain")
        return
    records = [each for each in _read(log, rules) if isinstance(each, Record)]
    if not is_chain(records):
        yield _refuses(state, who, rules)
        return
    newest = records[-1] if records else None
    yield Label(who, Step.READ_STATE), goes_to(state, who, Step.RESTORE, newest=newest)


def restore(state: State, who: int, setup: Setup) -> Ways:
    """Find what was lost of committed transactions, and write it again."""
    newest = state.processes[who].newest
    others = [state.logs[log] for log in setup.private if log != LEDGER]
    must_wait = setup.rules.restores_when_decided or (newest and newest.release)
    if must_wait and any(_is_waiting(log, setup.rules) for log in others):
        yield gives_up(state, who, Step.RESTORE, "waits in vain")
        return
    chain, batch = lost_records(state, newest, setup)
    if not batch:
        yield Label(who, Step.RESTORE, "nothing is lost"), goes_to(state, who, READ_REST)
        return
    yield (
        Label(who, Step.RESTORE, "writes again"),
        goes_to(state, who, Step.BEGIN_TRANSACTION, sealed=chain, batch=batch, then=READ_REST),
    )


def read_rest(state: State, who: int, setup: Setup) -> Ways:
    """Read the outbox, what clients paid and what is public; hold the ledger against it."""
    rules, newest = setup.rules, state.processes[who].newest
    if any(_is_waiting(state.logs[log], rules) for log in setup.private if log != LEDGER):
        yield gives_up(state, who, Step.READ_STATE, "waits in vain")
        return
    releases = [each for each in _read(state.logs[OUTBOX], rules) if isinstance(each, Release)]
    if newest is None:
        is_first = not (releases or state.public or state.logs[OFFSETS].committed)
        first = Label(who, Step.READ_STATE), goes_to(state, who, Step.GENESIS)
        yield first if is_first else _refuses(state, who, rules)
        return
    if _is_older(state, newest, releases, rules) or not _knows_who_paid(state, newest, setup):
        yield _refuses(state, who, rules)
        return
    is_there = bool(releases) and releases[-1].sequence >= newest.sequence
    owed = newest.release if is_there and rules.republishes else None
    if owed and not rules.republishes_bytes:
        owed = owed._replace(draw=fresh_draw(state, rules))
    yield Label(who, Step.READ_STATE), goes_to(state, who, Step.CONSUME, unpublished=owed)


def begin_ledger(state: State, who: int, setup: Setup) -> Ways:
    """Make a ledger's first record; it begins with the window of the moment."""
    known = (*state.logs[LEDGER].all, *state.logs[OUTBOX].all, *state.decided)
    sealed = [each.window for each in known if isinstance(each, Record | Release)]
    # What somebody has sealed is over; that no more time has passed is the least that can be.
    first = max(sealed, default=-1) + 1
    offsets = (offset for offset, (_, window) in enumerate(UPDATES) if window >= first)
    record = Record(GENESIS, 0, first - 1, 0, next(offsets, len(UPDATES)))
    writes = {"sealed": (record,), "batch": ((LEDGER, record),), "then": Step.CONSUME}
    yield Label(who, Step.GENESIS), goes_to(state, who, Step.BEGIN_TRANSACTION, **writes)


def consume(state: State, who: int, setup: Setup) -> Ways:
    """Go on reading where the ledger says; what was committed is published first."""
    head = state.processes[who]
    newest, offsets = head.newest, state.logs[OFFSETS].committed
    if newest and offsets and not setup.rules.resumes_from_ledger:
        newest = newest._replace(next_offset=offsets[-1][0])
    at = Step.PUBLISH if head.unpublished else Step.CHARGE
    yield Label(who, Step.CONSUME), goes_to(state, who, at, newest=newest)


def is_chain(records: list[Record]) -> bool:
    """Say whether records are a ledger from its beginning."""
    links = itertools.pairwise(records)
    return not records or (
        records[0].kind == GENESIS and all(after.follows(before) for before, after in links)
    )


def fresh_draw(state: State, rules: Rules) -> int:
    """Return a noise draw: a number that occurs nowhere."""
    if not rules.draws_each_time:
        return 0
    return 1 + max((each.draw for each in releases_in(state)), default=-1)


def releases_in(state: State) -> Iterator[Release]:
    """Yield every release that is anywhere, in an order that depends on no name."""
    things: list[Any] = [*state.logs[LEDGER].all, *state.logs[OUTBOX].all]
    for head in state.processes:
        if head.newest is not None:
            things += (head.newest, *head.sealed, head.unpublished)
            things += (record for _, record in head.batch)
    things += (*state.public, *state.late, *state.decided)
    for each in things:
        release = each.release if isinstance(each, Record) else each
        if isinstance(release, Release):
            yield release


def _refuses(state: State, who: int, rules: Rules) -> tuple[Label, State]:
    return refuses(state, who, Step.READ_STATE, when_current=rules.refuses_when_current)


def _is_waiting(log: Log, rules: Rules) -> bool:
    """Say whether a reader of committed records is made to wait."""
    return bool(log.open) and rules.waits_for_undecided and rules.reads_committed


def _read(log: Log, rules: Rules) -> tuple[Any, ...]:
    return log.committed if rules.reads_committed else log.all


def _is_older(state: State, newest: Record, releases: list[Release], rules: Rules) -> bool:
    """Say whether the ledger ends before what else was written with it, or does not fit it."""
    signs = []
    if rules.compares_with_public:
        signs += [each.sequence for each in state.public]
    if rules.compares_with_outbox:
        signs += [each.sequence for each in releases[-1:]]
    if rules.compares_with_offsets:
        signs += [sequence for _, sequence in state.logs[OFFSETS].committed]
    owed = newest.release
    differs = owed and releases and releases[-1].sequence == owed.sequence and releases[-1] != owed
    return bool(differs) or max(signs, default=0) > newest.sequence


def _knows_who_paid(state: State, newest: Record, setup: Setup) -> bool:
    """Say whether the participation log tells what each client has spent: `rebuild`."""
    if not setup.clients_pay:
        return True
    known = 0
    for sequence in state.logs[PARTICIPATION].committed:
        if isinstance(sequence, str):
            return False  # the record of a fence
        known += sequence == known + 1
    return known == newest.spent
