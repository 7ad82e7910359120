from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import (
    ClipState,
    LedgerKind,
    LedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
    record_hash,
)
from stream.budget import Ledger
from stream.clip_progress import clip_after, first_clip
from stream.errors import LedgerError
from stream.ledger_chain import (
    NO_HASH,
    continuation,
    decode_record,
    genesis,
    ledger_after,
    link_faults,
    next_units,
    record_faults,
    verify_records,
)
from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.event import GaussianEvent
from stream.privacy.plan import OptimizerSpec, PrivacyPlan
from stream.privacy.schedule_signal import Released
from stream.privacy.schedule_spec import ScheduleSpec

CLUSTER = 1
REMEDY = "restore the ledger topic from a backup that is not older (sdp ledger import), or start"
PLAN = PrivacyPlan(
    name="chain",
    dimension=4,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=3,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
CHEAPER = GaussianEvent(PLAN.l2_sensitivity_squared, PLAN.noise_variance * 2)


def following(before: LedgerRecord, **changes: object) -> LedgerRecord:
    """A release that follows ``before``, with ``changes``."""
    record = replace(
        before,
        sequence=before.sequence + 1,
        kind=LedgerKind.RELEASE,
        window=before.window + 1,
        next_offset=before.next_offset + 10,
        charge_units=PLAN.charge_units,
        spent_units=before.spent_units + PLAN.charge_units,
        noise_variance=PLAN.noise_variance,
        release_digest=bytes([7]) * 32,
        previous_hash=record_hash(encode_ledger_record(before)),
    )
    record = replace(record, **changes)
    if record.kind is LedgerKind.EXHAUSTED or "next_units" in changes:
        return record
    return replace(record, next_units=next_units(PLAN, before, record, None))


def closing(before: LedgerRecord, **changes: object) -> LedgerRecord:
    """The record that closes the ledger after ``before``, with ``changes``."""
    closed = {
        "kind": LedgerKind.EXHAUSTED,
        "charge_units": 0,
        "spent_units": before.spent_units,
        "noise_variance": Fraction(0),
        "release_digest": b"",
        "next_units": 0,
    }
    return following(before, **closed | changes)


def encoded(records: list[LedgerRecord]) -> list[bytes]:
    return [encode_ledger_record(record) for record in records]


def whole_chain() -> list[LedgerRecord]:
    records = [genesis(PLAN, CLUSTER, 4, 50, 1000)]
    for _ in range(3):
        records.append(following(records[-1]))
    return [*records, closing(records[-1])]


CHAIN = whole_chain()
BYTES = encoded(CHAIN)


def refused(records: list[bytes], *, is_complete: bool = True) -> str:
    """What is said of records that cannot be trusted."""
    with pytest.raises(LedgerError) as caught:
        verify_records(PLAN, CLUSTER, records, is_complete=is_complete)
    message = str(caught.value)
    assert message.startswith("the ledger of cluster 1 ")
    assert REMEDY in message
    return message


@pytest.mark.parametrize("length", range(1, 6))
def test_an_honest_chain_is_accepted_from_its_beginning(length):
    newest = verify_records(PLAN, CLUSTER, BYTES[:length], is_complete=True)
    assert newest == CHAIN[length - 1]


@pytest.mark.parametrize("begin", range(5))
def test_an_honest_part_of_a_chain_is_accepted_as_a_part(begin):
    assert verify_records(PLAN, CLUSTER, BYTES[begin:], is_complete=False) == CHAIN[-1]


def test_a_genesis_has_spent_and_sealed_nothing():
    first = genesis(PLAN, CLUSTER, 4, 50, 1000)
    assert (first.spent_units, first.charge_units, first.sequence) == (0, 0, 0)
    assert (first.window, first.next_offset, first.sealed_at_ms) == (3, 50, 1000)
    assert (first.cap_units, first.previous_hash) == (PLAN.cap_units, NO_HASH)
    assert not record_faults(PLAN, CLUSTER, first)


def test_a_budget_stands_as_its_newest_record_says():
    assert ledger_after(PLAN, CHAIN[0]) == Ledger(PLAN.cap_units)
    assert ledger_after(PLAN, CHAIN[2]) == Ledger(PLAN.cap_units, 2 * PLAN.charge_units, 2)


def test_noise_that_was_not_planned_is_refused_though_it_is_charged():
    record = following(
        CHAIN[0],
        noise_variance=CHEAPER.noise_variance,
        charge_units=CHEAPER.units,
        spent_units=CHEAPER.units,
    )
    assert "record 1 has other noise than was planned for it" in refused(
        encoded([CHAIN[0], record])
    )


# --- Tampering with the topic --------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "words"),
    [
        pytest.param([], "is empty", id="nothing"),
        pytest.param(BYTES[1:], "begins with record 1: the start is missing", id="start"),
        pytest.param([BYTES[0], *BYTES[2:]], "record 2 does not name the hash", id="a gap"),
        pytest.param([BYTES[0], BYTES[2], BYTES[1]], "does not name the hash", id="order"),
        pytest.param([BYTES[0], BYTES[1], BYTES[1]], "does not name the hash", id="repeated"),
        pytest.param([BYTES[0], BYTES[0]], "record 0 does not name the hash", id="two starts"),
        pytest.param([*BYTES[:2], b""], "cannot be read", id="empty record"),
        pytest.param([*BYTES[:2], b"garbage"], "cannot be read", id="garbage"),
        pytest.param([*BYTES[:2], BYTES[2][:-1]], "cannot be read", id="cut short"),
        pytest.param([BYTES[0] + b"\0", *BYTES[1:]], "cannot be read", id="longer"),
    ],
)
def test_a_topic_that_was_tampered_with_is_refused(records, words):
    assert words in refused(records)


@settings(max_examples=300)
@given(st.data())
def test_no_changed_byte_before_the_newest_record_is_accepted(data):
    which = data.draw(st.integers(0, len(BYTES) - 2))
    at = data.draw(st.integers(0, len(BYTES[which]) - 1))
    flipped = bytearray(BYTES[which])
    flipped[at] ^= data.draw(st.integers(1, 255))
    refused([*BYTES[:which], bytes(flipped), *BYTES[which + 1 :]])


def test_a_fork_is_refused_where_the_branches_meet():
    fork = following(CHAIN[1], sealed_at_ms=CHAIN[2].sealed_at_ms + 1)
    refused([*BYTES[:2], encode_ledger_record(fork), *BYTES[3:]])


def test_a_record_that_cannot_be_read_is_a_ledger_error():
    assert decode_record(BYTES[1], CLUSTER) == decode_ledger_record(BYTES[1])
    with pytest.raises(LedgerError, match="cluster 1 holds a record that cannot be read"):
        decode_record(b"\xff", CLUSTER)


# --- Records that are wrong in themselves, though their hashes are right -------------------


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (following(CHAIN[0], plan_id=bytes(16)), "record 1 belongs to plan 0000"),
        (following(CHAIN[0], cluster=0), "record 1 belongs to cluster 0"),
        (following(CHAIN[0], cap_units=PLAN.cap_units + 1), "has another cap than the plan"),
        (
            following(CHAIN[0], l2_sensitivity_squared=1),
            "has another sensitivity than the plan",
        ),
        (
            closing(CHAIN[0], l2_sensitivity_squared=1),
            "has another sensitivity than the plan",
        ),
        (
            following(CHAIN[0], charge_units=PLAN.charge_units - 1),
            f"charges {PLAN.charge_units - 1} units, not {PLAN.charge_units}",
        ),
        (
            following(CHAIN[0], noise_variance=CHEAPER.noise_variance / 4),
            f"charges {PLAN.charge_units} units, not ",
        ),
        (closing(CHAIN[0], charge_units=5, spent_units=5), "charges without a release"),
        (following(CHAIN[0], spent_units=PLAN.charge_units + 1), "does not add up"),
        (closing(CHAIN[1], spent_units=0), "does not add up"),
        (following(CHAIN[0], window=CHAIN[0].window + 2), "seals window 5 after 3"),
        (following(CHAIN[0], window=CHAIN[0].window), "seals window 3 after 3"),
        (closing(CHAIN[0], window=CHAIN[0].window + 2), "seals window 5 after 3"),
        (following(CHAIN[0], sequence=2), "record 2 follows record 0"),
        (following(CHAIN[0], sequence=0), "record 0 is of kind RELEASE"),
        (following(CHAIN[0], next_offset=49), "goes back to offset 49"),
        (following(CHAIN[0], previous_hash=bytes([1]) * 32), "does not name the hash"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_record_that_is_wrong_is_refused_though_it_names_the_right_hash(record, words):
    before = BYTES[:2] if record.previous_hash == record_hash(BYTES[1]) else BYTES[:1]
    assert words in refused([*before, encode_ledger_record(record)])


def test_a_genesis_that_has_spent_something_is_refused():
    first = replace(CHAIN[0], spent_units=1)
    assert "has spent units before the first release" in refused(encoded([first]))


def test_a_genesis_of_a_later_number_is_refused():
    assert "is of kind GENESIS" in refused(encoded([replace(CHAIN[0], sequence=3)]))


@pytest.mark.parametrize("follow", [following, closing])
def test_nothing_may_follow_the_record_that_closed_the_ledger(follow):
    early = closing(CHAIN[1])
    last = follow(early)
    assert "stands after the record that closed the ledger" in refused(
        encoded([*CHAIN[:2], early, last])
    )


def test_more_than_the_cap_is_refused_before_it_can_be_encoded():
    over = following(CHAIN[3])
    assert over.spent_units > PLAN.cap_units
    assert f"record {over.sequence} has spent more than the cap" in record_faults(
        PLAN, CLUSTER, over
    )
    with pytest.raises(ValueError, match="spent_units"):
        encode_ledger_record(over)


def test_a_release_without_noise_is_a_fault_before_it_can_be_encoded():
    exact = following(CHAIN[0], noise_variance=Fraction(0))
    assert record_faults(PLAN, CLUSTER, exact) == ["record 1 has no noise"]


def test_every_fault_of_a_record_is_told_and_the_gravest_first():
    record = following(CHAIN[0], plan_id=bytes(16), cluster=0, next_offset=0)
    record = replace(record, sequence=9)
    faults = record_faults(PLAN, CLUSTER, record)
    faults += link_faults(PLAN, CHAIN[0], record_hash(BYTES[0]), record)
    assert [fault.removeprefix("record 9 ").split()[0] for fault in faults] == [
        "belongs",
        "belongs",
        "follows",
        "goes",
    ]
    assert "belongs to plan" in refused(encoded([CHAIN[0], record]))


DIGEST = bytes([7]) * 32
OTHER_DIGEST = bytes([8]) * 32


def are_there(*digests: bytes) -> Callable[[LedgerRecord, LedgerRecord], bool]:
    """Says that nothing but the releases of these digests is in the logs."""
    return lambda before, record: not record.release_digest or record.release_digest in digests


def test_what_was_written_whole_continues_the_chain_in_order():
    log = [b"", *BYTES, b"foreign"]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, are_there(DIGEST)) == BYTES[2:]


def test_nothing_continues_a_chain_whose_log_ends_there():
    assert continuation(PLAN, CLUSTER, BYTES[-1], BYTES, are_there(DIGEST)) == []


def test_a_charge_without_its_release_ends_the_continuation():
    assert continuation(PLAN, CLUSTER, BYTES[1], BYTES[2:], are_there()) == []


def test_of_two_attempts_the_one_whose_release_is_there_counts():
    other = encode_ledger_record(following(CHAIN[1], release_digest=OTHER_DIGEST))
    log = [BYTES[2], other]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, are_there(DIGEST)) == [BYTES[2]]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, are_there(OTHER_DIGEST)) == [other]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, are_there(DIGEST, OTHER_DIGEST)) == [other]


@pytest.mark.parametrize(
    "changes",
    [
        {"plan_id": bytes(16)},
        {"cluster": 0},
        {"charge_units": 1},
        {"previous_hash": bytes([1]) * 32},
    ],
)
def test_a_record_that_is_wrong_or_does_not_follow_is_no_continuation(changes):
    wrong = encode_ledger_record(replace(CHAIN[2], **changes))
    assert continuation(PLAN, CLUSTER, BYTES[1], [wrong], are_there(DIGEST)) == []


# --- What is planned, throttled, adapted and paid by clients -------------------------------

SNR = replace(
    PLAN,
    schedule_spec=ScheduleSpec(
        "snr",
        target_snr=1.0,
        smoothing=0.5,
        min_noise_multiplier=0.5,
        max_noise_multiplier=100.0,
    ),
)
LIMITED = replace(PLAN, hour_epsilon=6.0)
PER_CLIENT = replace(PLAN, scope="client")
ADAPTIVE = replace(PLAN, clipping=ClippingSpec(0.5, 0.2, bit_weight=20, epoch_windows=4))


def begin(plan: PrivacyPlan, first_window: int = 4) -> LedgerRecord:
    return genesis(plan, CLUSTER, first_window, 50, 1000)


def after(plan: PrivacyPlan, before: LedgerRecord, kind: str, **changes: object) -> LedgerRecord:
    """What an honest head writes after ``before``, with ``changes``; nothing was released."""
    is_release = kind == "RELEASE"
    variance = plan.schedule.noise_variance(before.next_units) if is_release else Fraction(0)
    charge = GaussianEvent(plan.l2_sensitivity_squared, variance).units if is_release else 0
    spent = before.spent_units + charge
    zeros = np.zeros(plan.release_size, np.int32)
    record = replace(
        before,
        sequence=before.sequence + 1,
        kind=LedgerKind[kind],
        window=before.window + 1,
        charge_units=charge,
        spent_units=min(spent, plan.cap_units) if plan.scope == "client" else spent,
        noise_variance=variance,
        release_digest=DIGEST if is_release else b"",
        previous_hash=record_hash(encode_ledger_record(before)),
        participation_digest=OTHER_DIGEST if plan.scope == "client" else b"",
    )
    if kind == "EXHAUSTED":
        record = replace(record, next_units=0, participation_digest=b"")
    else:
        vector = zeros if is_release else None
        record = replace(record, clip=clip_after(plan, before.clip, record.window, vector))
        released = None
        if is_release:
            released = Released(zeros[: plan.coordinate_count], variance)
        record = replace(record, next_units=next_units(plan, before, record, released))
    return replace(record, **changes)


def faults_of(plan: PrivacyPlan, records: list[LedgerRecord]) -> str:
    """What is said against records, or nothing where they are accepted."""
    try:
        verify_records(plan, CLUSTER, encoded(records), is_complete=True)
    except LedgerError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("plan", [PLAN, SNR, LIMITED, PER_CLIENT, ADAPTIVE])
def test_honest_records_of_every_kind_of_plan_are_accepted(plan):
    records = [begin(plan)]
    for kind in ("RELEASE", "THROTTLED", "RELEASE", "THROTTLED", "THROTTLED", "EXHAUSTED"):
        records.append(after(plan, records[-1], kind))
    assert faults_of(plan, records) == ""


def test_a_genesis_plans_the_first_window_and_the_first_clip_norm():
    first = begin(ADAPTIVE)
    assert first.next_units == ADAPTIVE.schedule.first_units() > 0
    assert first.clip == first_clip(ADAPTIVE, 4)
    assert begin(PLAN).clip is None


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (PLAN, {"next_units": PLAN.schedule.first_units() + 1}),
        (PLAN, {"next_units": 0}),
        (SNR, {"next_units": SNR.cap_units}),
        (ADAPTIVE, {"clip": ClipState(2.0, 2.0, 0, 0)}),
        (ADAPTIVE, {"clip": ClipState(1.0, 1.0, 5, 0)}),
    ],
)
def test_a_genesis_that_begins_otherwise_than_the_plan_is_refused(plan, changes):
    first = replace(begin(plan), **changes)
    assert "record 0 does not begin as the plan says" in faults_of(plan, [first])


@pytest.mark.parametrize("kind", ["RELEASE", "THROTTLED"])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_record_that_plans_otherwise_than_the_schedule_is_refused(kind, step):
    first = begin(PLAN)
    record = after(PLAN, first, kind)
    record = replace(record, next_units=record.next_units + step)
    assert "plans another charge for the next window" in faults_of(PLAN, [first, record])


def test_a_closed_ledger_plans_nothing():
    first = begin(PLAN)
    record = after(PLAN, first, "EXHAUSTED", next_units=1)
    assert "plans another charge for the next window" in faults_of(PLAN, [first, record])


def test_what_an_adaptive_schedule_answers_to_a_release_is_for_the_auditor_who_has_it():
    first = begin(SNR)
    release, throttled = after(SNR, first, "RELEASE"), after(SNR, first, "THROTTLED")
    for record, is_trusted in ((release, True), (throttled, False)):
        changed = replace(record, next_units=record.next_units // 2)
        assert (faults_of(SNR, [first, changed]) == "") == is_trusted
    # Whatever it answers, the next release has the noise of that.
    cheap = replace(release, next_units=release.next_units // 2)
    dear = after(SNR, release, "RELEASE", previous_hash=record_hash(encode_ledger_record(cheap)))
    assert "has other noise than was planned" in faults_of(SNR, [first, cheap, dear])


def test_nothing_is_released_where_nothing_was_planned():
    last = following(following(following(CHAIN[0])))
    assert last.next_units == 0
    more = following(
        last,
        noise_variance=CHEAPER.noise_variance * 10**9,
        charge_units=1,
        spent_units=last.spent_units + 1,
    )
    faults = link_faults(PLAN, last, record_hash(encode_ledger_record(last)), more)
    assert "record 4 has other noise than was planned for it" in faults


def test_a_window_is_never_planned_dearer_than_a_limit_admits():
    ((_, _, limit),) = LIMITED.sliding_caps
    first = begin(LIMITED)
    greedy = replace(SNR, hour_epsilon=6.0)
    released = Released(np.zeros(4, np.int32), Fraction(10**6))
    record = after(greedy, replace(begin(greedy), next_units=limit), "RELEASE")
    unlimited = greedy.schedule.next_units(1, 0, limit, released)
    assert unlimited > limit
    assert next_units(greedy, begin(greedy), replace(record, spent_units=0), released) == limit
    assert after(LIMITED, first, "THROTTLED").next_units == first.next_units < limit


@pytest.mark.parametrize("changes", [{"charge_units": 1}, {"noise_variance": Fraction(1)}])
def test_a_throttled_window_costs_nothing_and_has_no_noise(changes):
    record = after(PLAN, begin(PLAN), "THROTTLED", **changes)
    with pytest.raises(ValueError, match="release"):
        encode_ledger_record(record)
    if record.charge_units:
        assert "record 1 charges without a release" in record_faults(PLAN, CLUSTER, record)


@pytest.mark.parametrize("kind", ["RELEASE", "THROTTLED"])
def test_a_record_names_who_took_part_exactly_where_clients_have_budgets(kind):
    for plan, digest in ((PLAN, DIGEST), (PER_CLIENT, b"")):
        first = begin(plan)
        record = after(plan, first, kind, participation_digest=digest)
        assert "names who took part, or does not, against the plan" in faults_of(
            plan, [first, record]
        )


def test_with_budgets_of_clients_the_total_stops_at_the_cap_and_releases_do_not():
    records = [begin(PER_CLIENT)]
    for _ in range(6):
        records.append(after(PER_CLIENT, records[-1], "RELEASE"))
    assert faults_of(PER_CLIENT, records) == ""
    charge, cap = PER_CLIENT.charge_units, PER_CLIENT.cap_units
    assert [r.spent_units for r in records] == [min(n * charge, cap) for n in range(7)]
    assert {r.next_units for r in records} == {PER_CLIENT.schedule.first_units()}
    lower = replace(records[-1], spent_units=cap - 1)
    assert "does not add up" in faults_of(PER_CLIENT, [*records[:-1], lower])


@pytest.mark.parametrize(
    "clip", [ClipState(1.5, 0.0, 0, 0), ClipState(1.0, 7.0, 0, 0), ClipState(1.0, 0.0, 9, 9)]
)
def test_the_clip_norm_does_not_move_without_a_release(clip):
    first = begin(ADAPTIVE)
    record = after(ADAPTIVE, first, "THROTTLED")
    assert record.clip != clip
    assert "adapts the clip norm without a release" in faults_of(
        ADAPTIVE, [first, replace(record, clip=clip)]
    )


def test_a_record_says_how_clipping_adapts_exactly_where_it_does():
    for plan, clip in ((PLAN, ClipState(1.0, 0.0, 0, 0)), (ADAPTIVE, None)):
        first = begin(plan)
        record = after(plan, first, "RELEASE", clip=clip)
        assert "says how clipping adapts, or does not" in faults_of(plan, [first, record])


def test_a_continuation_is_asked_for_all_that_a_record_was_written_with():
    asked = []

    def is_whole(before: LedgerRecord, record: LedgerRecord) -> bool:
        asked.append((before.sequence, record.sequence))
        return record.sequence < 4

    assert continuation(PLAN, CLUSTER, BYTES[1], BYTES, is_whole) == BYTES[2:4]
    assert asked == [(1, 2), (2, 3), (3, 4)]
