"""Create KWOK nodes on a cluster: kwok-ctl-node-0 (a tainted control plane) and kwok-std-node-0, -1, ...

Nodes that are there already stay as they are. A GPU node offers nvidia.com/gpu and the shares of the openb trace. It
says which cluster that is; one with nodes that KWOK does not play is only taken with --real.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from aaml.cluster.fleet import STANDARD, NodeShape
from aaml.commands.kinds import Flag
from aaml.errors import UserError
from aaml.settings import Count, Positive, Settings, take


@dataclass(frozen=True)
class Args(Settings):
    """How many nodes, and what each offers."""

    node_count: Count | None = None
    """workers; asked for when missing"""
    shape: NodeShape = STANDARD
    wait_s: Positive = 180.0
    """how long the nodes may take until pods can be placed on them"""
    dry_run: Flag = False
    """say how many nodes would be created, and create none"""
    real: Flag = False
    """on a cluster with nodes that KWOK does not play too"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Create the nodes and wait until they take pods."""
    from aaml.cluster.fleet import standard_nodes
    from aaml.kube import rights
    from aaml.kube.place import Place
    from aaml.kube.provision import count_nodes, create_nodes, wait_schedulable
    from aaml.kube.transport import Transport

    count = _ask() if args.node_count is None else args.node_count
    nodes = standard_nodes(count, args.shape)
    api = Transport(args.kubeconfig)
    rights.check(api, rights.NODES)
    place = Place.look(api, args.kubeconfig)
    place.check("real", confirmed=args.real or args.dry_run)
    print(place)
    if args.dry_run:
        print(f"{len({each.name for each in nodes} - place.names)} nodes would be created, {len(nodes)} asked for")
        return 0
    progress = sys.stderr.isatty()
    new = create_nodes(api, nodes, progress=progress)
    wait_schedulable(api, count, wait_s=args.wait_s, progress=progress)
    total = count_nodes(api).workers
    print(f"{new} nodes created; the cluster has {total} workers now")
    return 0


def _ask() -> int:
    if not sys.stdin.isatty():
        raise UserError("node_count: is missing; give --node_count N (it is only asked for at a terminal)")
    text = input("How many nodes? [10] ").strip() or "10"
    return int(take("node_count", text, Count, text=True))
