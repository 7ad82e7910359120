import math
from dataclasses import replace

import pytest

from stream.errors import PlanError
from stream.privacy.adaptive_clipping import ClippingSpec

SPEC = ClippingSpec(target_quantile=0.5, learning_rate=0.2, bit_weight=20, epoch_windows=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_quantile": 0.0}, "above 0 and below 1, such as 0.5"),
        ({"target_quantile": 1.0}, "above 0 and below 1"),
        ({"target_quantile": math.nan}, "above 0 and below 1"),
        ({"target_quantile": "0.5"}, "write a number"),
        ({"learning_rate": 0.0}, r"learning_rate is 0\.0: .* at most 10, such as 0\.2"),
        ({"learning_rate": -1.0}, "above 0"),
        ({"learning_rate": 10.1}, "at most 10"),
        ({"learning_rate": math.nan}, "above 0"),
        ({"learning_rate": math.inf}, "at most 10"),
        ({"learning_rate": True}, "write a number"),
        ({"bit_weight": 0}, "from 2 to"),
        ({"bit_weight": 3}, "write an even number"),
        ({"bit_weight": -2}, "from 2 to"),
        ({"bit_weight": 2**30 + 2}, "from 2 to"),
        ({"bit_weight": 4.0}, "whole number"),
        ({"epoch_windows": 2}, "from 3 to"),
        ({"epoch_windows": 2**31}, "from 3 to"),
        ({"epoch_windows": 3.0}, "whole number"),
    ],
)
def test_a_number_that_adapts_nothing_is_refused_with_what_to_write(change, message):
    with pytest.raises(PlanError, match=message):
        replace(SPEC, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"target_quantile": 1e-9},
        {"learning_rate": 10.0},
        {"bit_weight": 2},
        {"bit_weight": 2**30},
        {"epoch_windows": 3},
        {"epoch_windows": 2**31 - 1},
    ],
)
def test_the_ends_of_each_range_are_within_it(change):
    replace(SPEC, **change)


def test_whole_numbers_and_floats_are_one_spec():
    assert replace(SPEC, learning_rate=1) == replace(SPEC, learning_rate=1.0)
    assert type(replace(SPEC, learning_rate=1).learning_rate) is float
