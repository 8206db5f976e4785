"""Create KWOK nodes on a cluster: kwok-ctl-node-0 (a tainted control plane) and kwok-std-node-0, -1, ...

Nodes that are there already stay as they are. A GPU node offers nvidia.com/gpu and the shares of the openb trace.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from aaml.errors import UserError, bad_value


@dataclass(frozen=True)
class Args:
    """How many nodes, and what each offers."""

    node_count: int | None = None
    """workers; asked for when missing"""
    cpu: str = "64"
    """CPU of a node"""
    memory: str = "256Gi"
    """memory of a node"""
    pods: int = 110
    """pods that a node takes"""
    labels: tuple[str, ...] = ()
    """labels of the workers, as key=value"""
    gpus: int = 0
    """GPUs of a node"""
    gpu_model: str = ""
    """model of the GPUs, for instance V100M16"""
    wait_s: float = 180.0
    """how long the nodes may take until pods can be placed on them"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Create the nodes and wait until they take pods."""
    from aaml.kube.provision import (
        Api,
        ApiError,
        NodeShape,
        count_nodes,
        create_nodes,
        parse_labels,
        standard_nodes,
        wait_schedulable,
    )

    count = _ask() if args.node_count is None else args.node_count
    shape = NodeShape(args.cpu, args.memory, args.pods, parse_labels(args.labels), args.gpus, args.gpu_model)
    manifests = standard_nodes(count, shape)
    api = Api(args.kubeconfig)
    progress = sys.stderr.isatty()
    try:
        new = create_nodes(api, manifests, progress=progress)
        wait_schedulable(api, count, wait_s=args.wait_s, progress=progress)
        total = count_nodes(api).workers
    except ApiError as error:
        raise UserError(f"{api.server} answers {error}") from error
    print(f"{new} nodes created; the cluster has {total} workers now")
    return 0


def _ask() -> int:
    if not sys.stdin.isatty():
        raise UserError("node_count: is missing; give --node_count N (it is only asked for at a terminal)")
    text = input("How many nodes? [10] ").strip() or "10"
    if not text.isdigit() or int(text) < 1:
        raise bad_value("node_count", text, "a whole number of at least 1")
    return int(text)
