"""What goes over the wire: kube-scheduler's extender protocol (extender/v1) and the score service.

https://kubernetes.io/docs/reference/scheduling/config/ (Extender) and k8s.io/kube-scheduler/extender/v1 name the
fields. Go reads names in any case and kube-scheduler writes them in capitals (`NodeNames`), so that requests of the
extender are folded to lower case first (`fold`). Pods and nodes stay raw here; the composition root gives the
functions that read them.
"""

import msgspec


def fold(body: bytes) -> bytes:
    """Return a JSON object with the names of its own fields in lower case. Raises msgspec's errors for what is none."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({name.lower(): value for name, value in fields.items()})


class NodeList(msgspec.Struct):
    """A v1.NodeList with its items unread."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct):
    """The body of filter and prioritize: the pod, and its candidate nodes by name or in full."""

    pod: msgspec.Raw
    nodes: NodeList | None = None
    nodenames: list[str] | None = None


class ExtenderFilterResult(msgspec.Struct, omit_defaults=True):
    """Which nodes pass; why the others do not. `error` makes kube-scheduler try the pod again."""

    nodenames: list[str] | None = None
    nodes: dict[str, list[msgspec.Raw]] | None = None
    failed: dict[str, str] = msgspec.field(name="failedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(name="failedAndUnresolvableNodes", default_factory=dict)
    error: str = ""


class HostPriority(msgspec.Struct):
    """A node's score, 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(msgspec.Struct, rename=lambda name: name.replace("_", "")):
    """The body of bind."""

    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


class ExtenderBindingResult(msgspec.Struct, omit_defaults=True):
    """An empty object when the pod was bound."""

    error: str = ""


class ScoreRequest(msgspec.Struct):
    """The body of the score service: a v1.Pod, the feasible v1.Nodes and, where known, the pods bound there."""

    pod: msgspec.Raw
    nodes: list[msgspec.Raw]
    pods: list[msgspec.Raw] = []


class ScoreReply(msgspec.Struct):
    """Node name -> 0 to 100."""

    scores: dict[str, int]
