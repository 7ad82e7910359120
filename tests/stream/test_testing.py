from fractions import Fraction

import numpy as np
import pytest

from stream.testing import (
    FakeClock,
    LoopbackProducer,
    SentRecord,
    UnsafeNoNoise,
    insecure_entropy,
)


def test_the_loopback_keeps_records_in_order():
    producer = LoopbackProducer()
    producer.send("updates", 1, b"a", b"1")
    producer.send("updates", 0, b"b", b"2")
    producer.flush(0.0)
    assert producer.sent == [
        SentRecord("updates", 1, b"a", b"1"),
        SentRecord("updates", 0, b"b", b"2"),
    ]


def test_the_clock_stands_still_until_told():
    clock = FakeClock(1_000)
    assert clock() == clock() == 1_000
    assert clock.advance(250) == 1_250
    assert clock() == 1_250


def test_the_clock_does_not_go_back():
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock().advance(-1)


def test_insecure_entropy_repeats_for_a_seed_and_differs_between_calls_and_seeds():
    first, again, other = insecure_entropy(1), insecure_entropy(1), insecure_entropy(2)
    drawn = [first(48), first(48)]
    assert drawn == [again(48), again(48)]
    assert len({*drawn, other(48)}) == 3


@pytest.mark.parametrize("size", [0, 1, 48, 10_000])
def test_insecure_entropy_gives_as_many_bytes_as_asked(size):
    assert len(insecure_entropy(7)(size)) == size


def test_no_noise_is_zeros_of_the_samplers_dtype():
    noise = UnsafeNoNoise().sample(Fraction(10), 5)
    assert noise.dtype == np.int64
    assert noise.tolist() == [0] * 5
