"""Pods and nodes as the scheduler sees them: frozen values, amounts in integers (milli-cores, bytes, pieces).

Only fields that scheduling reads are kept; `aaml.kube.convert` makes these from API objects and
`aaml.workload` from traces and YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
HOSTNAME_LABEL = "kubernetes.io/hostname"
RACK_LABEL = "rack"
SERVER_LABEL = "server"

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
    """A pod's toleration; an empty key with `Exists` tolerates everything, an empty effect matches all effects."""

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


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Matches labels when every requirement does; without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements on a node's labels and fields (`metadata.name`): all must hold; an empty term matches none."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class PreferredNode:
    """A preferred node-affinity term with its weight (1 to 100)."""

    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """A pod (anti-)affinity term: pods that match, in these namespaces, in the same `topology_key` domain.

    `selector` None matches no pod. `namespaces` is resolved: the pod's own namespace where the API object names none.
    `namespace_selector` None means not set (an empty selector matches all namespaces).
    """

    topology_key: str
    selector: LabelSelector | None
    namespaces: frozenset[str] = frozenset()
    namespace_selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class WeightedPodAffinityTerm:
    """A preferred pod-affinity term; a negative weight stands for preferred anti-affinity."""

    weight: int
    term: PodAffinityTerm


@dataclass(frozen=True, slots=True)
class Affinity:
    """All affinity of a pod. `required_nodes` None: not set; else one of the terms must match."""

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
class VolumeNeeds:
    """What the pod's volumes ask of a node, resolved by the API adapter.

    `node_terms`: for each bound persistent volume with node affinity its terms, one of which must match.
    `attachments`: (CSI driver, unique volume name) pairs, counted against the node's limit per driver.
    `exclusive`: claims (namespace/name) with ReadWriteOncePod. `missing`: why the volumes can't be resolved, or "".
    """

    node_terms: tuple[tuple[NodeSelectorTerm, ...], ...] = ()
    attachments: frozenset[tuple[str, str]] = frozenset()
    exclusive: frozenset[str] = frozenset()
    missing: str = ""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs of a pod: `count` devices with `milli` thousandths of each; `models` empty accepts any model.

    `count` 1 with `milli` below 1000 shares a device; several devices are always whole (milli 1000). `milli` 0 reserves
    nothing (eleven pods of the openb trace are like that).
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
class Pod:
    """A pod as scheduling sees it.

    `requests` holds the effective request (containers, init and sidecar containers, overhead, pod-level resources) by
    resource name; the one pod that it also takes is counted by the cluster state. `uid` is the identity everywhere.
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
    owner: str = ""  # "ReplicaSet/name-abc", "" without a controller
    gang: str = ""  # pods with the same gang are placed all or none
    gang_size: int = 0
    phase: str = "Pending"
    terminating: bool = False
    created_s: float = 0.0
    started_s: float = 0.0  # status.startTime, for the choice of preemption victims
    lifetime_s: float | None = None  # how long it runs once bound; None: until deleted
    resource_version: str = ""
    nonzero: tuple[int, int] | None = None  # (cpu_milli, memory_bytes) per container defaults applied; None: derive
    nonzero_containers: tuple[int, int] | None = None  # without pod-level resources; None: the same

    def __post_init__(self) -> None:
        if not self.uid:
            object.__setattr__(self, "uid", f"{self.namespace}/{self.name}")

    @property
    def key(self) -> str:
        """`namespace/name`, the way people write it."""
        return f"{self.namespace}/{self.name}"

    def request(self, resource: str) -> int:
        """Return the amount requested of one resource (0 when not named)."""
        return self.requests.get(resource, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """A node as scheduling sees it; `gpu_count` devices of `gpu_model` with 1000 thousandths each."""

    name: str
    allocatable: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    gpu_count: int = 0
    gpu_model: str = ""
    images: Mapping[str, int] = field(default_factory=dict)  # image name -> size in bytes
    volume_limits: Mapping[str, int] = field(default_factory=dict)  # CSI driver -> attachable volumes
    resource_version: str = ""

    @property
    def is_control_plane(self) -> bool:
        """Whether the node is the control plane, which is not capacity for the workload."""
        return CONTROL_PLANE_LABEL in self.labels


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget: how many of the pods that `selector` selects may be disrupted now.

    A selector of None, or an empty one, protects nothing here, as in kube-scheduler. `disrupted` names pods whose
    eviction is under way and counted in `disruptions_allowed` already.
    """

    name: str
    namespace: str = "default"
    selector: LabelSelector | None = None
    disruptions_allowed: int = 0
    disrupted: frozenset[str] = frozenset()
