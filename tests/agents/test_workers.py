"""A worker that cannot start says why, what to do, and ends; one that can is told to stop."""

import contextlib
import dataclasses
import socket
import time

import numpy as np
import pytest

from agents.workers import read_initial_weights
from stream.errors import PlanError
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="workers",
    dimension=4,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=60_000,
    grace_ms=1000,
    release_delay_ms=5000,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=1,
    update_dtype="int8",
    epsilon=4.0,
    delta=1e-6,
    horizon_windows=1000,
    optimizer=OptimizerSpec("sgd", learning_rate=0.1),
    normalizer="expected_clients",
)


def test_without_a_file_the_model_begins_with_zeros():
    weights = read_initial_weights(None, PLAN)
    assert weights.dtype == np.float64
    assert weights.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_weights_of_any_shape_and_real_type_are_flattened(tmp_path, dtype):
    file = tmp_path / "weights.npy"
    np.save(file, np.array([[1, 2], [3, 4]], dtype))
    weights = read_initial_weights(file, PLAN)
    assert weights.dtype == np.float64
    assert weights.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3),
        np.zeros((4, 2)),
        np.array([1, 2, np.nan, 4]),
        np.array([1, 2, -np.inf, 4]),
        np.zeros(4, np.complex128),
        np.array(["1", "2", "3", "4"]),
        np.zeros(4, [("weight", np.float64)]),
    ],
    ids=["short", "long", "nan", "infinite", "complex", "text", "structured"],
)
def test_weights_that_are_not_as_many_real_finite_numbers_are_refused(tmp_path, array):
    file = tmp_path / "weights.npy"
    np.save(file, array)
    with pytest.raises(PlanError, match=r"weights.npy must hold"):
        read_initial_weights(file, PLAN)


def test_pickled_weights_are_refused(tmp_path):
    file = tmp_path / "weights.npy"
    np.save(file, np.array([object()] * 4), allow_pickle=True)
    with pytest.raises(PlanError, match=r"weights.npy cannot be read: Object arrays"):
        read_initial_weights(file, PLAN)


def test_a_file_that_is_no_array_is_refused(tmp_path):
    archive = tmp_path / "weights.npz"
    np.savez(archive, weights=np.zeros(4))
    empty = tmp_path / "empty.npy"
    empty.touch()
    cut = tmp_path / "cut.npy"
    np.save(cut, np.zeros(4))
    cut.write_bytes(cut.read_bytes()[:-1])
    for file in (archive, empty, cut, tmp_path / "missing.npy"):
        with pytest.raises(PlanError, match=f"{file.name} cannot be read"):
            read_initial_weights(file, PLAN)


@pytest.mark.integration
@pytest.mark.parametrize("role", ["head", "global"])
def test_a_worker_without_a_broker_ends_and_says_where_it_looked(deploy, monkeypatch, role):
    deployment = deploy()
    monkeypatch.setattr(deployment, "bootstrap_servers", "127.0.0.1:1")
    monkeypatch.setattr(
        deployment,
        "environment",
        lambda original=deployment.environment: original() | {"SDP_REQUEST_TIMEOUT_S": "1"},
    )
    begun_at = time.monotonic()
    ended = deployment.sdp(role)
    assert ended.returncode == 1
    assert "Kafka does not answer at 127.0.0.1:1" in ended.stderr
    assert "SDP_BOOTSTRAP_SERVERS" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert time.monotonic() - begun_at < 20


@pytest.mark.integration
@pytest.mark.parametrize("role", ["head", "global"])
def test_a_worker_whose_topics_are_missing_names_the_command_that_makes_them(deploy, role):
    deployment = deploy()
    elsewhere = dataclasses.replace(deployment.plan, topic_prefix="nothing-of-this-name")
    deployment.plan_file.write_text(elsewhere.to_toml())
    ended = deployment.sdp(role)
    assert ended.returncode == 2
    assert "missing topics: nothing-of-this-name.ledger" in ended.stderr
    assert "sdp topics create" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.integration
@pytest.mark.parametrize("endpoint", ["operator", "public"])
def test_a_worker_whose_port_is_taken_names_the_port_and_the_setting(deploy, endpoint):
    deployment = deploy()
    ports = {"operator": "0", "public": "0"}
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = ports[endpoint] = str(taken.getsockname()[1])
        ended = deployment.sdp(
            "head", "--operator-port", ports["operator"], "--public-port", ports["public"]
        )
    assert ended.returncode == 2
    assert f"port {port} of 127.0.0.1: Address already in use" in ended.stderr
    assert f"SDP_{endpoint.upper()}_PORT (now {port})" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.integration
@pytest.mark.slow
def test_workers_stop_when_told_though_their_broker_is_away(deploy, native_broker):
    deployment = deploy(servers=native_broker.bootstrap_servers)
    workers = [deployment.start_head(), deployment.start_global()]
    deployment.wait_until_owned(workers[0])
    deployment.eventually("both are well", lambda: all(worker.health() for worker in workers))
    native_broker.kill()
    window = deployment.current_window()
    deployment.eventually("a window passes", lambda: deployment.current_window() > window + 1)
    for worker in workers:
        worker.process.terminate()
    assert [worker.process.wait(20) for worker in workers] == [0, 0]
    assert not any("Traceback" in worker.log.read_text() for worker in workers)
