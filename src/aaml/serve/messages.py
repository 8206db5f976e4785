"""What goes over the wire: kube-scheduler's extender protocol (extender/v1) and the score service.

https://kubernetes.io/docs/reference/scheduling/config/ (Extender) and k8s.io/kube-scheduler/extender/v1 name the
fields. Go reads names in any case and kube-scheduler writes them in capitals (`NodeNames`), so that requests of the
extender are folded to lower case first (`fold`). Pods and nodes stay raw here; the composition root gives the
functions that read them. These classes are the documented schema too (`aaml.serve.openapi`).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

_TEXT = {"type": "string"}
PodJson = Annotated[
    msgspec.Raw,
    Meta(
        description="A v1.Pod; fields that scheduling does not read are ignored.",
        extra_json_schema={
            "type": "object",
            "required": ["metadata", "spec"],
            "properties": {
                "metadata": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": _TEXT, "namespace": _TEXT, "uid": _TEXT},
                },
                "spec": {"type": "object"},
            },
        },
    ),
]
NodeJson = Annotated[
    msgspec.Raw,
    Meta(
        description="A v1.Node; allocatable amounts are Kubernetes quantities.",
        extra_json_schema={
            "type": "object",
            "required": ["metadata"],
            "properties": {
                "metadata": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
                "status": {
                    "type": "object",
                    "properties": {"allocatable": {"type": "object", "additionalProperties": _TEXT}},
                },
            },
        },
    ),
]
PostedNodes = Annotated[list[NodeJson], Meta(description="The feasible nodes, with different names.")]
PostedPods = Annotated[
    list[PodJson],
    Meta(
        description="Pods that run on these nodes (spec.nodeName). Without them CPU and memory count as unused, and so "
        "do GPUs but for what a node's annotation simon/node-gpu-share tells."
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        max_length=253,
        description="A name as Kubernetes has them: it is part of a request's path.",
    ),
]
Line = Annotated[str, Meta(description="One line: the field, its value and what is accepted.")]


def fold(body: bytes) -> bytes:
    """Return a JSON object with the names of its own fields in lower case. Raises msgspec's errors for what is none."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({name.lower(): value for name, value in fields.items()})


class NodeList(msgspec.Struct):
    """A v1.NodeList with its items unread."""

    items: list[NodeJson] | None = None


class ExtenderArgs(msgspec.Struct):
    """extender/v1 ExtenderArgs, names in any case: nodenames (nodeCacheCapable: true) or nodes."""

    pod: PodJson
    nodes: NodeList | None = None
    nodenames: list[str] | None = None


class ExtenderFilterResult(msgspec.Struct, omit_defaults=True):
    """Which nodes pass; why the others do not. `error` makes kube-scheduler try the pod again."""

    nodenames: list[str] | None = None
    nodes: dict[str, list[NodeJson]] | None = None
    failed: dict[str, str] = msgspec.field(name="failedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(name="failedAndUnresolvableNodes", default_factory=dict)
    error: str = ""


class HostPriority(msgspec.Struct):
    """A node's score, 0 to 10."""

    host: str
    score: Annotated[int, Meta(ge=0, le=10)]


class ExtenderBindingArgs(msgspec.Struct, rename=lambda name: name.replace("_", "")):
    """extender/v1 ExtenderBindingArgs, names in any case."""

    pod_name: Name
    pod_namespace: Name
    pod_uid: str
    node: Name


class ExtenderBindingResult(msgspec.Struct, omit_defaults=True):
    """An empty object when the pod was bound."""

    error: str = ""


class ScoreRequest(msgspec.Struct):
    """The body of the score service: a v1.Pod, the feasible v1.Nodes and, where known, the pods bound there."""

    pod: PodJson
    nodes: PostedNodes
    pods: PostedPods = []


class ScoreReply(msgspec.Struct):
    """Node name -> 0 to 100."""

    scores: dict[str, Annotated[int, Meta(ge=0, le=100)]]


class Problem(msgspec.Struct):
    """Why a request was refused."""

    error: Line
