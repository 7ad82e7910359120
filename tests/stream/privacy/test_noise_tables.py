import dataclasses
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy import noise_tables as nt
from stream.privacy.noise_tables import Law

LAWS = list(Law)
each_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
VARIANCES = [
    Fraction(1, 64),
    Fraction(1, 60),  # sigma just above 1/8: the narrowest blocks but one
    Fraction(51, 100) ** 2,
    Fraction(1),
    Fraction(33, 10),
    Fraction(12345, 7),
    Fraction(10**10),
    Fraction(1 << 60),
]


@pytest.fixture(autouse=True)
def _precise():
    with mpmath.workprec(240):
        yield


def _real(value):
    return mpmath.mpf(value.numerator) / value.denominator


def _rho(x, variance):
    return mpmath.exp(-_real(x * x / (2 * variance)))


def _acceptance(tables, block, x):
    """Return a(x) of a block to 240 bits, from its definition."""
    slots = tables.slots[block - tables.layout.first + 1]
    return _real(tables.scale) / slots * _rho(x, tables.layout.variance)


@given(st.fractions(min_value=0, max_value=2000), st.integers(min_value=8, max_value=300))
def test_the_exponential_lies_between_its_bounds_and_they_are_close(exponent, bits):
    low, high = nt.exp_bounds(exponent, bits)
    with mpmath.workprec(3500):
        exact = mpmath.exp(-_real(exponent)) * 2**bits
        assert low <= exact <= high
    assert high - low <= 3


def _points(layout, block):
    """Return ends of the interval in which the block has its x, and whether they need be tight."""
    left = block * layout.width
    if layout.law is Law.ROUNDED_GAUSSIAN:
        return left - Fraction(1, 2), left - Fraction(1, 2) + layout.width
    return left, left + (layout.width if layout.width > 1 else 0)


def _check_entries(tables):
    layout = tables.layout
    for block in range(layout.first, layout.last):
        row = block - layout.first + 1
        left, right = _points(layout, block)
        nearest = Fraction(0) if left < 0 < right else min(abs(left), abs(right))
        most = _acceptance(tables, block, nearest)
        least = _acceptance(tables, block, max(abs(left), abs(right)))
        assert most <= 1
        assert tables.accept_below[row] <= least * 2**24 < tables.accept_below[row] + 2
        assert tables.reject_from[row] - 2 < most * 2**24 <= tables.reject_from[row]
        assert abs(mpmath.mpf(float(tables.peak[row])) / most - 1) < 2.0**-52
        assert Fraction(float(tables.nearest[row])) == nearest


@each_law
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_every_table_entry_bounds_the_acceptance_probability_of_its_block(law, variance):
    _check_entries(nt.build_tables(law, variance))


@pytest.mark.parametrize("variance", [Fraction(1, 64), Fraction(12345, 7), 10**8, 1 << 60], ids=str)
def test_every_integer_of_a_discrete_block_is_within_its_bounds(variance):
    tables = nt.build_tables(Law.DISCRETE_GAUSSIAN, Fraction(variance))
    layout = tables.layout
    width = int(layout.width)
    for block in range(layout.first, layout.last, 7 if width > 1 else 1):
        row = block - layout.first + 1
        for x in {block * width, block * width + width // 3, (block + 1) * width - 1}:
            scaled = _acceptance(tables, block, Fraction(x)) * 2**24
            assert tables.accept_below[row] <= scaled <= tables.reject_from[row]


@each_law
@pytest.mark.parametrize(
    ("name", "row", "error"),
    [
        ("accept_below", 100, 1),
        ("accept_below", 1050, 1),
        ("reject_from", 300, -1),
        ("peak", 600, 2.0**-40),
        ("nearest", 700, 2.0**-20),
    ],
)
def test_one_entry_off_by_one_unit_is_noticed(law, name, row, error):
    tables = nt.build_tables(law, Fraction(10**10))
    wrong = getattr(tables, name).copy()
    wrong[row] += error
    with pytest.raises(AssertionError):
        _check_entries(dataclasses.replace(tables, **{name: wrong}))


@each_law
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_the_tails_never_ask_for_an_acceptance_above_one(law, variance):
    tables = nt.build_tables(law, variance)
    layout = tables.layout
    right = layout.last * layout.width
    left = -layout.first * layout.width
    ends = (right, left + 1)  # the first integers of the discrete law's tails
    if law is Law.ROUNDED_GAUSSIAN:
        ends = (right - Fraction(1, 2), left + Fraction(1, 2))
    assert min(ends) ** 2 >= Fraction(17, 2) ** 2 * variance
    for start in ends:
        for segment in range(40):
            x = start + segment * layout.tail_width
            growth = _real(layout.tail_width / layout.width) * 2 ** (segment + 1)
            height = _real(tables.scale) / tables.slots[0] * growth * _rho(x, variance)
            assert height <= 1
            assert height * 2**24 <= tables.reject_from[0]
    assert tables.slots[0] == tables.slots[-1]
    assert tables.accept_below[0] == tables.accept_below[-1] == 0


@each_law
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_each_block_owns_its_slots(law, variance):
    tables = nt.build_tables(law, variance)
    owners = (tables.entries >> nt.ENTRY_BITS) - (tables.layout.first - 1)
    assert tables.entries.size == sum(tables.slots) == 2**16
    assert np.array_equal(np.bincount(owners), tables.slots)
    bounds = tables.entries & (2**nt.ENTRY_BITS - 1)
    assert np.array_equal(bounds, tables.accept_below[owners])


@each_law
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_most_proposals_are_accepted_at_the_first_look(law, variance):
    tables = nt.build_tables(law, variance)
    share = np.dot(tables.slots, tables.accept_below) / 2.0**40
    assert share > 0.96


@each_law
def test_the_largest_blocks_leave_room_in_a_word(law):
    assert (
        nt.SLOT_BITS + nt.build_tables(law, nt.MAX_VARIANCE).layout.offset_bits + nt.COIN_BITS <= 64
    )


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(LAWS),
    st.floats(min_value=-6, max_value=60),
    st.integers(min_value=1, max_value=10**6),
)
def test_every_variance_in_range_can_be_sampled(law, exponent, denominator):
    variance = Fraction(round(2**exponent * denominator), denominator)
    variance = min(max(variance, nt.MIN_VARIANCE), nt.MAX_VARIANCE)
    layout = nt.build_tables(law, variance).layout
    narrowest = 0 if law is Law.DISCRETE_GAUSSIAN else -10
    assert layout.width_log2 == narrowest or 64 < _real(variance) ** 0.5 / layout.width <= 128


@pytest.mark.parametrize(
    "variance", [Fraction(0), Fraction(-1), Fraction(1, 65), Fraction((1 << 60) + 1)]
)
def test_a_variance_out_of_range_is_refused_with_the_range(variance):
    for law in LAWS:
        with pytest.raises(ValueError, match=r"outside 1/64 \.\. 2\^60"):
            nt.noise_tables(law, variance)


def test_only_the_eight_latest_tables_are_kept():
    assert nt.noise_tables.cache_info().maxsize == 8
    one = nt.noise_tables(Law.DISCRETE_GAUSSIAN, Fraction(2))
    assert nt.noise_tables(Law.DISCRETE_GAUSSIAN, Fraction(2)) is one
    assert nt.noise_tables(Law.ROUNDED_GAUSSIAN, Fraction(2)) is not one


def test_shared_tables_cannot_be_written_to():
    tables = nt.noise_tables(Law.DISCRETE_GAUSSIAN, Fraction(2))
    for array in (tables.entries, tables.accept_below, tables.reject_from, tables.peak):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def _parts(law):
    layout = nt._cut(law, Fraction(10**6), Fraction(17, 2))
    blocks = nt._blocks(layout)
    return layout, blocks, nt._envelope(layout, blocks)


@each_law
def test_sound_bounds_pass_the_check(law):
    nt.check_bounds(*_parts(law))


@each_law
@pytest.mark.parametrize(
    ("claim", "change"),
    [
        ("the scale is positive", {"scale": 0}),
        ("a\\(x\\) <= 1 in the blocks", {"scale": 1 << 20}),
        ("a\\(x\\) <= 1 where a tail starts", {"tail_height": Fraction(3)}),
        ("all slots are used", {"tail_slots": 2}),
    ],
)
def test_an_envelope_that_breaks_the_proof_is_refused(law, claim, change):
    layout, blocks, envelope = _parts(law)
    with pytest.raises(ArithmeticError, match=claim):
        nt.check_bounds(layout, blocks, envelope._replace(**change))


@each_law
def test_tails_that_fall_too_slowly_are_refused(law):
    with pytest.raises(ArithmeticError, match="rho halves"):
        nt.build_tables(law, Fraction(100), tail_multiple=Fraction(3, 10))


@each_law
def test_blocks_too_far_out_for_the_polynomial_are_refused(law):
    layout, blocks, envelope = _parts(law)
    blocks[-1] = blocks[-1]._replace(nearest=blocks[-1].nearest * 4)
    with pytest.raises(ArithmeticError, match="the polynomial"):
        nt.check_bounds(layout, blocks, envelope)


@each_law
def test_a_vague_rho_is_refused(law):
    layout, blocks, envelope = _parts(law)
    middle = len(blocks) // 2
    low, high = blocks[middle].peak
    blocks[middle] = blocks[middle]._replace(peak=(low - (low >> 50), high))
    with pytest.raises(ArithmeticError, match="60 bits"):
        nt.check_bounds(layout, blocks, envelope)


def test_random_positions_have_acceptances_within_the_bounds_of_their_block():
    generator = np.random.default_rng(1)
    tables = nt.build_tables(Law.ROUNDED_GAUSSIAN, Fraction(12345, 7))
    layout = tables.layout
    for _ in range(2000):
        block = int(generator.integers(layout.first, layout.last))
        x = (block + Fraction(int(generator.integers(2**53)), 2**53)) * layout.width - Fraction(
            1, 2
        )
        scaled = _acceptance(tables, block, x) * 2**24
        row = block - layout.first + 1
        assert tables.accept_below[row] <= scaled <= tables.reject_from[row]
