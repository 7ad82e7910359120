"""The display on a terminal and without one."""

import io

import numpy as np
import pytest
from rich.console import Console

from agents.demo.data import Images
from agents.demo.display import Display, plain_line, render
from agents.demo.plan import demo_plan
from agents.demo.state import DemoState

PLAN = demo_plan(start_ms=60_000, clients=20, windows=3, window_ms=3000, topic_prefix="demo")


@pytest.fixture
def state() -> DemoState:
    return DemoState(PLAN, Images(np.ones((1, 785), dtype=np.float32), np.zeros(1, dtype=int)))


def advance(state: DemoState, window: int) -> None:
    state.accuracy_by_window[window] = 0.5 + window / 10
    state.epsilon_by_cluster = dict.fromkeys(range(4), 2.5 * (window + 1))
    state.release_latency_s += [0.4] * 4
    state.model_latency_s += [0.7]
    state.observe_updates({"accepted": 20 * (window + 1), "late": window})


def text_of(state: DemoState, now_ms: int) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(state, "the title", now_ms))
    return console.export_text()


def test_before_the_first_window_it_counts_down(state: DemoState) -> None:
    text = text_of(state, 52_000)
    assert "begins in 8 s" in text
    assert "no model yet" in text
    assert "the title" in text


def test_it_shows_window_accuracy_epsilon_counts_and_latencies(state: DemoState) -> None:
    advance(state, 0)
    advance(state, 1)
    text = text_of(state, 67_000)
    for part in ("3 of 3", "0.600", "epsilon 5.000 of 8", "cluster 3", "late 1", "0.40 s"):
        assert part in text


def test_after_the_last_window_it_says_so(state: DemoState) -> None:
    assert "all 3 are over" in text_of(state, 70_000)


def test_without_a_terminal_there_is_one_line_a_window(state: DemoState) -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=40), "the title") as display:
        for window in range(3):
            advance(state, window)
            display.show(state, 0)
            display.show(state, 0)
    lines = out.getvalue().splitlines()
    assert lines[0] == "the title"
    assert len(lines) == 4
    assert lines[1].startswith("window 1/3  accuracy 0.500  epsilon 2.500/8  accepted 20")


def test_on_a_terminal_it_is_drawn_in_place(state: DemoState) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    with Display(console, "the title") as display:
        advance(state, 0)
        display.show(state, 61_000)
        drawn = out.getvalue()
        assert "cells released" in drawn
        assert "\x1b[" in drawn
        display.show(state, 61_100)
        assert out.getvalue() == drawn
        display.show_last(state, 61_100)
        assert len(out.getvalue()) > len(drawn)


def test_a_line_names_no_latency_before_there_is_one(state: DemoState) -> None:
    assert plain_line(state).count("none") == 3
