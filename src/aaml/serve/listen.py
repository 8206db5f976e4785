"""The HTTP server below our services: it holds a limited number of clients, and waits for none for ever."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aaml.errors import bad_value

MOST_CONNECTIONS = 256
CERTIFIED = "tls"
"""The extension of a request's scope whose client has shown a certificate of the authority that the server trusts."""
_LOOK_EVERY = 10  # turns of uvicorn's loop, of 0.1 s each


def listener(host: str, port: int, field: str) -> socket.socket:
    """Return a socket that listens, IPv6 too where the host says so; `::` takes both. `port` 0 takes a free one.

    Raises `UserError` for the setting `field` where the address is none or taken.
    """
    six = ":" in host
    address = f"[{host}]:{port}" if six else f"{host}:{port}"
    try:
        made = socket.create_server(
            (host, port), family=socket.AF_INET6 if six else socket.AF_INET, dualstack_ipv6=host == "::"
        )
    except (OSError, ValueError, OverflowError) as error:
        raise bad_value(field, address, f"a free address to listen on ({error})") from error
    # Accepted sockets inherit it. Without it a reply's body waits for the client's delayed acknowledgement (40 ms) of
    # its head: asyncio turns Nagle off only on sockets that were made with the protocol named.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class _TimedConnection(H11Protocol):
    """A connection that knows since when its client has kept the server waiting."""

    turn: tuple[object, float] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many: an open one costs a file handle."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.getpeercert():
            self.app = _certified(self.app)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()

    def waited_s(self, now_s: float) -> float:
        """Return for how long the rest of a request, or the reading of an answer, has been waited for."""
        unread = self.transport.get_write_buffer_size() > 0
        if not unread and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self.turn = None
        elif self.turn is None or self.turn[0] is not self.cycle:
            self.turn = (self.cycle, now_s)
        return now_s - self.turn[1] if self.turn else 0.0

    def hang_up(self) -> None:
        """End the connection at once."""
        self.transport.abort()


def _certified(app: Any) -> Any:
    """Tell the application by ASGI's TLS extension that the client has shown a certificate, which TLS has verified."""

    async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {"extensions": {**scope.get("extensions", {}), CERTIFIED: {}}}, receive, send)

    return with_certificate


class PatientServer(uvicorn.Server):
    """uvicorn's server, which hangs up on a client that takes longer than `client_s` to ask or to read the answer.

    Requests of more than 64 KiB of headers are refused, and more than `MOST_CONNECTIONS` at once too. `turn` is called
    once a second, whether anybody asks or not; what it raises ends the server, and `run` raises it.
    """

    def __init__(
        self, app: Any, *, client_s: float = 30.0, turn: Callable[[], object] = lambda: None, **options: Any
    ) -> None:
        options = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none", **options}
        super().__init__(uvicorn.Config(app, http=_TimedConnection, server_header=False, **options))
        self._client_s, self._turn = client_s, turn
        self._failed: Exception | None = None

    async def on_tick(self, counter: int) -> bool:
        """Take a turn once a second, and look whom it has waited for too long."""
        if counter % _LOOK_EVERY == 0:
            now_s = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, _TimedConnection) and connection.waited_s(now_s) > self._client_s:
                    connection.hang_up()
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  (raised again where the server was started)
                self._failed = error
                return True
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer until told to end, and raise what has ended the turns."""
        await super().serve(sockets)
        if self._failed is not None:
            raise self._failed
