"""A cluster's ledger records as a hash chain: what makes one follow another.

The head writes by these rules and the auditor reads by them. Each record names the hash of the
one before, so a record that was changed, lost or put in later is found by whoever reads on.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

from schemas import (
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    decode_ledger_record,
    record_hash,
)

from .budget import Ledger
from .clip_progress import clip_after, first_clip
from .errors import LedgerError
from .privacy.event import GaussianEvent
from .privacy.plan import PrivacyPlan
from .privacy.schedule_signal import Released

NO_HASH = bytes(32)
_REMEDY = (
    "Nothing is released until this is solved: restore the ledger topic from a backup that "
    "is not older (sdp ledger import), or start a new plan on new topics."
)


def genesis(
    plan: PrivacyPlan, cluster: int, first_window: int, next_offset: int, now_ms: int
) -> LedgerRecord:
    """Return the first record of a cluster's ledger: nothing spent, nothing sealed."""
    return LedgerRecord(
        plan_id=plan.plan_id,
        cluster=cluster,
        sequence=0,
        kind=LedgerKind.GENESIS,
        window=first_window - 1,
        next_offset=next_offset,
        charge_units=0,
        spent_units=0,
        cap_units=plan.cap_units,
        noise_variance=Fraction(0),
        l2_sensitivity_squared=plan.l2_sensitivity_squared,
        release_digest=b"",
        previous_hash=NO_HASH,
        sealed_at_ms=now_ms,
        next_units=plan.schedule.first_units(),
        clip=first_clip(plan, first_window),
    )


def verify_records(
    plan: PrivacyPlan, cluster: int, records: Sequence[bytes], *, is_complete: bool
) -> LedgerRecord:
    """Return the newest of ``records`` after checking each one and every link between them.

    Args:
        plan: The plan that the records must belong to.
        cluster: The cluster that they must belong to.
        records: Consecutive records as they stand in the topic, oldest first; not empty.
        is_complete: Whether the first of them must be the genesis record.

    Raises:
        LedgerError: a record is malformed, foreign, wrong in itself or does not follow.
    """
    previous: LedgerRecord | None = None
    previous_bytes = b""
    for data in records:
        record = decode_record(data, cluster)
        faults = record_faults(plan, cluster, record)
        if previous is not None:
            faults += link_faults(plan, previous, record_hash(previous_bytes), record)
        elif is_complete and record.kind is not LedgerKind.GENESIS:
            faults.append(f"it begins with record {record.sequence}: the start is missing")
        if faults:
            raise _error(cluster, f"cannot be trusted: {faults[0]}")
        previous, previous_bytes = record, data
    if previous is None:
        raise _error(cluster, "is empty")
    return previous


def continuation(
    plan: PrivacyPlan,
    cluster: int,
    newest: bytes,
    candidates: Sequence[bytes],
    is_whole: Callable[[LedgerRecord, LedgerRecord], bool],
) -> list[bytes]:
    """Return those of ``candidates`` that continue the chain, with all that they paid for there.

    A broker that was killed may lose or abort what it had already acknowledged as committed. A
    record that follows the chain, and whose release is in the outbox's log, was written whole by
    an owner that may have been told so and may publish that release. It has to count: to seal
    its window once more would make a second release for one charge.

    Args:
        plan: The plan.
        cluster: The cluster.
        newest: The newest committed record.
        candidates: Records from the topic's log, committed or not, oldest first; may hold
            anything.
        is_whole: Says of a record and the one before it whether all that the later one's
            transaction wrote elsewhere is in the logs.

    Raises:
        LedgerError: ``newest`` cannot be read.
    """
    readable = [(data, record) for data in candidates for record in readable_records([data])]
    chain: list[bytes] = []
    end, end_record = newest, decode_record(newest, cluster)
    while True:
        following = [
            (data, record)
            for data, record in readable
            if not record_faults(plan, cluster, record)
            and not link_faults(plan, end_record, record_hash(end), record)
            and is_whole(end_record, record)
        ]
        if not following:
            return chain
        end, end_record = following[-1]
        chain.append(end)


def readable_records(candidates: Sequence[bytes]) -> list[LedgerRecord]:
    """Return those of ``candidates`` that are ledger records at all."""
    records = []
    for data in candidates:
        try:
            records.append(decode_ledger_record(data))
        except MalformedMessageError:
            continue
    return records


def ledger_after(plan: PrivacyPlan, record: LedgerRecord) -> Ledger:
    """Return the budget as it stands after ``record``."""
    return Ledger(
        record.cap_units,
        record.spent_units,
        record.sequence,
        is_per_client=plan.scope == "client",
    )


def decode_record(data: bytes, cluster: int) -> LedgerRecord:
    """Return the record, or raise `LedgerError` for bytes that are none."""
    try:
        return decode_ledger_record(data)
    except MalformedMessageError as error:
        raise _error(cluster, f"holds a record that cannot be read: {error}") from error


def record_faults(plan: PrivacyPlan, cluster: int, record: LedgerRecord) -> list[str]:
    """Return what is wrong with ``record`` in itself, the gravest first; nothing if it is sound."""
    claims = [
        (
            record.plan_id == plan.plan_id,
            f"belongs to plan {record.plan_id.hex()}, not this one",
        ),
        (record.cluster == cluster, f"belongs to cluster {record.cluster}"),
        (record.cap_units == plan.cap_units, "has another cap than the plan"),
        (record.spent_units <= record.cap_units, "has spent more than the cap"),
        (
            (record.kind is LedgerKind.GENESIS) == (record.sequence == 0),
            f"is of kind {record.kind.name}",
        ),
        (
            record.kind is not LedgerKind.GENESIS or not record.spent_units,
            "has spent units before the first release",
        ),
        (
            record.l2_sensitivity_squared == plan.l2_sensitivity_squared,
            "has another sensitivity than the plan",
        ),
        (
            bool(record.participation_digest) == _names_participants(plan, record.kind),
            f"of kind {record.kind.name} names who took part, or does not, against the plan",
        ),
        (
            (record.clip is None) == (plan.clipping is None),
            "says how clipping adapts, or does not, against the plan",
        ),
    ]
    if record.kind is LedgerKind.GENESIS:
        begins = plan.schedule.first_units(), first_clip(plan, record.window + 1)
        is_beginning = (record.next_units, record.clip) == begins
        claims.append((is_beginning, "does not begin as the plan says"))
    if record.kind is not LedgerKind.RELEASE:
        claims.append((not record.charge_units, "charges without a release"))
    elif record.noise_variance <= 0:
        claims.append((False, "has no noise"))
    else:
        units = GaussianEvent(plan.l2_sensitivity_squared, record.noise_variance).units
        claims.append(
            (record.charge_units == units, f"charges {record.charge_units} units, not {units}")
        )
    return [f"record {record.sequence} {fault}" for is_true, fault in claims if not is_true]


def link_faults(
    plan: PrivacyPlan, before: LedgerRecord, before_hash: bytes, record: LedgerRecord
) -> list[str]:
    """Return why ``record`` cannot follow ``before``, whose bytes have the hash ``before_hash``.

    What only a released vector can tell (the next charge of an adaptive schedule, the next clip
    norm) is for the auditor, who has the releases.
    """
    claims = (
        (
            record.previous_hash == before_hash,
            "does not name the hash of the one before: broken chain",
        ),
        (record.sequence == before.sequence + 1, f"follows record {before.sequence}"),
        (
            record.spent_units == ledger_after(plan, before).spent_after(record.charge_units),
            "does not add up with the one before",
        ),
        (
            record.window == before.window + 1,
            f"seals window {record.window} after {before.window}",
        ),
        (
            record.next_offset >= before.next_offset,
            f"goes back to offset {record.next_offset}",
        ),
        (
            before.kind is not LedgerKind.EXHAUSTED,
            "stands after the record that closed the ledger",
        ),
        (
            record.kind is not LedgerKind.RELEASE
            or (
                before.next_units > 0
                and record.noise_variance == plan.schedule.noise_variance(before.next_units)
            ),
            "has other noise than was planned for it",
        ),
        (
            _plans_as_scheduled(plan, before, record),
            "plans another charge for the next window than the schedule",
        ),
        (
            record.kind is not LedgerKind.THROTTLED
            or record.clip == clip_after(plan, before.clip, record.window, None),
            "adapts the clip norm without a release",
        ),
    )
    return [f"record {record.sequence} {fault}" for is_true, fault in claims if not is_true]


def next_units(
    plan: PrivacyPlan, before: LedgerRecord, record: LedgerRecord, released: Released | None
) -> int:
    """Return what the schedule plans for the window after that of ``record``.

    Args:
        plan: The plan.
        before: The record before ``record``.
        record: The newest record.
        released: What ``record`` released; None where nothing, and where the schedule does not
            ask for it.
    """
    # What a client has spent of its own budget ends its part, not the schedule.
    spent = 0 if plan.scope == "client" else record.spent_units
    units = plan.schedule.next_units(record.sequence, spent, before.next_units, released)
    # A window that costs more than a rate limit admits in all would be throttled for ever.
    return min([units, *(cap for _, _, cap in plan.sliding_caps)])


def _plans_as_scheduled(plan: PrivacyPlan, before: LedgerRecord, record: LedgerRecord) -> bool:
    if record.kind is LedgerKind.EXHAUSTED:
        return not record.next_units
    # Only the released vector can tell what an adaptive schedule answers to a release.
    is_known = plan.schedule.is_deterministic or record.kind is LedgerKind.THROTTLED
    return not is_known or record.next_units == next_units(plan, before, record, None)


def _names_participants(plan: PrivacyPlan, kind: LedgerKind) -> bool:
    return plan.scope == "client" and kind in (LedgerKind.RELEASE, LedgerKind.THROTTLED)


def _error(cluster: int, fact: str) -> LedgerError:
    return LedgerError(f"the ledger of cluster {cluster} {fact}. {_REMEDY}")
