"""Serve a policy over HTTP: behind kube-scheduler as an extender, or scoring posted nodes for any other client.

Endpoints: /filter, /prioritize (extender/v1), /score, /healthz, /readyz, /metrics, /openapi.json; with --bind-verb also
/bind. Listens on loopback unless --host says otherwise.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.commands.kinds import Flag
from aaml.settings import Count, Port, Settings
from aaml.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aaml.cluster.objects import Pod
    from aaml.kube.view import KubeView
    from aaml.scheduling.ports import Policy
    from aaml.serve.app import Access


@dataclass(frozen=True)
class Args(Settings):
    """`aaml serve`."""

    policy: str = "kube-scheduler"
    """Policy by name, FILE.py:NAME, kube-scheduler:FILE.yaml, or a model file."""
    expected_pods: str | None = None
    """Pods like those to come, by which policies such as fgd weigh fragments of GPUs: an openb trace by name, a pod
    list (.csv), or YAML with pods and workloads; without it they are the pods that run on the watched cluster."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8899
    """Port to listen on; 0 takes a free one."""
    cluster: bool = True
    """Watch a cluster (needed by the extender endpoints)."""
    kubeconfig: Path | None = None
    """Cluster to watch; KUBECONFIG, ~/.kube/config or the service account when not given."""
    bind_verb: Flag = False
    """Bind pods for kube-scheduler (`bindVerb: bind`). With --host beyond loopback this needs --tls-client-ca or a
    token."""
    token_file: Path | None = None
    """File with a bearer token that requests must carry; else AAML_TOKEN from the environment, if set."""
    tls_cert: Path | None = None
    """Certificate (PEM) for HTTPS."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
    tls_client_ca: Path | None = None
    """Authority (PEM) whose client certificates are let in, as kube-scheduler shows one: with it, requests need a
    certificate or the token."""
    max_body_mib: Count = 64
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


def _access(args: Args) -> "Access":
    """Return who may ask. Raises `UserError` for files that are missing, and for binds that anybody could ask for."""
    from aaml.errors import UserError, bad_value
    from aaml.serve.app import Access
    from aaml.serve.gate import names_of

    if (args.tls_cert is None) != (args.tls_key is None):
        raise UserError("tls-cert, tls-key: one without the other; expected both or none")
    if args.tls_client_ca is not None and args.tls_cert is None:
        raise UserError("tls-client-ca: clients show certificates over HTTPS alone; expected tls-cert and tls-key too")
    files = {"tls-cert": args.tls_cert, "tls-key": args.tls_key, "tls-client-ca": args.tls_client_ca}
    for name, path in files.items():
        if path is not None and not path.is_file():
            raise bad_value(name, str(path), "a PEM file")
    _check_tls(args)
    access = Access(_token(args), args.tls_client_ca is not None, names_of(args.host))
    if args.bind_verb and not args.cluster:
        raise UserError("bind-verb: no cluster is watched with --no-cluster; expected one of the two")
    if args.bind_verb and access.open and access.hosts is None:
        raise UserError(
            f"bind-verb: on {args.host} everybody who reaches the port could bind any pod; expected --tls-client-ca "
            "FILE (kube-scheduler shows a certificate), --token-file FILE, or a --host of loopback"
        )
    return access


def _check_tls(args: Args) -> None:
    """Raise `UserError` for certificates that cannot be read, and for a key of another one."""
    import ssl

    from aaml.errors import UserError, bad_value

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if args.tls_cert is not None:
        try:
            context.load_cert_chain(args.tls_cert, args.tls_key)
        except (ssl.SSLError, OSError) as error:
            raise UserError(
                f"tls-cert, tls-key: {args.tls_cert} and {args.tls_key} are no certificate with its key ({error})"
            ) from error
    if args.tls_client_ca is not None:
        try:
            context.load_verify_locations(args.tls_client_ca)
        except (ssl.SSLError, OSError) as error:
            raise bad_value("tls-client-ca", str(args.tls_client_ca), f"certificates in PEM ({error})") from error


def _policy(args: Args, given: "Sequence[Pod]", view: "KubeView | None") -> "Policy":
    """Load the policy with the pods it may expect. Raises `UserError` where it needs some with GPUs and has none."""
    from aaml.errors import UserError
    from aaml.evaluation.policies import load_policy, needs_expected_pods

    running = [placement.pod for placement in view.state.pods()] if view is not None else []
    policy = load_policy(args.policy, expected=given or running)
    if needs_expected_pods(policy):
        found = "no pod with a GPU runs on the cluster" if view is not None else "none"
        if args.expected_pods:
            found = f"no pod with a GPU in {args.expected_pods}"
        raise UserError(
            f"expected-pods: {found}; expected an openb trace or a file of pods, as policy {policy.name} weighs "
            "fragments of GPUs by the pods to come"
        )
    return policy


def run(args: Args) -> int:
    """Serve until SIGTERM or SIGINT."""
    one_thread()
    from contextlib import ExitStack
    from ssl import CERT_NONE, CERT_OPTIONAL

    from aaml.commands.signals import ends_by
    from aaml.evaluation.entries import check_live
    from aaml.evaluation.policies import load_policy
    from aaml.kube.objects.manifests import pods_like
    from aaml.kube.view import KubeView
    from aaml.live.warm_up import warm_up
    from aaml.scheduling.ports import Ranker
    from aaml.serve.app import create_app
    from aaml.serve.listen import PatientServer, listener
    from aaml.serve.metrics import Metrics
    from aaml.serve.service import SchedulingService

    access = _access(args)
    given = pods_like(args.expected_pods) if args.expected_pods else ()
    check_live(args.policy)  # what fails there fails here too
    warm_up(load_policy(args.policy))  # kube-scheduler waits seconds for an answer, not for a compiler
    with ExitStack() as stack:
        listening = stack.enter_context(listener(args.host, args.port, "host, port"))
        view = KubeView(args.kubeconfig, binds=args.bind_verb) if args.cluster else None
        if view is not None:
            stack.callback(view.close)
        policy = _policy(args, given, view)
        service = SchedulingService(policy, view)
        limit_bytes = args.max_body_mib * 1024 * 1024
        app = create_app(service, Metrics(), access=access, max_body_bytes=limit_bytes, binds=args.bind_verb)
        if not isinstance(policy, Ranker):
            words = "chooses a node and scores none: its choice gets the highest score, the others get 0"
            print(f"{policy.name} {words}", file=sys.stderr, flush=True)
        scheme, host = "https" if args.tls_cert else "http", f"[{args.host}]" if ":" in args.host else args.host
        print(f"{policy.name} answers on {scheme}://{host}:{listening.getsockname()[1]}", flush=True)
        server = PatientServer(
            app, turn=service.refresh, timeout_graceful_shutdown=5, ssl_certfile=args.tls_cert,
            ssl_keyfile=args.tls_key, ssl_ca_certs=args.tls_client_ca,
            ssl_cert_reqs=CERT_OPTIONAL if args.tls_client_ca else CERT_NONE,  # probes have no certificate
        )  # fmt: skip
        # uvicorn hands signals on when it has ended; without a handler of ours that would end the process before
        # everything is closed.
        with ends_by(lambda: setattr(server, "should_exit", True)) as interruption:
            server.run(sockets=[listening])
        return interruption.service_status
