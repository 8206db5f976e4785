"""A watched cluster with Karpenter for tests of `aaml autoscale`, as reflectors tell of it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, TYPE_LABEL
from aaml.kube.objects import wire
from aaml.kube.reflector import Changes, Delta
from aaml.kube.sources import BUDGETS, NODE_CLAIMS, NODE_POOLS, NODES, PODS, SeenPod
from aaml.kube.watcher import ClusterWatch
from aaml.live.node_claims import OURS
from aaml.live.node_controller import NodeController
from aaml.live.node_template import NodeTemplate
from aaml.live.owned_nodes import OwnedNodes
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.node_policy import NodePolicy
from support import make

GIB = make.GIB
PATH = "/apis/karpenter.sh/v1/nodeclaims"
CLASS = "karpenter.kwok.sh/KWOKNodeClass/default"
NOW_S = 1_000_000.0
UNSCHEDULABLE = "0/0 nodes are available"


def kind(name: str, cores: int, price: float, *offerings: Offering) -> InstanceType:
    room = (("cpu", 1000 * cores), ("memory", 4 * cores * GIB), ("pods", 110))
    return InstanceType(name, room, offerings or (Offering(price, zone="a"),))


CATALOGUE = Catalogue((kind("small", 2, 1.0), kind("large", 8, 3.6)))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def claim(name: str, of: str = "small", *, ready_s: float | None = NOW_S - 600, labels: Any = OURS, **meta: Any) -> Any:
    """Return a claim that was made 630 s ago; its node is n-NAME."""
    conditions = (
        [] if ready_s is None else [wire.TimedCondition("Initialized", "True", last_transition_time=at(ready_s))]
    )
    launched = {TYPE_LABEL: of, CAPACITY_TYPE_LABEL: "on-demand"}
    metadata = wire.Metadata(name, uid=f"u-{name}", resource_version="1", creation_timestamp=at(NOW_S - 630),
                             labels={**launched, **labels}, **meta)  # fmt: skip
    status = wire.NodeClaimStatus("" if ready_s is None else f"n-{name}", conditions)
    return wire.NodeClaimObject(metadata, wire.NodeClaimSpec(), status)


class Live:
    """A watched cluster, as reflectors tell of it, and what a controller does there."""

    def __init__(self, transport: Any = None) -> None:
        self.watch = ClusterWatch(transport, (NODE_CLAIMS, NODE_POOLS, BUDGETS))
        self.now_s, self.told = NOW_S, []
        self.nodes = OwnedNodes(self.watch, CATALOGUE)

    def tell(self, source: Any, *objects: Any, change: str = "added") -> "Live":
        self.watch._take(Changes(source.name, tuple(Delta(change, each) for each in objects)))
        return self

    def node(self, name: str, of: str = "small", *pods: Any, less: int = 0, **fields: Any) -> "Live":
        """Add a claim with its node, which keeps so many milli-cores for itself, and pods on it."""
        extra = {key: fields.pop(key) for key in ("labels", "ready_s") if key in fields}
        offered = dict(CATALOGUE[of].allocatable)
        self.tell(NODE_CLAIMS, claim(name, of, **extra))
        self.tell(NODES, make.node(f"n-{name}", offered["cpu"] - less, offered["memory"], **fields))
        return self.tell(PODS, *(SeenPod(replace(each, node_name=f"n-{name}")) for each in pods))

    def waits(self, *pods: Any, why: str = UNSCHEDULABLE) -> "Live":
        return self.tell(PODS, *(SeenPod(each, why=why) for each in pods))

    def controller(self, policy: NodePolicy, **more: Any) -> NodeController:
        return NodeController(
            self.nodes, policy, NodeTemplate.plain(CLASS), self.told.append, clock=lambda: self.now_s, **more
        )

    def lines(self) -> list[str]:
        return [str(each) for each in self.told]


def pod(name: str, cores: float = 1.0, *, owner: str = "ReplicaSet/r", **fields: Any) -> Any:
    return make.pod(name, int(1000 * cores), GIB, at=NOW_S - 30, owner=owner, **fields)


EAGER = NodePolicy(idle_s=0.0, patience_s=0.0, eviction_dollars=0.0001)
