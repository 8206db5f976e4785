"""The API objects' JSON, as far as scheduling reads it: msgspec skips every other field while it decodes.

Field meanings: https://kubernetes.io/docs/reference/kubernetes-api/. Absent, null and empty mean the same here. Decoded
objects are shared as defaults and between threads: nobody changes them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from aaml.schema import NULL_IS

# Annotations, resources and labels of GPU sharing as the openb trace and its simulator name them,
# https://github.com/hkust-adsl/kubernetes-scheduler-simulator.
GPU_COUNT = "alibabacloud.com/gpu-count"
GPU_MILLI = "alibabacloud.com/gpu-milli"
GPU_MODEL = "alibabacloud.com/gpu-card-model"
GPU_INDEX = "alibabacloud.com/gpu-index"
NVIDIA_GPU = "nvidia.com/gpu"
NVIDIA_MODEL = "nvidia.com/gpu.product"

# Annotations of Karpenter and of the Cluster Autoscaler.
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

Quantities = Mapping[str, Annotated[str | int | float, msgspec.Meta(extra={NULL_IS: "0"})]] | None
Labels = dict[str, str] | None
W = TypeVar("W")


class Wire(msgspec.Struct, rename="camel", gc=False):
    """A JSON object with Kubernetes' camelCase names."""


class OwnerReference(Wire):
    """`metadata.ownerReferences[]`."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Wire):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None
    labels: Labels = None
    annotations: Labels = None
    owner_references: list[OwnerReference] | None = None


class Named(Wire):
    """An object of any kind: what all have."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)


class ListMetadata(Wire):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListOf(Wire, Generic[W]):
    """A list of objects, or a page of one."""

    items: list[W] | None = None
    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)


class ResourceNeeds(Wire):
    """`resources` of a container or of a pod."""

    requests: Quantities = None
    limits: Quantities = None


class ContainerPort(Wire):
    """`ports[]` of a container."""

    host_port: int = 0
    container_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class RestartRule(Wire):
    """`restartPolicyRules[]` of a container."""

    action: str = ""


class Container(Wire):
    """A container or, with `restartPolicy: Always` among the init containers, a sidecar."""

    name: str = ""
    image: str = ""
    resources: ResourceNeeds | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None
    restart_policy_rules: list[RestartRule] | None = None


class Expression(Wire):
    """An entry of `matchExpressions` or `matchFields`."""

    key: str
    operator: str
    values: list[str] | None = None


class Selector(Wire):
    """A label selector."""

    match_labels: Labels = None
    match_expressions: list[Expression] | None = None


class NodeTerm(Wire):
    """A node selector term."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeTerms(Wire):
    """A node selector: one of the terms must match."""

    node_selector_terms: list[NodeTerm] | None = None


class PreferredNodeTerm(Wire):
    """A preferred node term."""

    weight: int = 0
    preference: NodeTerm = msgspec.field(default_factory=NodeTerm)


class NodeAffinity(Wire):
    """`affinity.nodeAffinity`."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodeTerm] | None = None


class PodTerm(Wire):
    """A pod affinity term."""

    topology_key: str = ""
    label_selector: Selector | None = None
    namespaces: list[str] | None = None
    namespace_selector: Selector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodTerm(Wire):
    """A preferred pod affinity term."""

    weight: int = 0
    pod_affinity_term: PodTerm = msgspec.field(default_factory=PodTerm)


class PodAffinity(Wire):
    """`affinity.podAffinity` and `affinity.podAntiAffinity`."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodTerm] | None = None


class AffinityObject(Wire):
    """`spec.affinity`."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TolerationObject(Wire):
    """`spec.tolerations[]`."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class SpreadConstraint(Wire):
    """`spec.topologySpreadConstraints[]`."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: Selector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class ClaimSource(Wire):
    """`persistentVolumeClaim` of a volume."""

    claim_name: str = ""


class Volume(Wire):
    """`spec.volumes[]`, the kinds that tie a pod to nodes."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class NamedReference(Wire):
    """`spec.schedulingGates[]` and `spec.resourceClaims[]`."""

    name: str = ""


class SchedulingGroup(Wire):
    """`spec.schedulingGroup` of a pod."""

    pod_group_name: str = ""


class PodSpec(Wire):
    """`spec` of a pod."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: ResourceNeeds | None = None
    overhead: Quantities = None
    node_selector: Labels = None
    affinity: AffinityObject | None = None
    tolerations: list[TolerationObject] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    scheduling_gates: list[NamedReference] | None = None
    active_deadline_seconds: int | None = None
    volumes: list[Volume] | None = None
    resource_claims: list[NamedReference] | None = None
    host_network: bool = False
    host_users: bool | None = None
    scheduling_group: SchedulingGroup | None = None


class ContainerStatus(Wire):
    """`containerStatuses[]`: what the node really set aside, which differs while a pod is resized in place."""

    name: str = ""
    resources: ResourceNeeds | None = None
    allocated_resources: Quantities = None


class Condition(Wire):
    """A condition of a pod or node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class TimedCondition(Condition):
    """A condition with the time since which it is so."""

    last_transition_time: datetime | None = None


class PodStatus(Wire):
    """`status` of a pod."""

    phase: str = "Pending"
    nominated_node_name: str = ""
    qos_class: str | None = None
    start_time: datetime | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodObject(Named):
    """A pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class TaintObject(Wire):
    """`spec.taints[]` of a node."""

    key: str
    effect: str = "NoSchedule"
    value: str | None = None


class NodeSpec(Wire):
    """`spec` of a node."""

    unschedulable: bool = False
    taints: list[TaintObject] | None = None


class Image(Wire):
    """`status.images[]` of a node."""

    names: list[str] | None = None
    size_bytes: int = 0


class NodeStatus(Wire):
    """`status` of a node."""

    allocatable: Quantities = None
    capacity: Quantities = None
    images: list[Image] | None = None
    declared_features: list[str] | None = None


class NodeObject(Named):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class ClaimSpec(Wire):
    """`spec` of a persistent volume claim."""

    volume_name: str = ""
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    resources: ResourceNeeds | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    selector: Selector | None = None


class Phase(Wire):
    """`status` of a claim or volume."""

    phase: str = ""


class ClaimObject(Named):
    """A persistent volume claim."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: Phase = msgspec.field(default_factory=Phase)


class CsiSource(Wire):
    """`spec.csi` of a persistent volume."""

    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(Wire):
    """`spec.nodeAffinity` of a persistent volume."""

    required: NodeTerms | None = None


class ClaimReference(Wire):
    """`spec.claimRef` of a persistent volume."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeSpec(Wire):
    """`spec` of a persistent volume."""

    csi: CsiSource | None = None
    node_affinity: VolumeNodeAffinity | None = None
    capacity: Quantities = None
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    claim_ref: ClaimReference | None = None


class VolumeObject(Named):
    """A persistent volume."""

    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: Phase = msgspec.field(default_factory=Phase)


class TopologyLabel(Wire):
    """An expression of a term of `allowedTopologies`."""

    key: str
    values: list[str] = []


class TopologyTerm(Wire):
    """A term of `allowedTopologies`."""

    match_label_expressions: list[TopologyLabel] = []


class StorageClass(Named):
    """A storage class."""

    volume_binding_mode: str = "Immediate"
    provisioner: str = ""
    allowed_topologies: list[TopologyTerm] | None = None


class CapacityObject(Named):
    """A CSIStorageCapacity."""

    storage_class_name: str = ""
    node_topology: Selector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class CsiDriverSpec(Wire):
    """`spec` of a CSIDriver."""

    storage_capacity: bool | None = None


class CsiDriverObject(Named):
    """A CSIDriver."""

    spec: CsiDriverSpec = msgspec.field(default_factory=CsiDriverSpec)


class CsiDriver(Wire):
    """`spec.drivers[]` of a CSINode."""

    class Allocatable(Wire):
        """How many volumes fit."""

        count: int | None = None

    name: str = ""
    allocatable: Allocatable | None = None


class CsiNodeSpec(Wire):
    """`spec` of a CSINode."""

    drivers: list[CsiDriver] | None = None


class CsiNode(Named):
    """A CSINode, named like its node."""

    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)


class AttachedVolume(Wire):
    """`spec.source` of a VolumeAttachment."""

    persistent_volume_name: str = ""


class AttachmentSpec(Wire):
    """`spec` of a VolumeAttachment."""

    attacher: str = ""
    node_name: str = ""
    source: AttachedVolume = msgspec.field(default_factory=AttachedVolume)


class AttachmentObject(Named):
    """A VolumeAttachment: a volume that is attached to a node, or is to be."""

    spec: AttachmentSpec = msgspec.field(default_factory=AttachmentSpec)


class BudgetSpec(Wire):
    """`spec` of a PodDisruptionBudget."""

    selector: Selector | None = None


class BudgetStatus(Wire):
    """`status` of a PodDisruptionBudget; `disrupted_pods` names those whose eviction is under way."""

    disruptions_allowed: int = 0
    observed_generation: int = 0
    disrupted_pods: Mapping[str, str] | None = None


class BudgetObject(Named):
    """A PodDisruptionBudget."""

    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


class GangPolicy(Wire):
    """`gang` of a scheduling policy; a Job's may leave the number out."""

    min_count: int | None = None


class SchedulingPolicy(Wire):
    """`schedulingPolicy` of a PodGroup: one of the two."""

    basic: dict[str, Any] | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Wire):
    """`schedulingConstraints.topology[]` of a PodGroup."""

    key: str = ""


class SchedulingConstraints(Wire):
    """`schedulingConstraints` of a PodGroup."""

    topology: list[TopologyConstraint] | None = None


class DisruptionMode(Wire):
    """`disruptionMode` of a PodGroup: one of the two."""

    single: dict[str, Any] | None = None
    all_: dict[str, Any] | None = msgspec.field(default=None, name="all")


class Scheduling(Wire):
    """What a PodGroup and `scheduling` of a Job have in common."""

    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: DisruptionMode | None = None


class PodGroupSpec(Scheduling):
    """`spec` of a PodGroup."""

    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    parent_composite_pod_group_name: str | None = None


class PodGroupStatus(Wire):
    """`status` of a PodGroup."""

    conditions: list[TimedCondition] | None = None


class PodGroupObject(Named):
    """A PodGroup (scheduling.k8s.io/v1beta1)."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
    status: PodGroupStatus = msgspec.field(default_factory=PodGroupStatus)


class NodeClaimSpec(Wire):
    """`spec` of a NodeClaim of Karpenter."""

    requirements: list[Expression] | None = None
    taints: list[TaintObject] | None = None
    startup_taints: list[TaintObject] | None = None


class NodeClaimStatus(Wire):
    """`status` of a NodeClaim; without a node's name until that has registered."""

    node_name: str = ""
    conditions: list[TimedCondition] | None = None
    last_pod_event_time: datetime | None = None


class NodeClaimObject(Named):
    """A NodeClaim of Karpenter (karpenter.sh/v1): a node that is provisioned, is there, or is on its way out."""

    spec: NodeClaimSpec = msgspec.field(default_factory=NodeClaimSpec)
    status: NodeClaimStatus = msgspec.field(default_factory=NodeClaimStatus)


class NodePoolSpec(Wire):
    """`spec` of a NodePool; with `replicas` it keeps so many nodes, whatever pods wait."""

    limits: Quantities = None
    replicas: int | None = None


class NodePoolStatus(Wire):
    """`status` of a NodePool: what its nodes have in all."""

    resources: Quantities = None
    conditions: list[Condition] | None = None


class NodePoolObject(Named):
    """A NodePool of Karpenter (karpenter.sh/v1), for which Karpenter provisions nodes itself."""

    spec: NodePoolSpec = msgspec.field(default_factory=NodePoolSpec)
    status: NodePoolStatus = msgspec.field(default_factory=NodePoolStatus)


class ApiStatus(Wire):
    """The API server's word on a request: of an error, or in an ERROR event of a watch."""

    code: int = 0
    reason: str = ""
    message: str = ""
