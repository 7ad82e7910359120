"""A backup of a plan's ledgers as a file: one JSON object a line, closed by a SHA-256 of it all.

It holds what a head cannot start without: the ledger of each cluster, and where each client has
a budget of its own what clients have paid. Both stay inside the privacy boundary.
"""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

from schemas import LedgerRecord, record_hash
from stream.errors import LedgerError
from stream.ledger_chain import link_faults, readable_records, record_faults
from stream.privacy.plan import PrivacyPlan

from .client_spending import newest_participation

_FORMAT = "sdp ledger backup 1"
_KINDS = ("ledger", "participation")


@dataclass(slots=True)
class ClusterRecords:
    """The records of one cluster, as they stand in their topics.

    Attributes:
        cluster: The cluster.
        ledger: Its ledger.
        participation: What its clients paid; empty where they have no budgets.
    """

    cluster: int
    ledger: list[bytes] = field(default_factory=list)
    participation: list[bytes] = field(default_factory=list)


class Chain:
    """Takes a cluster's ledger records in order, and only those that make one chain.

    Attributes:
        newest: The newest record; None before the first.
        count: How many there are.
        participation: Number and digest of the newest one that says who took part.
    """

    def __init__(self, plan: PrivacyPlan, cluster: int) -> None:
        """Begin with no record."""
        self.newest: LedgerRecord | None = None
        self.count = 0
        self.participation = (0, b"")
        self._plan = plan
        self._cluster = cluster
        self._newest_hash = b""

    def take(self, data: bytes) -> str:
        """Take the next record; return why it is none of the chain, empty for nothing."""
        readable = readable_records([data])
        if not readable:
            return "a record cannot be read"
        (record,) = readable
        faults = record_faults(self._plan, self._cluster, record)
        if self.newest is not None:
            faults += link_faults(self._plan, self.newest, self._newest_hash, record)
        elif record.sequence:
            faults.append(f"it begins with record {record.sequence}: the start is missing")
        if faults:
            return faults[0]
        self.newest, self._newest_hash = record, record_hash(data)
        self.count += 1
        self.participation = max(self.participation, newest_participation([record]))
        return ""


class BackupWriter:
    """Writes a backup; a context manager. After an error in its block there is no file.

    Raises:
        FileExistsError: the file is there already.
    """

    def __init__(self, path: Path, plan: PrivacyPlan) -> None:
        """Make the file, for the owner's eyes only."""
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._digest = sha256()
        self._line({"format": _FORMAT, "plan_id": plan.plan_id_hex})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._file:
            if kind is None:
                self._line({"sha256": self._digest.hexdigest()})
                self._file.flush()
                os.fsync(self._file.fileno())
        if kind is not None:
            self._path.unlink()

    def write(self, records: ClusterRecords) -> None:
        """Append a cluster."""
        self._line({"cluster": records.cluster})
        for kind in _KINDS:
            for value in getattr(records, kind):
                self._line({kind: base64.b64encode(value).decode()})

    def _line(self, content: dict[str, object]) -> None:
        line = json.dumps(content).encode() + b"\n"
        self._digest.update(line)
        self._file.write(line)


def read_backup(path: Path, plan: PrivacyPlan) -> Iterator[ClusterRecords]:
    """Yield what a backup has of each cluster; a cluster at a time is in memory.

    Raises:
        LedgerError: it is none, is of another plan, or is not as it was written, which is known
            only at the end.
    """
    records: ClusterRecords | None = None
    for number, content in _lines(path):
        try:
            if number == 1:
                _check_header(content, plan)
            elif "cluster" in content:
                if records is not None:
                    yield records
                records = ClusterRecords(_number(content["cluster"]))
            else:
                _take(records, content)
        except (KeyError, ValueError) as error:
            raise _damaged(path, f"line {number}: {error}") from error
    if records is not None:
        yield records


def _lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the numbers and objects of all lines but the last, which must fit them."""
    digest, before, number = sha256(), b"", 0
    with path.open("rb") as file:
        for line in file:
            if before:
                digest.update(before)
                number += 1
                yield number, _parsed(path, number, before)
            before = line
    if _parsed(path, number + 1, before).get("sha256") != digest.hexdigest():
        raise _damaged(path, "it does not end with the SHA-256 of what it holds")


def _parsed(path: Path, number: int, line: bytes) -> dict[str, object]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise _damaged(path, f"line {number}: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(path, f"line {number} is no JSON object")
    return content


def _check_header(content: dict[str, object], plan: PrivacyPlan) -> None:
    if content["format"] != _FORMAT:
        raise ValueError(f"its format is {content['format']}")
    if content["plan_id"] != plan.plan_id_hex:
        raise ValueError(f"it is of plan {content['plan_id']}, this is plan {plan.plan_id_hex}")


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError("a cluster is a number")  # noqa: TRY004 - a value of the file
    return value


def _take(records: ClusterRecords | None, content: dict[str, object]) -> None:
    ((kind, text),) = content.items()
    if records is None or kind not in _KINDS or not isinstance(text, str):
        raise ValueError("it is no record of a cluster")
    values: list[bytes] = getattr(records, kind)
    values.append(base64.b64decode(text, validate=True))


def _damaged(path: Path, why: str) -> LedgerError:
    return LedgerError(f"{path} is no whole backup of this plan's ledgers: {why}")
