"""CPU microseconds of this process for one short request to an API server, sent in each of several ways, in turns.

The server is another process that answers a bind as kube-apiserver does, on loopback without TLS. Only the time of this
process counts, so that other programs on the machine matter little.

    .venv/bin/python benchmarks/bench_requests.py
"""

import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import urllib3

from aaml.kube.async_writes import WriteQueue
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
REQUESTS, ROUNDS = 1000, 9
AT_ONCE = 64
WAIT_S = 60.0


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
    """Return the microseconds of this process that each request takes of those that `ask` sends."""
    begin = time.process_time()
    ask()
    return (time.process_time() - begin) / REQUESTS * 1e6


def write_all(queue: WriteQueue) -> None:
    """Send all requests by a queue, and wait for the last answer."""
    for _ in range(REQUESTS):
        queue.post(PATH, lambda: BINDING, lambda _: None)
    queue.wait_empty(WAIT_S)


def main() -> None:
    """Measure and print."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2 * AT_ONCE)
    server = multiprocessing.get_context("fork").Process(target=serve, args=[listening], daemon=True)
    server.start()
    port = listening.getsockname()[1]
    transport, pool = Transport(server=f"http://127.0.0.1:{port}", connections=AT_ONCE), urllib3.PoolManager()
    queue, threads = transport.write_queue(AT_ONCE), ThreadPoolExecutor(AT_ONCE)
    headers = {"Accept": JSON, "Content-Type": JSON}

    def by_urllib3() -> bytes:
        url = f"http://127.0.0.1:{port}{PATH}"
        return pool.request("POST", url, body=msgspec.json.encode(BINDING), headers=headers).data

    ways: dict[str, Callable[[], object]] = {
        "one after the other": lambda: [transport.request("POST", PATH, BINDING) for _ in range(REQUESTS)],
        "one after the other, urllib3": lambda: [by_urllib3() for _ in range(REQUESTS)],
        f"{AT_ONCE} threads": lambda: list(
            threads.map(lambda _: transport.request("POST", PATH, BINDING), range(REQUESTS))
        ),
        f"a queue of {AT_ONCE}": lambda: write_all(queue),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, ask in ways.items():
            used = cpu_us(ask)
            if round_:  # the first one opens connections
                found[name].append(used)
    server.terminate()
    for name, each in found.items():
        print(f"{name:30} {statistics.median(each):6.0f} us of CPU a request ({min(each):.0f} to {max(each):.0f})")


if __name__ == "__main__":
    main()
