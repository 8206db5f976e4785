"""Objects that people write, decoded as strictly as the API server does it for kubectl: what is unknown is refused.

`aaml.kube.objects.wire` has the fields that scheduling reads. Here stand the names of the other fields of the same
objects (the API of Kubernetes 1.37), by which these are told from misspelt ones. Their contents are not looked at.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from msgspec import field
from msgspec import inspect as types

from aaml.errors import UserError, bad_value, did_you_mean
from aaml.kube.objects import wire
from aaml.kube.objects.validation import validate
from aaml.schema import convert

T = TypeVar("T")
_info: Callable[[Any], types.Type] = cache(types.type_info)


class PodTemplate(wire.Wire):
    """What the pods of a workload are like."""

    spec: wire.PodSpec
    metadata: wire.Metadata = field(default_factory=wire.Metadata)


class _WorkloadSpec(wire.Wire):
    template: PodTemplate
    selector: wire.Selector | None = None


class DeploymentSpec(_WorkloadSpec):
    """`spec` of a Deployment."""

    replicas: int = 1


class ReplicaSetSpec(_WorkloadSpec):
    """`spec` of a ReplicaSet."""

    replicas: int = 1


class StatefulSetSpec(_WorkloadSpec):
    """`spec` of a StatefulSet."""

    replicas: int = 1


class JobSpec(_WorkloadSpec):
    """`spec` of a Job."""

    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False


class DaemonSetSpec(_WorkloadSpec):
    """`spec` of a DaemonSet."""


class Deployment(wire.Named, kw_only=True):
    """A Deployment."""

    spec: DeploymentSpec


class ReplicaSet(wire.Named, kw_only=True):
    """A ReplicaSet."""

    spec: ReplicaSetSpec


class StatefulSet(wire.Named, kw_only=True):
    """A StatefulSet."""

    spec: StatefulSetSpec


class Job(wire.Named, kw_only=True):
    """A Job."""

    spec: JobSpec


class DaemonSet(wire.Named, kw_only=True):
    """A DaemonSet."""

    spec: DaemonSetSpec


class PriorityClass(wire.Named, kw_only=True):
    """A PriorityClass."""

    value: int
    global_default: bool = False
    preemption_policy: str | None = None


Workload = Deployment | ReplicaSet | StatefulSet | Job | DaemonSet

_OBJECT = "apiVersion kind status"
_OTHERS: Mapping[type, str] = {
    wire.PodObject: _OBJECT,
    wire.NodeObject: _OBJECT,
    **dict.fromkeys((Deployment, ReplicaSet, StatefulSet, Job, DaemonSet), _OBJECT),
    PriorityClass: "apiVersion description kind",
    wire.Metadata: "deletionGracePeriodSeconds finalizers generateName managedFields selfLink",
    wire.OwnerReference: "apiVersion blockOwnerDeletion",
    DeploymentSpec: "minReadySeconds paused progressDeadlineSeconds revisionHistoryLimit strategy",
    ReplicaSetSpec: "minReadySeconds",
    StatefulSetSpec: (
        "minReadySeconds ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy revisionHistoryLimit "
        "serviceName updateStrategy volumeClaimTemplates"
    ),
    JobSpec: (
        "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode managedBy manualSelector "
        "maxFailedIndexes podFailurePolicy podReplacementPolicy scheduling successPolicy "
        "ttlSecondsAfterFinished"
    ),
    DaemonSetSpec: "minReadySeconds revisionHistoryLimit updateStrategy",
    wire.PodSpec: (
        "automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks ephemeralContainers evictionResponders "
        "hostAliases hostIPC hostPID hostname hostnameOverride imagePullSecrets os readinessGates "
        "restartPolicy runtimeClassName schedulingGroup securityContext serviceAccount serviceAccountName "
        "setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds workloadRef"
    ),
    wire.Container: (
        "args command env envFrom imagePullPolicy lifecycle livenessProbe readinessProbe resizePolicy securityContext "
        "startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts "
        "workingDir"
    ),
    wire.ResourceNeeds: "claims",
    wire.ContainerPort: "name",
    wire.RestartRule: "exitCodes",
    wire.TolerationObject: "tolerationSeconds",
    wire.ClaimSource: "readOnly",
    wire.Volume: (
        "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir fc flexVolume "
        "flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi nfs photonPersistentDisk portworxVolume "
        "projected quobyte rbd scaleIO secret storageos vsphereVolume"
    ),
    wire.NamedReference: "resourceClaimName resourceClaimTemplateName",
    wire.ContainerStatus: (
        "allocatedResourcesStatus containerID image imageID lastState ready restartCount started state stopSignal user "
        "volumeMounts"
    ),
    wire.Condition: "lastProbeTime lastTransitionTime observedGeneration",
    wire.PodStatus: (
        "allocatedResources ephemeralContainerStatuses extendedResourceClaimStatus hostIP hostIPs message "
        "nodeAllocatableResourceClaimStatuses observedGeneration podIP podIPs reason resize resourceClaimStatuses "
        "resources volumeHealth"
    ),
    wire.TaintObject: "timeAdded",
    wire.NodeSpec: "configSource externalID podCIDR podCIDRs podPreemptionPolicy providerID",
    wire.NodeStatus: (
        "addresses conditions config daemonEndpoints features nodeInfo phase runtimeHandlers volumesAttached "
        "volumesInUse"
    ),
}
"""The fields of the API that `wire` leaves out, by struct; one that has none left is not in here."""

_EFFECTS, _POLICIES = "NoSchedule PreferNoSchedule NoExecute", "Honor Ignore"
_PREEMPTION = "PreemptLowerPriority Never"
_VALUES: Mapping[type, Mapping[str, str | int]] = {
    wire.TaintObject: {"effect": _EFFECTS},
    wire.TolerationObject: {"operator": "Exists Equal Lt Gt", "effect": _EFFECTS},
    wire.Expression: {"operator": "In NotIn Exists DoesNotExist Gt Lt"},
    wire.SpreadConstraint: {
        "whenUnsatisfiable": "DoNotSchedule ScheduleAnyway", "nodeAffinityPolicy": _POLICIES,
        "nodeTaintsPolicy": _POLICIES, "maxSkew": 1, "minDomains": 1,
    },
    wire.ContainerPort: {"protocol": "TCP UDP SCTP"},
    wire.Container: {"restartPolicy": "Always OnFailure Never"},
    wire.PodSpec: {"preemptionPolicy": _PREEMPTION},
    PriorityClass: {"preemptionPolicy": _PREEMPTION},
}  # fmt: skip
"""The words that a field may be, or the least that a number may be."""
_NEEDED: Mapping[type, tuple[str, ...]] = {
    wire.PodTerm: ("topologyKey",),
    wire.SpreadConstraint: ("maxSkew", "topologyKey", "whenUnsatisfiable"),
    wire.TaintObject: ("effect",),
}
"""The fields that must be given, beside those that a struct cannot be without."""


def read_strictly(content: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Return an object as a type.

    Raises `UserError` for a field that is unknown or missing, and for a value that is none of a field.
    """
    _check(content, _info(kind), where, "")
    found = convert(content, kind, where)
    validate(found, where)
    return found


def _check(value: Any, kind: types.Type, where: str, place: str) -> None:
    """Raise `UserError` for what the API refuses in an object, as it names it."""
    match kind:
        case types.StructType() if isinstance(value, dict):
            _check_fields(value, kind.cls, where, place)
        case types.ListType() if isinstance(value, list):
            for number, each in enumerate(value):
                _check(each, kind.item_type, where, f"{place}[{number}]")
        case types.UnionType():
            for each in kind.types:
                if not isinstance(each, types.NoneType):
                    _check(value, each, where, place)


def _check_fields(value: Mapping[str, Any], kind: type, where: str, place: str) -> None:
    """Raise `UserError` for a field that the API does not have, or misses, and for a word that it does not know."""
    inner, others = _fields(kind)
    for name in _NEEDED.get(kind, ()):
        if value.get(name) in (None, ""):
            raise UserError(f"{where}: {place}.{name}: missing; expected {_accepted(kind, name)}")
    for name, each in value.items():
        at = f"{place}.{name}" if place else str(name)
        if name in inner:
            _check(each, inner[name], where, at)
            if _is_none_of(each, _VALUES.get(kind, {}).get(name)):
                raise bad_value(f"{where}: {at}", each, _accepted(kind, name))
        elif name not in others:
            meant = did_you_mean(str(name), [*inner, *others])
            raise UserError(f"{where}: unknown field {at!r}{meant}")


def _is_none_of(value: Any, accepted: str | int | None) -> bool:
    if isinstance(accepted, int):
        return isinstance(value, int) and value < accepted
    return accepted is not None and isinstance(value, str) and value not in ("", *accepted.split())


def _accepted(kind: type, name: str) -> str:
    accepted = _VALUES.get(kind, {}).get(name, "")
    if isinstance(accepted, int):
        return f"a whole number from {accepted}"
    return f"one of {', '.join(accepted.split())}" if accepted else "the name of a label"


@cache
def _fields(kind: type) -> tuple[dict[str, types.Type], frozenset[str]]:
    """Return the fields of a struct that are read, with their types, and the names of the others."""
    fields: tuple[types.Field, ...] = _info(kind).fields  # type: ignore[attr-defined]
    return {each.encode_name: each.type for each in fields}, frozenset(_OTHERS.get(kind, "").split())
