"""Scenes for Karpenter: clusters at one moment, or at several while it waits, drawn at random or taken from episodes.

A scene can be put before our Karpenter as it is, and before the real one as manifests (`question`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf
from random import Random
from typing import Any

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import (
    HOSTNAME_LABEL,
    NO_GPU,
    Affinity,
    GpuRequest,
    HostPort,
    LabelSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    PreferredNode,
    Requirement,
    TopologySpread,
    VolumeNeeds,
    WeightedPodAffinityTerm,
)
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.nodes.budgets import PodBudget, blocked_pods, stuck_pods
from aaml.nodes.catalogue import CAPACITY_TYPE_LABEL, TYPE_LABEL, ZONE_LABEL, Catalogue, InstanceType, Offering
from aaml.nodes.catalogue_file import written_catalogue
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.ports import Command, Observed, OwnedNode, Provision, Waiting
from aaml.nodes.settings import KarpenterSettings
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.bill import BillTask

Manifest = dict[str, Any]
MOMENTS = 4
"""Of a look: before each of the three methods, and after the last. Between them Karpenter waits 15 s."""
_ZERO = datetime(2026, 1, 1, tzinfo=UTC)
_POOL_IS, _NODE_IS = ("ValidationSucceeded", "NodeClassReady", "Ready"), ("Registered", "Initialized", "Ready")
_POOL_LABEL = "karpenter.sh/nodepool"
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_GPU = "nvidia.com/gpu"
_GIB, _MIB = 1 << 30, 1 << 20
_DISK = "example.com/disk"  # a label that no node has
_NAMESPACES = ("default", "other")


@dataclass
class Scene:
    """What Karpenter sees: at one moment to buy, at `MOMENTS` of them to give back.

    Of one moment to give back, only the time goes on. `nominated`: by node, until when it is kept for pods.
    `capacity_types`: what the NodePool allows. `looks`: how often it looks for nodes that may go, until it finds some.
    """

    catalogue: Catalogue
    settings: KarpenterSettings
    moments: list[Observed]
    nominated: Mapping[str, float] = field(default_factory=dict)
    budgets: tuple[PodBudget, ...] = ()
    capacity_types: tuple[str, ...] = ("on-demand",)
    origin: str = ""
    looks: int = 1

    def question(self, ask: str) -> Manifest:
        """Return the scene for the real Karpenter: objects as they would be in an API server."""
        ages = _ages(self.moments)
        moments = self.moments[: 1 if ask == "provision" else None]
        return {
            "ask": ask,
            "flags": [
                f"--feature-gates=SpotToSpotConsolidation={str(self.settings.spot_to_spot_consolidation).lower()}"
            ],
            "instanceTypes": json.loads(written_catalogue(self.catalogue.types)),
            "nodePool": self._pool(),
            "moments": [self._moment(seen, ages) for seen in moments],
            "looks": self.looks,
        }

    def _pool(self) -> Manifest:
        settings = self.settings
        after = settings.consolidate_after_s
        requirements = [
            {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
            {"key": CAPACITY_TYPE_LABEL, "operator": "In", "values": list(self.capacity_types)},
        ]
        return {
            "metadata": {"name": "default", "uid": "default"},
            "spec": {
                "template": {"spec": {"nodeClassRef": _CLASS, "requirements": requirements, "expireAfter": "Never"}},
                "disruption": {
                    "consolidationPolicy": settings.consolidation_policy,
                    "consolidateAfter": "Never" if after is None else f"{after:g}s",
                    "budgets": [{"nodes": each} for each in settings.budgets],
                },
            },
            "status": {"conditions": [_condition(each, 0.0) for each in _POOL_IS]},
        }

    def _moment(self, seen: Observed, ages: Mapping[str, int]) -> Manifest:
        placed = [(name, pod) for name in seen.nodes for pod in seen.pods_on(name).values()]
        running = [pod for _, pod in placed if pod.uid not in seen.stopping]
        missing = [pod for _, pod in placed if pod.uid in seen.stopping] + [each.pod for each in seen.waiting.values()]
        pods = [_pod(pod, ages, name, seen.released_s, stops=pod.uid in seen.stopping) for name, pod in placed]
        pods += [_pod(each.pod, ages) for each in seen.waiting.values()]
        nodes = list(seen.nodes.values())
        everybody = [pod for _, pod in placed] + [each.pod for each in seen.waiting.values()]
        return {
            "now": _time(seen.now_s),
            "nodeClaims": [_claim(node) for node in nodes],
            "nodes": [_node(node) for node in nodes if node.initialized_s is not None],
            "pods": pods,
            "volumes": [each for pod in everybody for each in _volumes(pod)],
            "volumeClaims": [each for pod in everybody for each in _volume_claims(pod)],
            "budgets": [_budget(number, each, running, missing) for number, each in enumerate(self.budgets)],
            "nominated": [f"kwok://{name}" for name in seen.nodes if self.nominated.get(name, 0.0) > seen.now_s],
            "deleting": [f"kwok://{node.name}" for node in nodes if node.deleting],
        }


def _ages(moments: Sequence[Observed]) -> dict[str, int]:
    """Return a whole second for each pod's creation, in the order of age: Karpenter knows it to a second."""
    found = {}
    for seen in moments:
        pods = [pod for name in seen.nodes for pod in seen.pods_on(name).values()]
        for pod in pods + [each.pod for each in seen.waiting.values()]:
            found[pod.uid] = pod.created_s, pod.uid
    return {uid: second for second, uid in enumerate(sorted(found, key=found.__getitem__))}


def _time(at_s: float) -> str:
    return (_ZERO + timedelta(seconds=1_000_000 + at_s)).isoformat().replace("+00:00", "Z")


def _condition(kind: str, since_s: float) -> Manifest:
    return {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": _time(since_s)}


def _labels(node: OwnedNode) -> dict[str, str]:
    return {**node.type.labels(node.offering), _POOL_LABEL: "default", "kubernetes.io/hostname": node.name}


def _resources(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{value}m" if name == CPU else str(value) for name, value in amounts.items()}


def _claim(node: OwnedNode) -> Manifest:
    room = _resources(dict(node.type.allocatable))
    status: Manifest = {
        "providerID": f"kwok://{node.name}", "capacity": room, "allocatable": room,
        "conditions": [_condition("Launched", node.launched_s)],
    }  # fmt: skip
    if node.initialized_s is not None:
        status["nodeName"] = node.name
        status["conditions"] += [_condition(each, node.initialized_s) for each in _NODE_IS]
    if node.last_pod_event_s is not None:
        status["lastPodEventTime"] = _time(node.last_pod_event_s)
    return {
        "metadata": {"name": node.name, "uid": f"claim-{node.name}", "labels": _labels(node)},
        "spec": {"nodeClassRef": _CLASS, "requirements": [], "expireAfter": "Never"},
        "status": status,
    }


def _node(node: OwnedNode) -> Manifest:
    room = _resources(dict(node.type.allocatable))
    ready = {f"karpenter.sh/{each}": "true" for each in ("registered", "initialized")}
    return {
        "metadata": {"name": node.name, "uid": f"node-{node.name}", "labels": {**_labels(node), **ready}},
        "spec": {
            "providerID": f"kwok://{node.name}",
            "taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}] if node.deleting else [],
        },
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pod(
    pod: Pod, ages: Mapping[str, int], node: str = "", released_s: Mapping[str, float] = {}, *, stops: bool = False
) -> Manifest:
    kind, _, owner = pod.owner.partition("/")
    metadata: Manifest = {
        "name": pod.uid.replace("/", "-"), "namespace": pod.namespace, "uid": pod.uid, "labels": dict(pod.labels),
        "creationTimestamp": _time(ages[pod.uid] - 1_000_000),
    }  # fmt: skip
    if owner:
        version = "batch/v1" if kind == "Job" else "apps/v1"
        reference = {"apiVersion": version, "kind": kind, "name": owner, "uid": owner, "controller": True}
        metadata["ownerReferences"] = [reference]
    if pod.do_not_disrupt:
        seconds = pod.do_not_disrupt_s
        metadata["annotations"] = {"karpenter.sh/do-not-disrupt": "true" if seconds == inf else f"{seconds:g}s"}
    if stops:
        metadata |= {"deletionTimestamp": _time(pod.created_s), "finalizers": ["example.com/stops"]}
    devices = {_GPU: str(pod.gpu.count)} if pod.gpu.count else {}
    spec: Manifest = {
        "containers": [{
            "name": "main", "resources": {"requests": _resources(pod.requests) | devices},
            "ports": [
                {"containerPort": each.port, "hostPort": each.port, "protocol": each.protocol, "hostIP": each.host_ip}
                for each in pod.host_ports
            ],
        }],
        "nodeSelector": dict(pod.node_selector), "priority": pod.priority, "affinity": _affinity(pod.affinity),
        "topologySpreadConstraints": [_spread(each) for each in pod.spread],
        "volumes": [
            {"name": f"v{number}", "persistentVolumeClaim": {"claimName": f"{pod.name}-{number}"}}
            for number in range(len(pod.volumes.node_terms))
        ],
    }  # fmt: skip
    if node:
        status = {"phase": "Running"}
        if pod.uid in released_s:
            status["startTime"] = _time(released_s[pod.uid] - pod.do_not_disrupt_s)
        return {"metadata": metadata, "spec": {**spec, "nodeName": node}, "status": status}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "conditions": [unschedulable]}}


def _expressions(requirements: Sequence[Requirement]) -> list[Manifest]:
    return [{"key": each.key, "operator": each.operator, "values": list(each.values)} for each in requirements]


def _selector(selector: LabelSelector | None) -> Manifest | None:
    return None if selector is None else {"matchExpressions": _expressions(selector.requirements)}


def _terms(terms: Sequence[NodeSelectorTerm]) -> list[Manifest]:
    return [{"matchExpressions": _expressions(each.labels)} for each in terms]


def _pod_term(term: PodAffinityTerm) -> Manifest:
    return {
        "topologyKey": term.topology_key, "labelSelector": _selector(term.selector),
        "namespaces": sorted(term.namespaces),
    }  # fmt: skip


def _affinity(affinity: Affinity) -> Manifest:
    required, preferred = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
    nodes: Manifest = {
        preferred: [{"weight": each.weight, "preference": _terms([each.term])[0]} for each in affinity.preferred_nodes]
    }
    if affinity.required_nodes is not None:
        nodes[required] = {"nodeSelectorTerms": _terms(affinity.required_nodes)}
    found = {"nodeAffinity": nodes}
    for name, sign, terms in (("podAffinity", 1, affinity.required_pods),
                              ("podAntiAffinity", -1, affinity.required_anti_pods)):  # fmt: skip
        weighted = [each for each in affinity.preferred_pods if each.weight * sign > 0]
        found[name] = {
            required: [_pod_term(each) for each in terms],
            preferred: [{"weight": each.weight * sign, "podAffinityTerm": _pod_term(each.term)} for each in weighted],
        }
    return found


def _spread(constraint: TopologySpread) -> Manifest:
    return {
        "maxSkew": constraint.max_skew, "topologyKey": constraint.topology_key,
        "labelSelector": _selector(constraint.selector),
        "whenUnsatisfiable": "DoNotSchedule" if constraint.hard else "ScheduleAnyway",
        "nodeAffinityPolicy": "Honor" if constraint.honor_node_affinity else "Ignore",
        "nodeTaintsPolicy": "Honor" if constraint.honor_node_taints else "Ignore",
        **({"minDomains": constraint.min_domains} if constraint.min_domains > 1 else {}),
    }  # fmt: skip


def _volumes(pod: Pod) -> list[Manifest]:
    return [
        {
            "metadata": {"name": f"{pod.namespace}-{pod.name}-{number}"},
            "spec": {
                "csi": {"driver": "example.com/disk", "volumeHandle": f"{pod.name}-{number}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": _terms(terms)}},
            },
        }
        for number, terms in enumerate(pod.volumes.node_terms)
    ]


def _volume_claims(pod: Pod) -> list[Manifest]:
    return [
        {
            "metadata": {
                "name": f"{pod.name}-{number}", "namespace": pod.namespace,
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {"volumeName": f"{pod.namespace}-{pod.name}-{number}"},
        }
        for number in range(len(pod.volumes.node_terms))
    ]  # fmt: skip


def _budget(number: int, budget: PodBudget, running: Sequence[Pod], missing: Sequence[Pod]) -> Manifest:
    name, amount = ("maxUnavailable", budget.max_unavailable)
    if amount is None:
        name, amount = "minAvailable", budget.min_available
    available = sum(map(budget.selects, running))
    allowed = budget.allowed(available, available + sum(map(budget.selects, missing)))
    return {
        "metadata": {"name": f"budget-{number}", "namespace": budget.namespace},
        "spec": {name: amount, "selector": {"matchLabels": dict(budget.labels)}},
        "status": {"disruptionsAllowed": allowed},
    }


# ---- scenes drawn at random ------------------------------------------------------------------------------------------


class Scenes:
    """Draws scenes. `ties`: whether types may cost the same, and nodes be worth the same to Karpenter.

    `gpus`: whether some types have devices, which pods take as a whole. `bound`: whether types are sold in zones, and
    pods ask for labels, for each other's company or absence, for host ports and for volumes.
    """

    def __init__(self, seed: int, *, ties: bool = False, gpus: bool = False, bound: bool = False) -> None:
        self.rng, self.ties, self.gpus, self.bound, self.seed = Random(seed), ties, gpus, bound, seed
        self.zones = ("zone-a",)
        if bound:  # numbers are Azure's names of zones
            self.zones = self.rng.choice((("zone-a", "zone-b", "zone-c"), ("1", "2", "3"), ("zone-a", "zone-b")))
        self._number = 0
        self._drawn: list[Pod] = []  # pods that ask for something

    def chance(self, share: float) -> bool:
        """Return true in this share of the calls."""
        return self.rng.random() < share

    def to_buy(self) -> Scene:
        """Return a scene in which pods wait."""
        scene = self._scene()
        seen = self._seen(scene, self.rng.randint(0, 4 if self.bound else 10))
        for _ in range(self.rng.choice((2, 4, 7, 12) if self.bound else (1, 2, 5, 10, 20, 35))):
            self._wait(scene, seen)
        _protect(scene.budgets, seen)
        return replace(scene, moments=[seen])

    def to_sell(self) -> Scene:
        """Return a scene in which nodes may go, at each of its moments."""
        scene = self._scene()
        seen = self._seen(scene, self.rng.randint(1, 14))
        for _ in range(self.rng.choice((0, 0, 0, 1, 3))):
            self._wait(scene, seen)
        moments = [seen]
        for number in range(1, MOMENTS):
            seen = _copied(seen, moments[0].now_s + 15.0 * number)
            if self.chance(0.15):
                self._change(scene, seen)
            moments.append(seen)
        for each in moments:
            _protect(scene.budgets, each)
        nominated = {name: moments[0].now_s + self.rng.randint(1, 20) for name in moments[0].nodes if self.chance(0.1)}
        return replace(scene, moments=moments, nominated=nominated)

    def to_wait_for(self) -> Scene:
        """Return a scene in which nothing happens, but nodes may go later: Karpenter looks several times."""
        scene = self._scene()
        seen = self._seen(scene, self.rng.randint(2, 10))
        for node in seen.nodes.values():
            if node.last_pod_event_s is not None and self.chance(0.7):
                node.last_pod_event_s = seen.now_s - self.rng.randint(0, 40)
        seen.changed_s = seen.now_s
        _protect(scene.budgets, seen)
        nominated = {name: seen.now_s + 20.0 for name in seen.nodes if self.chance(0.2)}
        return replace(scene, moments=[seen], nominated=nominated, looks=5)

    def _scene(self) -> Scene:
        rng = self.rng
        kinds: tuple[str, ...] = rng.choice((("on-demand",),) * 4 + (("spot",), ("on-demand", "spot")))
        settings = KarpenterSettings(
            consolidation_policy=rng.choice(("WhenEmptyOrUnderutilized",) * 5 + ("WhenEmpty", "Balanced", "Balanced")),
            consolidate_after_s=rng.choice((0.0, 15.0, 15.0, 30.0, 120.0) * 3 + (None,)),
            budgets=rng.choice((("10%",), ("30%",), ("100%",), ("100%",), ("0",), ("2",), ("50%", "3"), ())),
            spot_to_spot_consolidation=self.chance(0.5),
        )
        selects = [PodBudget({"app": f"app-{number}"}, **self._limit()) for number in range(2) if self.chance(0.3)]
        return Scene(self._catalogue(kinds), settings, [], {}, tuple(selects), kinds, f"seed {self.seed}")

    def _limit(self) -> dict[str, Any]:
        return self.rng.choice(
            ({"max_unavailable": 0}, {"max_unavailable": 1}, {"max_unavailable": "30%"}, {"min_available": 2},
             {"min_available": "50%"}, {"min_available": "100%"})
        )  # fmt: skip

    def _catalogue(self, kinds: Sequence[str]) -> Catalogue:
        """Draw families of shapes whose sizes are no powers of two, at prices that are nearly proportional."""
        rng, types = self.rng, list[InstanceType]()
        for family in range(rng.randint(1, 4)):
            gib = rng.choice((1.5, 2.0, 4.0, 7.3, 8.0))
            price = rng.choice((0.05, 0.06)) if self.ties else 0.03 * rng.uniform(0.8, 1.3) + 0.004 * gib
            for cores in rng.sample((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48), rng.randint(1, 7)):
                asked = price * cores * (1.0 if self.ties else rng.uniform(0.95, 1.05))
                rebate = 0.5 if self.ties else rng.uniform(0.25, 0.6)
                offerings = tuple(
                    Offering(round(asked * (rebate if each == "spot" else 1.0) * factor, 6), each, zone)  # type: ignore[arg-type]
                    for zone, factor in self._sold_in()
                    for each in kinds
                )
                room = (CPU, 1000 * cores - 100), (MEMORY, int(gib * cores * _GIB)), (PODS, rng.choice((8, 29, 110)))
                if self.gpus and family % 2 == 0:
                    count = min(8, 1 + cores // 4)
                    types.append(InstanceType(f"f{family}-{cores}", (*room, (_GPU, count)), offerings, gpu_count=count))
                else:
                    types.append(InstanceType(f"f{family}-{cores}", room, offerings))
        return Catalogue(tuple(types))

    def _sold_in(self) -> list[tuple[str, float]]:
        """Draw in which zones a type is sold, and how much dearer there."""
        if not self.bound:
            return [("zone-a", 1.0)]
        found = [(zone, self.rng.uniform(1.0, 1.08)) for zone in self.zones if self.chance(0.85)]
        return found or [(self.zones[0], 1.0)]

    def _pod(self, scene: Scene, *, most: InstanceType | None = None) -> Pod:
        rng = self.rng
        self._number += 1
        cpu = rng.choice((0, 50, 100, 250, 333, 500, 770, 1000, 1500, 1900, 2700, 4000, 7100, 13000, 40000))
        memory = rng.choice((0, 64, 100, 512, 777, 1024, 3000, 5000, 9000, 30000)) * _MIB
        if most is not None:
            room = dict(most.allocatable)
            cpu, memory = min(cpu, room[CPU] // rng.randint(1, 4)), min(memory, room[MEMORY] // rng.randint(1, 4))
        name = f"{rng.choice('abcdefgh')}{self._number}"
        priority = rng.randint(-(1 << 24), 1 << 24) if not self.ties else rng.choice((0, 0, 0, 1000))
        if self.chance(0.03):
            priority = -(1 << 26)
        gpu = NO_GPU
        if self.gpus and self.chance(0.4):
            gpu = GpuRequest(rng.choice((1, 1, 2, 4)), 1000)
        selector: dict[str, str] = {}
        if most is None and self.chance(0.1):
            selector = rng.choice(
                ({TYPE_LABEL: rng.choice(scene.catalogue.types).name}, {"kubernetes.io/arch": "amd64"},
                 {"kubernetes.io/arch": "arm64"}, {ZONE_LABEL: "zone-a"}, {ZONE_LABEL: "zone-b"})
            )  # fmt: skip
        pod = Pod(
            name, uid=name, requests={CPU: cpu, MEMORY: memory}, gpu=gpu, labels={"app": f"app-{rng.randint(0, 6)}"},
            priority=priority, node_selector=selector, created_s=float(rng.randint(0, 500)),
            do_not_disrupt=self.chance(0.04), owner=f"{rng.choice(('ReplicaSet', 'Job', 'StatefulSet'))}/o{name}",
        )  # fmt: skip
        return self._binding(scene, pod) if self.bound and self.chance(0.75) else pod

    # ---- what pods ask for beside resources --------------------------------------------------------------------------

    def _binding(self, scene: Scene, pod: Pod) -> Pod:
        """Return a pod that asks for some of what pods can ask for; those of an app are often alike."""
        rng = self.rng
        if self._drawn and self.chance(0.5):
            like = rng.choice(self._drawn)
            return replace(
                pod, namespace=like.namespace, labels=like.labels, affinity=like.affinity, spread=like.spread,
                host_ports=like.host_ports, node_selector=like.node_selector,
            )  # fmt: skip
        namespace = "other" if self.chance(0.1) else "default"
        pod = replace(pod, namespace=namespace, labels={"app": f"app-{rng.randint(0, 2)}"})
        spread = tuple(self._spread(pod) for _ in range(self._few(0.35)))
        terms = tuple(self._node_term(scene) for _ in range(rng.randint(1, 3)))
        affinity = Affinity(
            required_nodes=terms if self.chance(0.5 if spread else 0.15) else None,
            preferred_nodes=tuple(
                PreferredNode(weight, self._node_term(scene)) for weight in self._weights(0.12)
            ),
            required_pods=tuple(self._pod_term(pod) for _ in range(self._few(0.15))),
            required_anti_pods=tuple(self._pod_term(pod) for _ in range(self._few(0.25))),
            preferred_pods=tuple(
                WeightedPodAffinityTerm(rng.choice((1, -1)) * weight, self._pod_term(pod))
                for weight in self._weights(0.12)
            ),
        )  # fmt: skip
        if self.chance(0.4 if spread else 0.1):
            key, values = rng.choice(((ZONE_LABEL, self.zones), (CAPACITY_TYPE_LABEL, scene.capacity_types)))
            pod = replace(pod, node_selector={**pod.node_selector, key: rng.choice(values)})
        volumes = tuple(
            tuple(
                NodeSelectorTerm((Requirement(ZONE_LABEL, "In", (zone,)),))
                for zone in rng.sample(self.zones, rng.choice((1, 1, 2)))
            )
            for _ in range(self._few(0.08))
        )
        ports = tuple(
            HostPort(
                rng.choice((80, 8080)), rng.choice(("TCP", "TCP", "UDP")), rng.choice(("0.0.0.0", "10.0.0.1", "::"))
            )
            for _ in range(self._few(0.1))
        )
        self._drawn.append(replace(
            pod, affinity=affinity, spread=spread,
            host_ports=ports, volumes=VolumeNeeds(node_terms=volumes),
        ))  # fmt: skip
        return self._drawn[-1]

    def _few(self, share: float) -> int:
        return self.rng.choice((1, 1, 1, 2)) if self.chance(share) else 0

    def _weights(self, share: float) -> list[int]:
        return self.rng.sample(range(1, 101), self._few(share))

    def _node_term(self, scene: Scene) -> NodeSelectorTerm:
        rng, names = self.rng, [each.name for each in scene.catalogue.types]
        drawn = (
            Requirement(ZONE_LABEL, "In", tuple(rng.sample(self.zones, rng.randint(1, 2)))),
            Requirement(ZONE_LABEL, "NotIn", (rng.choice(self.zones),)),
            Requirement(ZONE_LABEL, "Gt", (rng.choice("012"),)),
            Requirement("failure-domain.beta.kubernetes.io/zone", "Lt", (rng.choice("234"),)),
            Requirement(ZONE_LABEL, "Exists"),
            Requirement(TYPE_LABEL, "In", tuple(rng.sample(names, min(len(names), 3)))),
            Requirement(TYPE_LABEL, "NotIn", (rng.choice(names),)),
            Requirement(CAPACITY_TYPE_LABEL, "In", (rng.choice(("spot", "on-demand")),)),
            Requirement(_DISK, rng.choice(("NotIn", "In")), ("ssd",)),
            Requirement(_DISK, rng.choice(("Exists", "DoesNotExist"))),
        )
        return NodeSelectorTerm(tuple(rng.sample(drawn, rng.choice((1, 1, 2)))))

    def _about(self, pod: Pod) -> LabelSelector | None:
        if self.chance(0.03):
            return self.rng.choice((None, LabelSelector()))
        app = pod.labels["app"] if self.chance(0.8) else f"app-{self.rng.randint(0, 2)}"
        if self.chance(0.1):
            return LabelSelector((Requirement("app", "NotIn", (app,)),))
        return LabelSelector((Requirement("app", "In", (app,)),))

    def _key(self) -> str:
        return self.rng.choice((ZONE_LABEL,) * 4 + (HOSTNAME_LABEL,) * 4 + (CAPACITY_TYPE_LABEL, "rack"))

    def _pod_term(self, pod: Pod) -> PodAffinityTerm:
        namespaces = _NAMESPACES if self.chance(0.1) else (pod.namespace,)
        return PodAffinityTerm(self._key(), self._about(pod), frozenset(namespaces))

    def _spread(self, pod: Pod) -> TopologySpread:
        hard = self.chance(0.7)
        return TopologySpread(
            self.rng.choice((1, 1, 2, 3)), self._key(), self._about(pod), hard=hard,
            min_domains=self.rng.choice((1, 1, 2, 3)) if hard else 1, honor_node_affinity=self.chance(0.8),
            honor_node_taints=self.chance(0.2),
        )  # fmt: skip

    # ---- what is there -----------------------------------------------------------------------------------------------

    def _seen(self, scene: Scene, nodes: int) -> Observed:
        rng = self.rng
        seen = Observed(1000.0, pods={}, released_s={})
        crowd = rng.choice((0, 1, 1, 3, 3, 6))
        for number in range(nodes):
            kind = rng.choice(scene.catalogue.types)
            offering = rng.choice(kind.offerings) if self.bound else kind.cheapest
            node = OwnedNode(f"n{rng.randint(100, 999)}-{number}", kind, offering, float(rng.randint(0, 800)))
            if self.chance(0.9):
                node.initialized_s = float(rng.randint(int(node.launched_s), 995))
                if self.chance(0.8):
                    node.last_pod_event_s = float(rng.randint(int(node.initialized_s), 1000))
                node.deleting = self.chance(0.06)
            seen.nodes[node.name], seen.pods[node.name] = node, {}  # type: ignore[index]
            if node.initialized_s is not None and crowd and self.chance(0.97):
                for _ in range(rng.randint(1, 2 * crowd)):
                    self._place(scene, seen, node)
        return seen

    def _place(self, scene: Scene, seen: Observed, node: OwnedNode) -> None:
        """Let a pod run on a node, if it has room."""
        rng = self.rng
        pod = self._pod(scene, most=node.type)
        free = scene.catalogue.room[scene.catalogue.numbers[node.type.name]].copy()
        for each in seen.pods_on(node.name).values():
            free -= scene.catalogue.request(each)
        devices = node.type.gpu_count - sum(each.gpu.count for each in seen.pods_on(node.name).values())
        if (free >= scene.catalogue.request(pod)).all() and pod.gpu.count <= devices:
            if not pod.do_not_disrupt and self.chance(0.1):
                pod = replace(pod, do_not_disrupt=True, do_not_disrupt_s=float(rng.choice((20, 600))))
                if self.chance(0.9):  # else nobody says when it began to run
                    seen.released_s[pod.uid] = seen.now_s + rng.randint(-40, 40)  # type: ignore[index]
            seen.pods[node.name][pod.uid] = pod  # type: ignore[index]
            if node.deleting and self.chance(0.3):
                seen.stopping.add(pod.uid)

    def _wait(self, scene: Scene, seen: Observed) -> None:
        pod = self._pod(scene)
        seen.waiting[pod.uid] = Waiting(pod, seen.now_s)

    def _change(self, scene: Scene, seen: Observed) -> None:
        """Let something happen while Karpenter waits."""
        node = self.rng.choice(list(seen.nodes.values()))
        happens = self.rng.randint(0, 3)
        if happens == 0:
            self._wait(scene, seen)
        elif happens == 1:
            node.deleting = True
        elif node.initialized_s is None:
            node.initialized_s = seen.now_s - 1.0
        else:
            pods = list(seen.pods_on(node.name))
            if happens == 2 and pods:
                del seen.pods[node.name][pods[0]]  # type: ignore[attr-defined]
            else:
                self._place(scene, seen, node)
            if self.chance(0.7):
                node.last_pod_event_s = seen.now_s - self.rng.randint(0, 14)


def _copied(seen: Observed, now_s: float) -> Observed:
    """Return an independent copy of a moment at another time."""
    return replace(
        seen, now_s=now_s, nodes={name: replace(node) for name, node in seen.nodes.items()},
        pods={name: dict(seen.pods_on(name)) for name in seen.nodes}, waiting=dict(seen.waiting),
        stopping=set(seen.stopping), released_s=dict(seen.released_s),
    )  # fmt: skip


def _protect(budgets: Sequence[PodBudget], seen: Observed) -> None:
    """Take note of the pods that budgets protect, and of the devices that no pod has."""
    placed = [pod for name in seen.nodes for pod in seen.pods_on(name).values()]
    missing = [pod for pod in placed if pod.uid in seen.stopping] + [each.pod for each in seen.waiting.values()]
    running = [pod for pod in placed if pod.uid not in seen.stopping]
    seen.blocked, seen.stuck = blocked_pods(budgets, running, missing), stuck_pods(budgets, running)
    taken = {name: sum(pod.gpu.count for pod in seen.pods_on(name).values()) for name in seen.nodes}
    seen.gpu_free = {
        name: np.where(np.arange(node.type.gpu_count) < taken[name], 0, DEVICE_MILLI)
        for name, node in seen.nodes.items()
    }


# ---- scenes of a simulated episode -----------------------------------------------------------------------------------


def _tell_apart(scene: Scene) -> None:
    priorities = {uid: 97 * rank for uid, rank in _ages(scene.moments).items()}
    for seen in scene.moments:
        for pods in seen.pods.values():
            pods |= {uid: replace(pod, priority=priorities[uid]) for uid, pod in pods.items()}  # type: ignore[operator]
        for uid, each in seen.waiting.items():
            seen.waiting[uid] = replace(each, pod=replace(each.pod, priority=priorities[uid]))


@dataclass
class Watched(Karpenter):
    """Our Karpenter, which takes down each scene in which it buys, or looks for nodes that may go."""

    bought: list[Scene] = field(default_factory=list)
    looked: list[Scene] = field(default_factory=list)

    def _decide(self, seen: Observed) -> list[Command]:
        at, scene = self._at, self._scene(seen)
        closes_s = min(
            at["latest_s"] + self.settings.batch_idle_duration_s, at["opened_s"] + self.settings.batch_max_duration_s
        )
        due, planned = at["due_s"] <= seen.now_s, at["planned"] > 0
        if closes_s <= seen.now_s:
            self.bought.append(scene)
        orders = super()._decide(seen)
        if due and not any(isinstance(order, Provision) for order in orders):
            if planned:
                self.looked[-1].moments.append(_copied(seen, seen.now_s))
            else:
                self.looked.append(scene)
        return orders

    def _scene(self, seen: Observed) -> Scene:
        nominated = {name: until_s for name, until_s in self.nominated_s.items() if name in seen.nodes}
        return Scene(self.catalogue, self.settings, [_copied(seen, seen.now_s)], nominated)


def scenes_of(task: BillTask, seed: int, policy: str, nodes: int) -> tuple[list[Scene], list[Scene]]:
    """Play an episode; return its scenes in which nodes were bought, and those in which they might have gone.

    Each pod gets a priority of its own: of nodes that are worth the same, Karpenter takes one at random.
    """
    watched: list[Watched] = []

    def watch(catalogue: Catalogue, rng: np.random.Generator) -> Karpenter:
        settings = task.autoscaler
        watched.append(Watched(settings, catalogue, settings.poll_s * float(rng.random())))
        return watched[-1]

    cluster = replace(task, autoscaler=watch).build(seed, nodes)
    play(cluster, make_policy(policy, PolicyOptions(seed=seed)))
    (one,) = watched
    for number, scene in enumerate([*one.bought, *one.looked]):
        scene.origin = f"{task.name}, seed {seed}, {policy}, scene {number}"
    for scene in [*one.bought, *one.looked]:
        _tell_apart(scene)
    for scene in one.looked:
        first, last = scene.moments[0], scene.moments[-1]
        missing = range(len(scene.moments), MOMENTS)
        scene.moments += [_copied(last, first.now_s + 15.0 * number) for number in missing]
    return one.bought, one.looked
