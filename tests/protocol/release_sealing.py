"""A head seals a window: `agents.cluster_head.HeadService`, step by step.

The steps of its transactions are in `writer_steps`.
"""

from typing import Any

from checker import Label
from release_opening import fresh_draw
from release_state import (
    CLOSING,
    LEDGER,
    OUTBOX,
    PARTICIPATION,
    RELEASE,
    SECOND,
    UPDATES,
    Head,
    Record,
    Release,
    Rules,
    Setup,
    State,
)
from writer_steps import Ways, gives_up, goes_to, is_current, with_process

from agents.protocol_steps import Step


def charge(state: State, who: int, setup: Setup) -> Ways:
    """Seal the next window in memory: charge it, sum it, draw its noise."""
    head, rules = state.processes[who], setup.rules
    if not is_due(head, setup):
        if not is_current(state, who):
            # Windows go on after those of the model: the next one's transaction would fail.
            yield gives_up(state, who, Step.CHARGE, "fenced, as the next window will show")
        return
    record = sealed_record(state, head, setup)
    release = record.release
    batch: list[tuple[int, Any]] = [(LEDGER, record)]
    if release is not None:
        batch.append((OUTBOX, release))
        batch += [(PARTICIPATION, record.sequence)] if setup.clients_pay else []
    head = head._replace(at=Step.BEGIN_TRANSACTION, sealed=(record,), batch=tuple(batch))
    if release is not None and not rules.publishes_after_commit:
        head = head._replace(at=Step.PUBLISH, unpublished=release, then=Step.CHARGE)
    elif release is not None and not rules.one_transaction:
        head = head._replace(batch=tuple(batch[:1]), then=SECOND)
    else:
        head = head._replace(then=Step.PUBLISH if release else Step.CHARGE)
    yield Label(who, Step.CHARGE, record.kind), with_process(state, who, head)


def is_due(head: Head, setup: Setup) -> bool:
    """Say whether there is a window to seal, and a ledger that is open."""
    newest = head.newest
    return newest is not None and newest.kind != CLOSING and newest.window + 1 < setup.windows


def sealed_record(state: State, head: Head, setup: Setup) -> Record:
    """Return the ledger record that follows, with its release where the budget pays for one."""
    before, rules = head.newest, setup.rules
    assert before is not None
    window, sequence = before.window + 1, before.sequence + 1
    later = (offset for offset, (_, each) in enumerate(UPDATES) if each > window)
    next_offset = next(later, len(UPDATES))
    if before.spent >= setup.cap and rules.stops_at_cap:
        return Record(CLOSING, sequence, window, before.spent, next_offset, None, before.draw)
    spent = before.spent + 1
    updates = updates_counted(before.next_offset, window, rules)
    release = Release(window, sequence, spent, fresh_draw(state, rules), updates)
    return Record(RELEASE, sequence, window, spent, next_offset, release, before.draw)


def updates_counted(position: int, window: int, rules: Rules) -> tuple[int, ...]:
    """Return the offsets of a window's updates from ``position`` on, each client's first one."""
    end = len(UPDATES) if rules.reads_to_the_end else position + 1
    counted: dict[str, int] = {}
    for offset, (client, appended) in enumerate(UPDATES[:end]):
        is_taken = appended == window or (appended < window and not rules.skips_sealed_windows)
        if offset >= position and is_taken:
            counted.setdefault(client, offset)
    return tuple(sorted(counted.values()))


def publish(state: State, who: int, setup: Setup) -> Ways:
    """Publish the release; its request may be lost, or arrive at any later time."""
    head, release = state.processes[who], state.processes[who].unpublished
    assert release is not None
    seen = shown(state, release)
    yield Label(who, Step.PUBLISH), goes_to(seen, who, Step.PUBLISHED)
    if release not in (*state.public, *state.late):
        on_its_way = state._replace(late=(*state.late, release))
        yield Label(who, Step.PUBLISH, "is delayed"), on_its_way
    if not setup.rules.waits_for_public:
        lost = goes_to(state, who, Step.CHARGE, unpublished=None)
        yield Label(who, Step.PUBLISH, "is lost, unnoticed"), lost
    if not setup.rules.keeps_charges and head.newest is not None:
        refunded = head.newest._replace(spent=head.newest.spent - 1)
        failed = goes_to(state, who, Step.CHARGE, newest=refunded, unpublished=None)
        yield Label(who, Step.PUBLISH, "fails, and is refunded"), failed


def published(state: State, who: int, setup: Setup) -> Ways:
    """Learn that the release is public."""
    at = Step.BEGIN_TRANSACTION if state.processes[who].sealed else Step.CHARGE
    yield Label(who, Step.PUBLISHED), goes_to(state, who, at, unpublished=None)
    again = goes_to(state, who, Step.PUBLISH)
    yield Label(who, Step.PUBLISHED, "the answer is lost"), again


def shown(state: State, release: Release) -> State:
    """Return the state with a release on the public topic; a repeat changes nothing there."""
    if release in state.public:
        return state
    return state._replace(public=(*state.public, release))
