"""What a client computes for one update, against what numpy needs to clip and round plainly."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from measurement import Effort, Floor, Result, Variant, interleaved, ratios
from numpy.typing import NDArray

from schemas import Update, encode_update
from stream.privacy.quantization import quantize
from stream.privacy.rotation import rotate

_CLIP_NORM = 1.0
_STEPS_A_COORDINATE = 8  # on average: inside int8, and far from rounding to zero
_LIMIT = 127
_UPDATE = Floor("<=", 12)


def clip_and_rint(
    gradient: NDArray[np.float32], l2_clip_norm: float, grid_l2_bound: int
) -> NDArray[np.int8]:
    """Return what a client would send without random rounding, and with no bound to keep."""
    factor = grid_l2_bound / max(float(np.linalg.norm(gradient)), l2_clip_norm)
    clipped = np.clip(gradient * np.float32(factor), -_LIMIT, _LIMIT)
    grid: NDArray[np.int8] = np.rint(clipped).astype(np.int8)
    return grid


def encoded(quantized: Callable[[], NDArray[np.int8]]) -> bytes:
    """Return the bytes of an update that holds what ``quantized`` returns."""
    return encode_update(Update(bytes(16), "client", 0, quantized()))


def client_results(effort: Effort) -> Iterator[Result]:
    """Yield nanoseconds a coordinate for a float32 gradient that is clipped, int8 on the wire."""
    size = effort.samples
    rng = np.random.default_rng(0)
    gradient = rng.standard_normal(size, dtype=np.float32)
    bound = round(_STEPS_A_COORDINATE * size**0.5)
    quantized = partial(
        quantize,
        gradient,
        l2_clip_norm=_CLIP_NORM,
        grid_l2_bound=bound,
        coordinate_limit=_LIMIT,
        dtype="int8",
        rng=rng,
    )
    variants = {
        "update": Variant(partial(encoded, quantized), size),
        "quantize": Variant(quantized, size),
        "clip_rint": Variant(partial(clip_and_rint, gradient, _CLIP_NORM, bound), size),
        "rotate": Variant(partial(rotate, gradient, bytes(16)), size),
    }
    times = interleaved(variants, effort.repeats)
    for name in variants:
        floor = _UPDATE if name == "update" else None
        yield Result(f"client_{name}_ns", "ns/coordinate", times[name], floor)
    for name in ("quantize", "rotate"):
        values = ratios(times[name], times["clip_rint"])
        yield Result(f"client_{name}_vs_clip_rint", "of its time", values)
