"""A NodePool (karpenter.sh/v1) as values, decoded strictly as the API server does it.

Fields are those of Karpenter 1.15's custom resource definition. What is not in here is an unknown field, which
`kubectl apply` refuses too.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

Duration = Annotated[str, Meta(pattern=r"^(([0-9]+(s|m|h))+|Never)?$")]
GracePeriod = Annotated[str, Meta(pattern=r"^([0-9]+(s|m|h))*$")]
Window = Annotated[str, Meta(pattern=r"^(([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?$")]
NodePoolOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    pass


class Metadata(_Strict):
    """Kubernetes' ObjectMeta, of which the annotations are read."""

    name: str = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: int = 0
    finalizers: list[str] = []
    owner_references: list[Any] = []
    managed_fields: list[Any] = []
    self_link: str = ""


class NodePoolRequirement(_Strict):
    """An expression on a label, with how many values have to be left at least."""

    key: Annotated[str, Meta(min_length=1)]
    operator: NodePoolOperator
    values: list[str] = []
    min_values: Annotated[int, Meta(ge=1, le=50)] | None = None


class NodeClassRef(_Strict):
    """The object with what a cloud wants to know."""

    group: str = ""
    kind: str = ""
    name: str = ""


class Taint(_Strict):
    """A taint of every node."""

    key: str
    effect: str
    value: str = ""
    time_added: Any = None


class ClaimSpec(_Strict):
    """What NodeClaims of the pool are like."""

    requirements: list[NodePoolRequirement] = []
    node_class_ref: NodeClassRef = field(default_factory=NodeClassRef)
    taints: list[Taint] = []
    startup_taints: list[Taint] = []
    expire_after: Duration = ""
    termination_grace_period: GracePeriod = ""


class ClaimMetadata(_Strict):
    """Labels and annotations of every node."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Template(_Strict):
    """The NodeClaims of the pool."""

    metadata: ClaimMetadata = field(default_factory=ClaimMetadata)
    spec: ClaimSpec = field(default_factory=ClaimSpec)


class Budget(_Strict):
    """How many nodes may be disrupted at once, always or at some times."""

    nodes: str = "10%"
    schedule: str | None = None
    duration: Window | None = None
    reasons: list[str] | None = None


class Disruption(_Strict):
    """When nodes may go."""

    consolidation_policy: str | None = None
    consolidate_after: str | int | float | None = None
    budgets: list[Budget] | None = None


class Spec(_Strict):
    """What a NodePool is."""

    template: Template = field(default_factory=Template)
    disruption: Disruption = field(default_factory=Disruption)
    limits: dict[str, str | int | float] = {}
    weight: Annotated[int, Meta(ge=1, le=100)] | None = None
    replicas: Annotated[int, Meta(ge=0)] | None = None


class NodePool(_Strict):
    """The whole object; its status is left aside."""

    api_version: str
    kind: str
    spec: Spec
    metadata: Metadata = field(default_factory=Metadata)
    status: dict[str, Any] = {}
