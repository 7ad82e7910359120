import inspect
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.budget import Ledger
from stream.privacy.event import GaussianEvent, Receipt
from stream.privacy.mechanism import privatize
from stream.privacy.noise import RoundedGaussian
from stream.testing import UnsafeNoNoise, insecure_entropy

VARIANCE = Fraction(10_001, 4)
RECEIPT = Receipt(1, GaussianEvent(25, VARIANCE), 1, 1, 2)
INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


@dataclass
class GivenNoise:
    """Gives the array that it was made with, and remembers what was asked."""

    noise: list[int]
    asked: list[tuple[Fraction, int]] = field(default_factory=list)

    def sample(self, variance: Fraction, size: int) -> np.ndarray:
        self.asked.append((variance, size))
        return np.array(self.noise, np.int64)


def int64s(values):
    return np.array(values, np.int64)


@given(
    pairs=st.lists(
        st.tuples(st.integers(-(2**50), 2**50), st.integers(-(2**61), 2**61)), min_size=1
    )
)
def test_what_is_added_is_exactly_the_samplers_array(pairs):
    exact = [value for value, _ in pairs]
    noise = [value for _, value in pairs]
    released = privatize(int64s(exact), RECEIPT, GivenNoise(noise), np.int64)
    assert released.tolist() == [a + b for a, b in pairs]
    assert released.dtype == np.int64


def test_the_noise_is_drawn_once_with_the_variance_that_was_paid_for():
    source = GivenNoise([1, 2, 3])
    privatize(int64s([0, 0, 0]), RECEIPT, source, np.int64)
    assert source.asked == [(VARIANCE, 3)]


def test_the_real_sampler_adds_what_it_draws():
    exact = np.arange(-500, 500, dtype=np.int64) * 1000
    released = privatize(exact, RECEIPT, RoundedGaussian(insecure_entropy(1)), np.int64)
    drawn = RoundedGaussian(insecure_entropy(1)).sample(VARIANCE, 1000)
    assert np.array_equal(released - exact, drawn)
    assert 40 < drawn.std() < 60  # the standard deviation is 50; the seed is fixed


def test_two_releases_of_one_sum_differ():
    exact = np.zeros(100, np.int64)
    source = RoundedGaussian(insecure_entropy(1))
    first, second = (privatize(exact, RECEIPT, source, np.int64) for _ in range(2))
    assert not np.array_equal(first, second)


def test_the_sum_itself_is_left_alone():
    exact = int64s([1, 2, 3])
    privatize(exact, RECEIPT, GivenNoise([5, 5, 5]), np.int32)
    assert exact.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("exact", "noise", "released"),
    [
        (INT32.max, 0, INT32.max),
        (INT32.max, 1, INT32.max),
        (INT32.min, 0, INT32.min),
        (INT32.min, -1, INT32.min),
        (2**40, -(2**40), 0),
        (2**60, 2**60, INT32.max),
        (-(2**60), -(2**60), INT32.min),
    ],
)
def test_a_release_saturates_after_the_noise(exact, noise, released):
    result = privatize(int64s([exact]), RECEIPT, GivenNoise([noise]), np.int32)
    assert result.dtype == np.int32
    assert result.tolist() == [released]


def test_a_wide_release_keeps_the_largest_sums():
    result = privatize(int64s([2**61, -(2**61)]), RECEIPT, UnsafeNoNoise(), np.int64)
    assert result.tolist() == [2**61, -(2**61)]


@pytest.mark.parametrize("value", [2**61 + 1, -(2**61) - 1, INT64.max, INT64.min])
def test_a_sum_so_large_that_noise_could_wrap_it_is_refused_before_any_noise(value):
    source = GivenNoise([0, 0])
    with pytest.raises(ValueError, match="beyond 2\\^61"):
        privatize(int64s([0, value]), RECEIPT, source, np.int64)
    assert not source.asked


def test_nothing_is_released_without_a_receipt():
    for parameter in inspect.signature(privatize).parameters.values():
        assert parameter.default is inspect.Parameter.empty
    with pytest.raises(AttributeError):
        privatize(int64s([0]), None, UnsafeNoNoise(), np.int64)


def test_a_ledgers_receipt_pays_for_a_release():
    receipt = Ledger(2**60).charge(GaussianEvent(25, VARIANCE))
    assert privatize(int64s([7]), receipt, UnsafeNoNoise(), np.int64).tolist() == [7]
