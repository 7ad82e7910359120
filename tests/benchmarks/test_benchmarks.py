"""The suite itself, with tiny sizes: that it still runs, and that its arithmetic is right."""

import dataclasses
import json
import os
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from scripts import importing_from

from stream.privacy.discrete_gaussian import DiscreteGaussian

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def load():
    """Import a module of the suite, which finds its siblings as a script does."""
    with importing_from(FOLDER) as import_module:
        yield import_module


@pytest.fixture(scope="module")
def measurement(load):
    return load("measurement")


@pytest.fixture(scope="module")
def tiny(measurement):
    return measurement.Effort(repeats=1, samples=100, opendp_samples=1, memory_samples=100)


def check_shape(measurement, results):
    """Each figure is finite, positive and in order."""
    figures = measurement.as_json(results)
    for figure in figures.values():
        assert list(figure) == ["median", "min", "max", "unit"]
        assert 0 < figure["min"] <= figure["median"] <= figure["max"] < np.inf
    return figures


def test_variants_take_turns_and_every_other_round_goes_backwards(measurement):
    calls = []
    variants = {
        name: measurement.Variant(lambda name=name: calls.append(name), items)
        for name, items in (("a", 1), ("b", 2))
    }
    ticks = count(step=10)
    times = measurement.interleaved(variants, 3, clock_ns=lambda: next(ticks))
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert times == {"a": [10.0] * 3, "b": [5.0] * 3}


def test_a_ratio_is_formed_within_its_round(measurement):
    assert measurement.ratios([2.0, 30.0], [1.0, 10.0]) == [2.0, 3.0]


def test_a_figure_is_its_median_minimum_maximum_and_unit(measurement):
    figures = measurement.as_json([measurement.Result("x", "ns", [3.0, 1.0, 9.0])])
    assert figures == {"x": {"median": 3.0, "min": 1.0, "max": 9.0, "unit": "ns"}}


def test_two_figures_of_one_name_are_refused(measurement):
    with pytest.raises(ValueError, match="same name"):
        measurement.as_json([measurement.Result("x", "ns", [1.0])] * 2)


@pytest.mark.parametrize(
    ("sign", "bound", "verdict"),
    [("<=", 2, "ok"), ("<=", 1.9, "MISSED"), (">=", 2, "ok"), (">=", 2.1, "MISSED")],
)
def test_the_median_is_held_against_its_floor(measurement, sign, bound, verdict):
    floor = measurement.Floor(sign, bound)
    result = measurement.Result("x", "ns", [1.0, 2.0, 9.0], floor)
    assert measurement.table([result])[1].split()[-3:] == [sign, f"{bound:g}", verdict]


def test_the_samplers_have_their_figures(load, measurement, tiny):
    sampler = load("sampler")
    ours = {"_discrete": DiscreteGaussian(os.urandom)}
    fake_opendp = measurement.Variant(lambda: sum(range(100)), 1)
    figures = check_shape(
        measurement, [*sampler.speed("1", ours, fake_opendp, tiny), *sampler.memory(ours, tiny)]
    )
    assert set(figures) == {
        "opendp_ns_1",
        "numpy_normal_ns_1",
        "sampler_ns_1_discrete",
        "sampler_vs_opendp_1_discrete",
        "sampler_vs_numpy_normal_1_discrete",
        "sampler_peak_beyond_output_discrete",
    }


def test_the_peak_counts_arrays_that_were_freed_again_and_not_those_of_before(load):
    sampler = load("sampler")
    np.ones(10**7)
    held = np.ones(10**5)
    peak = sampler.peak_bytes(lambda: np.ones(10**6).sum() if held.size else None)
    assert 8e6 <= peak < 8.1e6


def test_the_default_sampler_has_no_suffix_and_numba_may_be_missing(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "stream.privacy.noise_numba", None)
    assert list(load("sampler").sources()) == ["", "_discrete"]


def test_a_client_s_work_has_its_figures(load, measurement, tiny):
    figures = check_shape(measurement, list(load("client_path").client_results(tiny)))
    assert {"client_update_ns", "client_quantize_vs_clip_rint", "client_rotate_ns"} < set(figures)


def test_the_plain_yardstick_clips_scales_and_rounds(load):
    clip_and_rint = load("client_path").clip_and_rint
    grid = clip_and_rint(np.array([6.0, 8.0], np.float32), l2_clip_norm=1.0, grid_l2_bound=100)
    assert grid.tolist() == [60, 80]
    assert grid.dtype == np.int8


def test_a_merge_of_encoded_releases_is_their_sum_bit_by_bit(load):
    merge = load("merge").Merge(clusters=5, dimension=30)
    seconds, stepped = merge.run()
    assert seconds > 0
    plan = merge.plan
    total = sum(merge.vector(cluster).astype(np.int64) for cluster in range(5))
    mean = total[:30] * plan.grid_step / plan.expected_clients
    expected = -plan.optimizer.learning_rate * mean
    assert stepped.snapshot.vector.tobytes() == expected.astype(np.float32).tobytes()
    assert stepped.cells == tuple((cluster, 0) for cluster in range(5))


def test_a_percentile_is_one_of_the_values(load):
    percentile = load("latency").percentile
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([3, 1, 2], 0.99) == 3
    assert percentile([3, 1, 2], 0.5) == 2


def test_the_release_is_held_against_the_median_round_trip(load, measurement):
    latency = load("latency")
    looks = [latency.Look(float(n), 2.0 * n, 0.5) for n in range(1, 101)]
    figures = measurement.as_json(list(latency.figures(looks)))
    assert figures["release_latency_p99"]["median"] == 99
    assert figures["model_latency_max"]["median"] == 200
    assert figures["release_p99_vs_round_trip"]["median"] == 198


@pytest.mark.integration
@pytest.mark.slow
def test_windows_are_followed_from_release_to_model(load, measurement, bootstrap_servers):
    latency = load("latency")
    results = list(latency.figures(latency.measured_looks(bootstrap_servers, 3)))
    assert "release_p99_vs_round_trip" in check_shape(measurement, results)


@pytest.mark.integration
@pytest.mark.slow
def test_a_head_s_event_loop_is_watched_while_it_reads_a_backlog(
    load, measurement, bootstrap_servers
):
    size = load("paused_heads").Load(clusters=2, clients=200, window_ms=300)
    lag = load("loop_lag")
    lags_of_runs = lag.measured_lags(bootstrap_servers, size, rounds=2)
    assert len(lags_of_runs) == 2
    assert all(lags_of_runs)
    figures = check_shape(measurement, list(lag.figures(lags_of_runs)))
    assert set(figures) == {"event_loop_lag_p99", "event_loop_lag_max"}


def test_a_slope_is_the_exponent_of_a_power_law(load):
    slope = load("scale").slope
    assert slope([1, 10, 100], [3, 30, 300]) == pytest.approx(1)
    assert slope([2, 8, 32], [6, 12, 24]) == pytest.approx(0.5)


@pytest.mark.integration
@pytest.mark.slow
def test_scaling_is_measured_and_plotted(load, measurement, bootstrap_servers, tmp_path):
    scale, size = load("scale"), load("paused_heads").Load
    few = {"clients": 50, "window_ms": 400}
    shared = [size(clusters=2, workers=workers, **few) for workers in (1, 2)]
    results = list(scale.sharing_results(bootstrap_servers, shared, rounds=1))
    sweep = dataclasses.replace(
        scale.SWEEPS[0], loads=[size(clusters=1, **few), size(clusters=2, per_message=8, **few)]
    )
    curve = scale.curve_of(bootstrap_servers, sweep, rounds=1)
    assert len(curve.slopes) == 1
    figures = check_shape(measurement, [*results, *list(scale.curve_results(curve))[:-1]])
    workers = [f"scale_workers_{which}" for which in ("1", "2", "2_vs_1")]
    assert list(figures) == [*workers, "scale_clusters_1", "scale_clusters_2"]
    scale.plot(curve, tmp_path / "scale.svg")
    assert "<svg" in (tmp_path / "scale.svg").read_text()


@pytest.mark.integration
@pytest.mark.slow
def test_a_window_is_timed_from_its_end_until_every_cluster_s_release_is_public(
    load, bootstrap_servers
):
    large = load("large_release")
    plan = large._plan(dimension=1000, clusters=2, window_ms=2000)
    seconds, peak_mib = large.measured_releases(bootstrap_servers, plan, windows=2)
    assert len(seconds) == 2
    assert min(seconds) >= plan.release_delay_ms / 1000
    assert peak_mib > 0


def test_the_whole_run_is_written_as_a_table_and_as_json(
    load, measurement, monkeypatch, capsys, tmp_path
):
    run = load("run")
    for name in run.ONE_THREAD:
        monkeypatch.setenv(name, "7")
    efforts = []

    def measured(effort):
        assert os.environ["OMP_NUM_THREADS"] == "1"
        efforts.append(effort)
        yield measurement.Result("x", "ns", [1.0], measurement.Floor("<=", 0.5))

    output = tmp_path / "bench.json"
    monkeypatch.setattr(run, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["run.py", "--quick", "--output", str(output)])
    run.main()
    assert efforts == [run.QUICK]
    assert json.loads(output.read_text()) == {
        "x": {"median": 1.0, "min": 1.0, "max": 1.0, "unit": "ns"}
    }
    assert "0 of 1 floors reached" in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.slow
def test_a_head_is_measured_against_a_consumer_that_only_sums(load, measurement, bootstrap_servers):
    throughput = load("throughput")
    size = throughput.Size("10KB", 1000, 50, 0.5, 1, per_message=8)
    results = list(throughput.size_results(bootstrap_servers, size, rounds=2))
    figures = check_shape(measurement, results)
    assert set(figures) == {
        f"{name}_10KB" for name in ("head_vs_limit", "cpu_vs_limit", "head", "head_peak")
    } | {"batch8_vs_single", "head_peak_batch8"}
    assert figures["head_10KB"]["unit"] == "updates/s"


def test_what_is_compared_takes_turns(load):
    told = []

    def run(name):
        told.append(name)
        return {"seconds": len(told)}

    runs = [lambda: run("a"), lambda: run("b")]
    rounds = load("throughput").in_turns(runs, 3)
    assert "".join(told) == "ab" + "ba" + "ab"
    assert rounds == [
        [{"seconds": 1}, {"seconds": 2}],
        [{"seconds": 4}, {"seconds": 3}],
        [{"seconds": 5}, {"seconds": 6}],
    ]
