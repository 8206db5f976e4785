"""The learner's end of the socket over which the plugin inside kube-scheduler talks to it."""

import logging
import selectors
import socket
import time
from collections import deque
from pathlib import Path

import msgspec

from aaml.errors import UserError
from aaml.plugin.messages import DECODER, VERSION, Bind, ClusterChanges, Explore, Hello, TakenChoice

_LOG = logging.getLogger("aaml")
_READ_BYTES = 1 << 20
_LONGEST_LINE = 64 << 20  # bytes: the plugin tells a large cluster in pieces
_MODE = 0o660  # a group may be shared by two containers of a pod


class Listener:
    """Listens at a Unix socket to one plugin at a time; all methods belong to one thread.

    A second plugin waits until the first one is gone. One whose words make no sense is hung up on, told of in one line;
    it connects again and begins anew. Raises `UserError` where nobody can listen at `path`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = _listen(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connection: socket.socket | None = None
        self._rest = bytearray()  # the beginning of a line
        self._lines: deque[bytes] = deque()
        self._greeted = False
        self._logged: set[str] = set()

    @property
    def connected(self) -> bool:
        """Whether a plugin is there."""
        return self._connection is not None

    def next(self, timeout_s: float) -> Hello | ClusterChanges | TakenChoice | Bind | None:
        """Return the next message; None where there is none within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            while self._lines:
                if (message := self._message(self._lines.popleft())) is not None:
                    return message
            left_s = deadline_s - time.monotonic()
            ready = self._selector.select(max(left_s, 0.0))
            if not ready and left_s <= 0.0:
                return None
            if ready and self._connection is not None:
                self._read(self._connection)
            elif ready:
                self._accept()

    def say(self, message: Explore) -> bool:
        """Send the plugin a message; returns whether it is connected."""
        if self._connection is None or not self._greeted:
            return False
        line = msgspec.json.encode(message) + b"\n"
        try:
            sent = self._connection.send(line)
        except OSError:  # it is gone, which its last word will tell, or busy
            return False
        if sent < len(line):
            self.hang_up("it does not listen")
        return sent == len(line)

    def close(self) -> None:
        """Hang up, and listen no more."""
        self._hang_up()
        self._selector.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def hang_up(self, why: str) -> None:
        """End the connection for a reason, which is logged once; the plugin begins anew."""
        if why not in self._logged:
            self._logged.add(why)
            _LOG.warning("the plugin at %s: %s; it is to connect again", self.path, why)
        self._hang_up()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        self._connection, self._greeted = connection, False
        self._selector.unregister(self._listener)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            _LOG.info("the plugin at %s is gone; what is learned is kept until it is back", self.path)
            self._hang_up()
            return
        end = data.rfind(b"\n")
        if end < 0:
            self._rest += data
            if len(self._rest) > _LONGEST_LINE:
                self.hang_up(f"a line is longer than {_LONGEST_LINE >> 20} MiB")
            return
        self._lines.extend((bytes(self._rest) + data[:end]).split(b"\n"))
        self._rest = bytearray(data[end + 1 :])

    def _message(self, line: bytes) -> Hello | ClusterChanges | TakenChoice | Bind | None:
        try:
            message: Hello | ClusterChanges | TakenChoice | Bind = DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.hang_up(f"a message is damaged ({error})")
            return None
        if isinstance(message, Hello):
            if message.version != VERSION:
                self.hang_up(f"it speaks version {message.version}; expected {VERSION}: export the plugin anew")
                return None
            self._greeted = True
        elif not self._greeted:
            self.hang_up("its first message is no hello")
            return None
        return message

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._connection.close()
        self._connection, self._rest = None, bytearray()
        self._lines.clear()


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`; one that a learner left behind that was killed is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                else:
                    raise UserError(f"socket {path}: another process listens there; expected a path of its own")
        path.parent.mkdir(parents=True, exist_ok=True)
        listener.bind(str(path))
        path.chmod(_MODE)
        listener.listen()
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise UserError(f"socket {path}: {reason}; expected a path for a Unix socket, of 107 bytes at most") from error
    except UserError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
