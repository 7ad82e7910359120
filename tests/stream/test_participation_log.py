import random
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import (
    ParticipationKind,
    decode_participation,
    encode_participation,
    participation_key,
)
from stream import participation_log
from stream.budget.client_budgets import ClientBudgets
from stream.errors import LedgerError
from stream.participation_log import SNAPSHOT_INTERVAL, digest_of, rebuild, records_for

PLAN, CLUSTER, CAP = b"p" * 16, 3, 10_000


class Cluster:
    """A live head's budgets, its participation topic, and the digests in its ledger."""

    def __init__(self, seed, clients=12):
        self.random = random.Random(seed)
        self.clients = [self.random.getrandbits(64) for _ in range(clients)]
        self.budgets, self.log, self.digests = ClientBudgets(CAP), [], [b""]

    @property
    def sequence(self):
        return len(self.digests) - 1

    def seal(self, windows=1):
        for _ in range(windows):
            self.seal_with(self.random.choice([0, 1, 3, 50]))

    def seal_with(self, units):
        asking = self.random.sample(self.clients, self.random.randint(0, len(self.clients)))
        paying = [key for key in asking if units and self.budgets.may_pay(key, units)]
        keys = np.array(sorted(paying), np.uint64)
        number = self.sequence + 1
        after = self.budgets.after(keys, units)
        written = records_for(PLAN, CLUSTER, number, number + 6, after, keys, units)
        self.budgets.charge(keys, units)
        self.log += written
        self.digests.append(digest_of(self.digests[-1], [value for _, value in written]))

    def compact(self, end=None, keep=0.0):
        """Drop what a newer record below ``end`` replaces, each with probability 1 - ``keep``."""
        head = self.log[:end]
        newest = {key: index for index, (key, _) in enumerate(head)}
        kept = [
            record
            for index, record in enumerate(head)
            if newest[record[0]] == index or self.random.random() < keep
        ]
        self.log = kept + self.log[len(head) :]

    def rebuilt(self, **changes):
        arguments = {
            "cap_units": CAP,
            "records": [value for _, value in self.log],
            "plan_id": PLAN,
            "cluster": CLUSTER,
            "up_to_sequence": self.sequence,
            "digest": self.digests[-1],
        }
        return rebuild(**(arguments | changes))

    def without(self, sequence, kind=ParticipationKind.DELTA, part=0):
        """The values of the log but for one record, which must be there."""
        place = (sequence, kind, part)
        left = [value for _, value in self.log if place_of(value) != place]
        assert len(left) == len(self.log) - 1
        return left

    def with_change(self, sequence, kind=ParticipationKind.DELTA, **changes):
        """The values of the log with one record changed, which must be there."""
        values = [value for _, value in self.log]
        index = [place_of(value) for value in values].index((sequence, kind, 0))
        record = decode_participation(values[index])
        values[index] = encode_participation(replace(record, **changes))
        return values


def place_of(value):
    record = decode_participation(value)
    return record.sequence, record.kind, record.part


def state(budgets):
    keys, spent = budgets.snapshot()
    return dict(zip(keys.tolist(), spent.tolist(), strict=True))


@pytest.fixture(autouse=True, scope="module")
def _snapshots_of_five_clients_a_part():
    with patch.object(participation_log, "PART_CLIENTS", 5):
        yield


@pytest.fixture
def compacted():
    """700 windows, two snapshots, and nothing left that compaction may take."""
    cluster = Cluster(seed=1)
    cluster.seal(700)
    cluster.compact()
    return cluster


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    runs=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    keep=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_a_restart_at_any_time_after_any_compaction_finds_the_live_state(seed, runs, keep):
    cluster = Cluster(seed)
    for windows in runs:
        cluster.seal(windows)
        cluster.compact(cluster.random.randint(0, len(cluster.log)), keep)
        assert state(cluster.rebuilt()) == state(cluster.budgets)
    cluster.compact()
    assert state(cluster.rebuilt()) == state(cluster.budgets)


def test_every_window_around_a_snapshot_can_be_restarted_from():
    cluster = Cluster(seed=2)
    cluster.seal(2 * SNAPSHOT_INTERVAL - 3)
    for _ in range(6):
        cluster.compact()
        assert state(cluster.rebuilt()) == state(cluster.budgets)
        cluster.seal()


def test_after_genesis_nobody_has_spent_anything():
    assert Cluster(seed=1).rebuilt().client_count == 0


def test_a_compacted_topic_holds_one_snapshot_and_one_delta_for_each_key(compacted):
    kinds = [place_of(value)[1] for _, value in compacted.log]
    assert kinds.count(ParticipationKind.SNAPSHOT) == 3  # 12 clients, 5 a part.
    assert kinds.count(ParticipationKind.DELTA) == SNAPSHOT_INTERVAL


def test_what_a_window_writes_is_a_delta_and_every_256th_time_a_snapshot():
    budgets, keys = ClientBudgets(CAP), np.arange(7, dtype=np.uint64)
    budgets.charge(keys, 5)
    ((key, value),) = records_for(PLAN, CLUSTER, 257, 300, budgets, keys, 5)
    delta = decode_participation(value)
    assert key == participation_key(delta) == b"d1"
    assert (delta.sequence, delta.window, delta.charge_units) == (257, 300, 5)
    assert delta.clients.tolist() == keys.tolist()
    written = records_for(PLAN, CLUSTER, 512, 555, budgets, keys, 5)
    assert [key for key, _ in written] == [b"d0", b"s0", b"s1"]
    parts = [decode_participation(value) for _, value in written[1:]]
    assert [(part.part, part.parts, part.clients.size) for part in parts] == [(0, 2, 5), (1, 2, 2)]
    assert all(part.spent.tolist() == [5] * part.clients.size for part in parts)


def test_a_snapshot_of_nobody_is_one_empty_part():
    nobody = np.empty(0, np.uint64)
    written = records_for(PLAN, CLUSTER, 256, 300, ClientBudgets(CAP), nobody, 0)
    assert [key for key, _ in written] == [b"d0", b"s0"]
    values = [value for _, value in written]
    log = []
    digest = b""
    for sequence in range(1, 256):
        ((_, value),) = records_for(PLAN, CLUSTER, sequence, 1, ClientBudgets(CAP), nobody, 0)
        log.append(value)
        digest = digest_of(digest, [value])
    for records in (log + values, values):
        rebuilt = rebuild(CAP, records, PLAN, CLUSTER, 256, digest_of(digest, values))
        assert rebuilt.client_count == 0


@pytest.mark.parametrize("sequence", [513, 514, 640, 699, 700])
def test_a_lost_delta_is_found(compacted, sequence):
    with pytest.raises(LedgerError, match=f"has lost what record {sequence} or a later one wrote"):
        compacted.rebuilt(records=compacted.without(sequence))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_lost_part_of_the_snapshot_is_found(compacted, part):
    with pytest.raises(LedgerError, match="has lost what record 1 or a later one wrote"):
        compacted.rebuilt(records=compacted.without(512, ParticipationKind.SNAPSHOT, part))


def test_the_lost_delta_of_the_snapshots_window_is_found(compacted):
    with pytest.raises(LedgerError, match="has lost"):
        compacted.rebuilt(records=compacted.without(512))


def test_an_empty_topic_is_found(compacted):
    with pytest.raises(LedgerError, match="has lost what record 1 or a later one wrote"):
        compacted.rebuilt(records=[])


@pytest.mark.parametrize("sequence", [512, 513, 600, 700])
@pytest.mark.parametrize("changes", [{"charge_units": 2}, {"clients": np.array([7], np.uint64)}])
def test_any_changed_delta_that_is_counted_is_found(compacted, sequence, changes):
    changed = compacted.with_change(sequence, **changes)
    with pytest.raises(LedgerError, match="is not what ledger record 700 names the digest of"):
        compacted.rebuilt(records=changed)


def test_a_changed_snapshot_is_found(compacted):
    none_spent = {"spent": np.ones(5, np.uint64)}
    changed = compacted.with_change(512, ParticipationKind.SNAPSHOT, **none_spent)
    with pytest.raises(LedgerError, match="is not what ledger record 700 names the digest of"):
        compacted.rebuilt(records=changed)


@pytest.mark.parametrize("fault", ["descending", "unspent", "past the cap"])
def test_a_snapshot_that_no_charges_lead_to_is_found(compacted, fault):
    change = {
        "descending": {"clients": np.arange(2**64 - 5, 2**64, dtype=np.uint64)},
        "unspent": {"spent": np.zeros(5, np.uint64)},
        "past the cap": {"spent": np.full(5, CAP + 1, np.uint64)},
    }[fault]
    changed = compacted.with_change(512, ParticipationKind.SNAPSHOT, **change)
    with pytest.raises(LedgerError, match="does not add up at record 512"):
        compacted.rebuilt(records=changed)


def test_a_snapshot_that_counts_a_window_twice_is_found_by_the_deltas_before_it():
    cluster = Cluster(seed=3)
    cluster.seal(SNAPSHOT_INTERVAL - 1)
    keys, number = np.array(sorted(cluster.clients), np.uint64), SNAPSHOT_INTERVAL
    twice = cluster.budgets.after(keys, 7).after(keys, 7)
    written = records_for(PLAN, CLUSTER, number, 900, twice, keys, 7)
    # The digest is right: the head itself wrote the wrong sum.
    digest = digest_of(cluster.digests[-1], [value for _, value in written])
    cluster.log += written
    with pytest.raises(LedgerError, match="its snapshot is not the sum of the charges"):
        cluster.rebuilt(up_to_sequence=number, digest=digest)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_a_record_that_is_there_twice_counts_once(seed):
    # A recovery writes a transaction's records again, and the first ones may turn up as well.
    cluster = Cluster(seed)
    cluster.seal(cluster.random.choice([1, 100, 256, 300, 520]))
    values = [value for _, value in cluster.log]
    again = cluster.random.randrange(len(values))
    for records in (values + values[again:], values[: again + 1] + values[again:]):
        assert state(cluster.rebuilt(records=records)) == state(cluster.budgets)


def test_the_snapshots_transaction_may_be_there_twice():
    cluster = Cluster(seed=4)
    cluster.seal(SNAPSHOT_INTERVAL)
    values = [value for _, value in cluster.log]
    transaction = values[SNAPSHOT_INTERVAL - 1 :]
    assert len(transaction) == 4
    for cut in range(5):
        records = transaction[:cut] + transaction
        assert state(cluster.rebuilt(records=records)) == state(cluster.budgets)


def test_an_old_snapshot_that_turns_up_late_changes_nothing():
    cluster = Cluster(seed=5)
    cluster.seal(SNAPSHOT_INTERVAL + 9)
    values = [value for _, value in cluster.log]
    late = [value for value in values if place_of(value)[0] == SNAPSHOT_INTERVAL]
    assert state(cluster.rebuilt(records=values + late)) == state(cluster.budgets)


def test_the_parts_of_another_snapshot_do_not_complete_one():
    cluster = Cluster(seed=6)
    cluster.seal(2 * SNAPSHOT_INTERVAL)
    start = [value for _, value in cluster.log[:SNAPSHOT_INTERVAL]]
    parts = [value for _, value in cluster.log[-3:]]
    assert place_of(start[-1]) == (256, ParticipationKind.DELTA, 0)
    assert place_of(parts[0]) == (512, ParticipationKind.SNAPSHOT, 0)
    with pytest.raises(LedgerError, match="has lost what record 256 or a later one wrote"):
        cluster.rebuilt(records=start + parts)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"cluster": 4}, "cluster 4 under plan"), ({"plan_id": b"q" * 16}, (b"q" * 16).hex())],
)
@pytest.mark.parametrize("sequence", [445, 600, 700])
def test_a_record_of_another_cluster_or_plan_is_found(compacted, change, name, sequence):
    with pytest.raises(LedgerError, match=f"holds a record of .*{name}"):
        compacted.rebuilt(records=compacted.with_change(sequence, **change))


def test_bytes_that_are_no_record_are_found(compacted):
    with pytest.raises(LedgerError, match="cannot be read"):
        compacted.rebuilt(records=[*(value for _, value in compacted.log), b"\x00"])


def test_a_ledger_that_lost_its_newest_record_is_found(compacted):
    # A release was published for record 700: what its window's clients spent must not be forgotten.
    with pytest.raises(LedgerError, match="goes on to record 700, and the ledger ends with 699"):
        compacted.rebuilt(up_to_sequence=699, digest=compacted.digests[699])


def test_a_delta_that_takes_a_client_past_the_cap_is_found():
    keys, budgets = np.array([5], np.uint64), ClientBudgets(CAP)
    values = [
        records_for(PLAN, CLUSTER, number, number, budgets, keys, units)[0][1]
        for number, units in ((1, CAP), (2, 1))
    ]
    digest = digest_of(digest_of(b"", values[:1]), values[1:])
    with pytest.raises(LedgerError, match="does not add up at record 2: a charge of 1 units"):
        rebuild(CAP, values, PLAN, CLUSTER, 2, digest)


def test_every_refusal_says_what_to_do(compacted):
    with pytest.raises(LedgerError, match=r"Nothing is released until .* the same backup"):
        compacted.rebuilt(digest=bytes(32))


def test_the_digest_is_pinned():
    # After a change, a restart would no longer accept what an earlier version wrote.
    first = digest_of(b"", [b"delta 1"])
    second = digest_of(first, [b"delta 2"])
    anew = digest_of(second, [b"delta 256", b"part 0"])
    assert [digest.hex()[:16] for digest in (first, second, anew)] == [
        "72088d52d977a383",
        "eb316b69e5c56f7b",
        "ba8b37ab5060efa3",
    ]
    assert anew == digest_of(b"", [b"delta 256", b"part 0"])
