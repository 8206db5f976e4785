"""NodeClaims of Karpenter: what the status of one says, and how one is created."""

import secrets
from typing import Any, NamedTuple

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, PRICE_LABEL, TYPE_LABEL, ZONE_LABEL
from aaml.kube.objects import wire
from aaml.live.node_template import NodeTemplate
from aaml.nodes.catalogue import InstanceType, Offering

OURS = {"aaml.dev/managed-by": "autoscale"}
"""The labels of the NodeClaims that `aaml autoscale` creates, and the only ones that it deletes."""
_BEFORE_ANY_TRY = frozenset({"", "AwaitingReconciliation"})  # reasons of a condition that Karpenter has not looked at


class Offer(NamedTuple):
    """One way to provision a type, as a claim asks for it; "" for what it leaves open."""

    type: str
    capacity_type: str
    zone: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.type} ({', '.join(filter(None, (self.capacity_type, self.zone)))})"

    @classmethod
    def of(cls, kind: InstanceType, offering: Offering) -> "Offer":
        """Return an offering of a type."""
        return cls(kind.name, offering.capacity_type, offering.zone)


def is_ours(claim: wire.NodeClaimObject) -> bool:
    """Whether `aaml autoscale` created a claim."""
    labels = claim.metadata.labels or {}
    return all(labels.get(key) == value for key, value in OURS.items())


def offer_of(claim: wire.NodeClaimObject) -> Offer:
    """Return a claim's type, zone and capacity type: from its labels once launched, before from its requirements."""
    only = ((each.key, each.values or ()) for each in claim.spec.requirements or ())
    required = {key: values[0] for key, values in only if len(values) == 1}
    labels = {**required, **(claim.metadata.labels or {})}
    return Offer(labels.get(TYPE_LABEL, ""), labels.get(CAPACITY_TYPE_LABEL, ""), labels.get(ZONE_LABEL, ""))


def offering_of(claim: wire.NodeClaimObject, kind: InstanceType) -> Offering | None:
    """Return the offering of a claim's node; before its launch, the one ordered. None where the catalogue has none."""
    offer = offer_of(claim)
    if not offer.capacity_type:
        return kind.cheapest
    alike = [each for each in kind.offerings if each.capacity_type == offer.capacity_type]
    return next((each for each in alike if each.zone == offer.zone), alike[0] if alike else None)


def since(claim: wire.NodeClaimObject, condition: str) -> float | None:
    """Return since when a condition of a claim is true, None where it is not."""
    for each in claim.status.conditions or ():
        if each.type == condition and each.status == "True":
            return each.last_transition_time.timestamp() if each.last_transition_time else 0.0
    return None


def is_launched(claim: wire.NodeClaimObject) -> bool:
    """Whether there is, or was, an instance for a claim."""
    return bool(claim.status.node_name) or any(since(claim, each) is not None for each in ("Launched", "Initialized"))


def launch_failure(claim: wire.NodeClaimObject) -> str:
    """Return why Karpenter has failed to launch a claim so far; "" where it has not tried, or has launched it."""
    if is_launched(claim):
        return ""
    failed = (each for each in claim.status.conditions or () if each.type == "Launched")
    return next((each.message or each.reason for each in failed if each.reason not in _BEFORE_ANY_TRY), "")


def new_claim(kind: InstanceType, template: NodeTemplate) -> dict[str, Any]:
    """Return the NodeClaim that provisions a node of a type at its best price.

    Its name is drawn here: after an answer that was lost it is known which claim may be there.
    """
    labels = {key: value for key, value in kind.labels(kind.cheapest).items() if key != PRICE_LABEL}
    metadata: dict[str, Any] = {"name": f"aaml-{secrets.token_hex(5)}", "labels": {**template.labels, **OURS}}
    if template.annotations:
        metadata["annotations"] = dict(template.annotations)
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": metadata,
        "spec": {**template.spec, "requirements": requirements},
    }
