"""Objects that people write, decoded as strictly as the API server does it for kubectl: what is unknown is refused.

`aaml.kube.objects.wire` has the fields that scheduling reads. Here stand the names of the other fields of the same
objects (the API of Kubernetes 1.37), by which these are told from misspelt ones. Their contents are not looked at.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from msgspec import field
from msgspec import inspect as types

from aaml.cluster.selectors import matches_labels
from aaml.errors import UserError, bad_value, did_you_mean
from aaml.kube.objects import wire
from aaml.kube.objects.selectors import label_selector
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
    scheduling: wire.Scheduling | None = None


class JobStatus(wire.Wire):
    """`status` of a Job."""

    active: int = 0
    succeeded: int = 0
    conditions: list[wire.Condition] | None = None


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
    status: JobStatus = field(default_factory=JobStatus)


class DaemonSet(wire.Named, kw_only=True):
    """A DaemonSet."""

    spec: DaemonSetSpec


class PriorityClass(wire.Named, kw_only=True):
    """A PriorityClass."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


_VERSIONS: Mapping[type, str] = {
    **dict.fromkeys((Deployment, ReplicaSet, StatefulSet, DaemonSet), "apps/v1"), Job: "batch/v1",
    PriorityClass: "scheduling.k8s.io/v1", wire.PodGroupObject: "scheduling.k8s.io/v1beta1",
}  # fmt: skip
"""The version of the API in which a kind is; all others are in v1."""
MOST_PRIORITY = 1_000_000_000
"""Of a class that is not the system's."""
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""The system's own classes."""
_OF_THE_SYSTEM = "system-"

Workload = Deployment | ReplicaSet | StatefulSet | Job | DaemonSet

_OBJECT = "apiVersion kind status"
_OTHERS: Mapping[type, str] = {
    wire.PodObject: _OBJECT,
    wire.NodeObject: _OBJECT,
    **dict.fromkeys((Deployment, ReplicaSet, StatefulSet, Job, DaemonSet), _OBJECT),
    PriorityClass: "apiVersion description kind",
    wire.PodGroupObject: "apiVersion kind",
    wire.PodGroupSpec: "resourceClaims workloadRef",
    wire.PodGroupStatus: "resourceClaimStatuses",
    wire.Scheduling: "resourceClaims",
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
        "maxFailedIndexes podFailurePolicy podReplacementPolicy successPolicy "
        "ttlSecondsAfterFinished"
    ),
    JobStatus: (
        "completedIndexes completionTime failed failedIndexes ready startTime terminating uncountedTerminatedPods"
    ),
    DaemonSetSpec: "minReadySeconds revisionHistoryLimit updateStrategy",
    wire.PodSpec: (
        "automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks ephemeralContainers evictionResponders "
        "hostAliases hostIPC hostPID hostname hostnameOverride imagePullSecrets os readinessGates "
        "restartPolicy runtimeClassName securityContext serviceAccount serviceAccountName "
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
    wire.TimedCondition: "observedGeneration",
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
    wire.PodGroupSpec: {"preemptionPolicy": _PREEMPTION},
    wire.GangPolicy: {"minCount": 1},
    PriorityClass: {"preemptionPolicy": _PREEMPTION},
}  # fmt: skip
"""The words that a field may be, or the least that a number may be."""
_NEEDED: Mapping[type, tuple[str, ...]] = {
    wire.PodTerm: ("topologyKey",),
    wire.SpreadConstraint: ("maxSkew", "topologyKey", "whenUnsatisfiable"),
    wire.TaintObject: ("effect",),
    wire.PodGroupObject: ("spec",),
    wire.PodGroupSpec: ("schedulingPolicy",),
    wire.SchedulingGroup: ("podGroupName",),
    wire.TopologyConstraint: ("key",),
}
"""The fields that must be given, beside those that a struct cannot be without."""
_OTHERWISE = {
    "schedulingPolicy": "basic: {}, or gang: {minCount: ...}", "podGroupName": "the name of a PodGroup",
    "spec": "a schedulingPolicy in it",
}  # fmt: skip


def read_strictly(content: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Return an object as a type.

    Raises `UserError` for a field that is unknown or missing, and for a value that is none of a field.
    """
    _check(content, _info(kind), where, "")
    found = convert(content, kind, where)
    _check_version(content, kind, where)
    validate(found, where)
    match found:
        case Deployment() | ReplicaSet() | StatefulSet() | DaemonSet():
            _check_selector(found.spec, where)
        case PriorityClass():
            _check_priority(found, where)
    return found


def _check_version(content: Mapping[str, Any], kind: type, where: str) -> None:
    """Raise `UserError` for a version of the API in which there is no such kind; none at all will do."""
    version, right = content.get("apiVersion"), _VERSIONS.get(kind, "v1")
    if version not in (None, "", right):
        raise bad_value(f"{where}: apiVersion", version, right)


def _check_selector(spec: _WorkloadSpec, where: str) -> None:
    """Raise `UserError` for a controller that would not know its own pods (pkg/apis/apps/validation)."""
    selector, labels = label_selector(spec.selector), spec.template.metadata.labels or {}
    if selector is None:
        raise UserError(f"{where}: spec.selector: missing; expected labels of spec.template.metadata")
    if not selector.requirements:
        raise bad_value(f"{where}: spec.selector", "{}", "labels of spec.template.metadata")
    if not matches_labels(selector, labels):
        raise bad_value(f"{where}: spec.template.metadata.labels", labels, "labels that spec.selector selects")
    if spec.template.spec.active_deadline_seconds is not None:
        field = "spec.template.spec.activeDeadlineSeconds"
        raise bad_value(f"{where}: {field}", spec.template.spec.active_deadline_seconds, "none but for Jobs and Pods")


def _check_priority(found: PriorityClass, where: str) -> None:
    """Raise `UserError` for what only the system's own classes may be (pkg/apis/scheduling/validation)."""
    name, value = found.metadata.name, found.value
    if name.startswith(_OF_THE_SYSTEM):
        if SYSTEM_PRIORITIES.get(name) != value:
            own = ", ".join(f"{each}: {number}" for each, number in SYSTEM_PRIORITIES.items())
            raise bad_value(f"{where}: metadata.name", name, f"a name without {_OF_THE_SYSTEM} (the system has {own})")
    elif not -(2**31) <= value <= MOST_PRIORITY:
        raise bad_value(f"{where}: value", value, f"a whole number from {-(2**31)} to {MOST_PRIORITY}")


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
            raise UserError(f"{where}: {f'{place}.{name}'.lstrip('.')}: missing; expected {_accepted(kind, name)}")
    timed = kind is wire.TolerationObject and value.get("tolerationSeconds") is not None
    if timed and value.get("effect") != "NoExecute":
        raise bad_value(f"{where}: {place}.effect", value.get("effect"), "NoExecute beside tolerationSeconds")
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
    return f"one of {', '.join(accepted.split())}" if accepted else _OTHERWISE.get(name, "the name of a label")


@cache
def _fields(kind: type) -> tuple[dict[str, types.Type], frozenset[str]]:
    """Return the fields of a struct that are read, with their types, and the names of the others."""
    fields: tuple[types.Field, ...] = _info(kind).fields  # type: ignore[attr-defined]
    return {each.encode_name: each.type for each in fields}, frozenset(_OTHERS.get(kind, "").split())
