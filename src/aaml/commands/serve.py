"""Serve a policy over HTTP: behind kube-scheduler as an extender, or scoring posted nodes for any other client.

Endpoints: /filter, /prioritize, /bind (extender/v1), /score, /healthz, /readyz, /metrics, /openapi.json. Listens on
loopback unless told otherwise.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Args:
    """`aaml serve`."""

    policy: str = "kube-scheduler"
    """Policy by name, FILE.py:NAME, or a model file."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8899
    """Port to listen on; 0 takes a free one."""
    cluster: bool = True
    """Watch a cluster (needed by the extender endpoints)."""
    kubeconfig: Path | None = None
    """Cluster to watch; KUBECONFIG, ~/.kube/config or the service account when not given."""
    token_file: Path | None = None
    """File with a bearer token that requests must carry; else AAML_TOKEN from the environment, if set."""
    tls_cert: Path | None = None
    """Certificate (PEM) for HTTPS."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
    max_body_mib: int = 64
    """Larger requests are refused."""


def _token(args: Args) -> str | None:
    from aaml.errors import bad_value

    if args.token_file is None:
        return os.environ.get("AAML_TOKEN") or None
    try:
        token = args.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise bad_value("token-file", str(args.token_file), "a readable text file") from error
    if not token:
        raise bad_value("token-file", str(args.token_file), "a file that is not empty")
    return token


def run(args: Args) -> int:
    """Serve until SIGTERM or SIGINT."""
    import socket

    import uvicorn

    from aaml.commands.signals import ends_by
    from aaml.errors import UserError, bad_value
    from aaml.experiment.policies import load_ranker
    from aaml.experiment.policy_scheduler import warm_up
    from aaml.kube.convert import node_from_json, pod_from_json
    from aaml.serve.app import create_app
    from aaml.serve.metrics import Metrics
    from aaml.serve.service import Readers, SchedulingService

    if (args.tls_cert is None) != (args.tls_key is None):
        raise UserError("tls-cert, tls-key: one without the other; expected both or none")
    for name, path in (("tls-cert", args.tls_cert), ("tls-key", args.tls_key)):
        if path is not None and not path.is_file():
            raise bad_value(name, str(path), "a PEM file")
    token = _token(args)
    ranker, featurizer = load_ranker(args.policy)
    warm_up(args.policy)  # kube-scheduler waits seconds for an answer, not for a compiler
    try:
        listener = socket.create_server((args.host, args.port))
        # Accepted sockets inherit it. Without it a reply's body waits for the client's delayed acknowledgement (40 ms)
        # of its head: asyncio turns Nagle off only on sockets that were made with the protocol named.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError) as error:
        raise bad_value("host, port", f"{args.host}:{args.port}", f"a free address to listen on ({error})") from error
    view = None
    if args.cluster:
        from aaml.kube.view import KubeView

        view = KubeView(args.kubeconfig)
    service = SchedulingService(ranker, Readers(pod_from_json, node_from_json), featurizer, view)
    app = create_app(service, Metrics(), token=token, max_body_bytes=args.max_body_mib * 1024 * 1024)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5,
        ssl_certfile=args.tls_cert, ssl_keyfile=args.tls_key,
    )  # fmt: skip
    scheme = "https" if args.tls_cert else "http"
    print(f"{ranker.name} answers on {scheme}://{args.host}:{listener.getsockname()[1]}", flush=True)
    server = uvicorn.Server(config)
    # uvicorn hands signals on when it has ended; without a handler of ours that would end the process before `close`.
    with ends_by(lambda: setattr(server, "should_exit", True)) as interruption:
        try:
            server.run(sockets=[listener])
        finally:
            if view is not None:
                view.close()
    return interruption.status
