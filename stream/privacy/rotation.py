"""Rotation: spread a gradient evenly over its coordinates, so that few bits hold it.

The rotation is public and the same for everyone under a plan. It is orthogonal and linear: norms
stay as they are, the sum of rotated gradients is the rotated sum, and turning a release back is
post-processing. It contributes no privacy and costs none (PRIVACY 1.2).
"""

import hashlib
import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Real = TypeVar("_Real", bound=np.float32 | np.float64)

_DOMAIN = b"sdp rotation 1\n"
# Coordinates worked on at a time: two blocks, float64 or not, stay in a core's own cache.
_BLOCK = 1 << 16
# With more rows, too few neighbours of each would fit into a block.
_MOST_ROWS = 1 << 8


def rotated_length(dimension: int) -> int:
    """Return the length of a rotated gradient: the smallest power of two from ``dimension`` on."""
    return 1 << (dimension - 1).bit_length()


def rotate(vector: NDArray[_Real], seed: bytes) -> NDArray[_Real]:
    """Flip signs at random, pad with zeros, and apply the normalised Walsh-Hadamard matrix.

    With D = `rotated_length`, D log2(D) additions in the dtype of ``vector``; bit for bit the
    same on every machine.

    Guarantee: orthogonal. The L2 distance from the exact rotation, and so the change of the norm,
    is at most ``(log2(D) + 3) * u`` times the norm (above 1e-30), where u is 2^-24 (float32) or
    2^-53 (float64): below 1.4e-6 for a million float32 coordinates.

    A vector chosen without a look at the seed comes out flat: but for a share b of the seeds, no
    coordinate exceeds ``sqrt(2 ln(2 D / b) / D)`` times the norm (Hoeffding). At b = 1e-6, int8
    saturates nothing while ``grid_l2_bound`` is below about ``16 sqrt(D)``, however spiky the
    gradient. No privacy follows from any of this: the signs are public.

    Args:
        vector: Finite, shape ``(dimension,)``. Its norm must be a number of its dtype.
        seed: What the signs derive from: the plan's ``plan_id``.

    Returns:
        Shape ``(rotated_length(dimension),)``, in the dtype of ``vector``.

    References:
        Kairouz, Liu, Steinke (2021), section 4. https://arxiv.org/abs/2102.06387
    """
    rotated = np.zeros(rotated_length(vector.size), dtype=vector.dtype)
    # Scaled first, no partial sum exceeds the norm, and nothing can overflow on the way.
    scale = 1 / math.sqrt(rotated.size)
    np.multiply(vector, _signs(vector, seed) * scale, out=rotated[: vector.size])
    _transform(rotated)
    return rotated


def unrotate(vector: NDArray[_Real], dimension: int, seed: bytes) -> NDArray[_Real]:
    """Turn back what `rotate` turned, with the transpose of its matrix.

    Guarantee: the exact inverse on everything that `rotate` returns, up to the same float error.
    Of a sum with noise it keeps the first ``dimension`` coordinates: independent Gaussian noise
    of equal variance stays just that, with the padding's share of it dropped.

    Args:
        vector: Shape ``(rotated_length(dimension),)``; left alone.
        dimension: Number of coordinates before the rotation.
        seed: The seed of the rotation.

    Returns:
        Shape ``(dimension,)``, in the dtype of ``vector``.

    Raises:
        ValueError: ``vector`` has another length than `rotate` gives.
    """
    if vector.shape != (rotated_length(dimension),):
        raise ValueError(
            f"a rotated vector of {dimension} coordinates has the shape "
            f"({rotated_length(dimension)},), not {vector.shape}"
        )
    turned = vector.copy()
    turned *= 1 / math.sqrt(vector.size)
    _transform(turned)
    kept = turned[:dimension]
    kept *= _signs(kept, seed)
    return kept


def _signs(vector: NDArray[_Real], seed: bytes) -> NDArray[_Real]:
    """Return a public 1 or -1 for each coordinate: a set bit of SHAKE-128 of the seed is -1."""
    digest = hashlib.shake_128(_DOMAIN + seed).digest(-(-vector.size // 8))
    bits = np.unpackbits(np.frombuffer(digest, np.uint8), count=vector.size)
    signs = bits.astype(vector.dtype)
    signs *= -2
    signs += 1
    return signs


def _transform(values: NDArray[_Real]) -> None:
    """Multiply by the Hadamard matrix (Sylvester's order, not normalised), in place.

    It factors: ``H`` of a vector is ``H`` along both axes of the vector as a matrix.
    """
    if values.size <= _BLOCK:
        matrix = values.reshape(1 << (values.size.bit_length() // 2), -1)
        _transform_columns(matrix)
        _transform_columns(matrix.T)
        return
    matrix = values.reshape(min(values.size // _BLOCK, _MOST_ROWS), -1)
    _transform_columns(matrix)
    for row in matrix:
        _transform(row)


def _transform_columns(matrix: NDArray[_Real]) -> None:
    """Transform each column in place, as many at a time as make up a block."""
    width = _BLOCK // len(matrix)
    for start in range(0, matrix.shape[1], width):
        columns = matrix[:, start : start + width]
        columns[...] = _butterflies(np.ascontiguousarray(columns))


def _butterflies(columns: NDArray[_Real]) -> NDArray[_Real]:
    """Return the transform of each column; ``columns`` is overwritten.

    Each pass takes rows 2i and 2i + 1 to rows i and half + i: the row number's lowest bit is
    transformed and becomes the highest. After all passes every bit is back where it was.
    """
    half = len(columns) // 2
    other = np.empty_like(columns)
    for _ in range(half.bit_length()):
        np.add(columns[0::2], columns[1::2], out=other[:half])
        np.subtract(columns[0::2], columns[1::2], out=other[half:])
        columns, other = other, columns
    return columns
