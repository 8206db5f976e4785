"""A small cluster in memory: Karpenter, a scheduler, a ReplicaSet, a disruption budget, and an API that may fail.

It keeps Karpenter's rules as its documents and code say them, apart from ours: a claim without capacity is deleted, one
that does not register too; a claim that is deleted is drained by evictions, which the budget may refuse.
"""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
    DisruptionBudget,
    LabelSelector,
    Node,
    Pod,
    Requirement,
    Taint,
)
from aaml.kube.objects import wire
from aaml.kube.reflector import Changes, Delta, Trouble
from aaml.kube.sources import BUDGETS, NODE_CLAIMS, NODE_POOLS, NODES, PODS, SeenBudget, SeenPod
from aaml.kube.transport import ApiError, Unreachable
from aaml.kube.watcher import ClusterWatch
from support import make

LAUNCH_S, READY_S, REGISTRATION_TTL_S, DRAIN_S = 2.0, 20.0, 900.0, 5.0
TAINT_EVICTION_S = 300.0
REMEMBERED_S = 180.0  # for which nothing is to be ordered that could not be had
LATE_S = 50.0  # at most, what a watch tells
NOT_READY = "node.kubernetes.io/not-ready"
DISRUPTED = Taint("karpenter.sh/disrupted")
APP = {"app": "web"}


@dataclass
class FakeClaim:
    """A NodeClaim and its node."""

    name: str
    type: str
    zone: str
    labels: dict[str, str]
    created_s: float
    launched_s: float | None = None
    ready_s: float | None = None
    failure: str = ""
    mute: bool = False  # its node never registers
    deleted_s: float | None = None
    taints: set[str] = field(default_factory=set)
    cordoned: bool = False
    stays: bool = False  # annotated, so that nobody disrupts its node
    closed_s: float = 0.0

    @property
    def node_name(self) -> str:
        return "" if self.ready_s is None else f"n-{self.name}"

    def wire(self) -> wire.NodeClaimObject:
        bought = {} if self.launched_s is None else {CAPACITY_TYPE_LABEL: "on-demand", ZONE_LABEL: self.zone}
        asked = {TYPE_LABEL: self.type, CAPACITY_TYPE_LABEL: "on-demand", ZONE_LABEL: self.zone}
        conditions = [
            wire.TimedCondition(kind, "True", last_transition_time=datetime.fromtimestamp(at_s, UTC))
            for kind, at_s in (("Launched", self.launched_s), ("Initialized", self.ready_s))
            if at_s is not None
        ]
        if self.launched_s is None and self.failure:
            conditions.append(wire.TimedCondition("Launched", "Unknown", "LaunchFailed", self.failure))
        return wire.NodeClaimObject(
            wire.Metadata(
                self.name, uid=f"u-{self.name}", creation_timestamp=datetime.fromtimestamp(self.created_s, UTC),
                deletion_timestamp=None if self.deleted_s is None else "2026-01-01T00:00:00Z",
                labels={**self.labels, **({TYPE_LABEL: self.type, **bought} if bought else {})},
            ),
            wire.NodeClaimSpec([wire.Expression(key, "In", [value]) for key, value in asked.items()]),
            wire.NodeClaimStatus(self.node_name, conditions),
        )  # fmt: skip


class FakeCluster:
    """The cluster; `request` is what a `Transport` answers. `sizes`: milli-cores of a node by type."""

    server = "http://fake"

    def __init__(self, sizes: dict[str, int], now_s: float) -> None:
        self.sizes, self.now_s = sizes, now_s
        self.claims: dict[str, FakeClaim] = {}
        self.pods: dict[str, Pod] = {}
        self.replicas, self.made = 0, 0
        self.least: int | None = None  # minAvailable of the budget
        self.sold_out: set[tuple[str, str]] = set()
        self.says_why = False  # a launch without capacity is reported on the claim, which stays
        self.mute = self.away = self.answers_are_lost = False
        self.refuses = False  # the scheduler places no pod, for a reason that nobody else knows
        self.gone: list[wire.NodeClaimObject] = []  # those that found no capacity
        self.created: list[str] = []
        self.unanswered: set[str] = set()  # claims whose maker got no answer: it may not know that they were there
        self.failed_s: dict[tuple[str, str], float] = {}  # since when an offering cannot be had, as its buyer knows
        self.too_soon: list[str] = []  # orders of one that failed a short while before, and longer than a watch is late
        self.deleted: list[tuple[float, FakeClaim]] = []

    # ---- the API -----------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: Any = None, **_: Any) -> bytes:
        if self.away:
            raise Unreachable("gone")
        answer = self._create(body) if method == "POST" else self._delete(path.rpartition("/")[2], body)
        if self.answers_are_lost:
            raise Unreachable("no answer")
        return answer

    def _create(self, body: Any) -> bytes:
        asked = {each["key"]: each["values"][0] for each in body["spec"]["requirements"]}
        name = body["metadata"]["name"]
        self.claims[name] = FakeClaim(
            name, asked[TYPE_LABEL], asked.get(ZONE_LABEL, ""), body["metadata"]["labels"], self.now_s, mute=self.mute
        )
        self.created.append(name)
        self.unanswered |= {name} if self.answers_are_lost else set()
        offer = asked[TYPE_LABEL], asked.get(ZONE_LABEL, "")
        if LATE_S < self.now_s - self.failed_s.get(offer, 0.0) < REMEMBERED_S:
            self.too_soon.append(name)
        return json.dumps({**body, "metadata": {**body["metadata"], "uid": f"u-{name}"}}).encode()

    def _delete(self, name: str, body: Any) -> bytes:
        claim = self.claims.get(name)
        if claim is None or body["preconditions"]["uid"] != f"u-{name}":
            raise ApiError(404, "NotFound", name)
        self.deleted.append((self.now_s, claim))
        if claim.deleted_s is None:
            claim.deleted_s = self.now_s
        return b"{}"

    # ---- what goes on ------------------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now_s += seconds
        for claim in list(self.claims.values()):
            self._live(claim)
        self._replicate()
        self._schedule()

    def on(self, claim: FakeClaim) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node_name and pod.node_name == claim.node_name]

    @property
    def allowed(self) -> int:
        """How many pods the budget lets go now."""
        return len(self.pods) if self.least is None else max(0, self.bound - self.least)

    @property
    def bound(self) -> int:
        return sum(bool(pod.node_name) for pod in self.pods.values())

    def _live(self, claim: FakeClaim) -> None:
        age_s = self.now_s - claim.created_s
        if NOT_READY in claim.taints and self.now_s - claim.closed_s >= TAINT_EVICTION_S:
            for pod in self.on(claim):  # by the API's own controller, which asks no budget
                del self.pods[pod.uid]
        if claim.deleted_s is not None:
            for pod in self.on(claim):
                if self.allowed < 1:
                    break
                del self.pods[pod.uid]
            if not self.on(claim) and self.now_s - claim.deleted_s >= DRAIN_S:
                del self.claims[claim.name]
        elif claim.launched_s is None and age_s >= LAUNCH_S:
            if (claim.type, claim.zone) not in self.sold_out:
                claim.launched_s = self.now_s
            elif self.says_why:
                claim.failure = "no capacity"
            else:
                offer = claim.type, claim.zone
                if claim.name not in self.unanswered and self.now_s - self.failed_s.get(offer, 0.0) >= REMEMBERED_S:
                    self.failed_s[offer] = self.now_s
                self.gone.append(claim.wire())
                del self.claims[claim.name]
        elif claim.launched_s is not None and claim.ready_s is None:
            if not claim.mute and age_s >= READY_S:
                claim.ready_s = self.now_s
            elif age_s >= REGISTRATION_TTL_S:
                del self.claims[claim.name]

    def _replicate(self) -> None:
        mine = sorted(self.pods.values(), key=lambda pod: (bool(pod.node_name), pod.uid))
        for pod in mine[: max(0, len(mine) - self.replicas)]:
            del self.pods[pod.uid]
        for _ in range(self.replicas - len(self.pods)):
            self.made += 1
            pod = make.pod(f"web-{self.made}", 1000, make.GIB, at=self.now_s, owner="ReplicaSet/web", labels=APP)
            self.pods[pod.uid] = pod

    def _schedule(self) -> None:
        for uid, pod in self.pods.items():
            if pod.node_name or self.refuses:
                continue
            for claim in self.claims.values():
                open_ = claim.ready_s is not None and not (claim.taints or claim.cordoned or claim.deleted_s)
                if open_ and 1000 * (len(self.on(claim)) + 1) <= self.sizes[claim.type]:
                    self.pods[uid] = replace(pod, node_name=claim.node_name)
                    break

    # ---- what a watch is told ----------------------------------------------------------------------------------------

    def objects(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return each source with its objects by key."""
        nodes = {}
        for claim in self.claims.values():
            if claim.ready_s is not None:
                taints = {Taint(key) for key in claim.taints} | ({DISRUPTED} if claim.deleted_s is not None else set())
                room = {"cpu": self.sizes[claim.type], "memory": 64 * make.GIB, "pods": 110}
                nodes[claim.node_name] = Node(
                    claim.node_name,
                    room,
                    taints=tuple(sorted(taints, key=str)),
                    unschedulable=claim.cordoned,
                    do_not_disrupt=claim.stays,
                )
        selector = LabelSelector((Requirement("app", "In", ("web",)),))
        budget = DisruptionBudget("web", selector=selector, disruptions_allowed=self.allowed)
        return [
            (NODE_CLAIMS, {name: claim.wire() for name, claim in self.claims.items()}),
            (NODES, nodes),
            (PODS, {uid: SeenPod(pod, why="" if pod.node_name else "none fits") for uid, pod in self.pods.items()}),
            (BUDGETS, {} if self.least is None else {"default/web": SeenBudget(budget, "1")}),
        ]


class Follower:
    """A watch of the cluster, which may be late with claims, by less than a minute."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster, self.late_until_s = cluster, 0.0  # late: 0 for one that never was
        self.watch = ClusterWatch(cluster, (NODE_CLAIMS, NODE_POOLS, BUDGETS))  # type: ignore[arg-type]
        self._told: dict[str, dict[str, Any]] = {}
        self._lived = len(cluster.gone)  # how many claims had gone when they were last told of
        self.hear()

    def hear(self) -> None:
        """Be told what is new; of nothing while the API is away."""
        for source, now in self.cluster.objects():
            if self.cluster.away:
                self.watch._take(Trouble(source.name, Unreachable("gone")))
            elif source is not NODE_CLAIMS or self.cluster.now_s >= self.late_until_s:
                before = self._told.get(source.name, {})
                deltas = [Delta("deleted", each) for key, each in before.items() if key not in now]
                deltas += [Delta("modified", each) for key, each in now.items() if before.get(key) != each]
                if source is NODE_CLAIMS and not self.late_until_s:  # what came and went is told too
                    short = [each for each in self.cluster.gone[self._lived :] if each.metadata.name not in before]
                    deltas += [Delta(kind, each) for each in short for kind in ("added", "deleted")]  # type: ignore[arg-type]
                    self._lived = len(self.cluster.gone)
                self.watch._take(Changes(source.name, tuple(deltas)))
                self._told[source.name] = now
