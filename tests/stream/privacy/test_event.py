from dataclasses import FrozenInstanceError
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.accounting import UNITS_PER_RHO
from stream.privacy.event import GaussianEvent, Receipt

SENSITIVITIES = st.integers(1, 2**63)
VARIANCES = st.fractions(min_value=Fraction(1, 64), max_value=2**60)


def test_the_reference_charges_are_exact():
    assert GaussianEvent(4000**2 + 400**2, Fraction(64_000_000)).units == 145556339956614431  # K3
    assert GaussianEvent(4000**2 + 400**2, Fraction(160_000**2)).units == 363890849891537  # K4


@given(squared=SENSITIVITIES, variance=VARIANCES)
def test_a_charge_is_the_exact_cost_rounded_up_and_never_nothing(squared, variance):
    exact = Fraction(squared, 2) / variance * UNITS_PER_RHO
    assert max(1, exact) <= GaussianEvent(squared, variance).units < exact + 1


@given(squared=SENSITIVITIES, variance=VARIANCES, less=st.fractions(0, 1))
def test_less_noise_never_costs_less(squared, variance, less):
    smaller = variance * less + Fraction(1, 64) * (1 - less)
    assert GaussianEvent(squared, smaller).units >= GaussianEvent(squared, variance).units


@pytest.mark.parametrize("variance", [0, -1, float("nan"), -float("inf")])
def test_an_event_without_noise_has_no_price(variance):
    with pytest.raises(ValueError, match="noise variance must be positive"):
        _ = GaussianEvent(1, variance).units


def test_a_receipt_cannot_be_changed():
    receipt = Receipt(1, GaussianEvent(1, Fraction(1)), 2, 3, 4)
    with pytest.raises(FrozenInstanceError):
        receipt.units = 0
