"""Pods and nodes as the scheduler sees them: values that never change, with amounts in integers.

CPU is counted in milli-cores, memory in bytes, everything else in pieces. Only the fields that scheduling reads are
kept. `aaml.kube.objects.convert` makes these objects from those of the API, and `aaml.workload` from traces and YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
HOSTNAME_LABEL = "kubernetes.io/hostname"
RACK_LABEL = "rack"
SERVER_LABEL = "server"
TYPE_LABEL = "node.kubernetes.io/instance-type"
CAPACITY_TYPE_LABEL = "karpenter.sh/capacity-type"
ZONE_LABEL = "topology.kubernetes.io/zone"
OS_LABEL, ARCH_LABEL = "kubernetes.io/os", "kubernetes.io/arch"
PRICE_LABEL = "eks-node-viewer/instance-price"  # Karpenter's KWOK provider writes it, dollars an hour
SPOT_LABELS = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""What clouds write on spot nodes where Karpenter does not: EKS' managed node groups, GKE, AKS."""

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str = ""
    effect: Effect = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration.

    An empty key with the operator `Exists` tolerates every taint, and an empty effect matches all effects.
    """

    key: str = ""
    operator: Literal["Equal", "Exists", "Lt", "Gt"] = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a label or field selector."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.key, self.operator, *self.values])


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """It matches labels when all requirements do, and everything when there are none."""

    requirements: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements on a node's labels and on its fields (`metadata.name`), all of which must hold.

    A term without requirements matches no node.
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredNode:
    """A preferred node-affinity term with its weight (1 to 100)."""

    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """A term of pod affinity or anti-affinity: pods that it selects, in the same domain of `topology_key`.

    A `selector` of None matches no pod. `namespaces` are those to look in, which is the pod's own where the API object
    names none. `namespace_selector` adds those that it selects: an empty selector adds all of them, and None adds none.
    """

    topology_key: str
    selector: LabelSelector | None
    namespaces: frozenset[str] = frozenset()
    namespace_selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class WeightedPodAffinityTerm:
    """A preferred pod-affinity term, or with a negative weight preferred anti-affinity."""

    weight: int
    term: PodAffinityTerm


@dataclass(frozen=True, slots=True)
class Affinity:
    """All affinity of a pod.

    Where `required_nodes` is not None, one of its terms must match the node.
    """

    required_nodes: tuple[NodeSelectorTerm, ...] | None = None
    preferred_nodes: tuple[PreferredNode, ...] = ()
    required_pods: tuple[PodAffinityTerm, ...] = ()
    required_anti_pods: tuple[PodAffinityTerm, ...] = ()
    preferred_pods: tuple[WeightedPodAffinityTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """A topology-spread constraint with `matchLabelKeys` already merged into the selector."""

    max_skew: int
    topology_key: str
    selector: LabelSelector | None
    hard: bool = True
    min_domains: int = 1
    honor_node_affinity: bool = True
    honor_node_taints: bool = False


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port that the pod takes on its node."""

    port: int
    protocol: str = "TCP"
    host_ip: str = "0.0.0.0"  # noqa: S104  (Kubernetes' word for every address; nothing is bound here)


@dataclass(frozen=True, slots=True)
class UnboundClaim:
    """A claim that waits for its first consumer: it gets a volume once the pod that uses it has a node.

    `key` is namespace/name. A volume has to be in the class, at least as large, of the same kind (a `block` device or a
    file system) and the same attributes class, and to have all `access_modes` and what `selector` asks of its labels
    (None: nothing). `selected_node` is where a new volume is being made already, "" where none is.
    """

    key: str
    uid: str = ""
    storage_class: str = ""
    size_bytes: int = 0
    access_modes: frozenset[str] = frozenset()
    block: bool = False
    attributes_class: str = ""
    selector: LabelSelector | None = None
    selected_node: str = ""


@dataclass(frozen=True, slots=True)
class VolumeNeeds:
    """What the pod's volumes ask of a node, as the adapter of the API has worked it out.

    `node_terms` has the terms of each bound persistent volume with node affinity, of which one must match. `zones` are
    labels of bound volumes that say where they are, each with the values of which the node must have one.
    `attachments` are pairs of a CSI driver and a volume name, which count against the node's limit for that driver.
    `exclusive` are claims (namespace/name) that only one pod may use (ReadWriteOncePod). `unbound` are claims that get
    their volume with the pod's node. `missing` says why the volumes cannot be resolved, and is empty where they can.
    """

    node_terms: tuple[tuple[NodeSelectorTerm, ...], ...] = ()
    attachments: frozenset[tuple[str, str]] = frozenset()
    exclusive: frozenset[str] = frozenset()
    missing: str = ""
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    unbound: tuple[UnboundClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs of a pod: `count` devices with `milli` thousandths of each, of one of the `models`.

    Without `models` any model will do. One device with `milli` below 1000 is shared with other pods, and several
    devices are always whole ones (`milli` 1000). A request with `milli` 0 reserves nothing: eleven pods of the openb
    trace are like that.
    """

    count: int = 0
    milli: int = 0
    models: frozenset[str] = frozenset()

    @property
    def total_milli(self) -> int:
        """All thousandths asked for."""
        return self.count * self.milli


NO_GPU = GpuRequest()
NO_AFFINITY = Affinity()
NO_VOLUMES = VolumeNeeds()


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup of Kubernetes' scheduling API: pods that are scheduled together, in the namespace of the pods.

    At least `min_count` of them get nodes in one try, or none does (the policy `gang`); None for the policy `basic`,
    where one is enough. Their nodes have the same value of the label `topology_key`; "" for any nodes. `whole`: what
    preempts one of its pods preempts all (`disruptionMode: all`). `preemption_policy` "": what its pods say. A group of
    which nothing is known but its name is not `seen`, and its pods wait.
    """

    name: str
    min_count: int | None = None
    topology_key: str = ""
    whole: bool = False
    priority: int = 0
    preemption_policy: Literal["", "PreemptLowerPriority", "Never"] = ""
    seen: bool = True

    @property
    def least(self) -> int:
        """How many pods have to have a node at the end of a try."""
        return 1 if self.min_count is None else self.min_count


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as scheduling sees it.

    `requests` holds what the pod requests effectively of each resource, with its init and sidecar containers, its
    overhead and its pod-level resources taken into account. That it also takes one of the node's places for pods is
    counted by the cluster state. `uid` is the pod's identity everywhere.
    """

    name: str
    namespace: str = "default"
    uid: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    gpu: GpuRequest = NO_GPU
    labels: Mapping[str, str] = field(default_factory=dict)
    scheduler_name: str = "default-scheduler"
    priority: int = 0
    preemption_policy: Literal["PreemptLowerPriority", "Never"] = "PreemptLowerPriority"
    node_name: str = ""  # spec.nodeName: where it is bound
    nominated_node: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Affinity = NO_AFFINITY
    tolerations: tuple[Toleration, ...] = ()
    spread: tuple[TopologySpread, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volumes: VolumeNeeds = NO_VOLUMES
    images: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    required_features: frozenset[str] = frozenset()  # what the kubelet of its node has to declare
    resource_claims: tuple[str, ...] = ()  # devices that somebody else has to allocate before the pod can run
    owner: str = ""  # "ReplicaSet/name-abc", "" without a controller
    group: PodGroup | None = None  # spec.schedulingGroup: whom it is scheduled together with
    phase: str = "Pending"
    terminating: bool = False
    preempted: bool = False  # it is terminating because a scheduler has preempted it
    created_s: float = 0.0
    started_s: float = 0.0  # status.startTime, for the choice of preemption victims
    lifetime_s: float | None = None  # how long it runs once bound, which nobody knows beforehand; None: until deleted
    deadline_s: float | None = None  # spec.activeDeadlineSeconds: it is ended when it has run for so long
    qos: str = ""  # quality-of-service class: Guaranteed, Burstable, BestEffort, or a trace's own
    resource_version: str = ""
    do_not_disrupt: bool = False  # no autoscaler may evict it, as its annotations say
    do_not_disrupt_s: float = inf  # for how long after its start that holds; inf: for good
    nonzero: tuple[int, int] | None = None  # (cpu_milli, memory_bytes) per container defaults applied; None: derive
    nonzero_containers: tuple[int, int] | None = None  # without pod-level resources; None: the same

    def __post_init__(self) -> None:
        if not self.uid:
            object.__setattr__(self, "uid", f"{self.namespace}/{self.name}")

    @property
    def key(self) -> str:
        """`namespace/name`, the way people write it."""
        return f"{self.namespace}/{self.name}"

    @property
    def group_key(self) -> str:
        """`namespace/name` of its group, "" without one."""
        return "" if self.group is None else f"{self.namespace}/{self.group.name}"

    @property
    def runs_s(self) -> float | None:
        """How long it runs once bound: its lifetime, but not beyond its deadline; None: until deleted."""
        if self.deadline_s is None or (self.lifetime_s is not None and self.lifetime_s <= self.deadline_s):
            return self.lifetime_s
        return self.deadline_s

    def request(self, resource: str) -> int:
        """Return the amount requested of one resource (0 when not named)."""
        return self.requests.get(resource, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """A node as scheduling sees it, with `gpu_count` devices of `gpu_model`, of 1000 thousandths each.

    `created_s`: seconds since 1970 at which the API server came to know it, 0 where that is not told.
    """

    name: str
    allocatable: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    gpu_count: int = 0
    gpu_model: str = ""
    images: Mapping[str, int] = field(default_factory=dict)  # image name -> size in bytes
    volume_limits: Mapping[str, int] = field(default_factory=dict)  # CSI driver -> attachable volumes
    declared_features: frozenset[str] = frozenset()  # what its kubelet can do, where not every kubelet can
    resource_version: str = ""
    created_s: float = 0.0
    do_not_disrupt: bool = False  # autoscalers are told to leave it alone

    @property
    def is_control_plane(self) -> bool:
        """Whether the node is the control plane, which is not capacity for the workload."""
        return CONTROL_PLANE_LABEL in self.labels


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget: how many of the pods that `selector` selects may be disrupted now.

    A selector of None, or an empty one, protects nothing here, as in kube-scheduler. `disrupted` names pods whose
    eviction is under way, which `disruptions_allowed` has counted already.
    """

    name: str
    namespace: str = "default"
    selector: LabelSelector | None = None
    disruptions_allowed: int = 0
    disrupted: frozenset[str] = frozenset()
