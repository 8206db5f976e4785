"""An API server that does what a test says: for what cannot be provoked on the real one.

Answers are queued per kind of request and the last one is repeated. Steps of a watch: a dict is an event, bytes go out
as they are, an Event is waited for, `HANG` keeps the connection open and silent, `CUT` closes it in the middle.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import yaml

HANG = object()
CUT = object()

Answer = tuple[int, Any]


def status(code: int, reason: str, message: str = "") -> dict[str, Any]:
    """Return the Status object of an error."""
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def pod(name: str, version: int, node: str = "", **spec: Any) -> dict[str, Any]:
    """Return a pod as the API shows it; its uid is u-<name>."""
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"schedulerName": "mine", **({"nodeName": node} if node else {}), **spec}}


def node(name: str, version: int = 1, cpu: str = "4") -> dict[str, Any]:
    """Return a node with room for 110 pods."""
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": {"allocatable": allocatable}}


def listing(*items: dict[str, Any], version: int = 1, more: str = "") -> dict[str, Any]:
    """Return a list; `more` is the token of the next page."""
    return {"metadata": {"resourceVersion": str(version), **({"continue": more} if more else {})}, "items": list(items)}


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Return an event of a watch."""
    return {"type": kind, "object": obj}


def bookmark(version: int) -> dict[str, Any]:
    """Return a bookmark."""
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}, "spec": {}, "status": {}})


@contextmanager
def one_node() -> "Iterator[ScriptedApi]":
    """Serve a cluster of one node and no pods, whose watches stay silent."""
    with ScriptedApi() as server:
        server.on_list("/api/v1/nodes", listing(node("n1")))
        server.on_list("/api/v1/pods", listing())
        server.on_list("/api/v1/namespaces", listing())
        for path in ("/api/v1/nodes", "/api/v1/pods"):
            server.on_watch(path, [HANG])
        yield server


def write_kubeconfig(folder: Path, server: str, **user: str) -> Path:
    """Write a kubeconfig for a server, with what a `user` shows it, and return its path."""
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


class ScriptedApi:
    """A server on loopback; `server` is its address. Use it as a context manager."""

    def __init__(self) -> None:
        self._lists: dict[str, deque[Answer]] = {}
        self._watches: dict[str, deque[Sequence[Any] | Answer]] = {}
        self._others: dict[tuple[str, str], deque[Answer | Callable[[bytes], Answer]]] = {}
        self._lock = threading.Lock()
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []  # method, path, query, body
        self._ending = threading.Event()
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    @property
    def server(self) -> str:
        """The address for `Transport(server=...)`."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Listen, on the same port as before after a `down`."""
        self._ending.clear()
        self._http = _Server(("127.0.0.1", self.port), self._handler())
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut every open connection."""
        if self._http is not None:
            self._ending.set()
            self._http.shutdown()
            self._http.server_close()
            self._http.cut_all()
            self._http = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def on_list(self, path: str, *answers: dict[str, Any] | Answer) -> None:
        """Queue answers to lists of a path."""
        self._lists[path] = deque(each if isinstance(each, tuple) else (200, each) for each in answers)

    def on_watch(self, path: str, *scripts: Sequence[Any] | Answer) -> None:
        """Queue watches of a path: a list of steps, or (HTTP status, body)."""
        self._watches[path] = deque(scripts)

    def on(self, method: str, path: str, *answers: Answer | Callable[[bytes], Answer]) -> None:
        """Queue answers to any other request; a callable gets the body."""
        self._others[method, path] = deque(answers)

    def asked(self, method: str, path: str, *, watch: bool | None = None) -> list[dict[str, str]]:
        """Return the queries of the requests so far."""
        with self._lock:
            return [
                query
                for verb, where, query, _ in self.requests
                if (verb, where) == (method, path) and (watch is None or ("watch" in query) == watch)
            ]

    def bodies(self, method: str, path: str) -> list[Any]:
        """Return the JSON bodies of the requests so far."""
        with self._lock:
            return [json.loads(body) for verb, where, _, body in self.requests if (verb, where) == (method, path)]

    def _next(self, answers: deque[Any] | None) -> Any:
        with self._lock:
            if not answers:
                return 404, status(404, "NotFound", "the script has no answer")
            return answers.popleft() if len(answers) > 1 else answers[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do(self) -> None:
                where = urlsplit(self.path)
                query = dict(parse_qsl(where.query))
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with api._lock:
                    api.requests.append((self.command, where.path, query, body))
                if "watch" in query:
                    script = api._next(api._watches.get(where.path))
                    if not isinstance(script, tuple):
                        self.play(script)
                        return
                    answer = script
                elif self.command == "GET" and where.path in api._lists:
                    answer = api._next(api._lists[where.path])
                else:
                    answer = api._next(api._others.get((self.command, where.path)))
                    if callable(answer):
                        answer = answer(body)
                if answer[1] is CUT:
                    self.close_connection = True
                    return
                content = answer[1] if isinstance(answer[1], bytes) else json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do  # noqa: N815  (the names that http.server calls)

            def play(self, script: Sequence[Any]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for step in script:
                    if step is HANG:
                        self.wfile.flush()
                        api._ending.wait()
                        self.close_connection = True
                        return
                    if step is CUT:
                        self.close_connection = True
                        return
                    if isinstance(step, threading.Event):
                        step.wait()
                        continue
                    data = step if isinstance(step, bytes) else json.dumps(step).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """A peer that hangs up is part of the tests."""

    def cut_all(self) -> None:
        for request in list(self._open):
            self.shutdown_request(request)
