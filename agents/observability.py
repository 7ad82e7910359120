"""The HTTP endpoints of a process: the operator's, inside the privacy boundary, and the public.

Both run on threads of their own, so that a busy event loop is still seen, and `/healthz` says
whether that loop is alive. The public one says no more than that.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from threading import Thread
from typing import cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from stream.metrics import Registries

# An event loop that has not come round for so long is stuck.
_STALLED_S = 30.0
# A connection that says nothing for so long is closed.
_SILENT_S = 10.0
# How soon a server notices that it should stop.
_POLL_S = 0.1

_StartResponse = Callable[[str, list[tuple[str, str]]], object]
_Application = Callable[[dict[str, object], _StartResponse], Iterable[bytes]]


@dataclass(slots=True)
class Health:
    """What `/healthz` tells; the loop's owner keeps it up to date.

    Attributes:
        role: ``head`` or ``global``.
        details: Anything that helps the operator; no client data.
        is_ready: Whether the process has what it needs to do its work.
    """

    role: str
    details: dict[str, object] = field(default_factory=dict)
    is_ready: bool = False
    _beat: float = field(default_factory=time.monotonic)

    def beat(self) -> None:
        """Note that the event loop has come round."""
        self._beat = time.monotonic()

    def status(self) -> str:
        """Return ``ok``, ``starting`` or ``stalled``."""
        if time.monotonic() - self._beat >= _STALLED_S:
            return "stalled"
        return "ok" if self.is_ready else "starting"


class Endpoints:
    """The two HTTP servers of a process."""

    def __init__(
        self,
        registries: Registries,
        health: Health,
        *,
        host: str,
        operator_port: int,
        public_port: int,
    ) -> None:
        """Bind both ports.

        Raises:
            OSError: a port is taken.
        """
        whole = _Merged((registries.operator, registries.public))
        operator = _application(whole, health, is_public=False)
        public = _application(registries.public, health, is_public=True)
        self._servers = [_serve(operator, host, operator_port)]
        try:
            self._servers.append(_serve(public, host, public_port))
        except OSError:
            self.stop()
            raise

    @property
    def ports(self) -> tuple[int, int]:
        """The ports of the operator's and the public endpoint."""
        operator, public = (server.server_port for server in self._servers)
        return operator, public

    def stop(self) -> None:
        """Close both ports."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Merged(CollectorRegistry):
    """Several registries read as one."""

    def __init__(self, parts: Iterable[CollectorRegistry]) -> None:
        super().__init__()
        for part in parts:
            self.register(part)


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each connection on a thread, so that a slow one holds up no other."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Access logs would drown what an operator looks for."""

    timeout = _SILENT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def _serve(application: _Application, host: str, port: int) -> WSGIServer:
    try:
        server = make_server(host, port, application, _Server, _Quiet)
    except OSError as error:
        # What the system says of it does not tell which port.
        raise OSError(error.errno, f"port {port} of {host}: {error.strerror}") from error
    name = f"http-{server.server_port}"
    Thread(target=server.serve_forever, args=(_POLL_S,), name=name, daemon=True).start()
    return server


def _application(registry: CollectorRegistry, health: Health, *, is_public: bool) -> _Application:
    metrics = cast(_Application, make_wsgi_app(registry))

    def application(environ: dict[str, object], start_response: _StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/healthz":
            status = health.status()
            # Why a cluster is refused may tell of offsets, hence of how many took part.
            details = {} if is_public else health.details
            code = "200 OK" if status == "ok" else "503 Service Unavailable"
            start_response(code, [("Content-Type", "application/json")])
            return [json.dumps({"role": health.role, "status": status} | details).encode() + b"\n"]
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"try /metrics or /healthz\n"]

    return application


@contextmanager
def timed(observe: Callable[[float], None]) -> Iterator[None]:
    """Tell ``observe`` how many seconds a block took, also where it failed."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        observe(time.perf_counter() - begin)
