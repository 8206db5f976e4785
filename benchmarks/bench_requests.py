"""CPU microseconds of this process for one short request to an API server: ours and urllib3's, in turns.

The server is a thread that answers a bind as kube-apiserver does, on loopback without TLS. Only the time of the thread
that asks counts, so that other programs on the machine matter little.

    .venv/bin/python benchmarks/bench_requests.py
"""

import socket
import statistics
import threading
import time
from collections.abc import Callable

import msgspec
import urllib3

from aaml.kube.transport import JSON, Transport

PATH = "/api/v1/namespaces/default/pods/web-0/binding"
BINDING = {
    "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web-0", "namespace": "default", "uid": "u"},
    "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
}  # fmt: skip
SUCCESS = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}\n'
ANSWER = b"\r\n".join(
    [
        b"HTTP/1.1 201 Created",
        b"Audit-Id: 7f0f1f3e-58f5-4e0b-8ad6-0d6f0a1f9c3b",
        b"Cache-Control: no-cache, private",
        b"Content-Type: application/json",
        b"X-Kubernetes-Pf-Flowschema-Uid: 2e0a7a0e-6b6c-4b64-8d3e-3d1a3d4f1a11",
        b"X-Kubernetes-Pf-Prioritylevel-Uid: 9a1d1f6e-24ab-4b0a-9f6c-5d0d6e5a4b22",
        b"Date: Sun, 22 Nov 2026 16:15:55 GMT",
        b"Content-Length: %d" % len(SUCCESS),
        b"",
        SUCCESS,
    ]
)
REQUESTS, ROUNDS = 200, 9


def serve(listening: socket.socket) -> None:
    """Answer every request on every connection."""

    def answer(peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as asked:
            while line := asked.readline():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
                elif line == b"\r\n":
                    asked.read(length)
                    peer.sendall(ANSWER)

    while True:
        threading.Thread(target=answer, args=[listening.accept()[0]], daemon=True).start()


def cpu_us(ask: Callable[[], object]) -> float:
    """Return the microseconds of this thread that one request takes."""
    begin = time.thread_time()
    for _ in range(REQUESTS):
        ask()
    return (time.thread_time() - begin) / REQUESTS * 1e6


def main() -> None:
    """Measure and print."""
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=[listening], daemon=True).start()
    port = listening.getsockname()[1]
    transport, pool = Transport(server=f"http://127.0.0.1:{port}"), urllib3.PoolManager()
    headers = {"Accept": JSON, "Content-Type": JSON}

    ways: dict[str, Callable[[], object]] = {
        "aaml.kube.transport": lambda: transport.request("POST", PATH, BINDING),
        "urllib3": lambda: (
            pool.request(
                "POST", f"http://127.0.0.1:{port}{PATH}", body=msgspec.json.encode(BINDING), headers=headers
            ).data
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, ask in ways.items():
            used = cpu_us(ask)
            if round_:  # the first one opens connections
                found[name].append(used)
    for name, each in found.items():
        print(f"{name:20} {statistics.median(each):6.0f} us of CPU a request ({min(each):.0f} to {max(each):.0f})")


if __name__ == "__main__":
    main()
