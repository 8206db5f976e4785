"""The server of the page: it only reads, on loopback alone, and answers no page of another site."""

import socket
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from aaml.errors import UserError, bad_value
from aaml.lab.library import Library
from aaml.lab.page import page
from aaml.serve.gate import LOOPBACK, gated
from aaml.serve.listen import PatientServer

Value = TypeVar("Value")
_PAGE = {"Cache-Control": "no-store", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


def create_app(library: Library) -> Starlette:
    """Return the ASGI application: the page, and what its script asks for.

    There is nothing to write and no websocket. What may be asked for is what `library` lists: nothing in a request is
    imported or opened. A page of another site may ask for nothing, and a name that was made to point here is refused.
    """

    def playback(query: "_Query") -> Any:
        key, found = library.playback(
            query.number("episode"), query.number("nodes"), query.number("seed"), query.text("policy")
        )
        return {"key": key, "status": library.status(found)}

    def window(query: "_Query") -> Any:
        found = library.known(query.text("playback"))
        return library.window(found, query.real("start"), query.real("end"), query.number("row"))

    def decisions(query: "_Query") -> Any:
        return library.decisions(library.known(query.text("playback")), query.number("page"))

    def waiting(query: "_Query") -> Any:
        return library.waiting(library.known(query.text("playback")), query.real("at"))

    def explain(query: "_Query") -> Any:
        beside = query.get("beside")
        other = library.known(beside) if beside else None
        return library.explain(library.known(query.text("playback")), query.number("decision"), other)

    return gated(
        [
            Route("/", lambda _: HTMLResponse(page(library), headers=_PAGE)),
            _api("playback", playback),
            _api("window", window),
            _api("decisions", decisions),
            _api("waiting", waiting),
            _api("explain", explain),
            _api("curves", lambda _: library.curves()),
        ],
        LOOPBACK,
        pages=("/",),
        within=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)],
    )


class _Query:
    """The parameters of a request; raises `UserError` for what is missing or none."""

    def __init__(self, request: Request) -> None:
        self.get = request.query_params.get

    def text(self, name: str) -> str:
        return self._read(name, str)

    def number(self, name: str) -> int:
        return self._read(name, int)

    def real(self, name: str) -> float:
        return self._read(name, float)

    def _read(self, name: str, kind: Callable[[str], Value]) -> Value:
        try:
            return kind(self.get(name, ""))
        except ValueError as error:
            raise UserError(f"{name}: {self.get(name)!r} is not accepted; expected a number") from error


def _api(name: str, answer: Callable[[_Query], Any]) -> Route:
    async def respond(request: Request) -> Response:
        try:
            value, status = await run_in_threadpool(answer, _Query(request)), 200
        except UserError as error:
            value, status = {"error": str(error)}, 422
        return Response(msgspec.json.encode(value), status, media_type="application/json")

    return Route(f"/api/{name}", respond)


def serve(library: Library, port: int, host: str = "127.0.0.1") -> None:
    """Serve the page until Ctrl-C or SIGTERM; its address is printed. Raises `UserError` for a port that is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise bad_value("port", port, f"a free port of {host} ({error})") from error
    print(f"http://{host}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
    with listener:
        PatientServer(create_app(library), turn=library.check).run([listener])
