"""What an autoscaler observes of a live cluster with Karpenter: nodes and pods, from NodeClaims, nodes and pods.

From its order on a node has the name of its NodeClaim. There are two views. `mine` are the claims that exist, whatever
state their nodes are in: limits are measured on them. `observe` returns what an autoscaler can plan with: nodes that
take pods or soon will, those that are terminating, and pods that it can place. What is out of order is in `troubles`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from aaml.cluster.objects import NO_GPU, Node, Pod
from aaml.cluster.selectors import has_untolerated_taint
from aaml.kube.objects import wire
from aaml.kube.sources import BUDGETS, NODE_CLAIMS
from aaml.kube.watcher import ClusterWatch
from aaml.live.anti_affinity import kept_out
from aaml.live.available_types import AvailableTypes, Ready
from aaml.live.evictions import Evictions
from aaml.live.node_claims import is_launched, is_ours, launch_failure, offer_of, offering_of, since
from aaml.live.node_template import NodeTemplate
from aaml.live.node_trouble import AFTER_S, UNREADY_TAINTS, Trouble, Troubles
from aaml.live.rate_limited_log import RateLimitedLog
from aaml.live.served import Served
from aaml.live.unavailable import UnavailableOfferings
from aaml.nodes.catalogue import Catalogue, selected
from aaml.nodes.ports import Observed, OwnedNode, Waiting

_DISRUPTED = "karpenter.sh/disrupted"
_REPORTED_S = 10.0  # after which a node has told, too, what its claim tells: that it is ready
_REFUSED_S = 60.0  # for which a node stays whose deletion the API refused
UNSEEN_S = 60.0  # for which an order counts that the watch has not told of
_WITH_THE_NODE = frozenset({"DaemonSet", "Node"})  # owners of pods that come and go with a node


class _Unseen(NamedTuple):
    """An order that the watch has not reported: its claim, since when, and whether the API server confirmed it."""

    claim: wire.NodeClaimObject
    since_s: float
    answered: bool


class OwnedNodes:
    """The NodeClaims of a watched cluster and the pods on their nodes, as an autoscaler observes them.

    `watch` follows `NODE_CLAIMS` and `BUDGETS` too. `catalogue` has the types, less what nodes were seen to reserve for
    themselves and for daemons, and less the offerings that failed a short while ago. With `all_claims` the claims of
    others are included. All times are seconds since 1970 multiplied by `speed`, for a cluster that runs so many times
    faster than usual.
    """

    def __init__(
        self, watch: ClusterWatch, catalogue: Catalogue, template: NodeTemplate | None = None, *,
        all_claims: bool = False, speed: float = 1.0,
    ) -> None:  # fmt: skip
        self.watch, self._all_claims, self.speed = watch, all_claims, speed
        self.served = Served(speed)
        self._types, self.evictions = AvailableTypes(catalogue), Evictions(())
        self._template = template or NodeTemplate.plain()
        self._unseen: dict[str, _Unseen] = {}  # orders that the watch has not told of, by claim
        self._lapsed: dict[str, wire.NodeClaimObject] = {}  # by uid: claims that went before they were looked at
        self._ordered_s: dict[str, float] = {}  # by claim
        self._ready_s: dict[str, float] = {}  # by claim, on our clock
        self._refused_s: dict[str, float] = {}  # by uid: when the API refused to delete a claim
        self._selected: frozenset[tuple[str, str]] = frozenset()  # labels of the template that pods ask for
        self._going: set[str] = set()  # uids of claims whose deletion was ordered
        self._launching: dict[str, wire.NodeClaimObject] = {}  # by uid: ours without an instance, at the last look
        self._failed: set[str] = set()  # uids of claims whose failure is known
        self._gated_s: dict[str, float] = {}  # by uid: when a pod without a node was last seen with a scheduling gate
        self._placed: object = None
        self._changed_s = 0.0
        watch.on_deleted = self._on_deleted
        self._failure_log, self._once, self._troubles = RateLimitedLog(), RateLimitedLog(inf), Troubles()

    @property
    def claims(self) -> Mapping[str, wire.NodeClaimObject]:
        """All claims by name, with those that were ordered just now."""
        seen = self.watch.more[NODE_CLAIMS.name]
        return {**{name: order.claim for name, order in self._unseen.items()}, **seen} if self._unseen else seen

    @property
    def mine(self) -> list[wire.NodeClaimObject]:
        """The claims that count against limits: all of ours that exist, whatever state they are in."""
        return [claim for claim in self.claims.values() if self._all_claims or is_ours(claim)]

    @property
    def troubles(self) -> list[Trouble]:
        """What was out of order at the last observation, the longest first."""
        return self._troubles.found

    def provisioned(self, claim: wire.NodeClaimObject, now_s: float, *, answered: bool = True) -> None:
        """Note a claim that was created, or may have been, before the watch reports it."""
        self._unseen[claim.metadata.name] = _Unseen(claim, now_s, answered)
        self._ordered_s[claim.metadata.name] = now_s

    def terminated(self, claim: wire.NodeClaimObject) -> None:
        """Note that a claim's deletion was ordered."""
        self._going.add(claim.metadata.uid)

    def not_terminated(self, claim: wire.NodeClaimObject, now_s: float) -> None:
        """Note that the API refused to delete a claim: it stays for a while, and others are deleted before it."""
        self._refused_s[claim.metadata.uid] = now_s

    def stays(self, claim: wire.NodeClaimObject, now_s: float) -> bool:
        """Whether a node is to stay whatever runs there: by its annotation, or because the API refused to delete it."""
        node = self._node(claim)
        annotated = (claim.metadata.annotations or {}).get(wire.DO_NOT_DISRUPT) == "true"
        refused_s = self._refused_s.get(claim.metadata.uid, -inf)
        return annotated or (node is not None and node.do_not_disrupt) or now_s - refused_s < _REFUSED_S

    # ---- what can be provisioned -------------------------------------------------------------------------------------

    @property
    def catalogue(self) -> Catalogue:
        """The types that can be provisioned."""
        return self._types.catalogue

    @property
    def unavailable(self) -> UnavailableOfferings:
        """The offerings that are unavailable now."""
        return self._types.unavailable

    def measure(self) -> bool:
        """Compare ready nodes with their types; returns whether the allocatable resources of a type have changed."""
        there = ((offer_of(claim).type, self._node(claim), claim) for claim in self.claims.values())
        return self._types.measure(
            Ready(kind, node, [pod for pod in self._pods(node.name).values() if _goes_with_the_node(pod)])
            for kind, node, claim in there
            if node is not None and since(claim, "Initialized") is not None
        )

    # ---- what there is -----------------------------------------------------------------------------------------------

    def observe(self, now_s: float) -> Observed:
        """Return the cluster as it is now."""
        self._take_in_launches(now_s)
        seen = Observed(now_s, sold_out=self._types.look(now_s))
        pods: dict[str, dict[str, Pod]] = {}
        released_s: dict[str, float] = {}
        ours, leaving = dict[str, Pod](), set[str]()  # pods of all our nodes, whatever state these are in
        self._troubles.begin(now_s)
        self._selected = self._asked_for()
        for claim in self.mine:
            node = self._owned(claim, now_s)
            there = self.pods_of(claim)
            ours |= there
            leaving |= there.keys() if self._is_going(claim) else set()
            released_s |= {uid: self._released_s(pod) for uid, pod in there.items() if pod.do_not_disrupt}
            if node is None:
                continue
            seen.nodes[node.name] = node
            pods[node.name] = {uid: self._planned(pod) for uid, pod in there.items()}
            seen.stopping |= {uid for uid, pod in there.items() if pod.terminating}
        self._troubles.end()
        seen.pods, seen.released_s = pods, released_s
        seen.kept_out = kept_out(self.watch.state, self._labels(seen), self._template.labels)
        seen.kept = frozenset(claim.metadata.name for claim in self.mine if self.stays(claim, now_s))
        self.evictions = self._evictions(seen)
        seen.blocked = frozenset(
            uid for mine in pods.values() for uid, pod in mine.items()
            if not pod.owner or self._beyond_us(pod) or self.evictions.forbidden(pod)
        )  # fmt: skip
        self._gated_s |= {uid: now_s for uid in self.watch.why if self.watch.pods[uid].gates}
        seen.waiting = {pod.uid: Waiting(pod, self._waits_since_s(pod, now_s)) for pod in self._waiting(now_s)}
        placed = (
            {name: (node.initialized_s is not None, node.deleting) for name, node in seen.nodes.items()},
            {uid: name for name, mine in pods.items() for uid in mine},
            seen.blocked,
        )
        if placed != self._placed:
            self._placed, self._changed_s = placed, now_s
        seen.changed_s = self._changed_s
        self.served.look(seen, ours, leaving, self._gated_s, self.watch.pods.keys())
        self._gated_s = {uid: at_s for uid, at_s in self._gated_s.items() if uid in self.watch.why}
        self._tell_troubles(seen)
        self._forget()
        return seen

    def _waits_since_s(self, pod: Pod, now_s: float) -> float:
        """Return since when a pod may be scheduled: its creation, or when it was last seen with a scheduling gate."""
        return min(self._gated_s.get(pod.uid, pod.created_s * self.speed), now_s)

    def pods_of(self, claim: wire.NodeClaimObject) -> dict[str, Pod]:
        """Return the pods on a claim's node by uid, without daemons."""
        there = self._pods(claim.status.node_name)
        return {uid: pod for uid, pod in there.items() if not _goes_with_the_node(pod)}

    def _labels(self, seen: Observed) -> dict[str, Mapping[str, str]]:
        """Return the labels of each node: those that it will have, as far as is known, where it has not come yet."""
        nodes = ((name, node, self._node(self.claims[name])) for name, node in seen.nodes.items())
        return {
            name: {**self._template.labels, **node.type.labels(node.offering)} if there is None else there.labels
            for name, node, there in nodes
        }

    def is_empty(self, name: str) -> bool | None:
        """Whether a claim's node has no pods but daemons, None where the claim is gone."""
        return None if name not in self.claims else not self.pods_of(self.claims[name])

    def would_take(self, pod: Pod, node: OwnedNode) -> bool:
        """Whether a node would take a pod if it had no other, by requests and node selectors."""
        has_room = self.catalogue.has_room(pod)[self.catalogue.numbers[node.type.name]]
        return bool(has_room) and selected(pod, node.type.labels(node.offering))

    def kept_by(self, claim: wire.NodeClaimObject, seen: Observed) -> str:
        """Return what keeps a claim's node from being drained now, "" where nothing does."""
        for pod in self.pods_of(claim).values():
            if pod.terminating:
                continue
            if seen.is_kept(pod):
                return f"{pod.key} may not be disrupted"
            if not pod.owner:
                return f"{pod.key} has no owner that would make it again"
            if why := self.evictions.forbidden(pod):
                return f"{pod.key} is kept by {why}"
        return ""

    def _evictions(self, seen: Observed) -> Evictions:
        """Return what the disruption budgets allow, after the evictions that are under way."""
        leaving = (
            pod
            for claim in self.claims.values()
            if self._is_going(claim)
            for pod in self.pods_of(claim).values()
            if not (pod.terminating or seen.is_kept(pod))
        )
        return Evictions((each.now for each in self.watch.more[BUDGETS.name].values()), leaving)

    def _is_going(self, claim: wire.NodeClaimObject) -> bool:
        node = self._node(claim)
        return (
            claim.metadata.deletion_timestamp is not None
            or claim.metadata.uid in self._going
            or (node is not None and any(taint.key == _DISRUPTED for taint in node.taints))
        )

    def _take_in_launches(self, now_s: float) -> None:
        """Find claims that Karpenter could not launch: their status says so, or they were deleted without a node."""
        watched = self.watch.more[NODE_CLAIMS.name]
        for name, order in list(self._unseen.items()):
            late = now_s - order.since_s >= UNSEEN_S
            if late and order.answered and name not in watched:  # it came and went while the watch was interrupted
                self._lapsed[order.claim.metadata.uid] = order.claim
            if late or name in watched:
                del self._unseen[name]
        there = {claim.metadata.uid: claim for claim in watched.values() if is_ours(claim)}
        if any(uid in there and is_launched(there[uid]) for uid in self._launching):
            self.unavailable.launched()
        gone = {
            uid: there.get(uid, before) for uid, before in (self._launching | self._lapsed).items()
            if uid not in there or there[uid].metadata.deletion_timestamp is not None
        }  # fmt: skip
        self._lapsed = {}
        failed = [
            *(claim for uid, claim in gone.items() if uid not in self._going and not is_launched(claim)),
            *(
                claim
                for uid, claim in there.items()
                if uid not in self._failed | gone.keys() and (launch_failure(claim) or self._is_late(claim, now_s))
            ),
        ]
        if failed:
            self.unavailable.failed(map(offer_of, failed), now_s)
        for claim in failed:
            offer, why = offer_of(claim), launch_failure(claim)
            self._failure_log.log(
                ("failed", offer), f"{offer} cannot be had{why and f' ({why})'}: others are provisioned", now_s
            )
        self._failed = (self._failed & there.keys()) | {claim.metadata.uid for claim in failed}
        self._launching = {
            uid: claim for uid, claim in there.items()
            if not (uid in self._failed or is_launched(claim) or claim.metadata.deletion_timestamp is not None)
        }  # fmt: skip

    def _launched_s(self, claim: wire.NodeClaimObject, now_s: float) -> float:
        created = claim.metadata.creation_timestamp
        known_s = min(created.timestamp() * self.speed, now_s) if created else now_s
        return self._ordered_s.get(claim.metadata.name, known_s)

    def _is_late(self, claim: wire.NodeClaimObject, now_s: float) -> bool:
        """Whether a claim is not launched, and without a reason for that, for longer than a node may take to start."""
        return not is_launched(claim) and now_s - self._launched_s(claim, now_s) >= AFTER_S["start"]

    def _on_deleted(self, source: str, claim: wire.NodeClaimObject) -> None:
        """Note a claim that is gone: the watch may report its creation and deletion at once."""
        if source == NODE_CLAIMS.name and claim.metadata.name in self._unseen:
            del self._unseen[claim.metadata.name]
            self._lapsed[claim.metadata.uid] = claim

    def _owned(self, claim: wire.NodeClaimObject, now_s: float) -> OwnedNode | None:  # noqa: C901, PLR0911
        """Return the node of a claim; None where it cannot be planned with, and the reason is noted."""
        name, offer, node = claim.metadata.name, offer_of(claim), self._node(claim)
        launched_s = self._launched_s(claim, now_s)
        initialized_s = self._initialized_s(claim, now_s)
        deleting = self._is_going(claim)
        if deleting and self._troubles.note(claim, "drain", "is being drained"):
            return None
        kind = self.catalogue[offer.type] if offer.type in self.catalogue.numbers else None
        offered = self._types.offered(offer.type)
        offering = offering_of(claim, offered) if offered else None
        if not deleting:
            if failure := launch_failure(claim):
                self._troubles.note(claim, "launch", f"is not launched ({failure})")
                return None
            if kind is None:
                what = f"is of type {offer.type or '?'}, which is not among those to provision"
                self._troubles.note(claim, "type", what)
                return None
            if offering is None:
                self._troubles.note(claim, "type", f"is of an offering that is not among those to provision: {offer}")
                return None
            if initialized_s is None:
                if self._troubles.note(claim, "start", "has not become ready", launched_s):
                    return None
            elif closed := self._closed(claim, node):
                unready = node is None or any(taint.key in UNREADY_TAINTS for taint in node.taints)
                if now_s - initialized_s >= _REPORTED_S * self.speed:
                    self._troubles.note(claim, "unready" if unready else "closed", closed)
                    return None
                initialized_s = None
        if kind is None or offering is None:
            return None
        event = claim.status.last_pod_event_time
        event_s = event.timestamp() * self.speed if event else None
        return OwnedNode(name, kind, offering, launched_s, initialized_s, event_s, deleting)

    def _initialized_s(self, claim: wire.NodeClaimObject, now_s: float) -> float | None:
        """Return since when a node is ready; for a new one since it was observed so, by the clock of this process."""
        name, ready_s = claim.metadata.name, since(claim, "Initialized")
        if ready_s is None:
            return None
        return self._ready_s.setdefault(name, now_s if name in self._ordered_s else min(ready_s * self.speed, now_s))

    def _closed(self, claim: wire.NodeClaimObject, node: Node | None) -> str:
        """Return why a node takes no pods, "" where it does."""
        if node is None:
            return "has no node any more"
        foreign = set(node.taints).difference(self._template.taints)
        taints = {taint.key for taint in foreign if taint.effect != "PreferNoSchedule"}
        if taints:
            ordered = {taint.key for taint in claim.spec.taints or ()}
            others = "" if taints - ordered else " of another template"
            return f"takes no pods: it has the taint {', '.join(sorted(taints))}{others}"
        if node.unschedulable:
            return "takes no pods: it is cordoned"
        labels = claim.metadata.labels or {}
        lacking = sorted(key for key, value in self._selected if labels.get(key) != value)
        return f"lacks the label {', '.join(lacking)} of the template, which pods select" if lacking else ""

    def _asked_for(self) -> frozenset[tuple[str, str]]:
        """Return the labels of the template that pods select: nodes without them cannot take these pods."""
        if not self._template.labels:
            return frozenset()
        return frozenset(
            (key, value) for pod in self.watch.pods.values() for key, value in pod.node_selector.items()
            if self._template.labels.get(key) == value
        )  # fmt: skip

    def _tell_troubles(self, seen: Observed) -> None:
        for each in filter(lambda each: is_ours(each.claim), self._troubles.found):
            kept = self.kept_by(each.claim, seen)
            self._failure_log.log((each.claim.metadata.uid, each.kind), each.words(seen.now_s, kept), seen.now_s)

    def _waiting(self, now_s: float) -> Iterable[Pod]:
        """Return the pods that the scheduler has found no node for and that a node could be provisioned for."""
        for uid, why in self.watch.why.items():
            pod = self.watch.pods[uid]
            if not why or pod.gates or pod.terminating or pod.nominated_node or _goes_with_the_node(pod):
                continue
            pod = self._planned(pod)
            if reason := self._beyond_us(pod):
                self._once.log(uid, f"{pod.key} waits, and no node is provisioned for it: it has {reason}", now_s)
            elif not self.catalogue.fits(pod).any():
                sold = " that can be had now" if self.unavailable.look(now_s) else ""
                text = f"{pod.key} waits, and no node is provisioned for it: it fits no instance type{sold}"
                self._once.log(uid, text, now_s)
            else:
                yield pod

    def _planned(self, pod: Pod) -> Pod:
        """Return a pod without the node selectors that every node of ours satisfies."""
        left = {key: value for key, value in pod.node_selector.items() if self._template.labels.get(key) != value}
        return pod if len(left) == len(pod.node_selector) else replace(pod, node_selector=left)

    def _beyond_us(self, pod: Pod) -> str:
        """Return why a pod cannot be planned with, as it has what the autoscaler does not look at; "" where it can."""
        affinity = pod.affinity
        return (
            "required affinity"
            if affinity.required_nodes is not None or affinity.required_pods or affinity.required_anti_pods
            else "volume claims" if pod.uid in self.watch.claiming
            else "required topology spread" if any(each.hard for each in pod.spread)
            else "host ports" if pod.host_ports
            else "claims of devices" if pod.resource_claims
            else "no toleration of the taints of nodes that are provisioned"
            if has_untolerated_taint(pod.tolerations, self._template.taints)
            else "GPUs" if pod.gpu != NO_GPU
            else f"a request for {lacking}, which no instance type names"
            if (lacking := self.catalogue.lacking(pod))
            else ""
        )  # fmt: skip

    def _released_s(self, pod: Pod) -> float:
        """Return until when a pod may not be disrupted: for good where its start is unknown, as in Karpenter."""
        return (pod.started_s + pod.do_not_disrupt_s) * self.speed if pod.started_s else inf

    def _node(self, claim: wire.NodeClaimObject) -> Node | None:
        node_index = self.watch.state.index.get(claim.status.node_name)
        return None if node_index is None else self.watch.state.nodes[node_index]

    def _pods(self, node_name: str) -> Mapping[str, Pod]:
        node_index = self.watch.state.index.get(node_name)
        return {} if node_index is None else self.watch.state.node_pods[node_index]

    def _forget(self) -> None:
        """Drop the notes of claims and pods that are gone."""
        claims = self.claims
        uids = {claim.metadata.uid for claim in claims.values()}
        self._ordered_s = {name: at_s for name, at_s in self._ordered_s.items() if name in claims}
        self._ready_s = {name: at_s for name, at_s in self._ready_s.items() if name in claims}
        self._refused_s = {uid: at_s for uid, at_s in self._refused_s.items() if uid in uids}
        self._going &= uids
        self._once.keep(self.watch.pods.keys())


def _goes_with_the_node(pod: Pod) -> bool:
    return pod.owner.partition("/")[0] in _WITH_THE_NODE
