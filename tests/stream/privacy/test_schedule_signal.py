from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.schedule_signal import Released, signal_energy


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_the_energy_is_exact_for_any_int64(values):
    energy = signal_energy(Released(np.array(values, dtype=np.int64), Fraction(7, 3)))
    assert energy == sum(value * value for value in values) - len(values) * Fraction(7, 3)


@pytest.mark.parametrize("size", [1, 2**16, 2**16 + 1, 200_000])
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1])
def test_large_int32_vectors_do_not_wrap(size, value):
    vector = np.full(size, value, dtype=np.int32)
    assert signal_energy(Released(vector, Fraction(0))) == size * value**2
    # The planted fault: what int64 makes of the same sum.
    wrapped = int(np.sum(vector.astype(np.int64) ** 2))
    assert (wrapped == size * value**2) is (size == 1)


def test_a_vector_of_zeros_has_the_energy_of_its_noise_less():
    assert signal_energy(Released(np.zeros(3, np.int32), Fraction(5))) == -15
