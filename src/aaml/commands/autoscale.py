"""Provision and terminate the nodes of a cluster with Karpenter by `learned` nodes. A dry run, unless you say --apply.

It watches nodes, pods, disruption budgets, NodePools and NodeClaims, and decides as the autoscaler `learned` does in
the simulator. Without --apply it prints each order, why, and what it would save, and writes nothing. With --apply it
creates NodeClaims and deletes its own, never another's; of several such processes one decides, by a Lease. Karpenter
launches and drains the nodes, with grace and disruption budgets. Karpenter must not provision for the same pods:
the cluster
has no NodePool, or one whose limits are used up.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.commands.kinds import Flag
from aaml.commands.signals import ends_by
from aaml.errors import UserError, bad_value
from aaml.live.settings import ReplicaSettings
from aaml.settings import Count, NotNegative, Positive

if TYPE_CHECKING:
    import threading

    from aaml.kube.lease import LeaderLease
    from aaml.live.autoscale_metrics import AutoscaleMetrics
    from aaml.live.node_template import NodeTemplate
    from aaml.live.replica import Replica
    from aaml.nodes.catalogue import Catalogue
    from aaml.nodes.commitments import Commitments
    from aaml.nodes.node_policy import NodePolicy

LOST_STATUS = 1


@dataclass(frozen=True)
class Args(ReplicaSettings):
    """Settings of the autoscaler."""

    nodes: str = "learned"
    """who decides: `learned`, or a file of `aaml search nodes`"""
    wait_p99_s: Positive | None = None
    """promise: at most one of a hundred pods waits longer than so many seconds for a node; none: as `nodes` says"""
    wait_mean_s: Positive | None = None
    """promise: pods wait at most so many seconds on average; none: as `nodes` says"""
    evictions: NotNegative | None = None
    """promise: so many evictions for each hour that a pod runs, at most; none: as `nodes` says"""
    apply: Flag = False
    """create and delete NodeClaims; without it every order is only printed"""
    all_claims: Flag = False
    """in a dry run: look at the nodes of all NodeClaims, those of Karpenter's NodePools too, as if they were ours"""
    moves: Count = 3
    """at most so many nodes are terminated in an interval"""
    interval: Positive = 60.0
    """seconds of that interval"""
    most_nodes: Count = 100
    """no node is provisioned beyond so many NodeClaims of ours, whatever state they are in: also no larger one in place
    of a smaller one, as with Karpenter's limits"""
    beside_nodepools: Flag = False
    """provision even where Karpenter provisions for NodePools itself, perhaps for the same pods"""
    instance_types: Path | None = None
    """file with types and prices in the format of Karpenter's KWOK provider; without it the made-up types that ship"""
    commitments: Path | None = None
    """file with savings plans and reservations (kind: Commitments): a node that they pay for counts what it adds"""
    template: Path | None = None
    """file with a NodePool whose spec.template says what nodes are like: class, labels, taints, startupTaints,
    expireAfter, terminationGracePeriod, requirements; without it nodes expire after 720h, Karpenter's default"""
    node_class: str = ""
    """class of the nodes that are provisioned: GROUP/KIND/NAME; without it the template's, or that of KWOK"""
    speed: Positive = 1.0
    """how many times faster everything goes on this cluster: of benchmarks, whose Karpenter was built so"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""
    leader_elect: bool = True
    """with --apply: one of several processes decides, the others wait"""
    lease_name: str = "aaml-autoscale"
    """name of the Lease that they share"""


def run(args: Args) -> int:
    """Decide about nodes until Ctrl-C, SIGTERM, or another process has the lease."""
    import threading

    from aaml.live.autoscale_metrics import AutoscaleMetrics
    from aaml.live.node_template import KWOK_CLASS, NodeTemplate
    from aaml.live.replica import Replica, run_replica
    from aaml.nodes.committed import find_commitments
    from aaml.nodes.file import find_autoscaler
    from aaml.nodes.node_policy import NodePolicy
    from aaml.telemetry.console import terminal_log

    if args.apply and args.all_claims:
        raise UserError("all-claims: goes with a dry run alone; --apply deletes none but its own NodeClaims")
    policy = find_autoscaler(args.nodes)
    if not isinstance(policy, NodePolicy):
        raise bad_value("nodes", args.nodes, "`learned` or a file of `aaml search nodes`; a NodePool is for Karpenter")
    given = {
        "wait_p99_s": args.wait_p99_s, "wait_mean_s": args.wait_mean_s, "evictions_per_pod_hour": args.evictions,
    }  # fmt: skip
    policy = replace(policy, **{name: value for name, value in given.items() if value is not None})
    template = (
        NodeTemplate.read(args.template, args.node_class)
        if args.template
        else NodeTemplate.plain(args.node_class or KWOK_CLASS)
    )
    catalogue = template.catalogue(args.instance_types)
    commitments = find_commitments(args.commitments, args.instance_types)
    options = replace(args, leader_elect=args.leader_elect and args.apply)
    stop, metrics = threading.Event(), AutoscaleMetrics()

    def make(lease: "LeaderLease | None") -> Replica:
        replica = Replica(stop.set, lease, "the cluster's objects are not known yet")
        metrics.leads.labels(args.lease_name).set_function(lambda: float(replica.leads))
        return replica

    with (
        terminal_log(),
        ends_by(stop.set) as interruption,
        run_replica(options, make, metrics.text, kubeconfig=args.kubeconfig, granted_by="autoscale") as replica,
    ):
        if replica.acquire(stop.is_set):
            _decide(args, policy, template, catalogue, commitments, replica, stop, metrics)
        lost = replica.lost or (replica.leads and not replica.holds_lease)
        return LOST_STATUS if lost else interruption.service_status


def _decide(
    args: Args, policy: "NodePolicy", template: "NodeTemplate", catalogue: "Catalogue", commitments: "Commitments",
    replica: "Replica", stop: "threading.Event", metrics: "AutoscaleMetrics",
) -> None:  # fmt: skip
    """Watch the cluster, and provision and terminate nodes until `stop` is set."""
    import time

    from aaml.kube import rights
    from aaml.kube.place import Place
    from aaml.kube.sources import BUDGETS, NODE_CLAIMS, NODE_POOLS
    from aaml.kube.watcher import ClusterWatch
    from aaml.live.node_controller import MoveLimits, NodeController, Order
    from aaml.live.node_pools import active
    from aaml.live.owned_nodes import OwnedNodes
    from aaml.live.promise import ANNOTATION

    def tell(order: Order) -> None:
        print(time.strftime("%H:%M:%S"), order, flush=True)

    watch = ClusterWatch.connect(
        args.kubeconfig, connections=4, more=(NODE_CLAIMS, NODE_POOLS, BUDGETS), granted_by="autoscale",
        needs=rights.PROVISION if args.apply else rights.LOOK_AT_CLAIMS,
    )  # fmt: skip
    with closing(watch):
        if pools := active(watch.more[NODE_POOLS.name].values()):
            _beside(pools, refused=args.apply and not args.beside_nodepools)
        owned = OwnedNodes(watch, catalogue, template, all_claims=args.all_claims, speed=args.speed)
        limits = MoveLimits(args.moves, args.interval, args.most_nodes)
        controller = NodeController(
            owned, policy, template, tell, limits=limits, apply=args.apply,
            beside_nodepools=args.beside_nodepools, metrics=metrics, commitments=commitments,
        )  # fmt: skip
        doing = "provisions and terminates nodes" if args.apply else "dry run, nothing is written"
        print(f"{Place.look(watch.transport, args.kubeconfig)}: {doing}", flush=True)
        replica.tell(ANNOTATION, lambda: controller.promise)
        replica.set_ready()
        controller.run(lambda: stop.is_set() or not replica.holds_lease, replica.on_turn)


def _beside(pools: "list[str]", *, refused: bool) -> None:
    """Warn that Karpenter provisions for the same pods; raises `UserError` where that is `refused`."""
    import logging

    warning = f"Karpenter provisions for the same pods itself, by the NodePool {', '.join(pools)}"
    if refused:
        raise UserError(f"{warning}; delete it, set its limits to 0, or say --beside-nodepools")
    logging.getLogger("aaml").warning("%s: both may provision for one pod", warning)
