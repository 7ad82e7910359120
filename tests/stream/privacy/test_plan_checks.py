import math
from dataclasses import dataclass, fields

import numpy as np
import pytest

from stream.errors import PlanError
from stream.privacy.plan_checks import (
    OPTIMIZER_KEYS,
    OptimizerSpec,
    check_assignment,
    check_name,
    require,
    require_positive,
    require_range,
    set_float,
)


@dataclass(frozen=True)
class Owner:
    number: float


@pytest.mark.parametrize("kind", ["", "SGD", "rmsprop"])
def test_an_unknown_optimizer_is_refused_with_those_that_are_known(kind):
    with pytest.raises(PlanError, match=r'\[optimizer\] kind is .*: write "sgd" or "adam"'):
        OptimizerSpec(kind, 0.1)


@pytest.mark.parametrize("rate", [0, -0.1, math.nan, math.inf, True, "0.1", None])
def test_a_learning_rate_must_be_a_positive_number(rate):
    with pytest.raises(PlanError, match=r"\[optimizer\] learning_rate is .*: write a"):
        OptimizerSpec("sgd", rate)


@pytest.mark.parametrize(
    ("kind", "name"), [("sgd", "momentum"), ("adam", "beta1"), ("adam", "beta2")]
)
@pytest.mark.parametrize("value", [-0.1, 1, 1.5, math.nan, math.inf, True])
def test_a_decay_must_be_below_one(kind, name, value):
    with pytest.raises(PlanError, match=rf"\[optimizer\] {name} is .*: write a number"):
        OptimizerSpec(kind, 0.1, **{name: value})


@pytest.mark.parametrize("value", [0, -1e-8, math.nan, math.inf])
def test_the_stabiliser_must_be_positive(value):
    with pytest.raises(PlanError, match=r"\[optimizer\] epsilon is .*: write a finite number"):
        OptimizerSpec("adam", 0.1, epsilon=value)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("sgd", "beta1", 0.5),
        ("sgd", "beta2", 0.5),
        ("sgd", "epsilon", 1e-3),
        ("adam", "momentum", 0.5),
    ],
)
def test_an_option_without_effect_is_refused(kind, name, value):
    with pytest.raises(PlanError, match=rf"{name} has no effect with kind = '{kind}': remove it"):
        OptimizerSpec(kind, 0.1, **{name: value})


def test_every_option_of_an_optimizer_has_a_kind_that_uses_it():
    used = {name for names in OPTIMIZER_KEYS.values() for name in names}
    assert used == {item.name for item in fields(OptimizerSpec)} - {"kind", "learning_rate"}


def test_the_bounds_of_a_range_are_within_it():
    require_range("n", 1, 1, 3)
    require_range("n", 3, 1, 3)


@pytest.mark.parametrize("value", [0, 4, True, 2.0, np.int64(2), "2", None, math.nan])
def test_what_is_no_whole_number_of_the_range_is_refused(value):
    with pytest.raises(PlanError, match=r"n is .*: write a whole number from 1 to 3"):
        require_range("n", value, 1, 3)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_not_finite_and_positive_is_refused(value):
    with pytest.raises(PlanError, match=r"x is .*: write a finite number above 0"):
        require_positive("x", value)


@pytest.mark.parametrize("value", [1, 1.0, np.float64(1.0)])
def test_a_number_becomes_a_plain_float(value):
    owner = Owner(value)
    set_float(owner, "number", "number")
    assert type(owner.number) is float
    assert owner.number == 1.0


@pytest.mark.parametrize("value", [True, "1", None, 1j])
def test_what_is_no_number_does_not_become_a_float(value):
    with pytest.raises(PlanError, match=r"number is .*: write a number"):
        set_float(Owner(value), "number", "number")


def test_a_claim_that_does_not_hold_is_an_error_with_its_message():
    require(True, "never seen")
    with pytest.raises(PlanError, match=r"^seen$"):
        require(False, "seen")


@pytest.mark.parametrize("name", ["a", "A9", "0", "a.b_c-d", "a" * 64])
def test_a_name_that_can_be_part_of_a_topic_is_accepted(name):
    check_name("name", name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a b", "a/b", "ä", "a" * 65, "a\n"])
def test_a_name_that_cannot_be_part_of_a_topic_is_refused(name):
    with pytest.raises(PlanError, match=r"name is .*: write 1 to 64 letters, digits"):
        check_name("name", name)


def test_a_rule_of_assignment_takes_its_own_option_and_no_other():
    check_assignment("hash", "key", (), 2)
    check_assignment("prefix", "", ("a", "b"), 2)
    with pytest.raises(PlanError, match="key must be a text of 1 to 64 bytes"):
        check_assignment("hash", "", (), 2)
    with pytest.raises(PlanError, match="prefixes needs"):
        check_assignment("hash", "key", ("a", "b"), 2)
    with pytest.raises(PlanError, match="key needs"):
        check_assignment("prefix", "key", ("a", "b"), 2)
    with pytest.raises(PlanError, match='write "hash" or "prefix"'):
        check_assignment("data", "", (), 2)
