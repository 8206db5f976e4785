"""What an autoscaler sees of a live cluster with Karpenter: its nodes and pods, from NodeClaims, nodes and pods.

A node is known by its NodeClaim's name from the order on. Only what an autoscaler can plan for is shown: pods that it
could not place stay out of what waits, and keep the node that they are on.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    NO_GPU,
    PRICE_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
    Node,
    Pod,
)
from aaml.cluster.quantity import PODS
from aaml.errors import bad_value
from aaml.kube.objects import wire
from aaml.kube.sources import NODE_CLAIMS
from aaml.kube.watcher import ClusterWatch
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.ports import Observed, OwnedNode, Waiting

log = logging.getLogger(__name__)

OURS = {"aaml.dev/managed-by": "autoscale"}
"""The labels of the NodeClaims that `aaml autoscale` creates, and the only ones that it deletes."""
_DISRUPTED = "karpenter.sh/disrupted"
_TOLD_S = 10.0  # after which a node has told, too, what its claim tells: that it is ready
_WITH_THE_NODE = frozenset({"DaemonSet", "Node"})  # owners of pods that come and go with a node


def is_ours(claim: wire.NodeClaimObject) -> bool:
    """Whether `aaml autoscale` created a claim."""
    labels = claim.metadata.labels or {}
    return all(labels.get(key) == value for key, value in OURS.items())


def claim_of(kind: InstanceType, node_class: str) -> dict[str, Any]:
    """Return the NodeClaim that buys a node of a type at its best price; `node_class` is GROUP/KIND/NAME.

    Raises `UserError` for a class that is not written so.
    """
    parts = node_class.split("/")
    if len(parts) != 3 or not all(parts):
        raise bad_value(
            "node_class", node_class, "GROUP/KIND/NAME, for instance karpenter.k8s.aws/EC2NodeClass/default"
        )
    labels = {key: value for key, value in kind.labels(kind.cheapest).items() if key != PRICE_LABEL}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"generateName": "aaml-", "labels": OURS},
        "spec": {
            "nodeClassRef": dict(zip(("group", "kind", "name"), parts, strict=True)),
            "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()],
        },
    }


class OwnedNodes:
    """The claims of a watched cluster and what runs on their nodes, as an autoscaler is shown them.

    `watch` follows `NODE_CLAIMS` too. `catalogue` is what can be bought, less what nodes were seen to keep for
    themselves and for their daemons. With `all_claims` the claims of others are shown, too. All times are seconds since
    1970 multiplied by `speed`, for a cluster where everything goes so many times faster than usual.
    """

    def __init__(
        self, watch: ClusterWatch, catalogue: Catalogue, *, all_claims: bool = False, speed: float = 1.0
    ) -> None:
        self.watch, self.catalogue, self._all_claims, self.speed = watch, catalogue, all_claims, speed
        self._offered = {kind.name: dict(kind.allocatable) for kind in catalogue.types}
        self._ordered_s: dict[str, float] = {}  # by claim
        self._going: set[str] = set()  # uids of claims whose deletion was ordered
        self._placed: object = None
        self._changed_s = 0.0
        self._told: set[str] = set()

    @property
    def claims(self) -> dict[str, wire.NodeClaimObject]:
        """All claims by name."""
        return self.watch.more[NODE_CLAIMS.name]

    def bought(self, claim: wire.NodeClaimObject, now_s: float) -> None:
        """Take in a claim that was created just now, before the watch tells of it."""
        self.claims.setdefault(claim.metadata.name, claim)
        self._ordered_s[claim.metadata.name] = now_s

    def given_back(self, claim: wire.NodeClaimObject) -> None:
        """Take note that a claim's deletion was ordered."""
        self._going.add(claim.metadata.uid)

    # ---- what can be bought ------------------------------------------------------------------------------------------

    def measure(self) -> bool:
        """Compare nodes that are ready with their types; returns whether these have less room than was believed.

        A type that was seen has the least that was left to pods on one of its nodes. The others lose what daemons take
        of a node at most.
        """
        least, daemons = dict[str, dict[str, int]](), dict[str, int]()
        for claim in self.claims.values():
            node, kind = self._node(claim), self._type_name(claim)
            if node is None or kind not in self.catalogue.numbers or _since(claim, "Initialized") is None:
                continue
            own = _sums(pod for pod in self._pods(node.name).values() if _goes_with_the_node(pod))
            left = least.setdefault(kind, {})
            for resource in self.catalogue.resources:
                daemons[resource] = max(daemons.get(resource, 0), own.get(resource, 0))
                room = node.allocatable.get(resource, 0) - own.get(resource, 0)
                left[resource] = min(left.get(resource, room), room)
        types = tuple(self._smaller(kind, least.get(kind.name), daemons) for kind in self.catalogue.types)
        if types == self.catalogue.types:
            return False
        self.catalogue = Catalogue(types)
        return True

    def _smaller(self, kind: InstanceType, seen: Mapping[str, int] | None, daemons: Mapping[str, int]) -> InstanceType:
        offered = self._offered[kind.name]
        room = seen or {resource: amount - daemons.get(resource, 0) for resource, amount in offered.items()}
        left = tuple((name, max(0, min(amount, room.get(name, 0)))) for name, amount in kind.allocatable)
        return kind if left == kind.allocatable else replace(kind, allocatable=left)

    # ---- what there is -----------------------------------------------------------------------------------------------

    def observe(self, now_s: float) -> Observed:
        """Return the cluster as it is now."""
        seen = Observed(now_s)
        pods: dict[str, dict[str, Pod]] = {}
        blocked: set[str] = set()
        released_s: dict[str, float] = {}
        for claim in self.claims.values():
            node = self._owned(claim, now_s)
            if node is None:
                continue
            seen.nodes[node.name] = node
            there = self._pods(claim.status.node_name)
            mine = pods[node.name] = {uid: pod for uid, pod in there.items() if not _goes_with_the_node(pod)}
            blocked |= {uid for uid, pod in mine.items() if not pod.owner or self._beyond_us(pod)}
            seen.stopping |= {uid for uid, pod in mine.items() if pod.terminating}
            released_s |= {uid: self._released_s(pod) for uid, pod in mine.items() if pod.do_not_disrupt}
        seen.pods, seen.blocked, seen.released_s = pods, frozenset(blocked), released_s
        seen.waiting = {pod.uid: Waiting(pod, min(pod.created_s * self.speed, now_s)) for pod in self._waiting()}
        placed = (
            {name: (node.initialized_s is not None, node.deleting) for name, node in seen.nodes.items()},
            {uid: name for name, mine in pods.items() for uid in mine},
        )
        if placed != self._placed:
            self._placed, self._changed_s = placed, now_s
        seen.changed_s = self._changed_s
        self._forget()
        return seen

    def _owned(self, claim: wire.NodeClaimObject, now_s: float) -> OwnedNode | None:
        """Return the node of a claim; None for one that is not ours, or that nobody here can plan with."""
        name, kind_name = claim.metadata.name, self._type_name(claim)
        if not (self._all_claims or is_ours(claim)):
            return None
        if kind_name not in self.catalogue.numbers:
            self._tell(name, f"{name} is of type {kind_name or '?'}, which is not among the instance types; it stays")
            return None
        node, ready_s = self._node(claim), _since(claim, "Initialized")
        initialized_s = None if ready_s is None else ready_s * self.speed
        taints = {taint.key for taint in node.taints if taint.effect != "PreferNoSchedule"} if node else set()
        deleting = (
            claim.metadata.deletion_timestamp is not None or claim.metadata.uid in self._going or _DISRUPTED in taints
        )
        if initialized_s is not None and not deleting and (node is None or node.unschedulable or taints):
            if now_s - initialized_s >= _TOLD_S * self.speed:
                self._tell(name, f"{name} takes no pods at the moment; it stays")
                return None
            initialized_s = None
        kind, created = self.catalogue[kind_name], claim.metadata.creation_timestamp
        offering = _offering(kind, claim)
        if offering is None:
            self._tell(name, f"{name} is bought in another way than the instance types say; it stays")
            return None
        self._told.discard(name)
        launched_s = self._ordered_s.get(name, min(created.timestamp() * self.speed, now_s) if created else now_s)
        event = claim.status.last_pod_event_time
        event_s = event.timestamp() * self.speed if event else None
        return OwnedNode(name, kind, offering, launched_s, initialized_s, event_s, deleting)

    def _waiting(self) -> Iterable[Pod]:
        """Return the pods that the scheduler has found no node for and that a node could be bought for."""
        for uid, why in self.watch.why.items():
            pod = self.watch.pods[uid]
            if not why or pod.gates or pod.terminating or pod.nominated_node or _goes_with_the_node(pod):
                continue
            if reason := self._beyond_us(pod):
                self._tell(uid, f"{pod.key} waits, and no node is bought for it: it has {reason}")
            elif not self.catalogue.fits(pod).any():
                self._tell(uid, f"{pod.key} waits, and no node is bought for it: it fits no instance type")
            else:
                yield pod

    def _beyond_us(self, pod: Pod) -> str:
        """Return what a pod has that the autoscaler does not look at, "" where it sees all there is."""
        affinity, known = pod.affinity, self.catalogue.resources
        strange = next((name for name, amount in pod.requests.items() if amount and name not in known), "")
        return (
            "required affinity"
            if affinity.required_nodes is not None or affinity.required_pods or affinity.required_anti_pods
            else "volume claims" if pod.uid in self.watch.claiming
            else "required topology spread" if any(each.hard for each in pod.spread)
            else "host ports" if pod.host_ports
            else "claims of devices" if pod.resource_claims
            else "GPUs" if pod.gpu != NO_GPU
            else f"a request for {strange}, which no instance type names" if strange
            else ""
        )  # fmt: skip

    def _released_s(self, pod: Pod) -> float:
        """Return until when a pod may not be disrupted: for good where nobody says when it started, as in Karpenter."""
        return (pod.started_s + pod.do_not_disrupt_s) * self.speed if pod.started_s else inf

    def _node(self, claim: wire.NodeClaimObject) -> Node | None:
        row = self.watch.state.index.get(claim.status.node_name)
        return None if row is None else self.watch.state.nodes[row]

    def _pods(self, node_name: str) -> Mapping[str, Pod]:
        row = self.watch.state.index.get(node_name)
        return {} if row is None else self.watch.state.node_pods[row]

    @staticmethod
    def _type_name(claim: wire.NodeClaimObject) -> str:
        """Return a claim's instance type: where it is launched by its label, before by what it asks for."""
        asked = (each.values or () for each in claim.spec.requirements or () if each.key == TYPE_LABEL)
        only = next((values[0] for values in asked if len(values) == 1), "")
        return (claim.metadata.labels or {}).get(TYPE_LABEL, only)

    def _tell(self, key: str, text: str) -> None:
        """Log something once."""
        if key not in self._told:
            self._told.add(key)
            log.info(text)

    def _forget(self) -> None:
        """Drop what was noted of claims and pods that are gone."""
        uids = {claim.metadata.uid for claim in self.claims.values()}
        self._ordered_s = {name: at_s for name, at_s in self._ordered_s.items() if name in self.claims}
        self._going &= uids
        self._told &= self.claims.keys() | self.watch.pods.keys()


def _goes_with_the_node(pod: Pod) -> bool:
    return pod.owner.partition("/")[0] in _WITH_THE_NODE


def _offering(kind: InstanceType, claim: wire.NodeClaimObject) -> Offering | None:
    """Return how a claim's node was bought; before it is launched, as it was ordered. None where nothing is like it."""
    labels = claim.metadata.labels or {}
    bought, zone = labels.get(CAPACITY_TYPE_LABEL), labels.get(ZONE_LABEL)
    if bought is None:
        return kind.cheapest
    alike = [each for each in kind.offerings if each.capacity_type == bought]
    return next((each for each in alike if each.zone == zone), alike[0] if alike else None)


def _since(claim: wire.NodeClaimObject, condition: str) -> float | None:
    """Return since when a condition of a claim is true, None where it is not."""
    for each in claim.status.conditions or ():
        if each.type == condition and each.status == "True":
            return each.last_transition_time.timestamp() if each.last_transition_time else 0.0
    return None


def _sums(pods: Iterable[Pod]) -> dict[str, int]:
    """Return what pods request in all, of places for pods too."""
    found: dict[str, int] = {}
    for pod in pods:
        for resource, amount in ((PODS, 1), *pod.requests.items()):
            found[resource] = found.get(resource, 0) + amount
    return found
