"""What compiled episodes refuse, each in one line. The simulator plays all of it.

==================================  ====================================================================================
refused                             why
==================================  ====================================================================================
affinity, topology spread,          they need the objects of pods and nodes while the episode runs
host ports, volumes, a node
selector, a node's name
a gang, scheduling gates            pods are placed one at a time
a priority                          nothing is preempted
no pod                              there is nothing to decide
a timeline, filters of one's own,   an episode begins empty, and nothing but pods and the supply of nodes is to come
pods that run already
where nodes are provisioned:
a deadline                          of what is left of an evicted pod's lifetime it would leave another part
an autoscaler of one's own          it is not compiled
over 600 types                      memory for each pod and type
a reservation of a zone, of a type  nodes of a type are alike
that is launched in several
kube-scheduler: images, soft        plugins that score them are not compiled
taints, containers without a
request, nodes in several zones
==================================  ====================================================================================

`aaml.episodes.batch` refuses rewards and observations that it does not compute.
"""

from collections.abc import Iterable

from aaml.cluster.objects import NO_AFFINITY, NO_VOLUMES, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.episodes.ports import Beginning, Supply
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.cluster_autoscaler import ClusterAutoscaler
from aaml.nodes.commitments import NOTHING_COMMITTED
from aaml.nodes.committed import zoned
from aaml.nodes.descheduler import HighNodeUtilization
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.karpenter_rules import MOST_TYPES
from aaml.nodes.learned import LearnedNodes


def check_cluster(cluster: Beginning) -> None:
    """Raise `UserError` for a cluster in which more than pods and nodes' supply is to come."""
    if not cluster.untouched:
        raise UserError(
            "compiled episodes begin with an empty cluster and take no timeline, no filters, no jobs and no queue"
        )
    if not cluster.workload.pods:
        raise UserError("compiled episodes have at least one pod, and none is drawn here")
    if cluster.supply is not None and len(cluster.state):
        raise UserError("compiled episodes in which nodes are bought begin without a node")


def check_pod(pod: Pod) -> None:
    """Raise `UserError` for a pod that asks for more than resources, GPUs, tolerations and a lifetime."""
    found = (
        "affinity" if pod.affinity is not NO_AFFINITY and pod.affinity != NO_AFFINITY
        else "volumes" if pod.volumes is not NO_VOLUMES and pod.volumes != NO_VOLUMES
        else "a node selector" if pod.node_selector
        else "a node" if pod.node_name
        else "a gang" if pod.group is not None
        else "topology spread" if pod.spread
        else "host ports" if pod.host_ports
        else "a priority" if pod.priority
        else "scheduling gates" if pod.gates
        else f"{PODS} as a resource" if PODS in pod.requests
        else ""
    )  # fmt: skip
    if found:
        raise UserError(
            f"{pod.key}: it has {found}; compiled episodes take pods with requests, GPUs, tolerations and lifetimes"
        )


def check_supply(supply: Supply, pods: Iterable[Pod]) -> Karpenter | LearnedNodes | ClusterAutoscaler:
    """Return who buys nodes, with or without the descheduler beside.

    Raises `UserError` for another, for what can be bought, and for pods for which that is.
    """
    buyer = supply.autoscaler.beside if isinstance(supply.autoscaler, HighNodeUtilization) else supply.autoscaler
    if not isinstance(buyer, Karpenter | LearnedNodes | ClusterAutoscaler):
        raise UserError(
            f"compiled episodes know Karpenter, learned nodes, the Cluster Autoscaler, not {type(buyer).__name__}"
        )
    _check_catalogue(buyer.catalogue)
    _check_commitments(supply, buyer)
    resources = set(buyer.catalogue.resources)
    for pod in pods:
        found = (
            "a deadline" if pod.deadline_s is not None
            else "a resource that no type offers" if not pod.requests.keys() <= resources
            else ""
        )  # fmt: skip
        if found:
            raise UserError(f"{pod.key}: it has {found}; compiled episodes take no such pods where nodes are bought")
    return buyer


def _check_catalogue(catalogue: Catalogue) -> None:
    if len(catalogue.numbers) < len(catalogue) or len(catalogue) > MOST_TYPES:
        raise UserError(f"compiled episodes know at most {MOST_TYPES} instance types, of a name each")


def _check_commitments(supply: Supply, buyer: Karpenter | LearnedNodes | ClusterAutoscaler) -> None:
    committed = supply.meter.commitments
    if committed.names and (name := zoned(committed, buyer.catalogue.types)):
        raise UserError(f"{name}: it is launched in several ways at one price, and what was committed to is for some")
    if isinstance(buyer, LearnedNodes) and buyer.commitments not in (NOTHING_COMMITTED, committed):
        raise UserError("compiled learned nodes know of no other commitments than the bill's")


def check_kube_scheduler(nodes: Iterable[Node], pods: Iterable[Pod]) -> None:
    """Raise `UserError` for what other plugins tell apart than those of resources."""
    for node in nodes:
        if node.images or any(taint.effect == "PreferNoSchedule" for taint in node.taints):
            raise UserError(f"{node.name}: it has images or soft taints; compiled episodes of kube-scheduler do not")
    for pod in pods:
        asked = pod.request(CPU), pod.request(MEMORY)
        told = pod.nonzero_containers in (None, asked)
        if not all(asked) or ClusterState.nonzero_request(pod) != asked or not told:
            raise UserError(f"{pod.key}: a container requests no CPU or no memory; those of compiled episodes do")


def check_zones(zones: set[str]) -> None:
    """Raise `UserError` for nodes in several zones, among which kube-scheduler goes round."""
    if len(zones) > 1:
        raise UserError("compiled episodes of kube-scheduler buy nodes in one zone")
