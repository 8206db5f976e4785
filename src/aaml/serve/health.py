"""Probes and metrics of a scheduler process: /healthz, /readyz and /metrics, answered from a thread of their own."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aaml import threads
from aaml.serve.gate import gated
from aaml.serve.listen import PatientServer, listener
from aaml.serve.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    import threading

Probe = Callable[[], str]
"""A function that returns what is wrong, or "" when all is well."""


def create_probe_app(
    metrics: Callable[[], bytes], healthy: Probe, ready: Probe, hosts: Collection[str] | None = None
) -> Starlette:
    """Return the ASGI application of the three endpoints; `metrics` returns Prometheus' text.

    A probe that returns something wrong is answered with it and status 503, one that returns "" with "ok" and 200. 403
    is for pages of other sites and names that are none of `hosts`.
    """

    def probe(path: str, ask: Probe) -> Route:
        async def respond(_: Request) -> Response:
            wrong = ask()
            return Response(wrong or "ok", 503 if wrong else 200, media_type="text/plain")

        return Route(path, respond, methods=["GET"])

    async def tell(_: Request) -> Response:
        return Response(metrics(), media_type=CONTENT_TYPE)

    return gated(
        [probe("/healthz", healthy), probe("/readyz", ready), Route("/metrics", tell, methods=["GET"])],
        hosts,
    )


class HealthServer:
    """Answers requests in a thread, from the start of a `with` block to its end.

    `port` 0 takes a free port. Raises `UserError` when the address is taken. Should the thread end by itself, the
    process ends: whoever probes it would not hear of it any more.
    """

    def __init__(self, host: str, port: int, app: Starlette) -> None:
        self._listener = listener(host, port, "health-host, health-port")
        self._server = PatientServer(app, timeout_graceful_shutdown=1)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread = threads.start(lambda: self._server.run(sockets=[self._listener]), "health", threads.end_process)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(5.0)
        self._listener.close()
