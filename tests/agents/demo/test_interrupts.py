"""Ctrl-C at any moment."""

import os
import signal

import pytest

from agents.demo.interrupts import CleanUp, Interrupts


def send(number: int) -> None:
    """Signal this very process; Python runs the handler before the call returns."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_keyboard_interrupt(number: int) -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        send(number)


def test_a_held_signal_is_raised_after_the_block() -> None:
    done = []

    def held_then_more(interrupts: Interrupts) -> None:
        with interrupts.held():
            send(signal.SIGINT)
            done.append("in the block")
        done.append("after the block")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        held_then_more(interrupts)
    assert done == ["in the block"]


def test_an_inner_held_block_leaves_the_outer_one_held() -> None:
    done = []

    def held_twice(interrupts: Interrupts) -> None:
        with interrupts.held():
            with interrupts.held():
                send(signal.SIGINT)
            done.append("outer")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        held_twice(interrupts)
    assert done == ["outer"]


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_clean_up_is_not_interrupted() -> None:
    done: list[str] = []

    def leave(interrupts: Interrupts) -> None:
        with CleanUp(interrupts) as cleanup:
            cleanup.callback(done.append, "first step")
            cleanup.callback(send, signal.SIGINT)
            cleanup.callback(done.append, "last step")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        leave(interrupts)
    assert done == ["last step", "first step"]


def test_clean_up_after_an_error_keeps_the_error() -> None:
    done: list[str] = []

    def fail(interrupts: Interrupts) -> None:
        with CleanUp(interrupts) as cleanup:
            cleanup.callback(done.append, "cleaned")
            raise ValueError("the error")

    with Interrupts() as interrupts, pytest.raises(ValueError, match="the error"):
        fail(interrupts)
    assert done == ["cleaned"]
