"""An admission webhook that is shown requests before the API server carries them out, and may refuse them.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
The API server hands the status of a refusal on, `Retry-After` included, so that a scheduler sees real answers of a real
server. It listens on loopback with the certificate of the cluster's own.
"""

import base64
import itertools
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aaml.kube.transport import Transport
from aaml.threads import Background

_NAME = "aaml-chaos"
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_BINDS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}


@dataclass(frozen=True)
class Refusal:
    """A refusal of a request: an HTTP status, the reason, and the seconds after which to try again (0: none given)."""

    code: int
    reason: str
    retry_after_s: int = 0

    def status(self) -> dict[str, Any]:
        """Return it as the API's Status object."""
        details = {"retryAfterSeconds": self.retry_after_s} if self.retry_after_s else {}
        return {
            "status": "Failure", "code": self.code, "reason": self.reason, "message": "chaos: not now",
            "details": details,
        }  # fmt: skip


def refusing_binds(api: Transport, pki: Path, refusals: Sequence[Refusal]) -> AbstractContextManager[None]:
    """Answer the binds of every pod with these refusals in turn, from the start of the block to its end."""
    turn = itertools.cycle(refusals)
    return validating_webhook(api, pki, _BINDS, lambda _request: next(turn))


@contextmanager
def validating_webhook(
    api: Transport, pki: Path, rule: Mapping[str, Any], decide: Callable[[dict[str, Any]], Refusal | None]
) -> Iterator[None]:
    """Call `decide` with each request that matches the rule, one after the other, while the block lasts.

    It gets the `request` of an AdmissionReview, and returns why that is refused, or None.
    """
    lock = threading.Lock()
    failed: list[BaseException] = []

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            if not isinstance(error := sys.exception(), OSError | None):  # an API server that is killed hangs up
                failed.append(error)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                refusal = decide(review["request"])
            answer = {"uid": review["request"]["uid"], "allowed": refusal is None}
            if refusal is not None:
                answer["status"] = refusal.status()
            content = json.dumps({**review, "response": answer}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = Server(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    serving = Background(server.serve_forever, "webhook")
    port = int(server.server_address[1])
    try:
        api.request("POST", _PATH, _configuration(port, (pki / "ca.crt").read_bytes(), rule))
        yield
    finally:
        api.request("DELETE", f"{_PATH}/{_NAME}")
        server.shutdown()
        server.server_close()
    serving.result()
    if failed:
        raise failed[0]


def _configuration(port: int, authority: bytes, rule: Mapping[str, Any]) -> dict[str, Any]:
    client = {"url": f"https://127.0.0.1:{port}/", "caBundle": base64.b64encode(authority).decode()}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": _NAME},
        "webhooks": [
            {
                "name": "requests.chaos.example", "clientConfig": client, "rules": [rule], "failurePolicy": "Fail",
                "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
            }
        ],
    }  # fmt: skip
