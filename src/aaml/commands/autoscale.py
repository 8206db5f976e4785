"""Buy and give back the nodes of a cluster with Karpenter by `learned` nodes. A dry run, unless you say --apply.

It watches nodes, pods and NodeClaims, and decides as the autoscaler `learned` does in the simulator. Without --apply it
prints each order, why, and what it would save, and writes nothing. With --apply it creates NodeClaims and deletes its
own, never another's. Karpenter launches and drains the nodes, with grace and disruption budgets. Karpenter must not buy
for the same pods: the cluster has no NodePool, or one whose limits are used up.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.signals import ends_by
from aaml.errors import UserError, bad_value
from aaml.settings import Count, Positive, Settings


@dataclass(frozen=True)
class Args(Settings):
    """Settings of the autoscaler."""

    nodes: str = "learned"
    """who decides: `learned`, or a file of `aaml tune nodes`"""
    apply: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """create and delete NodeClaims; without it every order is only printed"""
    all_claims: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """in a dry run: judge the nodes of all NodeClaims, those of Karpenter's NodePools too, as if they were ours"""
    moves: Count = 3
    """at most so many nodes are given back in an interval"""
    interval: Positive = 60.0
    """seconds of that interval"""
    most_nodes: Count = 100
    """no node is bought beyond so many of ours"""
    instance_types: Path | None = None
    """file with types and prices in the format of Karpenter's KWOK provider; without it the made-up types that ship"""
    node_class: str = "karpenter.kwok.sh/KWOKNodeClass/default"
    """class of the nodes that are bought: GROUP/KIND/NAME"""
    speed: Positive = 1.0
    """how many times faster everything goes on this cluster: of benchmarks, whose Karpenter was built so"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Decide about nodes until Ctrl-C or SIGTERM."""
    import threading
    import time

    from aaml.kube import rights
    from aaml.kube.place import Place
    from aaml.kube.sources import NODE_CLAIMS
    from aaml.kube.watcher import ClusterWatch
    from aaml.live.node_controller import MoveLimits, NodeController, Order
    from aaml.live.owned_nodes import OwnedNodes
    from aaml.nodes.catalogue import read_catalogue, shipped_catalogue
    from aaml.nodes.file import find_autoscaler
    from aaml.nodes.node_policy import NodePolicy
    from aaml.telemetry.console import terminal_log

    if args.apply and args.all_claims:
        raise UserError("all-claims: goes with a dry run alone; --apply deletes none but its own NodeClaims")
    policy = find_autoscaler(args.nodes)
    if not isinstance(policy, NodePolicy):
        raise bad_value("nodes", args.nodes, "`learned` or a file of `aaml tune nodes`; a NodePool is for Karpenter")
    catalogue = shipped_catalogue() if args.instance_types is None else read_catalogue(args.instance_types)
    stop = threading.Event()

    def tell(order: Order) -> None:
        print(time.strftime("%H:%M:%S"), order, flush=True)

    watch = ClusterWatch.connect(
        args.kubeconfig, connections=4, more=(NODE_CLAIMS,), granted_by="autoscale",
        needs=rights.BUY if args.apply else rights.LOOK_AT_CLAIMS,
    )  # fmt: skip
    with closing(watch), terminal_log(), ends_by(stop.set) as interruption:
        owned = OwnedNodes(watch, catalogue, all_claims=args.all_claims, speed=args.speed)
        limits = MoveLimits(args.moves, args.interval, args.most_nodes)
        controller = NodeController(owned, policy, args.node_class, tell, limits=limits, apply=args.apply)
        doing = "buys and gives back nodes" if args.apply else "dry run, nothing is written"
        print(f"{Place.look(watch.transport, args.kubeconfig)}: {doing}", flush=True)
        controller.run(stop.is_set)
    return interruption.service_status
