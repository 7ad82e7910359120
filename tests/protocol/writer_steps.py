"""What a head and a global agent have in common: `agents.transactions`, and the consumer group.

Each function here is what happens at one step of `agents.protocol_steps`, or what the world does:
it yields every way in which that can go, as a label and the state after it.

A model's state has ``logs``, ``epoch``, ``transaction`` (the logs that the running one has written
to, None for none) and two ``processes``. A process has ``at`` (the step that it is about to take),
``epoch``, ``is_member``, ``batch`` (what its transaction writes, by log, and has not written yet),
``then`` (the step after the transaction), and says what it knows once that has committed
(``moved_on``), if it has not (``as_before``), and which offset goes with it (``offset``, None for
none). A setup says which rules hold, and which logs are which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from checker import Label
from kafka_model import LOST_MARKER, ended, losses, replaced, settled

from agents.protocol_steps import Step

DOWN, REFUSED = "down", "refused"
WRITING = (Step.SEND_OFFSETS, Step.COMMIT)

Ways = Iterator[tuple[Label, Any]]


@dataclass(frozen=True, slots=True)
class WriterRules:
    """The rules of every writer; a rule that is False is broken on purpose.

    Attributes:
        fences: `init_transactions` shuts out every earlier producer.
        settles: What a lost marker has left open is aborted before anything is read.
        offsets_in_transaction: The group's offset is committed with what it answers for.
        checks_generation: A transaction fails whose generation of the group is over.
        doubts_success: After an unknown outcome nobody goes on as if it had committed.
        doubts_failure: Nor as if it had not: what is durable is read anew.
    """

    fences: bool = True
    settles: bool = True
    offsets_in_transaction: bool = True
    checks_generation: bool = True
    doubts_success: bool = True
    doubts_failure: bool = True


def is_current(state: Any, who: int) -> bool:
    """Say whether a process's producer holds the newest epoch."""
    return state.processes[who].epoch == state.epoch


def with_process(state: Any, who: int, process: Any, **changes: Any) -> Any:
    """Return the state with one process, and whatever else, exchanged."""
    first, second = state.processes
    processes = (process, second) if who == 0 else (first, process)
    return state._replace(processes=processes, **changes)


def goes_to(state: Any, who: int, at: str, **changes: Any) -> Any:
    """Return the state with one process at another step."""
    return with_process(state, who, state.processes[who]._replace(at=at, **changes))


def gives_up(state: Any, who: int, step: str, why: str) -> tuple[Label, Any]:
    """Let go of the partition; the group will give it to somebody, who opens it anew."""
    return Label(who, step, why), without(state, who)


def without(state: Any, who: int) -> Any:
    """Return the state with a process that remembers nothing, and does nothing."""
    return with_process(state, who, type(state.processes[who])())


def refuses(state: Any, who: int, step: Step, *, when_current: bool) -> tuple[Label, Any]:
    """Refuse the partition until a person has looked.

    Unless another process has taken it meanwhile: then what was read does not fit together
    because it was read before and after that, and the group knows who the owner is.
    """
    if when_current and not is_current(state, who):
        return gives_up(state, who, step, "fenced")
    return Label(who, step, "refuses"), goes_to(state, who, REFUSED)


def fence(state: Any, who: int, setup: Any) -> Ways:
    """Shut out every earlier producer, and end what it has begun: `init_transactions`."""
    if not setup.rules.fences:
        yield Label(who, Step.FENCE), goes_to(state, who, Step.SETTLE, epoch=state.epoch)
        return
    epoch, touched = state.epoch + 1, state.transaction or frozenset()
    for logs, is_fault in ended(state.logs, touched, commit=False, may_lose=setup.losable):
        label = Label(who, Step.FENCE, LOST_MARKER if is_fault else "", is_fault)
        after = state._replace(logs=logs, epoch=epoch, transaction=None)
        yield label, goes_to(after, who, Step.SETTLE, epoch=epoch)


def settle(state: Any, who: int, setup: Any) -> Ways:
    """Write a record to each private log and abort it: all is decided, all know the epoch."""
    if not setup.rules.settles:
        yield Label(who, Step.SETTLE, "left out"), goes_to(state, who, setup.first_read)
        return
    if not is_current(state, who):
        yield gives_up(state, who, Step.SETTLE, "fenced")
        return
    for lost in losses(set(setup.private).intersection(setup.losable)):
        label = Label(who, Step.SETTLE, LOST_MARKER if lost else "", bool(lost))
        logs = settled(state.logs, setup.private, lost, state.epoch)
        yield label, goes_to(state._replace(logs=logs), who, setup.first_read)


def begin_transaction(state: Any, who: int, setup: Any) -> Ways:
    """Begin a transaction; the broker hears of it with the first record."""
    yield Label(who, Step.BEGIN_TRANSACTION), goes_to(state, who, Step.PRODUCE)


def produce(state: Any, who: int, setup: Any) -> Ways:
    """Hand the records to the client, from where they arrive one by one (`arrive`)."""
    has_offset = state.processes[who].offset is not None
    at = Step.SEND_OFFSETS if has_offset else Step.COMMIT
    yield Label(who, Step.PRODUCE), goes_to(state, who, at)


def arrive(state: Any, who: int) -> Ways:
    """A record that was handed over reaches its log, unless its writer is fenced there.

    Those for one log come in order (an idempotent producer), those for different ones in any.
    """
    process = state.processes[who]
    if process.at not in WRITING:
        return
    firsts = dict(reversed(process.batch))
    for number, record in firsts.items():
        log = state.logs[number]
        if not log.takes(process.epoch, state.epoch):
            continue
        rest = tuple(each for each in process.batch if each != (number, record))
        logs = replaced(state.logs, number, log.with_record(record, process.epoch))
        after = with_process(state, who, process._replace(batch=rest), logs=logs)
        if is_current(state, who):
            touched = (state.transaction or frozenset()) | {number}
            after = after._replace(transaction=touched)
            yield Label(-1, "a record arrives", "of the transaction"), after
        else:
            yield Label(-1, "a record arrives", "of a fenced writer"), after


def send_offsets(state: Any, who: int, setup: Any) -> Ways:
    """Add the input's offset to the transaction; the group says whether we may."""
    process = state.processes[who]
    if not is_current(state, who):
        yield gives_up(state, who, Step.SEND_OFFSETS, "fenced")
    elif setup.rules.checks_generation and not process.is_member:
        yield gives_up(state, who, Step.SEND_OFFSETS, "lost the partition")
    else:
        log, transaction = state.logs[setup.offsets], state.transaction
        if setup.rules.offsets_in_transaction:
            log = log._replace(open=(process.offset,))  # it replaces what a lost marker left
            transaction = (transaction or frozenset()) | {setup.offsets}
        else:
            log = log._replace(committed=(process.offset,))
        logs = replaced(state.logs, setup.offsets, log)
        after = state._replace(logs=logs, transaction=transaction)
        yield Label(who, Step.SEND_OFFSETS), goes_to(after, who, Step.COMMIT)


def commit(state: Any, who: int, setup: Any) -> Ways:
    """Commit, once every record has arrived."""
    if not is_current(state, who):
        yield gives_up(state, who, Step.COMMIT, "fenced")
        return
    if state.processes[who].batch:
        return  # the client flushes first
    touched = state.transaction or frozenset()
    for logs, is_fault in ended(state.logs, touched, commit=True, may_lose=setup.losable):
        label = Label(who, Step.COMMIT, LOST_MARKER if is_fault else "", is_fault)
        after = state.decided_by(who)._replace(logs=logs, transaction=None)
        yield label, goes_to(after, who, Step.COMMITTED)
    yield _unknown_outcome(state, who, Step.COMMIT, "the request is lost", setup)


def committed(state: Any, who: int, setup: Any) -> Ways:
    """Learn that the transaction has committed: it counts from here on."""
    process = state.processes[who]
    yield Label(who, Step.COMMITTED), with_process(state, who, process.moved_on())
    yield _unknown_outcome(state, who, Step.COMMITTED, "the answer is lost", setup)


def _unknown_outcome(
    state: Any, who: int, step: Step, detail: str, setup: Any
) -> tuple[Label, Any]:
    """The process cannot know whether it has committed, and opens the partition anew."""
    process, label = state.processes[who], Label(who, step, detail, True)
    if not setup.rules.doubts_success:
        return label, with_process(state, who, process.moved_on())
    if not setup.rules.doubts_failure and process.offset is not None:
        return label, with_process(state, who, process.as_before())
    return label, without(state, who)


def group(state: Any, who: int) -> Ways:
    """The consumer group: who is not a member lets go in the end; somebody always is one."""
    process, other = state.processes[who], state.processes[1 - who]
    if process.at == DOWN:
        # The other one does not know yet that its generation is over.
        after = with_process(state, 1 - who, other._replace(is_member=False))
        label = Label(-1, "the group gives the partition to a process", "", other.is_member)
        yield label, goes_to(after, who, Step.FENCE, is_member=True)
    elif not process.is_member:
        yield Label(-1, "a process learns that it has lost the partition"), without(state, who)


def faults(state: Any) -> Ways:
    """What may happen to any writer at any time."""
    for who, process in enumerate(state.processes):
        if process.at != DOWN:
            yield Label(-1, "a process crashes", process.at, True), without(state, who)
    if any(is_current(state, who) for who in (0, 1)):
        # The broker's time-out of a transaction, or a fence that was given up long ago.
        touched = state.transaction or frozenset()
        ((logs, _),) = ended(state.logs, touched, commit=False, may_lose=())
        detail = "in a transaction" if touched else "between transactions"
        after = state._replace(logs=logs, epoch=state.epoch + 1, transaction=None)
        yield Label(-1, "nobody's fence", detail, True), after


def without_doomed(state: Any) -> Any:
    """Forget what a fenced process was about to write, where no log would take it."""
    for who, process in enumerate(state.processes):
        is_fenced = process.at in WRITING and not is_current(state, who)
        if is_fenced and not any(log.takes(process.epoch, state.epoch) for log in state.logs):
            state = with_process(state, who, process.doomed())
    return state


def with_small_epochs(state: Any) -> Any:
    """Return the state with epochs 0, 1, ..., in the order that they have."""
    logs, processes = state.logs, state.processes
    known = {-1, state.epoch, *(each.epoch for each in (*logs, *processes))}
    if max(known) == len(known) - 2:
        return state
    new = {epoch: number for number, epoch in enumerate(sorted(known), start=-1)}
    return state._replace(
        epoch=new[state.epoch],
        processes=tuple(each._replace(epoch=new[each.epoch]) for each in processes),
        logs=tuple(log._replace(epoch=new[log.epoch]) for log in logs),
    )
