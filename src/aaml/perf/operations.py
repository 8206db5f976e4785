"""The operations that a scenario of Kubernetes' scheduler benchmark is made of, as its YAML files spell them.

A field that ends in `_param` names a parameter of the workload (`$initNodes`), whose value its namesake takes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from aaml.errors import UserError

_PARAM = "_param"


class Operation(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="opcode", rename="camel", forbid_unknown_fields=True
):
    """One step of a scenario."""


class NodeAllocatable(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What new nodes offer besides, and what their CSINodes say of attachable volumes."""

    node_allocatable: dict[str, str] = {}
    csi_node_allocatable: dict[str, dict[str, int]] = {}
    migrated_plugins: list[str] = []


class LabelValues(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A label of new nodes, whose values are dealt out in turns."""

    label_key: str
    label_values: list[str]


class CreateNodes(Operation, frozen=True, tag="createNodes"):
    """Create nodes from a template, or of 4 CPU, 32Gi and 110 pods."""

    count: int = 0
    count_param: str = ""
    node_template_path: str | None = None
    template_params: dict[str, Any] = {}
    node_allocatable_strategy: NodeAllocatable | None = None
    label_node_prepare_strategy: LabelValues | None = None


class CreateNamespaces(Operation, frozen=True, tag="createNamespaces"):
    """Create the namespaces PREFIX-0, PREFIX-1 and so on."""

    prefix: str
    count: int = 0
    count_param: str = ""
    namespace_template_path: str | None = None


class CreatePods(Operation, frozen=True, tag="createPods"):
    """Create pods and, by default, wait until as many in their namespace are bound.

    Each `signature_batch_size` of them have a label of their own, by which kube-scheduler batches pods.
    """

    count: int = 0
    count_param: str = ""
    count_multiplier: int = 1
    count_multiplier_param: str = ""
    namespace: str | None = None
    pod_template_path: str | None = None
    template_params: dict[str, Any] = {}
    signature_batch_size: int = 1
    signature_batch_size_param: str = ""
    persistent_volume_template_path: str | None = None
    persistent_volume_claim_template_path: str | None = None
    collect_metrics: bool = False
    skip_wait_to_completion: bool = False
    steady_state: bool = False
    steady_state_param: str = ""
    duration: str = ""
    duration_param: str = ""


class CreatePodSets(Operation, frozen=True, tag="createPodSets"):
    """Create the same pods in each of the namespaces PREFIX-0, PREFIX-1 and so on."""

    namespace_prefix: str
    create_pods_op: CreatePods
    count: int = 0
    count_param: str = ""


class CreatePodGroups(Operation, frozen=True, tag="createPodGroups"):
    """Create groups of pods."""

    template_path: str
    template_params: dict[str, Any] = {}
    namespace: str = ""
    count: int = 1
    count_param: str = ""


class CreateAny(Operation, frozen=True, tag="createAny"):
    """Create objects of any kind."""

    template_path: str
    template_params: dict[str, Any] = {}
    namespace: str = ""
    count: int = 1
    count_param: str = ""


class UpdateAny(Operation, frozen=True, tag="updateAny"):
    """Replace objects and their status, so many a second, or all at once."""

    template_path: str
    namespace: str = ""
    count: int = 1
    count_param: str = ""
    update_per_second: int = 0
    subresources: list[str] = []


class DeletePods(Operation, frozen=True, tag="deletePods"):
    """Delete pods of a namespace, so many a second, or all at once."""

    namespace: str
    label_selector: dict[str, str] = {}
    skip_wait_to_completion: bool = False
    delete_pods_per_second: int = 0


class ChurnObjects(Operation, frozen=True, tag="churn"):
    """Create objects (and in the mode "recreate" delete them again) until the scenario ends."""

    mode: Literal["create", "recreate"]
    template_paths: list[str]
    number: int = 0
    interval_milliseconds: int = 500
    namespace: str | None = None


class Barrier(Operation, frozen=True, tag="barrier"):
    """Wait for the pods that nothing has waited for: until they are bound, or at least were tried."""

    namespaces: list[str] = []
    label_selector: dict[str, str] = {}
    stage_requirement: Literal["Scheduled", "Attempted"] = "Scheduled"


class StartCollectingMetrics(Operation, frozen=True, tag="startCollectingMetrics"):
    """Measure from now on how fast pods of these namespaces are bound."""

    namespaces: list[str]
    name: str = ""
    label_selector: dict[str, str] = {}


class StopCollectingMetrics(Operation, frozen=True, tag="stopCollectingMetrics"):
    """Measure no longer."""


class CreateResourceDriver(Operation, frozen=True, tag="createResourceDriver"):
    """Offer devices on nodes, for dynamic resource allocation."""

    driver_name: str
    nodes: str
    max_claims_per_node: int = 0
    max_claims_per_node_param: str = ""


class AllocResourceClaims(Operation, frozen=True, tag="allocResourceClaims"):
    """Give devices to claims that belong to no pod."""

    namespace: str = ""


AnyOperation = (
    CreateNodes | CreateNamespaces | CreatePods | CreatePodSets | CreateAny | UpdateAny | DeletePods | ChurnObjects
    | CreatePodGroups | Barrier | StartCollectingMetrics | StopCollectingMetrics | CreateResourceDriver
    | AllocResourceClaims
)  # fmt: skip
_Op = TypeVar("_Op", bound=Operation)


def with_parameters(operation: _Op, parameters: Mapping[str, Any]) -> _Op:
    """Return the operation with the workload's numbers in it. Raises `UserError` for one that is not given."""
    values = {}
    for name in operation.__struct_fields__:
        value = getattr(operation, name)
        if isinstance(value, Operation):
            values[name] = with_parameters(value, parameters)
        elif name.endswith(_PARAM) and value:
            if name == "count_param" and isinstance(operation, CreatePods) and _is_steady(operation, parameters):
                continue  # it creates pods for some time, however many
            if value.removeprefix("$") not in parameters:
                raise UserError(f"{value}: the workload does not say it; it says {', '.join(parameters)}")
            values[name.removesuffix(_PARAM)] = parameters[value.removeprefix("$")]
    return msgspec.structs.replace(operation, **values)


def _is_steady(operation: CreatePods, parameters: Mapping[str, Any]) -> bool:
    return operation.steady_state or bool(parameters.get(operation.steady_state_param.removeprefix("$")))


def unrolled(operations: "list[AnyOperation]", parameters: Mapping[str, Any]) -> Iterator[AnyOperation]:
    """Yield what is to be done one after another: with the workload's numbers, and a set of pods as its parts."""
    for operation in operations:
        step = with_parameters(operation, parameters)
        if isinstance(step, CreatePodSets):
            for index in range(step.count):
                yield msgspec.structs.replace(step.create_pods_op, namespace=f"{step.namespace_prefix}-{index}")
        else:
            yield step
