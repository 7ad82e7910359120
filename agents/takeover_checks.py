"""What else in Kafka tells of a cluster's ledger, and what its newest record still owes.

A ledger that was restored from an older copy is sound in itself. But each record was written in
one transaction with a release in the outbox and an offset of the heads' group, and its release
became public: a ledger that ends before any of these has lost records, and to go on with it
would spend the same budget twice.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from schemas import (
    LedgerKind,
    LedgerRecord,
    MalformedMessageError,
    Release,
    TopicNames,
    decode_release,
    release_digest,
)
from stream.errors import LedgerError
from stream.ledger_chain import decode_record
from stream.privacy.plan import PrivacyPlan

from .kafka_edge import Tail
from .public_charges import PublicCharge

log = logging.getLogger(__name__)

_NOTE = re.compile(r"ledger record ([0-9]+)")


@dataclass(frozen=True, slots=True)
class Unpublished:
    """What has committed and shows at the time that the plan says, not before.

    Attributes:
        window: The window.
        data: The release, which must be seen to be public, again if need be; None for a window
            without one.
        notice: What the log says of it then; empty for nothing.
    """

    window: int
    data: bytes | None
    notice: str = ""

    def pause_s(self, plan: PrivacyPlan, now_s: float, most_s: float) -> float:
        """Return the time until it is due, if that is less than ``most_s``; else ``most_s``.

        So it is tried on time, and again every ``most_s`` where it could not be shown then.
        """
        due_s = plan.release_due_ms(self.window) / 1000 - now_s
        return due_s if 0 < due_s < most_s else most_s


def offset_note(sequence: int) -> str:
    """Return what the group's offset is committed with: the newest record of the ledger."""
    return f"ledger record {sequence}"


def noted_record(note: str) -> int | None:
    """Return the record that an offset was committed with; None for another note, or none."""
    found = _NOTE.fullmatch(note)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Traces:
    """What was written along with a cluster's ledger, or because of it.

    Attributes:
        names: The plan's topics.
        plan: The plan.
        cluster: The cluster.
        outbox: The end of its outbox.
        released: What its newest public release says of its charge.
        committed: The offset that the heads' group has committed for it, and the note on it.
    """

    names: TopicNames
    plan: PrivacyPlan
    cluster: int
    outbox: Tail[bytes]
    released: PublicCharge | None
    committed: tuple[int, str] | None

    def check_empty(self) -> None:
        """Make sure that a ledger without records is one that never had any.

        Raises:
            LedgerError: it must have had some.
        """
        found = []
        if self.outbox.values or self.outbox.begin > 0:
            found.append(f"{self.names.outbox} has been written to")
        if self.released is not None:
            found.append(f"{self.names.releases} holds releases of this cluster")
        if self.committed is not None:
            found.append("the consumer group has committed an offset")
        if found:
            raise LedgerError(
                f"the ledger of cluster {self.cluster} is empty, though it must have existed: "
                f"{'; '.join(found)}. {self._remedy('a backup')}"
            )

    def check_not_older(self, newest: LedgerRecord) -> None:
        """Make sure that the ledger goes as far as all else says that it went.

        Raises:
            LedgerError: it ends with ``newest``, and something else tells of later records.
        """
        charge = self.released
        if charge is not None and charge.sequence > newest.sequence:
            raise self._older(newest, f"a release of record {charge.sequence} is public")
        if charge is not None and charge.spent_units > newest.spent_units:
            raise self._older(newest, "a release is public by which more was spent")
        release, _ = self._release()
        if release is not None and release.sequence > newest.sequence:
            raise self._older(
                newest, f"{self.names.outbox} holds the release of record {release.sequence}"
            )
        noted = noted_record(self.committed[1]) if self.committed else None
        if noted is not None and noted > newest.sequence:
            raise self._older(
                newest, f"the consumer group has committed an offset with record {noted}"
            )

    def unpublished(self, records: Sequence[bytes]) -> Unpublished | None:
        """Return the release that the ledger's newest ``records`` paid for last, if any.

        Raises:
            LedgerError: the outbox holds something else in its place.
        """
        newest = decode_record(records[-1], self.cluster)
        is_over = newest.kind is LedgerKind.EXHAUSTED
        end = Unpublished(newest.window, None) if is_over else None
        (release, fault), paid = self._release(), self._newest_release(records)
        if fault:
            raise LedgerError(
                f"the outbox of cluster {self.cluster} holds {fault}: find their writer, and "
                f"delete the records of {self.names.outbox}"
            )
        due = paid or decode_record(records[0], self.cluster)
        if release is not None and release.sequence >= due.sequence:
            data = self.outbox.values[-1]
            if release_digest(data) != due.release_digest:
                raise LedgerError(
                    f"the outbox of cluster {self.cluster} does not hold the bytes that record "
                    f"{release.sequence} of the ledger paid for. Nothing is published: find who "
                    f"wrote to {self.names.outbox}, and delete its records"
                )
            return end or Unpublished(due.window, data)
        # The last release was public before the record that closes the ledger was written.
        if paid is not None and not is_over and not self._is_public(paid):
            # Safe, since nothing is drawn again: the charge stays, the release is lost.
            log.error(
                "cluster %d: the outbox has lost the release of window %d before it was "
                "published; its charge stays spent",
                self.cluster,
                paid.window,
            )
        return end

    def _release(self) -> tuple[Release | None, str]:
        """Return the newest release of the outbox, or what stands in its place."""
        if not self.outbox.values:
            return None, ""
        try:
            release = decode_release(self.outbox.values[-1])
        except MalformedMessageError as error:
            return None, f"foreign bytes ({error})"
        if (release.plan_id, release.cluster) == (self.plan.plan_id, self.cluster):
            return release, ""
        return None, f"releases of cluster {release.cluster} under plan {release.plan_id.hex()}"

    def _newest_release(self, records: Sequence[bytes]) -> LedgerRecord | None:
        for data in reversed(records):
            record = decode_record(data, self.cluster)
            if record.kind is LedgerKind.RELEASE:
                return record
        return None

    def _is_public(self, record: LedgerRecord) -> bool:
        return self.released is not None and self.released.sequence >= record.sequence

    def _older(self, newest: LedgerRecord, sign: str) -> LedgerError:
        return LedgerError(
            f"the ledger of cluster {self.cluster} ends at record {newest.sequence}, but {sign}: "
            f"the ledger is older than what was spent. {self._remedy('a newer backup')}"
        )

    def _remedy(self, backup: str) -> str:
        return (
            f"Restore the topic {self.names.ledger} from {backup} (sdp ledger import), or start a "
            "new plan on new topics."
        )
