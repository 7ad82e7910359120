"""A backup comes back as it was written, or is refused."""

import dataclasses
import json
import stat

import pytest
from written_cluster import PLAN, WrittenCluster

from agents.backup_file import BackupWriter, Chain, ClusterRecords, read_backup
from schemas import decode_ledger_record, encode_ledger_record
from stream.errors import LedgerError


@pytest.fixture
def ledger():
    written = WrittenCluster()
    for _ in range(3):
        written.seal()
    return written.ledger


@pytest.fixture
def path(tmp_path, ledger):
    """A backup of two clusters."""
    path = tmp_path / "backup"
    with BackupWriter(path, PLAN) as backup:
        backup.write(ClusterRecords(0, ledger, [b"paid", b""]))
        backup.write(ClusterRecords(4))
    return path


def test_what_was_written_comes_back_and_is_for_the_owner_only(path, ledger):
    first, second = read_backup(path, PLAN)
    assert (first.cluster, first.ledger, first.participation) == (0, ledger, [b"paid", b""])
    assert (second.cluster, second.ledger, second.participation) == (4, [], [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_written_over(path):
    before = path.read_bytes()
    with pytest.raises(FileExistsError), BackupWriter(path, PLAN):
        pass
    assert path.read_bytes() == before


def test_a_backup_that_failed_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), BackupWriter(tmp_path / "x", PLAN):
        raise RuntimeError
    assert not (tmp_path / "x").exists()


def test_another_plans_backup_is_refused(path):
    other = dataclasses.replace(PLAN, epsilon=1.0)
    with pytest.raises(LedgerError, match=f"it is of plan {PLAN.plan_id_hex}"):
        list(read_backup(path, other))


def lines_without(number):
    def change(lines):
        return lines[:number] + lines[number + 1 :]

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(lines_without(number) for number in range(9)),
        lambda lines: lines[:-1],
        lambda lines: [*lines, b"{}"],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], *reversed(lines[1:-1]), lines[-1]],
        lambda lines: [b"[]", *lines[1:]],
        lambda lines: [b"foreign"],
        lambda lines: [],
        lambda lines: [lines[0], b'{"outbox": ""}', *lines[1:]],
        lambda lines: [lines[0], b'{"cluster": "x"}', *lines[1:]],
    ],
)
def test_a_backup_that_is_not_as_it_was_written_is_refused(path, change):
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().splitlines())))
    with pytest.raises(LedgerError, match="is no whole backup"):
        list(read_backup(path, PLAN))


def test_a_backup_with_one_changed_byte_is_refused(path):
    lines = path.read_bytes().splitlines()
    record = json.loads(lines[3])
    record["ledger"] = "AAAA" + record["ledger"][4:]
    lines[3] = json.dumps(record).encode()
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerError, match="SHA-256"):
        list(read_backup(path, PLAN))


def test_a_chain_takes_what_follows_and_nothing_else(ledger):
    chain = Chain(PLAN, 0)
    assert "the start is missing" in chain.take(ledger[1])
    assert chain.take(ledger[0]) == ""
    assert chain.take(b"foreign") == "a record cannot be read"
    assert "follows record 0" in chain.take(ledger[0]) or chain.take(ledger[0])
    forged = dataclasses.replace(decode_ledger_record(ledger[1]), sealed_at_ms=1)
    assert chain.take(ledger[1]) == ""
    assert chain.take(encode_ledger_record(forged))
    assert [chain.take(data) for data in ledger[2:]] == ["", ""]
    assert (chain.count, chain.newest.sequence) == (4, 3)
    assert "belongs to cluster 0" in Chain(PLAN, 1).take(ledger[0])
