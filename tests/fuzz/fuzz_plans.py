"""Small plans for the targets, and a script out of any bytes."""

from dataclasses import replace

from stream.privacy.adaptive_clipping import ClippingSpec
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="fuzz",
    dimension=3,
    cluster_count=2,
    assignment="prefix",
    prefixes=("north", "south"),
    expected_clients=10,
    start_ms=10_000,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=150,
    count_weight=3,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=1000,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)
# Clients are refused after two windows, and releases go on.
PER_CLIENT = replace(PLAN, scope="client", horizon_windows=2)
ADAPTIVE = replace(
    PLAN,
    clipping=ClippingSpec(target_quantile=0.5, learning_rate=10.0, bit_weight=20, epoch_windows=3),
)
WIDE = replace(PLAN, update_dtype="int16", grid_l2_bound=40_000, rotation="hadamard")
# The budget ends after a few windows, and before that an hour's limit holds some back.
SHORT = replace(PLAN, horizon_windows=6, hour_epsilon=5.0, window_length_ms=1_800_000)


class Choices:
    """Numbers and pieces from the front of any bytes; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def are_over(self) -> bool:
        return self._place >= len(self._data)

    def number(self, size: int) -> int:
        return int.from_bytes(self.piece(size), "big")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.piece(size), "big", signed=True)

    def piece(self, size: int) -> bytes:
        piece = self._data[self._place : self._place + size]
        self._place += size
        return piece

    def sized_piece(self) -> bytes:
        """A piece whose length stands before it, in one byte."""
        return self.piece(self.number(1))
