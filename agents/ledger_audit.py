"""Checks all ledgers of a plan against the public releases, without Kafka.

First offer every ledger from its beginning, then what its clients paid (where each has a budget
of its own), then the topic of releases, then ask for the `verification`. No release's vector is
kept: a digest and some numbers a cell.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from schemas import MalformedMessageError, Release, decode_release, release_digest
from stream.privacy.plan import PrivacyPlan

from .client_spending import ClientSpending
from .cluster_row import ClusterRow
from .independent_epsilon import are_equal, independent_epsilon
from .ledger_checks import ClusterAudit, PaidCell, Problems
from .ledger_report import Verification
from .participation_checks import audit_participation
from .planning_checks import consequence_faults

_Cell = tuple[int, int]


class LedgerAudit:
    """An audit in progress: takes records and releases, in the order of their topics."""

    def __init__(self, plan: PrivacyPlan) -> None:
        """Begin with nothing read."""
        self._plan = plan
        self._problems = Problems()
        self._clusters = [
            ClusterAudit(plan, cluster, self._problems) for cluster in range(plan.cluster_count)
        ]
        self._clients: dict[int, ClientSpending | None] = {}
        self._digest_by_cell: dict[_Cell, bytes] = {}
        self._cells_twice: set[_Cell] = set()
        self._repeats = 0
        self._malformed = 0
        self._foreign = 0

    def begin_ledger(
        self, cluster: int, begin_offset: int, noted_record: int | None = None
    ) -> None:
        """Note what is known of a ledger before it is read.

        Args:
            cluster: Whose ledger.
            begin_offset: The first offset that the broker still has of it.
            noted_record: A record that it had before; None if no such is known.
        """
        self._clusters[cluster].begin(begin_offset, noted_record)

    def take_record(self, cluster: int, data: bytes | None, *, is_settled: bool = True) -> None:
        """Check the next record of a ledger.

        Args:
            cluster: Whose ledger.
            data: The record's bytes.
            is_settled: Whether it was there before the topic of releases was looked at.
        """
        self._clusters[cluster].take(data, is_settled=is_settled)

    def is_empty(self, cluster: int) -> bool:
        """Say whether a ledger has shown no record and nothing wrong."""
        audit = self._clusters[cluster]
        return audit.newest is None and not audit.first_fault

    def take_traces(self, cluster: int, traces: Sequence[str]) -> None:
        """Note what else shows that a ledger without records must have existed."""
        if traces:
            self._clusters[cluster].fault(
                f"it is empty, though it must have existed: {'; '.join(traces)}"
            )

    def take_participation(self, cluster: int, values: Iterable[bytes]) -> None:
        """Check what clients paid; only where each has a budget of its own.

        Args:
            cluster: Whose clients.
            values: The participation topic's records of it, read after the ledger was.
        """
        ledger = self._clusters[cluster]
        self._clients[cluster] = audit_participation(self._plan, cluster, ledger, values)

    def take_release(self, data: bytes | None) -> None:
        """Check the next record of the topic of releases."""
        try:
            release = decode_release(data)
        except MalformedMessageError:
            self._malformed += 1
            return
        if release.plan_id != self._plan.plan_id:
            self._foreign += 1
            return
        cell = (release.cluster, release.window)
        digest = release_digest(data or b"")
        first = self._digest_by_cell.get(cell)
        if first is None:
            self._digest_by_cell[cell] = digest
            self._check_release(release, digest)
        elif first == digest:
            self._repeats += 1
        elif cell not in self._cells_twice:
            self._cells_twice.add(cell)
            self._problems.add(
                f"released_twice: window {release.window} of cluster {release.cluster} was "
                "published with two different contents"
            )

    def verification(self) -> Verification:
        """Return what all that was taken has shown. Call it once, at the end."""
        unpublished = 0
        for cluster, audit in enumerate(self._clusters):
            if self._plan.scope == "client" and cluster not in self._clients:
                self.take_participation(cluster, ())
            audit.finish()
            unpublished += self._find_missing(cluster, audit)
        rows = tuple(self._row(cluster, audit) for cluster, audit in enumerate(self._clusters))
        epsilon = max(row.epsilon for row in rows)
        events = [self._events(cluster, audit) for cluster, audit in enumerate(self._clusters)]
        independent = independent_epsilon(events, self._plan.delta, self._plan.privacy_filter)
        if not self._problems.lines() and not are_equal(epsilon, independent):
            self._problems.add(
                f"two accountants disagree: epsilon is {epsilon} from the charges, and "
                f"{independent} from the sigmas"
            )
        return Verification(
            plan_id=self._plan.plan_id_hex,
            delta=self._plan.delta,
            scope=self._plan.scope,
            filter=self._plan.privacy_filter.value,
            problems=self._problems.lines(),
            epsilon=epsilon,
            epsilon_independent=independent,
            cells_released=len(self._digest_by_cell),
            cells_released_twice=len(self._cells_twice),
            repeats=self._repeats,
            unpublished=unpublished,
            malformed_releases=self._malformed,
            foreign_releases=self._foreign,
            clusters=rows,
        )

    def _check_release(self, release: Release, digest: bytes) -> None:
        where = f"release of cluster {release.cluster}, window {release.window}"
        paid = self._paid(release.cluster, release.window)
        if paid is None:
            self._problems.add(f"{where}: no ledger record pays for it")
            return
        if faults := self._differences(release, digest, paid):
            self._problems.add(
                f"{where}: differs from ledger record {paid.sequence} in {', '.join(faults)}"
            )
            return
        for fault in consequence_faults(
            self._plan,
            release,
            planned_units=paid.planned_units,
            next_units=paid.next_units,
            clip_before=paid.clip_before,
            clip=paid.clip,
        ):
            self._problems.add(f"{where}: {fault}")

    def _differences(self, release: Release, digest: bytes, paid: PaidCell) -> list[str]:
        pairs = {
            "its digest": (digest, paid.release_digest),
            "sequence": (release.sequence, paid.sequence),
            "charge": (release.charge_units, paid.charge_units),
            "what is spent": (release.spent_units, paid.spent_units),
            "noise variance": (release.noise_variance, paid.noise_variance),
            "the plan's cap": (release.cap_units, self._plan.cap_units),
            "the plan's sensitivity": (
                release.l2_sensitivity_squared,
                self._plan.l2_sensitivity_squared,
            ),
            "the plan's dimension": (release.vector.size, self._plan.release_size),
        }
        return [name for name, (found, expected) in pairs.items() if found != expected]

    def _paid(self, cluster: int, window: int) -> PaidCell | None:
        if cluster >= len(self._clusters):
            return None
        return self._clusters[cluster].cells.get(window)

    def _find_missing(self, cluster: int, audit: ClusterAudit) -> int:
        """Report releases that are not public; return how many of them may be on their way."""
        pending = 0
        for window, paid in audit.cells.items():
            if (cluster, window) in self._digest_by_cell:
                continue
            if window in audit.pending_windows:
                pending += 1
            else:
                self._problems.add(
                    f"release of cluster {cluster}, window {window}: ledger record "
                    f"{paid.sequence} pays for it, but it was never published"
                )
        return pending

    def _row(self, cluster: int, audit: ClusterAudit) -> ClusterRow:
        return ClusterRow.of(
            self._plan,
            cluster,
            audit.newest,
            replace(audit.spending, clients=self._clients.get(cluster)),
            refused=audit.first_fault,
        )

    def _events(self, cluster: int, audit: ClusterAudit) -> Counter[tuple[int, Fraction]]:
        """Return the releases that the cluster's, or its most charged client's, epsilon is of."""
        clients = self._clients.get(cluster)
        if clients is None:
            return audit.events
        # Every window costs the same in this scope: all of its events are alike.
        windows = clients.largest_units // self._plan.charge_units
        return Counter(dict.fromkeys(audit.events, windows))
