"""What somebody sees who watches a run from outside: releases, models, counters. No IO."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas import ModelSnapshot, Release
from stream.metrics import ACCEPTED
from stream.privacy.plan import PrivacyPlan

from .data import Images
from .training import accuracy


@dataclass(slots=True, eq=False)
class DemoState:
    """A run as seen so far.

    Attributes:
        plan: The plan of the run.
        test: The public test images.
        digest_by_cell: SHA-256 of the first release seen of each ``(cluster, window)``.
        conflicting_cells: Cells of which two different releases were seen. There must be none.
        repeated_releases: Identical copies, which restarts may make and readers drop.
        epsilon_by_cluster: Spent, as the headers of the releases say.
        epsilon_by_window: Spent after each window, of the cluster that has spent the most.
        accuracy_by_window: Test accuracy of the model that has the window in it.
        release_latency_s: From the end of the window to the release being read, for each cell.
        model_latency_s: From the end of the window to the model being read, for each model.
        accepted: Updates that the heads counted.
        rejected: Updates that the heads refused, by reason.
    """

    plan: PrivacyPlan
    test: Images
    digest_by_cell: dict[tuple[int, int], bytes] = field(default_factory=dict)
    conflicting_cells: set[tuple[int, int]] = field(default_factory=set)
    repeated_releases: int = 0
    epsilon_by_cluster: dict[int, float] = field(default_factory=dict)
    epsilon_by_window: dict[int, float] = field(default_factory=dict)
    accuracy_by_window: dict[int, float] = field(default_factory=dict)
    release_latency_s: list[float] = field(default_factory=list)
    model_latency_s: list[float] = field(default_factory=list)
    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def cell_count(self) -> int:
        """Number of cells that the plan will release."""
        return self.plan.cluster_count * self.plan.horizon_windows

    @property
    def newest_window(self) -> int:
        """The newest window that a model has in it; -1 for none."""
        return max(self.accuracy_by_window, default=-1)

    @property
    def newest_accuracy(self) -> float | None:
        """Test accuracy of the newest trained model; None before there is one."""
        return self.accuracy_by_window.get(self.newest_window)

    @property
    def epsilon(self) -> float:
        """Epsilon spent by the cluster that has spent the most."""
        return max(self.epsilon_by_cluster.values(), default=0.0)

    @property
    def is_complete(self) -> bool:
        """Whether every cell was released and the last window is in the model."""
        is_last = self.newest_window >= self.plan.horizon_windows - 1
        return is_last and len(self.digest_by_cell) >= self.cell_count

    def observe_release(self, release: Release, data: bytes, received_ms: int) -> None:
        """Take note of a release and of its encoded form."""
        cell = (release.cluster, release.window)
        digest = hashlib.sha256(data).digest()
        if (first := self.digest_by_cell.get(cell)) is not None:
            if digest == first:
                self.repeated_releases += 1
            else:
                self.conflicting_cells.add(cell)
            return
        self.digest_by_cell[cell] = digest
        self.release_latency_s.append(self._since_end_s(release.window, received_ms))
        epsilon = self.plan.privacy_filter.epsilon(release.spent_units, self.plan.delta)
        self.epsilon_by_cluster[release.cluster] = epsilon
        spent = self.epsilon_by_window.get(release.window, 0.0)
        self.epsilon_by_window[release.window] = max(spent, epsilon)

    def observe_model(self, model: ModelSnapshot, received_ms: int) -> None:
        """Take note of a model; version 0, which no window is in, is passed over."""
        if model.window < 0 or model.window in self.accuracy_by_window:
            return
        self.model_latency_s.append(self._since_end_s(model.window, received_ms))
        self.accuracy_by_window[model.window] = accuracy(model.vector, self.test)

    def observe_updates(self, count_by_outcome: Mapping[str, int]) -> None:
        """Take note of the heads' counters, added up."""
        self.accepted = count_by_outcome.get(ACCEPTED, 0)
        self.rejected = {
            reason: count
            for reason, count in sorted(count_by_outcome.items())
            if reason != ACCEPTED and count
        }

    def _since_end_s(self, window: int, received_ms: int) -> float:
        return (received_ms - self.plan.window_end_ms(window)) / 1000
