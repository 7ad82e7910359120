"""Checks the sequence of published models, and the state that the next one is made from.

Pure: first take the newest state, then the models in the order of their topic, then ask for the
`finish`.
"""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from schemas import (
    MalformedMessageError,
    ModelSnapshot,
    ModelState,
    decode_model_snapshot,
)
from stream.privacy.plan import PrivacyPlan

from .deep_report import ModelFindings
from .ledger_checks import Problems

# The global agent's clock may disagree with the broker's by that much.
CLOCK_SKEW_MS = 60_000


class ModelAudit:
    """The models of a plan in progress; holds one state and a few numbers."""

    def __init__(
        self, plan: PrivacyPlan, problems: Problems, *, now_ms: int, compaction_lag_ms: int
    ) -> None:
        """Begin with nothing read.

        Args:
            plan: The plan.
            problems: Takes what does not fit.
            now_ms: The time.
            compaction_lag_ms: How old a model must be before compaction may take it.
        """
        self._plan = plan
        # Whatever was published later than this must still be there.
        self._kept_since_ms = now_ms - compaction_lag_ms + CLOCK_SKEW_MS
        self._problems = problems
        self._state: ModelState | None = None
        self._state_is_found = False
        self._newest: ModelSnapshot | None = None
        self._newest_hash = b""
        self._newest_ms = 0
        self._first_version: int | None = None
        self._read = self._malformed = self._foreign = 0
        self._compacted: list[tuple[int, int]] = []

    def take_state(self, state: ModelState | None, *, least_version: int) -> None:
        """Take the newest state.

        Args:
            state: The state; None if there is none.
            least_version: The newest model that was public before the state was read; -1 for
                none.
        """
        if state is None:
            if least_version >= 0:
                self._fault(f"version {least_version} is public, but there is no state of it")
            return
        if state.plan_id != self._plan.plan_id:
            self._fault(f"its state belongs to plan {state.plan_id.hex()}")
            return
        self._state = state
        if state.model_version < least_version:
            self._fault(
                f"its state is behind, at version {state.model_version}, while version "
                f"{least_version} is public"
            )
        if state.window < max(state.merged_through):
            self._fault(
                f"its state says window {state.window}, and has merged window "
                f"{max(state.merged_through)}"
            )

    def take_model(self, data: bytes | None, appended_ms: int) -> None:
        """Take the next record of the model's topic."""
        try:
            model = decode_model_snapshot(data)
        except MalformedMessageError:
            self._malformed += 1
            return
        if model.plan_id != self._plan.plan_id:
            self._foreign += 1
            return
        self._read += 1
        self._check_times(model, appended_ms)
        self._check_follows(model, sha256(data or b"").digest(), appended_ms)
        if self._state is not None and model.model_version == self._state.model_version:
            self._state_is_found = True
            self._check_state(self._state, model)

    def take_limits(self, releases_end: int, released_through: Sequence[int]) -> None:
        """Take what the state cannot be ahead of.

        Args:
            releases_end: The end of the topic of releases, asked for after the state was read.
            released_through: The newest window that each ledger has released, read later still;
                -1 for none.
        """
        state = self._state
        if state is None:
            return
        if state.next_offset > releases_end:
            self._fault(
                f"its state has read releases up to offset {state.next_offset}, but they end at "
                f"{releases_end}"
            )
        if len(state.merged_through) != len(released_through):
            self._fault(f"its state has {len(state.merged_through)} clusters")
            return
        pairs = zip(state.merged_through, released_through, strict=True)
        for cluster, (merged, released) in enumerate(pairs):
            if merged > released:
                self._fault(
                    f"its state has merged window {merged} of cluster {cluster}, which the "
                    "ledger has not released"
                )

    def finish(self) -> ModelFindings:
        """Return what all that was taken has shown."""
        state, newest = self._state, self._newest
        if state is not None and not self._state_is_found:
            self._fault(f"its state is at version {state.model_version}, which is not published")
        return ModelFindings(
            versions_read=self._read,
            first_version=self._first_version,
            newest_version=newest.model_version if newest else None,
            newest_window=newest.window if newest else None,
            compacted=tuple(self._compacted),
            state_version=state.model_version if state else None,
            malformed=self._malformed,
            foreign=self._foreign,
        )

    def _check_times(self, model: ModelSnapshot, appended_ms: int) -> None:
        version, latest_ms = model.model_version, appended_ms + CLOCK_SKEW_MS
        if model.published_at_ms > latest_ms:
            self._fault(f"version {version} is published before it says that it was made")
        if model.window >= 0 and self._plan.window_end_ms(model.window) > latest_ms:
            self._fault(f"version {version} has window {model.window}, published before its end")

    def _check_follows(self, model: ModelSnapshot, model_hash: bytes, appended_ms: int) -> None:
        before, version = self._newest, model.model_version
        if before is not None and version <= before.model_version:
            is_same = model_hash == self._newest_hash
            how = "once more, with the same content" if is_same else "with another content"
            if version < before.model_version:
                how = f"after version {before.model_version}"
            self._fault(f"version {version} is published {how}")
            return
        if before is None:
            self._first_version = version
        self._check_gap(before, version)
        # A step of late releases alone ends a window that has none of its own.
        if before is not None and model.window <= before.window:
            self._fault(
                f"version {version} has window {model.window}, after version "
                f"{before.model_version} had {before.window}"
            )
        self._newest, self._newest_hash, self._newest_ms = model, model_hash, appended_ms

    def _check_gap(self, before: ModelSnapshot | None, version: int) -> None:
        first = before.model_version + 1 if before else 0
        last = version - 1
        if first > last:
            return
        # A version has at least its number of windows behind it: `last` was not there earlier.
        earliest_ms = self._newest_ms if before else 0
        if last > 0:
            earliest_ms = max(earliest_ms, self._plan.window_end_ms(last - 1))
        if earliest_ms < self._kept_since_ms:
            self._compacted.append((first, last))
            return
        many = f"versions {first} to {last} are" if last > first else f"version {last} is"
        self._fault(f"{many} missing, and too young to be compacted")

    def _check_state(self, state: ModelState, model: ModelSnapshot) -> None:
        version = state.model_version
        with np.errstate(over="ignore"):
            weights = state.vectors[0].astype(np.float32)
        if not np.array_equal(weights, model.vector):
            self._fault(f"its state at version {version} has other weights than the model")
        if (state.window, state.clip_norms) != (model.window, model.clip_norms):
            self._fault(f"its state at version {version} has another window or clip norm")

    def _fault(self, text: str) -> None:
        self._problems.add(f"model: {text}")
