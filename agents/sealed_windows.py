"""What one cluster's ledger says of its windows: which were released, and from where on to read."""

from dataclasses import dataclass
from fractions import Fraction

from schemas import LedgerKind, LedgerRecord


@dataclass(frozen=True, slots=True)
class SealedWindow:
    """A window, as the ledger record that seals it has it.

    Attributes:
        window: The window.
        sequence: The record's number.
        kind: What became of the window.
        begin_offset: Where its first update can lie, at the earliest.
        next_offset: Where the first update of a later window can lie.
        noise_variance: Of its release's noise; 0 without one.
        clip_norm: What its updates must be scaled with; 0 where clipping is not adaptive.
        charge_units: What its release cost.
        release_digest: SHA-256 of the release's bytes; empty without one.
        sealed_at_ms: When the head sealed it, by the head's clock.
    """

    window: int
    sequence: int
    kind: LedgerKind
    begin_offset: int
    next_offset: int
    noise_variance: Fraction
    clip_norm: float
    charge_units: int
    release_digest: bytes
    sealed_at_ms: int


class SealedWindows:
    """The sealed windows of one cluster, in the order of its ledger. A few hundred bytes each.

    Attributes:
        genesis: The ledger's first record; None as long as it has shown none.
        newest: Its newest record.
        by_window: What was sealed.
        digests: How many records name each release's digest.
        next_offsets: Where its records would resume.
    """

    def __init__(self) -> None:
        """Begin with an empty ledger."""
        self.genesis: LedgerRecord | None = None
        self.newest: LedgerRecord | None = None
        self.by_window: dict[int, SealedWindow] = {}
        self.digests: dict[bytes, int] = {}
        self.next_offsets: set[int] = set()

    @property
    def is_closed(self) -> bool:
        """Whether the budget is spent: no later window is released."""
        return self.newest is not None and self.newest.kind is LedgerKind.EXHAUSTED

    def take(self, record: LedgerRecord) -> None:
        """Note the next record of this cluster and plan; what it must be is checked elsewhere."""
        before = self.newest
        self.newest = record
        self.next_offsets.add(record.next_offset)
        if record.kind is LedgerKind.GENESIS:
            self.genesis = self.genesis or record
            return
        if record.release_digest:
            count = self.digests.get(record.release_digest, 0)
            self.digests[record.release_digest] = count + 1
        sealed = SealedWindow(
            window=record.window,
            sequence=record.sequence,
            kind=record.kind,
            # Whatever is read before a window is sealed and belongs to a later one lies there.
            begin_offset=before.next_offset if before else record.next_offset,
            next_offset=record.next_offset,
            noise_variance=record.noise_variance,
            clip_norm=record.clip.norm if record.clip else 0.0,
            charge_units=record.charge_units,
            release_digest=record.release_digest,
            sealed_at_ms=record.sealed_at_ms,
        )
        self.by_window.setdefault(record.window, sealed)

    def released(self) -> list[SealedWindow]:
        """Return the windows that were released, in order."""
        windows = (self.by_window[window] for window in sorted(self.by_window))
        return [sealed for sealed in windows if sealed.kind is LedgerKind.RELEASE]


class SealingPoints:
    """Tells of which windows a head read an update after it had sealed them.

    A ledger record resumes at the first update of a later window that was read before the
    window was sealed or, if there was none, where the head had read to. So if what stands there
    belongs to no later window, the head had read no further, and whatever else of that window
    follows is not in its sum.
    """

    def __init__(self, sealed: SealedWindows) -> None:
        """Begin before the first update."""
        self._points = sorted(
            (each.sequence, each.next_offset, each.window) for each in sealed.by_window.values()
        )
        self._passed = 0
        self._sealed: set[int] = set()

    def read(self, offset: int, window: int) -> None:
        """Take the place and the window of the next update."""
        while self._passed < len(self._points) and self._points[self._passed][1] <= offset:
            sealed = self._points[self._passed][2]
            self._passed += 1
            if window <= sealed:
                self._sealed.add(sealed)

    def was_sealed(self, window: int) -> bool:
        """Say whether a window was sealed before the update that was read last."""
        return window in self._sealed
