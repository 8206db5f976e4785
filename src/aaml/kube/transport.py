"""HTTP to a Kubernetes API server: the official client's authentication and connections, JSON bytes in and out.

Threads share one `Transport`. Bodies are always read to the end: an unread one costs a new TLS connection a request.
"""

import logging
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import yaml

from aaml.errors import UserError
from aaml.extras import lazily
from aaml.kube.async_writes import AsyncWriter, WriteQueue
from aaml.kube.connection import Answer, Connections
from aaml.kube.objects import wire
from aaml.kube.tls import ResumingContext

if TYPE_CHECKING:
    import kubernetes
    import urllib3
else:  # they come with an extra, and most of a second passes until they are there
    kubernetes, urllib3 = map(lazily, ("kubernetes", "urllib3"))

log = logging.getLogger(__name__)
JSON = "application/json"
_AGENT = "aaml"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_CHUNK_BYTES = 1 << 16
_CONNECT_S = 5.0
_FIRST_ERROR = 400
NOT_FOUND, CONFLICT = 404, 409
"""Statuses of refusals: there is no such object, or it is there already or in another version."""
_PATH_CHARACTERS = "/:@!$&'()*+,;=%?"  # besides letters, digits and -._~; a path may bring its query
_READ_BY_TLS = ("ca_certs", "ca_cert_data", "cert_file", "key_file")  # urllib3 would read them for each connection
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class ApiError(Exception):
    """The API server refused a request: HTTP status, the reason and message of its `Status`, and its `Retry-After`."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def anonymous(self) -> bool:
        """Whether the request was refused because it had no credentials."""
        return self.status == 403 and '"system:anonymous"' in self.message


@contextmanager
def allowing(*statuses: int) -> Iterator[None]:
    """Let the block end without an error where the API server refuses a request of it with one of these statuses."""
    try:
        yield
    except ApiError as error:
        if error.status not in statuses:
            raise


class Unreachable(Exception):  # noqa: N818  (a state of the server, as the reader of a log would call it)
    """No answer: refused, timed out or cut off. Where the request was `sent`, it may have been carried out."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class NoCredentials(Unreachable):
    """What the kubeconfig or the pod's service account names as credentials cannot be read now."""


class _Silent(Unreachable):
    """Nothing came for as long as was waited."""


class Watch:
    """An open watch. `lines` blocks; `cut` ends it from another thread."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._cut = False

    def lines(self) -> Iterator[list[bytes]]:
        """Yield the complete lines of each chunk as it arrives, until the watch ends.

        It ends by the server, by `cut`, or after the silence that `Transport.watch` was given. Raises `Unreachable`
        when the connection breaks or ends within a line.
        """
        rest = b""
        try:
            with _network():
                for chunk in self._response.stream(_CHUNK_BYTES, decode_content=True):
                    if self._cut:  # Python's TLS sockets forget their keys at a shutdown: this may be ciphertext
                        return
                    *complete, rest = (rest + chunk).split(b"\n")
                    lines = [line for line in complete if line]
                    if lines:
                        yield lines
        except _Silent:
            pass  # nothing has changed, or nobody is there any more: the next request tells
        except Unreachable:
            if not self._cut:
                raise
        if rest and not self._cut:
            raise Unreachable("the watch ended in the middle of a line")

    def cut(self) -> None:
        """Make `lines` end now. Does nothing when it has ended already."""
        self._cut = True
        try:
            self._response.shutdown()
        except (RuntimeError, ValueError, OSError):
            return  # the connection is closed already, which is what was wanted

    def close(self) -> None:
        """Close the connection: what is left of the stream is not read."""
        self._response.close()


class Transport:
    """A connection pool to one API server, for `connections` requests at a time."""

    def __init__(
        self,
        kubeconfig: Path | str | None = None,
        *,
        context: str | None = None,
        server: str | None = None,
        connections: int = 32,
        timeout_s: float = 15.0,
    ) -> None:
        """Read the configuration; nothing is sent yet.

        `server` is an address that asks for no credentials, for instance http://kwok-cluster:8080. Otherwise the
        kubeconfig is read; without one `$KUBECONFIG`, `~/.kube/config` and a pod's service account are tried. Raises
        `UserError` when there is no usable configuration.
        """
        settings = _server_settings(server) if server is not None else _load(kubeconfig, context)
        if urlsplit(str(settings.host)).hostname in _LOOPBACK:
            settings.proxy = None  # a company's proxy, taken from the environment, reaches no server of this machine
        settings.connection_pool_maxsize = connections
        settings.socket_options = _keepalive()
        self.server = str(settings.host).rstrip("/")
        self._settings = settings
        self._timeout_s = timeout_s
        try:
            self._pool = kubernetes.client.ApiClient(settings).rest_client.pool_manager
            tls = ResumingContext.of(settings) if self.server.startswith("https:") else None
        except (OSError, ValueError) as error:
            raise UserError(f"kubeconfig: certificates cannot be read ({error})") from error
        self._before_path = urlsplit(self.server).path
        self._connections: Connections | None = None
        self._writer: AsyncWriter | None = None
        if self._pool.proxy is None:
            own: dict[str, Any] = {"timeout": urllib3.Timeout(connect=_CONNECT_S)}
            if tls is not None:
                own |= {"ssl_context": tls, **dict.fromkeys(_READ_BY_TLS)}
            self._connections = Connections(self._pool.connection_from_url(self.server, own), connections, tls)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | list[Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send one request, with `body` as JSON when there is one, and return the whole answer.

        Raises `ApiError` for a status of 400 and more, `Unreachable` without an answer.
        """
        data = None if body is None else msgspec.json.encode(body)
        timeout_s = timeout_s or self._timeout_s
        if self._connections is None:
            response = self._send(method, path, data, query, content_type, timeout_s, preload=True)
            return bytes(response.data)
        headers = self._headers(data, content_type)
        with _network():
            answer = self._connections.exchange(method, self._target(path, query), data, headers, timeout_s)
        if (error := _refusal(answer)) is not None:
            raise error
        return answer.body

    def write_queue(self, max_in_flight: int) -> WriteQueue:
        """Return a queue of asynchronous writes, `max_in_flight` at a time.

        A write ends with None, an `ApiError`, an `Unreachable`, or `NotSent`: behind a proxy, send it by `request`.
        """
        if self._writer is None:
            self._writer = AsyncWriter(self._connections, self._encode, _refusal, _lost, self._timeout_s)
        return self._writer.queue(max_in_flight)

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Watch:
        """Open a watch that ends when nothing arrives for `silence_s` (bookmarks count as something)."""
        query = {**query, "watch": "true"}
        return Watch(self._send("GET", path, None, query, JSON, silence_s, preload=False))

    def close(self) -> None:
        """Close idle connections; writes in flight end without an answer."""
        if self._writer is not None:
            self._writer.close()
        if self._connections is not None:
            self._connections.close()
        self._pool.clear()

    def _encode(self, path: str, body: Mapping[str, Any]) -> bytes:
        if self._connections is None:
            raise AssertionError("without connections nothing is encoded")
        data = msgspec.json.encode(body)
        return self._connections.encode("POST", self._target(path, None), data, self._headers(data, JSON))

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return quote(self._before_path + path, _PATH_CHARACTERS) + (f"?{urlencode(query)}" if query else "")

    def _send(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, str] | None, content_type: str,
        timeout_s: float, *, preload: bool,
    ) -> Any:  # fmt: skip
        url = f"{self.server}{path}?{urlencode(query)}" if query else self.server + path
        with _network():
            response = self._pool.urlopen(
                method, url, body=body, headers=self._headers(body, content_type), retries=False, redirect=False,
                preload_content=preload,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=timeout_s),
            )  # fmt: skip
            if response.status < _FIRST_ERROR:
                return response
            data = response.data
        raise _api_error(response.status, data, response.headers.get("Retry-After", ""))

    def _headers(self, body: bytes | None, content_type: str) -> dict[str, str]:
        headers = {"User-Agent": _AGENT, "Accept": JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            settings = self._settings.auth_settings()  # asks for a fresh token where tokens expire
        except Exception as error:  # a file that is renewed just now, a program that fails: any error
            raise NoCredentials(_short(error), sent=False) from error
        for setting in settings.values():
            headers[str(setting["key"])] = str(setting["value"])
        if any("\n" in value or "\r" in value for value in headers.values()):  # http.client would show the token
            raise UserError("kubeconfig: the credentials have a line break in them")
        return headers

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an `ApiError` or `Unreachable` of the block into the `UserError` that `explain` makes of it."""
        try:
            yield
        except (ApiError, Unreachable) as error:
            raise self.explain(error) from error

    def explain(self, error: ApiError | Unreachable) -> UserError:
        """Return what a person should read about an error at the start."""
        if isinstance(error, NoCredentials):
            return UserError(f"{self.server}: no credentials can be had: {error}")
        if isinstance(error, Unreachable):
            return UserError(f"no Kubernetes API answers at {self.server}: {error}; is the cluster up?")
        if error.status == 401:
            return UserError(f"{self.server} refuses these credentials (401); check the user in the kubeconfig")
        if error.anonymous:
            return UserError(
                f"{self.server} does not know who asks (system:anonymous); check the user in the kubeconfig, and that "
                "the program or file works that gives its credentials"
            )
        if error.status == 403:
            return UserError(f"{self.server} forbids it (403): {error.message}")
        return UserError(f"{self.server} answers {error}")


def _lost(error: Exception, sent: bool) -> Exception:
    """Return why a write got no answer."""
    if isinstance(error, Unreachable):
        return error
    known = _unreachable(error)
    if known is None:
        log.debug("a request failed by an error that is not the network's", exc_info=error)
    return Unreachable(str(known or _short(error)), sent=sent)


@contextmanager
def _network() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        known = _unreachable(error)
        if known is None:
            raise
        raise known from error


def _unreachable(error: Exception) -> Unreachable | None:
    """Return an error of the network as `Unreachable`; None for another kind of error."""
    known = urllib3.exceptions
    if isinstance(error, known.SSLError | ssl.SSLError):
        return Unreachable(f"TLS fails, the kubeconfig may be of another cluster ({_short(error)})")
    if isinstance(error, known.NewConnectionError | known.ConnectTimeoutError):
        return Unreachable(_short(error), sent=False)
    if isinstance(error, known.ReadTimeoutError):
        return _Silent(_short(error))
    return Unreachable(_short(error)) if isinstance(error, known.HTTPError | HTTPException | OSError) else None


def _short(error: BaseException) -> str:
    """Return the root of an error in one line: urllib3 wraps the system's words several times."""
    while isinstance(error.__cause__, Exception) or (error.args and isinstance(error.args[-1], Exception)):
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error.args[-1]
    text = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
    return " ".join(text.split())


def _refusal(answer: Answer) -> ApiError | None:
    if answer.status < _FIRST_ERROR:
        return None
    return _api_error(answer.status, answer.body, answer.headers.get("retry-after", ""))


def _api_error(status: int, body: bytes, retry_after: str) -> ApiError:
    try:
        answer = msgspec.json.decode(body, type=wire.ApiStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        answer = wire.ApiStatus(message=" ".join(body.decode(errors="replace").split())[:200])
    return ApiError(status, answer.reason, answer.message, float(retry_after) if retry_after.isdecimal() else 0.0)


def _keepalive() -> list[tuple[int, int, int]]:
    """Return socket options that detect a vanished peer within about half a minute, while a watch only listens."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS names the first one differently
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _server_settings(server: str) -> Any:
    if not _address(server):
        raise UserError(f"server: {server!r} is not accepted; expected an address such as http://127.0.0.1:8080")
    settings = kubernetes.client.Configuration()
    settings.host = server.rstrip("/")
    return settings


_HERE = "; name a cluster's kubeconfig there or by --kubeconfig, or start a cluster here: `aaml cluster up`"
_USUAL = "~/.kube/config"
_BY_PROGRAM = "_load_from_exec_plugin"  # the function of the client that runs a credential program


def _load(kubeconfig: Path | str | None, context: str | None) -> Any:
    """Read a kubeconfig, `$KUBECONFIG`, or `~/.kube/config`; where none of these is there, a pod's service account."""
    config: Any = kubernetes.config  # untyped
    settings = kubernetes.client.Configuration()
    file = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", _USUAL)
    there = any(each and Path(each).expanduser().is_file() for each in file.split(os.pathsep))
    if kubeconfig is not None and not there:
        raise UserError(f"kubeconfig: {file!r} {_absent(file)}")
    if not there and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise UserError(_missing(file))
    where = f"kubeconfig {file!r}" if there else "service account"
    try:
        if there:
            with _credentials_told() as failed:
                config.load_kube_config(config_file=file, context=context, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        wrong = _wrong(file) or _short(error)
        raise UserError(f"{where}: no usable cluster configuration ({wrong}); try `aaml cluster up`") from error
    except (yaml.YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where}: cannot be read ({_wrong(file) or _short(error)})") from error
    if there and failed:
        raise UserError(f"{where}: its credential program (exec) gives no credentials: {failed[0]}")
    if not _address(str(settings.host)):
        raise UserError(f"{where}: the cluster's server is {settings.host!r}; expected https://HOST:PORT")
    return settings


@contextmanager
def _credentials_told() -> Iterator[list[str]]:
    """Collect in lines what the client logs of a credential program that fails, after which it goes on without."""
    told: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.funcName != _BY_PROGRAM:
            return True
        told.append(" ".join(record.getMessage().removeprefix("exec: ").split()))
        return False

    root = logging.getLogger()
    root.addFilter(collect)
    try:
        yield told
    finally:
        root.removeFilter(collect)


def _address(server: str) -> bool:
    try:
        parts = urllib3.util.parse_url(server)
    except urllib3.exceptions.LocationParseError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.host)


def _missing(file: str) -> str:
    if not file:
        return f"KUBECONFIG: '' names no file, and this is no pod with a service account{_HERE}"
    set_ = repr(file) if "KUBECONFIG" in os.environ else f"not set, and {file!r}"
    return f"KUBECONFIG: {set_} {_absent(file)}{_HERE}"


def _absent(file: str) -> str:
    return "is no file" if Path(file).expanduser().exists() else "does not exist"


class _Server(msgspec.Struct):
    server: str = ""


class _Cluster(msgspec.Struct):
    cluster: _Server
    name: str = ""


class _User(msgspec.Struct):
    user: dict[str, Any] | None = None
    name: str = ""


class _Context(msgspec.Struct):
    context: dict[str, Any]
    name: str = ""


class _Kubeconfig(msgspec.Struct):
    """The shape of a kubeconfig: what the official client takes for granted."""

    clusters: list[_Cluster] | None = None
    users: list[_User] | None = None
    contexts: list[_Context] | None = None


def _wrong(file: str) -> str:
    """Return where a kubeconfig is not of a kubeconfig's shape, "" where that is not what is wrong."""
    try:
        msgspec.convert(yaml.safe_load(Path(file).expanduser().read_bytes()), _Kubeconfig)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "").replace(" | null", "").replace(" - at $.", " in ")
        for theirs, plain in (("object", "a mapping"), ("array", "a list"), ("str", "text")):
            text = re.sub(rf"\b{theirs}\b", plain, text)
        return text[0].lower() + text[1:]
    except (yaml.YAMLError, OSError, ValueError):
        return ""
    return ""
