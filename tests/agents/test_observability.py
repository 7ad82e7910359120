import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client import Counter, Gauge

from agents import observability
from agents.observability import Endpoints, Health, timed
from stream.ledger_chain import genesis
from stream.metrics import HeadMetrics, Registries
from stream.privacy.plan import OptimizerSpec, PrivacyPlan

PLAN = PrivacyPlan(
    name="observability",
    dimension=4,
    cluster_count=2,
    assignment="hash",
    assignment_key="public",
    expected_clients=10,
    start_ms=0,
    window_length_ms=1000,
    grace_ms=100,
    release_delay_ms=300,
    l2_clip_norm=1.0,
    grid_l2_bound=100,
    count_weight=10,
    update_dtype="int8",
    epsilon=8.0,
    delta=1e-5,
    horizon_windows=2,
    optimizer=OptimizerSpec("sgd", 0.1),
    normalizer="expected_clients",
)


@dataclass
class Process:
    """The endpoints of a process, and what they tell of."""

    registries: Registries
    health: Health
    endpoints: Endpoints

    def get(self, path: str, *, public: bool = False) -> tuple[int, str]:
        port = self.endpoints.ports[public]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def process() -> Iterator[Process]:
    registries, health = Registries(PLAN), Health("head")
    endpoints = Endpoints(registries, health, host="127.0.0.1", operator_port=0, public_port=0)
    yield Process(registries, health, endpoints)
    endpoints.stop()


def test_the_operator_sees_both_registries_and_the_public_only_its_own(process):
    Counter("sdp_inside", "Inside.", registry=process.registries.operator).inc(3)
    Gauge("sdp_outside", "Outside.", registry=process.registries.public).set(4)
    status, inside = process.get("/metrics")
    assert status == 200
    assert "sdp_inside_total 3.0" in inside
    assert "sdp_outside 4.0" in inside
    status, outside = process.get("/metrics", public=True)
    assert status == 200
    assert "sdp_outside 4.0" in outside
    assert "sdp_inside" not in outside


def test_nothing_that_a_head_counts_is_on_the_public_port(process):
    newest = genesis(PLAN, 0, 0, 0, 0)
    HeadMetrics(process.registries, PLAN).observe_opened(0, newest, 0, 3)
    inside, outside = process.get("/metrics")[1], process.get("/metrics", public=True)[1]
    assert 'sdp_updates_total{cluster="0",outcome="accepted"} 0.0' in inside
    assert "sdp_updates" not in outside
    assert "sdp_budget_epsilon 8.0" in outside


def test_a_process_is_unwell_until_it_is_ready(process):
    status, body = process.get("/healthz")
    assert status == 503
    assert json.loads(body) == {"role": "head", "status": "starting"}
    process.health.is_ready = True
    status, body = process.get("/healthz")
    assert status == 200
    assert json.loads(body) == {"role": "head", "status": "ok"}


def test_a_loop_that_does_not_come_round_is_stalled(process, monkeypatch):
    process.health.is_ready = True
    monkeypatch.setattr(observability, "_STALLED_S", 0.0)
    status, body = process.get("/healthz")
    assert status == 503
    assert json.loads(body)["status"] == "stalled"
    monkeypatch.undo()
    process.health.beat()
    assert process.get("/healthz")[0] == 200


def test_a_loop_is_stalled_after_half_a_minute_and_well_again_after_a_beat(monkeypatch):
    now = 100.0
    monkeypatch.setattr(observability.time, "monotonic", lambda: now)
    health = Health("global", is_ready=True)
    health.beat()
    now = 129.9
    assert health.status() == "ok"
    now = 130.0
    assert health.status() == "stalled"
    health.beat()
    assert health.status() == "ok"


def test_details_are_for_the_operator_only(process):
    process.health.details = {"clusters": [0], "refused": {"1": "12 updates behind"}}
    process.health.is_ready = True
    assert json.loads(process.get("/healthz")[1])["refused"] == {"1": "12 updates behind"}
    status, body = process.get("/healthz", public=True)
    assert status == 200
    assert json.loads(body) == {"role": "head", "status": "ok"}


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("path", ["/", "/metricsx", "/healthz/", "/favicon.ico"])
def test_other_paths_are_not_found_and_say_what_there_is(process, path, public):
    status, body = process.get(path, public=public)
    assert (status, body) == (404, "try /metrics or /healthz\n")


def test_a_connection_that_says_nothing_holds_up_no_one(process):
    with socket.create_connection(("127.0.0.1", process.endpoints.ports[0]), timeout=5):
        process.health.is_ready = True
        assert process.get("/healthz")[0] == 200


def test_free_ports_are_taken_and_told(process):
    operator, public = process.endpoints.ports
    assert operator != public
    assert operator > 0
    assert public > 0


def test_a_port_that_is_taken_is_an_error_and_leaves_none_open(process):
    operator, public = process.endpoints.ports
    with pytest.raises(OSError, match="in use"):
        Endpoints(
            process.registries,
            process.health,
            host="127.0.0.1",
            operator_port=0,
            public_port=public,
        )
    with pytest.raises(OSError, match="in use"):
        Endpoints(
            process.registries,
            process.health,
            host="127.0.0.1",
            operator_port=operator,
            public_port=0,
        )


def test_after_a_stop_both_ports_are_closed():
    registries, health = Registries(PLAN), Health("head")
    endpoints = Endpoints(registries, health, host="127.0.0.1", operator_port=0, public_port=0)
    ports = endpoints.ports
    endpoints.stop()
    for port in ports:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=2)


def test_a_block_is_timed_also_where_it_fails(monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(observability.time, "perf_counter", lambda: next(clock))
    told = []
    with timed(told.append):
        pass
    with pytest.raises(ValueError, match="of the block"), timed(told.append):
        raise ValueError("of the block")
    assert told == [2.5, 1.0]
