"""The report's keys, the verdict, the table, the picture, percentiles."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from agents.demo.data import Images
from agents.demo.plan import demo_plan
from agents.demo.report import (
    DemoReport,
    Latency,
    LedgerFindings,
    draw_png,
    failures,
    make_report,
    percentile,
    summary_table,
)
from agents.demo.state import DemoState

CONTRACT = {
    "broker", "windows", "clusters", "cells_released", "cells_released_twice", "ledger_verified",
    "test_accuracy", "test_accuracy_without_privacy", "epsilon", "epsilon_independent", "delta",
    "updates_accepted", "updates_rejected", "release_latency_s", "model_latency_s", "seconds",
}  # fmt: skip


@pytest.fixture
def report() -> DemoReport:
    plan = demo_plan(start_ms=0, clients=20, windows=3, window_ms=3000, topic_prefix="demo")
    state = DemoState(plan, Images(np.ones((1, 785), dtype=np.float32), np.zeros(1, dtype=int)))
    state.digest_by_cell = {(c, w): bytes(32) for c in range(4) for w in range(3)}
    state.accuracy_by_window = {0: 0.5, 2: 0.85}
    state.epsilon_by_window = {0: 4.0, 1: 6.0, 2: 7.99}
    state.release_latency_s = [0.4] * 11 + [0.9]
    state.model_latency_s = [0.7, 0.8]
    state.observe_updates({"accepted": 58, "late": 2})
    findings = LedgerFindings(True, (), 7.999, 7.998)
    return make_report(state, findings, broker="native", baseline=0.9, seconds=12.3456)


def test_the_json_has_every_key_of_the_contract(report: DemoReport) -> None:
    value = json.loads(report.to_json())
    assert value.keys() >= CONTRACT
    assert value["release_latency_s"] == {"p50": 0.4, "p99": 0.9, "max": 0.9}
    assert value["updates_rejected"] == {"late": 2}
    assert value["accuracy_by_window"] == [0.5, None, 0.85]


def test_a_run_without_models_still_makes_a_report(report: DemoReport) -> None:
    empty = replace(report, test_accuracy=None, model_latency_s=Latency.of([]))
    assert json.loads(empty.to_json())["model_latency_s"] == {"p50": None, "p99": None, "max": None}
    assert failures(empty, 0.0, 8.0) == ["no model was trained"]


def test_a_good_run_has_no_failures(report: DemoReport) -> None:
    assert failures(report, 0.80, 8.0) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cells_released": 11}, "11 of 12 cells"),
        ({"cells_released_twice": 1}, "released twice"),
        ({"ledger_verified": False, "ledger_problems": ("cluster 2: gap",)}, "cluster 2: gap"),
        ({"epsilon": 8.01}, "epsilon 8.01"),
        ({"epsilon": 0.0}, "epsilon 0"),
        ({"test_accuracy": 0.79}, "0.790 is below 0.8"),
    ],
)
def test_each_failure_is_named(report: DemoReport, change: dict[str, object], words: str) -> None:
    (failure,) = failures(replace(report, **change), 0.80, 8.0)  # type: ignore[arg-type]
    assert words in failure


def test_the_table_shows_what_was_measured(report: DemoReport) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(summary_table(report))
    text = console.export_text()
    for part in ("12 of 12", "verified", "0.850", "0.900", "late 2", "p99 0.90 s", "native"):
        assert part in text


def test_the_picture_is_a_png(report: DemoReport, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    draw_png(path, report, [0.6, 0.8, 0.9])
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 10_000


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1), (50, 5), (51, 6), (90, 9), (99, 10), (100, 10)]
)
def test_percentiles_are_of_the_nearest_rank(percent: float, expected: int) -> None:
    assert percentile([3, 1, 2, 10, 9, 8, 7, 6, 5, 4], percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_there_is_no_percentile_of_nothing(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)
