from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import (
    LedgerKind,
    LedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
    record_hash,
)
from stream.budget import Ledger
from stream.errors import LedgerError
from stream.ledger_chain import (
    NO_HASH,
    continuation,
    decode_record,
    genesis,
    ledger_after,
    link_faults,
    record_faults,
    verify_records,
)
from stream.privacy.event import GaussianEvent
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

CLUSTER = 1
REMEDY = "restore the ledger topic from a backup that is not older, or start a new plan"
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
    return replace(record, **changes)


def closing(before: LedgerRecord, **changes: object) -> LedgerRecord:
    """The record that closes the ledger after ``before``, with ``changes``."""
    closed = {
        "kind": LedgerKind.EXHAUSTED,
        "charge_units": 0,
        "spent_units": before.spent_units,
        "noise_variance": Fraction(0),
        "release_digest": b"",
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
    assert ledger_after(CHAIN[0]) == Ledger(PLAN.cap_units)
    assert ledger_after(CHAIN[2]) == Ledger(PLAN.cap_units, 2 * PLAN.charge_units, 2)


def test_another_schedule_of_noise_is_accepted_if_it_is_charged():
    record = following(
        CHAIN[0],
        noise_variance=CHEAPER.noise_variance,
        charge_units=CHEAPER.units,
        spent_units=CHEAPER.units,
    )
    verify_records(PLAN, CLUSTER, encoded([CHAIN[0], record]), is_complete=True)


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
    record = following(CHAIN[0], plan_id=bytes(16), cluster=0, next_offset=0, sequence=9)
    faults = record_faults(PLAN, CLUSTER, record)
    faults += link_faults(CHAIN[0], record_hash(BYTES[0]), record)
    assert [fault.removeprefix("record 9 ").split()[0] for fault in faults] == [
        "belongs",
        "belongs",
        "follows",
        "goes",
    ]
    assert "belongs to plan" in refused(encoded([CHAIN[0], record]))


DIGEST = bytes([7]) * 32
OTHER_DIGEST = bytes([8]) * 32


def test_what_was_written_whole_continues_the_chain_in_order():
    log = [b"", *BYTES, b"foreign"]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, {DIGEST}) == BYTES[2:]


def test_nothing_continues_a_chain_whose_log_ends_there():
    assert continuation(PLAN, CLUSTER, BYTES[-1], BYTES, {DIGEST}) == []


def test_a_charge_without_its_release_ends_the_continuation():
    assert continuation(PLAN, CLUSTER, BYTES[1], BYTES[2:], set()) == []


def test_of_two_attempts_the_one_whose_release_is_there_counts():
    other = encode_ledger_record(following(CHAIN[1], release_digest=OTHER_DIGEST))
    log = [BYTES[2], other]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, {DIGEST}) == [BYTES[2]]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, {OTHER_DIGEST}) == [other]
    assert continuation(PLAN, CLUSTER, BYTES[1], log, {DIGEST, OTHER_DIGEST}) == [other]


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
    assert continuation(PLAN, CLUSTER, BYTES[1], [wrong], {DIGEST}) == []
