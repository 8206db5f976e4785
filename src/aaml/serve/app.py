"""The HTTP service: routes, limits and errors over `SchedulingService`."""

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from aaml.errors import UserError
from aaml.serve.gate import gated
from aaml.serve.messages import ExtenderArgs, ExtenderBindingArgs, Problem, ScoreRequest, fold
from aaml.serve.metrics import CONTENT_TYPE, Metrics
from aaml.serve.openapi import document
from aaml.serve.service import SchedulingService

Body = TypeVar("Body")
MAX_BODY_BYTES = 64 * 1024 * 1024  # 5,000 full nodes are about 15 MB
_BODIES = 4  # of the largest kind that are held at once, all requests together


class _RefusedError(Exception):
    """A request that gets a 4xx with one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _problem(status: int, message: str) -> Response:
    return _json(Problem(" ".join(message.split())), status)


class _Bodies:
    """The bodies that are held: one of at most `limit_bytes`, all together of `_BODIES` times as many."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._held_bytes = limit_bytes, 0

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """Yield a request's body, which counts until the end of the block.

        Raises `_RefusedError` as soon as it is known to be larger than there is room for.
        """
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit_bytes:
            raise _RefusedError(413, f"body: {declared} bytes is not accepted; expected at most {self._limit_bytes}")
        parts, size = [], 0
        try:
            async for part in request.stream():
                size += len(part)
                self._held_bytes += len(part)
                if size > self._limit_bytes:
                    raise _RefusedError(413, f"body: more than {self._limit_bytes} bytes is not accepted")
                if self._held_bytes > _BODIES * self._limit_bytes:
                    raise _RefusedError(503, "body: too many requests at once; try again")
                parts.append(part)
            yield b"".join(parts)
        finally:
            self._held_bytes -= size


def _decode(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body if kind is ScoreRequest else fold(body), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _RefusedError(400, f"body: {error}") from error
    except RecursionError as error:
        raise _RefusedError(400, "body: nested too deeply") from error


class _Endpoints:
    """Makes routes that ask for the token and count and time their answers."""

    def __init__(self, metrics: Metrics, token: str | None, max_body_bytes: int) -> None:
        self._metrics, self._token, self._bodies = metrics, token, _Bodies(max_body_bytes)

    def posts(self, path: str, kind: type[Body], answer: Callable[[Body], object], *, aside: bool = False) -> Route:
        """Answer bodies of a kind; `aside` in a thread, where something is waited for."""

        async def respond(request: Request) -> Response:
            async with self._bodies.of(request) as body:
                asked = _decode(body, kind)
                return _json(await run_in_threadpool(answer, asked) if aside else answer(asked))

        return Route(path, self._measured(path, respond), methods=["POST"])

    def gets(self, path: str, answer: Callable[[], Response], *, open_to_all: bool = False) -> Route:
        """Answer requests that say nothing; `open_to_all` without the token."""

        async def respond(_: Request) -> Response:
            return answer()

        return Route(path, self._measured(path, respond, open_to_all=open_to_all), methods=["GET"])

    def _measured(
        self, path: str, respond: Callable[[Request], Awaitable[Response]], *, open_to_all: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            started = time.perf_counter()
            try:
                if not open_to_all:
                    self._guard(request)
                response = await respond(request)
            except _RefusedError as error:
                response = _problem(error.status, str(error))
            except UserError as error:
                response = _problem(422, str(error))
            except ClientDisconnect:
                response = _problem(400, "body: the client left before it was complete")
            self._metrics.requests.labels(path, str(response.status_code)).inc()
            self._metrics.request_duration.labels(path).observe(time.perf_counter() - started)
            return response

        return handle

    def _guard(self, request: Request) -> None:
        if self._token is None:
            return
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            raise _RefusedError(401, "authorization: a valid bearer token is needed")


def create_app(
    service: SchedulingService,
    metrics: Metrics,
    *,
    token: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """Return the ASGI application of all endpoints.

    With `token` every endpoint but the probes answers 401 unless a request carries it as a bearer token. A body of more
    than `max_body_bytes` is refused with 413, and with 503 where those of others take four times as much. 403 is for
    pages of other sites and names that are none of `hosts`.
    """
    made = _Endpoints(metrics, token, max_body_bytes)

    def readyz() -> Response:
        return Response("ok") if service.ready else Response("the watch cache is not filled yet", 503)

    return gated(
        [
            made.posts("/filter", ExtenderArgs, service.filter),
            made.posts("/prioritize", ExtenderArgs, service.prioritize),
            made.posts("/bind", ExtenderBindingArgs, service.bind, aside=True),  # the API server is waited for
            made.posts("/score", ScoreRequest, service.score),
            made.gets("/healthz", lambda: Response("ok"), open_to_all=True),
            made.gets("/readyz", readyz, open_to_all=True),
            made.gets("/metrics", lambda: Response(metrics.text(), media_type=CONTENT_TYPE)),
            made.gets("/openapi.json", lambda: _json(document())),
        ],
        hosts,
    )
