"""An HTTP application asked in the process, thousands of times a second, and an eye on what it opens and imports."""

import asyncio
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, str]]


class Request(NamedTuple):
    """What a client sends; `target` is the path with its query."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""


class Answer(NamedTuple):
    """What comes back."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(app: Any, request: Request) -> Answer:
    """Send one request, as uvicorn would hand it over."""
    path, _, query = request.target.partition("?")
    heads = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in request.headers]
    if not any(name == b"host" for name, _ in heads):
        heads.append((b"host", b"127.0.0.1:1234"))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode("latin-1", "replace"), "root_path": "",
        "headers": heads, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1234),
    }  # fmt: skip
    parts = [{"type": "http.request", "body": request.body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]))


def ask_all(app: Any, requests: Sequence[Request], look: Callable[[Request, Answer], None]) -> None:
    """Send them one after the other; `look` sees each with its answer."""

    async def run() -> None:
        for request in requests:
            look(request, await ask(app, request))

    asyncio.run(run())


CANARY = "canary_of_the_tests"
"""A word that stands in whatever a fuzzed request names: nothing that is opened or imported may have it in its name."""
_seen: list[str] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event in {"open", "import", "exec", "os.listdir", "os.scandir", "subprocess.Popen"}:
        said = repr(arguments)
        if CANARY in said:
            _seen.append(f"{event}: {said[:200]}")


sys.addaudithook(_hear)


@contextmanager
def touched() -> Iterator[list[str]]:
    """Yield what is opened, listed, imported or run meanwhile of all that has the canary in its name."""
    global _seen  # noqa: PLW0603  (an audit hook stays for ever and cannot be handed anything)
    _seen = found = []
    try:
        yield found
    finally:
        _seen = None


ODD = (
    "", "0", "1", "-1", "-3", "00", "1e999", "nan", "inf", "-inf", "0x10", "1_0", " 1", "1.5", "9" * 30, "9" * 5000,
    "é", "\x00", "null", "true", "[]", "{}", "..", "../../etc/passwd", f"/tmp/{CANARY}.py:name", f"{CANARY}.py:NAME",
    f"{CANARY}.pth", f"file:///{CANARY}", CANARY, "kube-scheduler", "least-variance", "'; --", "<script>", "a" * 3000,
    "%00", "+", "&", "=",
)  # fmt: skip
"""Values that nobody should send."""


def fuzz(
    seed: int, count: int, paths: Sequence[str], names: Sequence[str], bodies: Callable[[random.Random], bytes]
) -> list[Request]:
    """Return `count` requests around the `paths`, with queries of `names` and odd values, headers and methods."""
    draw = random.Random(seed)
    methods = ["GET"] * 6 + ["POST"] * 3 + ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "", "G\x7fT"]
    hosts = ["127.0.0.1:1234", "localhost", "[::1]:1", "evil.example", "", "127.0.0.1.evil.example", "[", "a" * 2000]
    sites = ["none", "same-origin", "cross-site", "same-site", "", "x" * 500]
    made = []
    for _ in range(count):
        path = draw.choice(paths)
        if draw.random() < 0.15:
            path = draw.choice([path + "/", path + "/../..", path.upper(), "//" + path, f"/{CANARY}", "/%2e%2e/", "*"])
        query = "&".join(f"{name}={draw.choice(ODD)}" for name in names for _ in range(draw.choice([0, 1, 1, 1, 2])))
        headers = []
        if draw.random() < 0.2:
            headers.append(("host", draw.choice(hosts)))
        if draw.random() < 0.2:
            headers.append(("sec-fetch-site", draw.choice(sites)))
        if draw.random() < 0.1:
            headers.append(("origin", draw.choice(["null", "http://127.0.0.1:1234", "http://evil.example", "x" * 900])))
        if draw.random() < 0.1:
            headers.append(("content-length", draw.choice(ODD)))
        method = draw.choice(methods)
        made.append(Request(method, f"{path}?{query}" if draw.random() < 0.9 else path, headers, bodies(draw)))
    return made
