"""A TCP proxy on loopback that cuts, slows, silences or resets what goes through it."""

import selectors
import socket
import struct
import threading
import time
from functools import partial
from types import TracebackType
from typing import Literal, Self

from aaml.threads import ThreadError, start

Mode = Literal["pass", "cut", "slow", "silent"]

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.05
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: close() sends RST instead of FIN


class Proxy:
    """Hands connections to `port` of loopback on to the port `target`, from the start of a `with` block to its end.

    `mode` says how: "pass" as they are; "cut" closes all connections and refuses new ones; "slow" holds every piece
    back for `delay_s`; "silent" takes everything and hands nothing on, as a cable that was pulled out does. What was
    held back while it was silent is handed on later. It knows nothing of TLS or HTTP.
    """

    def __init__(self, target: int, delay_s: float = 0.2) -> None:
        self._target, self._delay_s = target, delay_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._mode: Mode = "pass"
        self._ended = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._failed: list[ThreadError] = []

    @property
    def mode(self) -> Mode:
        """How connections are treated now; set it to change that."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "cut":
            self._close_all(reset=False)

    def reset(self) -> None:
        """Break every connection off with RST, as a firewall or a restarted router does."""
        self._close_all(reset=True)

    def __enter__(self) -> Self:
        start(self._accept, "proxy", self._failed.append)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._listener.close()
        self._close_all(reset=False)
        if kind is None and self._failed:
            raise self._failed[0]

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed: the proxy ends
                return
            if self._mode == "cut":
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
            except OSError:  # the server is down, and so it looks from here
                near.close()
                continue
            pair = (near, far)
            with self._lock:
                self._pairs.add(pair)
            start(partial(self._carry, pair), "proxied", self._failed.append)

    def _carry(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Forward bytes in both directions until either side closes."""
        near, far = pair
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(near, selectors.EVENT_READ, far)
                ready.register(far, selectors.EVENT_READ, near)
                while pair in self._pairs:  # sockets that another thread has closed are never ready again
                    come = ready.select(_LOOK_S)
                    if self._mode == "silent":
                        time.sleep(_LOOK_S)
                        continue
                    for key, _ in come:
                        source, drain = key.fileobj, key.data
                        if not isinstance(source, socket.socket) or not (piece := source.recv(_CHUNK_BYTES)):
                            return
                        if self._mode == "slow":
                            time.sleep(self._delay_s)
                        drain.sendall(piece)
        except (OSError, ValueError):  # a side was closed or reset
            return
        finally:
            self._close(pair, reset=False)

    def _close_all(self, *, reset: bool) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._close(pair, reset=reset)

    def _close(self, pair: tuple[socket.socket, socket.socket], *, reset: bool) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for each in pair:
            try:
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                else:
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
                each.close()
            except OSError:  # closed already
                each.close()
