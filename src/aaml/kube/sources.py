"""What is watched: pods and nodes always; the rest once a pod needs it.

Claims, volumes, classes and CSI nodes for a pod with a claim, CSI drivers and their capacities for a claim that is not
bound yet, namespaces for a selector over them, disruption budgets for a pod that could preempt another, PodGroups for a
pod of one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from aaml.cluster.objects import DisruptionBudget, Node, Pod
from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.objects.convert import budget_from_api, gpu_indices, node_from_api, pod_from_api
from aaml.kube.objects.volumes import claim_names
from aaml.kube.reflector import Source

log = logging.getLogger(__name__)
T = TypeVar("T")
P = TypeVar("P", bound=wire.PodObject)
_STORAGE_API = "/apis/storage.k8s.io/v1"
POD_GROUPS_API = "/apis/scheduling.k8s.io/v1beta1"
GROUP_CONDITION = "PodGroupInitiallyScheduled"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod with the devices noted on it; `claims` is the API object where volumes are still to be resolved.

    `why` is the message of its condition PodScheduled while it has no node.
    """

    pod: Pod
    gpus: tuple[int, ...] | None = None
    claims: wire.PodObject | None = None
    why: str = ""


def see_pod(raw: wire.PodObject) -> SeenPod:
    """Convert a pod, without its volumes.

    Annotations that cannot be read count as none: kube-scheduler does not know them, and the pod uses its resources.
    """
    raw, pod = converted(raw)
    return SeenPod(
        pod,
        gpu_indices(raw) if raw.spec.node_name else None,
        raw if raw.spec.volumes and claim_names(raw) else None,
        "" if raw.spec.node_name else _why_unplaced(raw),
    )


def converted(raw: P) -> tuple[P, Pod]:
    """Return a pod, and what it is converted to: without annotations that cannot be read, which the log says."""
    try:
        return raw, pod_from_api(raw)
    except UserError as error:
        log.warning("pod %s/%s: %s; its GPU annotations are left out", raw.metadata.namespace, raw.metadata.name, error)
        raw = msgspec.structs.replace(raw, metadata=msgspec.structs.replace(raw.metadata, annotations=None))
        return raw, pod_from_api(raw)


def _why_unplaced(raw: wire.PodObject) -> str:
    unschedulable = (
        each for each in raw.status.conditions or () if each.type == "PodScheduled" and each.status == "False"
    )
    return next((each.message or each.reason for each in unschedulable), "")


@dataclass(frozen=True, slots=True)
class SeenBudget:
    """A disruption budget and its version."""

    budget: DisruptionBudget
    resource_version: str
    is_current: bool = True  # whether its controller has seen the latest change of it

    @property
    def now(self) -> DisruptionBudget:
        """Return the budget as evictions read it: one with the status of an earlier version allows nothing."""
        return self.budget if self.is_current else replace(self.budget, disruptions_allowed=0)


def see_budget(raw: wire.BudgetObject) -> SeenBudget:
    """Convert a disruption budget."""
    current = raw.status.observed_generation >= raw.metadata.generation
    return SeenBudget(budget_from_api(raw), raw.metadata.resource_version, current)


def uid_of(raw: wire.PodObject) -> str:
    """Return what identifies a pod: another pod may get its name."""
    return raw.metadata.uid


def _metadata_name(raw: Any) -> str:
    return str(raw.metadata.name)


def _full_name(raw: Any) -> str:
    return f"{raw.metadata.namespace}/{raw.metadata.name}"


def _metadata_version(raw: Any) -> str:
    return str(raw.metadata.resource_version)


def _as_it_is(
    resource: str, api: str, kind: type[T], key: Callable[[Any], str] = _metadata_name, brought_by: str = ""
) -> Source[T]:
    """Return the source of a resource whose objects are kept as the API sends them."""
    return Source(
        resource, f"{api}/{resource}", kind, lambda raw: raw, key=key, version=_metadata_version, brought_by=brought_by
    )


PODS: Source[SeenPod] = Source(
    "pods",
    "/api/v1/pods",
    wire.PodObject,
    see_pod,
    key=lambda seen: seen.pod.uid,
    version=lambda seen: seen.pod.resource_version,
    # Finished pods hold nothing; the server reports one that finishes as deleted.
    query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
    wire_key=uid_of,
)
NODES: Source[Node] = Source(
    "nodes",
    "/api/v1/nodes",
    wire.NodeObject,
    node_from_api,
    key=lambda node: node.name,
    version=lambda node: node.resource_version,
    wire_key=_metadata_name,
)
NAMESPACES = _as_it_is("namespaces", "/api/v1", wire.Named)
CLAIMS = _as_it_is("persistentvolumeclaims", "/api/v1", wire.ClaimObject, key=_full_name)
VOLUMES = _as_it_is("persistentvolumes", "/api/v1", wire.VolumeObject)
CLASSES = _as_it_is("storageclasses", _STORAGE_API, wire.StorageClass)
CSI_NODES = _as_it_is("csinodes", _STORAGE_API, wire.CsiNode)
ATTACHMENTS = _as_it_is("volumeattachments", _STORAGE_API, wire.AttachmentObject)
CSI_DRIVERS = _as_it_is("csidrivers", _STORAGE_API, wire.CsiDriverObject)
CAPACITIES = _as_it_is("csistoragecapacities", _STORAGE_API, wire.CapacityObject, key=_full_name)
BUDGETS: Source[SeenBudget] = Source(
    "poddisruptionbudgets",
    "/apis/policy/v1/poddisruptionbudgets",
    wire.BudgetObject,
    see_budget,
    key=lambda seen: f"{seen.budget.namespace}/{seen.budget.name}",
    version=lambda seen: seen.resource_version,
    wire_key=_full_name,
)
POD_GROUPS = _as_it_is("podgroups", POD_GROUPS_API, wire.PodGroupObject, key=_full_name)
NODE_CLAIMS = _as_it_is("nodeclaims", "/apis/karpenter.sh/v1", wire.NodeClaimObject, brought_by="Karpenter")
NODE_POOLS = _as_it_is("nodepools", "/apis/karpenter.sh/v1", wire.NodePoolObject, brought_by="Karpenter")
STORAGE: tuple[Source[Any], ...] = (CLAIMS, VOLUMES, CLASSES, CSI_NODES)
"""For pods with claims; attachments besides, where they may be read."""
PROVISIONING: tuple[Source[Any], ...] = (CSI_DRIVERS, CAPACITIES)
"""For pods with claims that wait for their first consumer."""
