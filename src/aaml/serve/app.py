"""The HTTP service: routes, limits and errors over `SchedulingService`."""

import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from aaml.errors import UserError
from aaml.serve.gate import gated
from aaml.serve.listen import CERTIFIED
from aaml.serve.messages import ExtenderArgs, ExtenderBindingArgs, Problem, ScoreRequest, fold
from aaml.serve.metrics import CONTENT_TYPE, Metrics
from aaml.serve.openapi import document
from aaml.serve.service import PolicyFailedError, SchedulingService

LOG = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Access:
    """Who may ask: with neither a `token` nor `certificates` everybody who reaches the port.

    Otherwise who carries the token as a bearer token, or with `certificates` has shown a certificate to the server,
    which has verified it. `hosts` are the names by which the server may be called, None for any.
    """

    token: str | None = None
    certificates: bool = False
    hosts: Collection[str] | None = None

    @property
    def open(self) -> bool:
        """Whether callers need no credentials."""
        return self.token is None and not self.certificates

    def wrong(self, request: Request) -> str:
        """Return what a request lacks, "" where it may be answered."""
        if self.open or (self.certificates and CERTIFIED in request.scope.get("extensions", {})):
            return ""
        given = request.headers.get("authorization", "").encode()
        if self.token is not None and hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            return ""
        accepted = ["a valid bearer token"] * (self.token is not None) + ["a client certificate"] * self.certificates
        return f"authorization: {' or '.join(accepted)} is needed"

    def check(self, request: Request) -> None:
        """Raise `_RefusedError` for a request that may not be answered."""
        if wrong := self.wrong(request):
            raise _RefusedError(401, wrong)


class _Endpoints:
    """Makes routes that check access, and count and time their answers."""

    def __init__(self, metrics: Metrics, access: Access, max_body_bytes: int) -> None:
        self._metrics, self._access, self._bodies = metrics, access, _Bodies(max_body_bytes)

    def posts(self, path: str, kind: type[Body], answer: Callable[[Body], object], *, aside: bool = False) -> Route:
        """Answer bodies of a kind; `aside` in a thread, where something is waited for."""

        async def respond(request: Request) -> Response:
            async with self._bodies.of(request) as body:
                decoded = _decode(body, kind)
                return _json(await run_in_threadpool(answer, decoded) if aside else answer(decoded))

        return Route(path, self._measured(path, respond), methods=["POST"])

    def gets(self, path: str, answer: Callable[[], Response], *, open_to_all: bool = False) -> Route:
        """Answer requests that say nothing; `open_to_all` whoever they come from."""

        async def respond(_: Request) -> Response:
            return answer()

        return Route(path, self._measured(path, respond, open_to_all=open_to_all), methods=["GET"])

    def _measured(
        self, path: str, respond: Callable[[Request], Awaitable[Response]], *, open_to_all: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            started, response = time.perf_counter(), None
            try:
                if not open_to_all:
                    self._access.check(request)
                response = await respond(request)
            except _RefusedError as error:
                response = _problem(error.status, str(error))
            except UserError as error:
                response = _problem(422, str(error))
            except ClientDisconnect:
                response = _problem(400, "body: the client left before it was complete")
            except PolicyFailedError as error:
                LOG.error("%s: %s", path, error)  # noqa: TRY400  (a line for each request is enough)
                response = _problem(500, str(error))
            finally:
                status = 500 if response is None else response.status_code
                self._metrics.requests.labels(path, str(status)).inc()
                self._metrics.request_duration.labels(path).observe(time.perf_counter() - started)
            return response

        return handle


ANYBODY = Access()


def create_app(
    service: SchedulingService,
    metrics: Metrics,
    *,
    access: Access = ANYBODY,
    max_body_bytes: int = MAX_BODY_BYTES,
    binds: bool = False,
) -> Starlette:
    """Return the ASGI application of all endpoints; without `binds` there is none that binds pods.

    Every endpoint but the probes answers 401 to whom `access` does not let in. A body of more than `max_body_bytes` is
    refused with 413, and with 503 where those of others take four times as much. 403 is for pages of other sites and
    names that are none of `access.hosts`.
    """
    made = _Endpoints(metrics, access, max_body_bytes)

    return gated(
        [
            made.posts("/filter", ExtenderArgs, service.filter),
            made.posts("/prioritize", ExtenderArgs, service.prioritize),
            made.posts("/score", ScoreRequest, service.score),
            *(made.gets(path, lambda: Response("ok"), open_to_all=True) for path in ("/healthz", "/readyz")),
            made.gets("/metrics", lambda: Response(metrics.text(), media_type=CONTENT_TYPE)),
            made.gets("/openapi.json", lambda: _json(document(binds=binds))),
            # Aside: the API server is waited for.
            *([made.posts("/bind", ExtenderBindingArgs, service.bind, aside=True)] if binds else []),
        ],
        access.hosts,
    )
