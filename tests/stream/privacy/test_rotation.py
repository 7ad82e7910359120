import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream.privacy import rotation
from stream.privacy.quantization import client_scale, quantize
from stream.privacy.rotation import rotate, rotated_length, unrotate

FALSE_ALARM = 1e-9
SEED = bytes(range(16))
FLOAT_DTYPES = (np.float32, np.float64)


def public_sign(coordinate: int, seed: bytes) -> int:
    """Slow oracle: one bit at a time, the highest of a byte first."""
    digest = hashlib.shake_128(b"sdp rotation 1\n" + seed).digest(coordinate // 8 + 1)
    return -1 if digest[-1] >> (7 - coordinate % 8) & 1 else 1


def explicit_matrix(dimension: int, seed: bytes) -> NDArray[np.float64]:
    """Slow oracle: Hadamard's matrix by definition, with signs, cut to ``dimension`` columns."""
    length = rotated_length(dimension)
    matrix = [[(-1) ** (i & j).bit_count() for j in range(dimension)] for i in range(length)]
    signs = [public_sign(coordinate, seed) for coordinate in range(dimension)]
    return np.array(matrix) * signs / math.sqrt(length)


def unit_roundoff(vector: NDArray[np.float32 | np.float64]) -> float:
    return float(np.finfo(vector.dtype).eps) / 2


def error_of_rotation(vector: NDArray[np.float32 | np.float64]) -> float:
    """Return the distance from the explicit product over the guaranteed one (above 1: wrong)."""
    wide = vector.astype(np.float64)
    exact = explicit_matrix(vector.size, SEED) @ wide
    length = rotated_length(vector.size)
    # What the oracle itself rounds is granted on top; it matters to float64 only.
    allowed = (math.log2(length) + 3) * unit_roundoff(vector) + length * 2.0**-53
    distance = np.linalg.norm(rotate(vector, SEED).astype(np.float64) - exact)
    return float(distance) / (allowed * max(float(np.linalg.norm(wide)), 1e-30))


def gradient(dimension: int, dtype: type = np.float64) -> NDArray[np.float32 | np.float64]:
    return np.random.default_rng(dimension).standard_normal(dimension).astype(dtype)


@pytest.mark.parametrize(
    ("dimension", "length"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1024, 1024), (1_000_000, 1 << 20)],
)
def test_a_rotated_gradient_has_the_next_power_of_two_as_its_length(dimension, length):
    assert rotated_length(dimension) == length
    assert rotate(np.zeros(dimension), SEED).shape == (length,)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 5, 31, 32, 100, 512, 700])
def test_a_rotation_is_the_explicit_matrix_product(dimension, dtype):
    vector = gradient(dimension, dtype)
    assert rotate(vector, SEED).dtype == dtype
    assert error_of_rotation(vector) <= 1


@pytest.mark.parametrize(("block", "rows"), [(2, 2), (4, 2), (16, 4), (64, 64), (512, 4)])
def test_blocks_of_any_size_give_the_same_product(monkeypatch, block, rows):
    monkeypatch.setattr(rotation, "_BLOCK", block)
    monkeypatch.setattr(rotation, "_MOST_ROWS", rows)
    assert error_of_rotation(gradient(700)) <= 1


@pytest.mark.parametrize("dimension", [4, 5, 100])
def test_the_oracle_catches_a_pass_that_is_left_out(monkeypatch, dimension):
    right = rotation._butterflies

    def planted(columns):
        """Transform the first half of the rows and forget the rest."""
        half = len(columns) // 2
        return np.concatenate([right(columns[:half].copy()), columns[half:]])

    monkeypatch.setattr(rotation, "_butterflies", planted)
    assert error_of_rotation(gradient(dimension)) > 1


def test_the_oracle_catches_signs_that_are_left_out(monkeypatch):
    monkeypatch.setattr(rotation, "_signs", lambda vector, seed: np.ones_like(vector))
    assert error_of_rotation(gradient(100)) > 1


@settings(max_examples=30)
@given(st.integers(17, 19), st.data())
def test_of_a_long_vector_every_coordinate_goes_where_the_definition_says(bits, data):
    dimension = data.draw(st.integers((1 << bits - 1) + 1, 1 << bits))
    source = data.draw(st.integers(0, dimension - 1))
    vector = np.zeros(dimension, dtype=np.float32)
    vector[source] = 1
    rotated = rotate(vector, SEED)
    for target in data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=10, max_size=10)):
        wanted = (-1) ** (source & target).bit_count() * public_sign(source, SEED)
        assert rotated[target] == np.float32(wanted / math.sqrt(1 << bits))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("dimension", [1, 3, 1000, 70_000, 300_000])
def test_a_rotation_keeps_the_norm_up_to_the_stated_error(dimension, dtype):
    vector = gradient(dimension, dtype)
    before, after = (
        float(np.linalg.norm(values.astype(np.float64)))
        for values in (vector, rotate(vector, SEED))
    )
    slack = (math.log2(rotated_length(dimension)) + 3) * unit_roundoff(vector)
    assert after == pytest.approx(before, rel=slack + 1e-15)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("dimension", [1, 3, 1000, 70_000, 300_000])
def test_turning_back_gives_the_gradient(dimension, dtype):
    vector = gradient(dimension, dtype)
    back = unrotate(rotate(vector, SEED), dimension, SEED)
    assert back.dtype == dtype
    error = np.linalg.norm((back - vector).astype(np.float64))
    slack = 2 * (math.log2(rotated_length(dimension)) + 3) * unit_roundoff(vector)
    assert error <= slack * np.linalg.norm(vector.astype(np.float64))


@given(st.integers(1, 300), st.binary(min_size=16, max_size=16))
def test_turning_back_is_the_transpose(dimension, seed):
    rng = np.random.default_rng(dimension)
    vector, other = gradient(dimension), rng.standard_normal(rotated_length(dimension))
    there, back = rotate(vector, seed) @ other, vector @ unrotate(other, dimension, seed)
    assert there == pytest.approx(back, rel=1e-12, abs=1e-12)


def test_the_rotated_sum_is_the_sum_of_the_rotated():
    first, second = gradient(1000), gradient(1000)[::-1]
    np.testing.assert_allclose(
        rotate(first, SEED) + rotate(second, SEED), rotate(first + second, SEED), atol=1e-12
    )


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_the_largest_finite_coordinates_do_not_overflow(dtype):
    vector = np.zeros(100, dtype=dtype)
    vector[[3, 60]] = np.finfo(dtype).max / 2
    back = unrotate(rotate(vector, SEED), 100, SEED)
    np.testing.assert_allclose(back / np.finfo(dtype).max, vector / np.finfo(dtype).max, atol=1e-6)


def test_a_rotation_is_pinned_to_the_bit():
    """Clients and the global agent of different versions and machines must agree."""
    signs = rotation._signs(np.zeros(12), SEED)
    assert signs.tolist() == [-1, 1, -1, 1, -1, 1, -1, -1, 1, 1, -1, 1]
    small = rotate(np.array([4, 8, 12], dtype=np.float32), SEED)
    assert small.tolist() == [-4, -12, 8, 0]
    vector = (np.arange(100_000) % 97).astype("<f4")
    digest = hashlib.sha256(rotate(vector, SEED).astype("<f4").tobytes()).hexdigest()
    assert digest == "bc943bc1be80f45b92140d2bedce35c325a3ed3eb38f9b13dbefefc862a0e903"


def test_another_seed_turns_another_way():
    vector = gradient(64)
    assert not np.allclose(rotate(vector, SEED), rotate(vector, bytes(16)))


def test_a_wider_gradient_begins_with_the_same_signs():
    short, long = (rotation._signs(np.zeros(size), SEED) for size in (11, 999))
    np.testing.assert_array_equal(short, long[:11])


def test_rotating_leaves_its_arguments_alone():
    vector = gradient(64)
    before = vector.copy()
    rotate(vector, SEED)
    unrotate(vector, 64, SEED)
    np.testing.assert_array_equal(vector, before)


@pytest.mark.parametrize("length", [3, 5, 8])
def test_a_vector_of_another_length_cannot_be_turned_back(length):
    with pytest.raises(ValueError, match=r"of 3 coordinates has the shape \(4,\)"):
        unrotate(np.zeros(length), 3, SEED)


def flatness(vector: NDArray[np.float64], seeds: int) -> float:
    """Return the largest rotated coordinate over what Hoeffding allows in ``seeds`` rotations."""
    length = rotated_length(vector.size)
    radius = math.sqrt(2 * math.log(2 * length * seeds / FALSE_ALARM) / length)
    largest = max(
        float(np.abs(rotate(vector, seed.to_bytes(16, "big"))).max()) for seed in range(seeds)
    )
    return largest / (radius * float(np.linalg.norm(vector)))


@pytest.mark.statistical
@pytest.mark.parametrize("spikes", [1, 3, 100, 2000, 4000])
def test_a_rotation_flattens_any_gradient(spikes):
    """False alarm: at most 1e-9 a run (Hoeffding over all coordinates), and the seeds are fixed."""
    vector = np.zeros(4000)
    vector[:spikes] = 1  # with equal signs: the first Walsh functions would gather them
    assert flatness(vector, 50) <= 1


def test_the_test_of_flatness_catches_a_rotation_without_signs(monkeypatch):
    monkeypatch.setattr(rotation, "_signs", lambda vector, seed: np.ones_like(vector))
    vector = np.zeros(4000)
    vector[:2000] = 1
    assert flatness(vector, 1) > 1


def loss_of_int8(vector: NDArray[np.float64]) -> tuple[float, int]:
    """Quantize to int8; return the relative L2 error and how many coordinates saturate."""
    grid = quantize(
        vector,
        l2_clip_norm=float(np.linalg.norm(vector)),
        grid_l2_bound=1000,
        coordinate_limit=127,
        dtype="int8",
        rng=np.random.default_rng(8),
    )
    wanted = vector * (client_scale(1000, vector.size) / float(np.linalg.norm(vector)))
    error = float(np.linalg.norm(grid - wanted) / np.linalg.norm(wanted))
    return error, int(np.count_nonzero(np.abs(wanted) > 127))


def test_a_spiky_gradient_loses_most_of_itself_in_int8_and_almost_nothing_when_rotated():
    vector = gradient(4096) / 100
    vector[::512] = 30.0
    plain, saturated = loss_of_int8(vector)
    rotated, saturated_when_rotated = loss_of_int8(rotate(vector, SEED))
    assert saturated == 8
    assert plain > 0.6
    assert saturated_when_rotated == 0
    # All that is left is the rounding: at most sqrt(4096 / 4) of 1000 steps, 3 %.
    assert rotated < 0.035


def test_a_flat_gradient_loses_no_more_when_rotated():
    vector = gradient(4096)
    assert loss_of_int8(rotate(vector, SEED))[0] == pytest.approx(loss_of_int8(vector)[0], rel=0.1)
