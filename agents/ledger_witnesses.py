"""What stands beside a ledger and must agree with it: the outbox, and the heads' offsets.

Pure. Both are written in the ledger record's own transaction, so each of them must be explained
by a record, if they are read before the ledger is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas import MalformedMessageError, decode_release, release_digest
from stream.privacy.plan import PrivacyPlan

from .sealed_windows import SealedWindows


@dataclass(slots=True)
class Witnesses:
    """What was read of one cluster before its ledger was.

    Attributes:
        cluster: The cluster.
        committed_offset: What the heads' group had committed then; None for nothing.
        releases: Window and digest of each release in the outbox.
        unreadable: How many records of the outbox are no releases, or belong to another plan or
            cluster.
    """

    cluster: int
    committed_offset: int | None
    releases: list[tuple[int, bytes]] = field(default_factory=list)
    unreadable: int = 0

    def take_outbox(self, plan: PrivacyPlan, values: Iterable[bytes]) -> None:
        """Take the records of the outbox."""
        for data in values:
            try:
                release = decode_release(data)
            except MalformedMessageError:
                self.unreadable += 1
                continue
            if (release.plan_id, release.cluster) == (plan.plan_id, self.cluster):
                self.releases.append((release.window, release_digest(data)))
            else:
                self.unreadable += 1

    def faults(self, ledger: SealedWindows) -> list[str]:
        """Return what the ledger, read to an end after this was, does not explain."""
        return [*self._outbox_faults(ledger), *self._offset_faults(ledger)]

    def _outbox_faults(self, ledger: SealedWindows) -> list[str]:
        where = f"outbox of cluster {self.cluster}"
        faults = []
        if self.unreadable:
            faults.append(f"{where}: it holds {self.unreadable} foreign records")
        for window, digest in dict.fromkeys(self.releases):
            count = ledger.digests.get(digest, 0)
            if count != 1:
                how = f"{count} ledger records name" if count else "no ledger record names"
                faults.append(f"{where}: {how} the digest of its release of window {window}")
        return faults

    def _offset_faults(self, ledger: SealedWindows) -> list[str]:
        offset, newest = self.committed_offset, ledger.newest
        # Before the first window, or after a week without heads, the group knows nothing.
        # A record that a broker lost, and that was written again, has no offset with it: the group
        # is behind until the next window, which is harmless, since heads go by the ledger.
        if offset is None or newest is None or offset in ledger.next_offsets:
            return []
        where = f"offset of cluster {self.cluster}: the heads' group is at {offset}"
        if offset > newest.next_offset:
            # With the budget spent, updates are drained, and no ledger record says so.
            is_drained = ledger.is_closed
            ends = f"which ends at {newest.next_offset}"
            return [] if is_drained else [f"{where}, ahead of the ledger, {ends}"]
        return [f"{where}, where no record of the ledger resumes"]
