"""The heads' counters from their text; the loopback endpoint that does not answer well."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from agents.broker import free_port
from agents.demo.watch import count_updates, http_get, parse_updates


def metrics_text(accepted: int, late: int) -> str:
    registry = CollectorRegistry()
    updates = Counter("sdp_updates", "Read.", ["cluster", "outcome"], registry=registry)
    other = Counter("sdp_updates_lost", "Lost.", ["cluster"], registry=registry)
    updates.labels(0, "accepted").inc(accepted)
    updates.labels(3, "accepted").inc(1)
    updates.labels(3, "late").inc(late)
    other.labels(0).inc(99)
    return generate_latest(registry).decode()


@pytest.fixture
def endpoint() -> Iterator[int]:
    """A head's endpoint; any path but /metrics answers 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 503)
            self.end_headers()
            self.wfile.write(metrics_text(10, 2).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_counters_are_added_up_over_clusters() -> None:
    assert parse_updates(metrics_text(10, 2)) == {"accepted": 11, "late": 2}


def test_counters_are_added_up_over_heads(endpoint: int) -> None:
    assert count_updates([endpoint, endpoint]) == {"accepted": 22, "late": 4}


def test_a_process_that_is_not_ready_counts_as_no_answer(endpoint: int) -> None:
    with pytest.raises(OSError, match="503"):
        http_get(endpoint, "/healthz")


def test_a_process_that_is_not_there_counts_as_no_answer() -> None:
    with pytest.raises(OSError, match="refused"):
        http_get(free_port(), "/healthz")
