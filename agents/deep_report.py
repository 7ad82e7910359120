"""What a deep verification has shown, as JSON and as text."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from .text_table import aligned


@dataclass(frozen=True, slots=True)
class UncheckedWindows:
    """Released windows of one cluster whose sums could not be checked, all for one reason.

    Attributes:
        first_window: The first of them.
        last_window: The last of them.
        windows: How many there are.
        reason: Why.
    """

    first_window: int
    last_window: int
    windows: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterDepth:
    """What was checked of one cluster. Secret: it tells how many updates there were.

    Attributes:
        cluster: The cluster.
        sums_checked: How many releases were compared with the sum of their updates.
        sums_unchecked: Those that could not be.
        updates_read: How many updates were read.
        updates_counted: How many of them are in a sum that was compared.
        updates_refused: How many must not be in any, by reason.
        updates_excused: How many more are in no sum although they were in time by the broker's
            clock, since a head had sealed their window by its own, and has reported them late.
        updates_waiting: How many belong to windows that are not sealed.
        updates_unchecked: How many belong to windows that could not be checked.
        outbox_records: How many releases the outbox still has.
        committed_offset: What the heads' group has committed; None for nothing.
    """

    cluster: int
    sums_checked: int
    sums_unchecked: tuple[UncheckedWindows, ...]
    updates_read: int
    updates_counted: int
    updates_refused: Mapping[str, int]
    updates_excused: int
    updates_waiting: int
    updates_unchecked: int
    outbox_records: int
    committed_offset: int | None


@dataclass(frozen=True, slots=True)
class ModelFindings:
    """What the topics of the model hold.

    Attributes:
        versions_read: How many versions of this plan's model are there.
        first_version: The oldest of them; None without one.
        newest_version: The newest of them; None without one.
        newest_window: The newest window in it; None without one.
        compacted: The first and the last of versions that are missing and so old that compaction
            may have taken them.
        state_version: The version of the newest state; None without one.
        malformed: Records on the model's topic that are no model.
        foreign: Models on it that belong to another plan.
    """

    versions_read: int
    first_version: int | None
    newest_version: int | None
    newest_window: int | None
    compacted: tuple[tuple[int, int], ...]
    state_version: int | None
    malformed: int
    foreign: int


@dataclass(frozen=True, slots=True)
class DeepFindings:
    """What was checked besides the ledgers and the releases. Secret.

    Attributes:
        is_noise_free: Whether releases had to be exact sums.
        false_alarm_probability: How often, at most, noise that is as it should be is found fault
            with; 0 where there must be none.
        noise_energy: The energy of all that the releases have beside the sums of their updates,
            over what the ledger's noise has on average; None where nothing was compared.
        clusters: One row a cluster.
        model: What the topics of the model hold.
    """

    is_noise_free: bool
    false_alarm_probability: float
    noise_energy: float | None
    clusters: tuple[ClusterDepth, ...]
    model: ModelFindings

    @property
    def sums_checked(self) -> int:
        """How many releases were compared with the sum of their updates."""
        return sum(row.sums_checked for row in self.clusters)

    @property
    def sums_unchecked(self) -> int:
        """How many releases could not be compared."""
        return sum(part.windows for row in self.clusters for part in row.sums_unchecked)

    def as_json(self) -> dict[str, object]:
        """Return the findings as plain data."""
        return {
            "sums_checked": self.sums_checked,
            "sums_unchecked": self.sums_unchecked,
            **asdict(self),
        }

    def as_text(self) -> list[str]:
        """Return the findings as lines for a terminal."""
        head = ("cluster", "sums checked", "unchecked", "updates", "counted", "refused", "waiting")
        rows = [
            (
                str(row.cluster),
                str(row.sums_checked),
                str(sum(part.windows for part in row.sums_unchecked)),
                str(row.updates_read),
                str(row.updates_counted),
                str(sum(row.updates_refused.values())),
                str(row.updates_waiting),
            )
            for row in self.clusters
        ]
        return [
            *aligned([head, *rows]),
            *(line for row in self.clusters for line in _in_words(row)),
            self._noise_in_words(),
            _model_in_words(self.model),
        ]

    def _noise_in_words(self) -> str:
        if self.is_noise_free:
            return "every release was compared as a sum without noise"
        if self.noise_energy is None:
            return "no release could be compared with the sum of its updates"
        return (
            f"beside the sums, the releases have {100 * self.noise_energy:.2f} % of the energy of "
            f"the ledger's noise (found fault with by chance: {self.false_alarm_probability:g})"
        )


def unchecked_runs(reasons: Mapping[int, str], released: Iterable[int]) -> list[UncheckedWindows]:
    """Return unchecked windows as runs of neighbours with one reason.

    Args:
        reasons: Why a window is unchecked.
        released: All released windows, in order.
    """
    runs: list[UncheckedWindows] = []
    is_going_on = False
    for window in released:
        reason = reasons.get(window)
        if reason is None:
            is_going_on = False
        elif is_going_on and runs[-1].reason == reason:
            first, count = runs[-1].first_window, runs[-1].windows
            runs[-1] = UncheckedWindows(first, window, count + 1, reason)
        else:
            runs.append(UncheckedWindows(window, window, 1, reason))
            is_going_on = True
    return runs


def _in_words(row: ClusterDepth) -> list[str]:
    lines = [
        f"cluster {row.cluster}: {_windows(part)} not checked: {part.reason}"
        for part in row.sums_unchecked
    ]
    if row.updates_refused:
        refused = ", ".join(f"{count} {name}" for name, count in row.updates_refused.items())
        lines.append(f"cluster {row.cluster}: refused: {refused}")
    if row.updates_excused:
        lines.append(
            f"cluster {row.cluster}: {row.updates_excused} updates were in time by the broker's "
            "clock and are not counted, since a head had reported them late"
        )
    return lines


def _windows(part: UncheckedWindows) -> str:
    if part.windows == 1:
        return f"window {part.first_window}"
    return f"{part.windows} windows from {part.first_window} to {part.last_window}"


def _model_in_words(model: ModelFindings) -> str:
    if model.newest_version is None:
        return "no model is published"
    words = f"model: versions {model.first_version} to {model.newest_version}"
    gone = sum(last - first + 1 for first, last in model.compacted)
    return f"{words}, {gone} of the older ones compacted away" if gone else words
