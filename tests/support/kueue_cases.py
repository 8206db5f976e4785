"""Racks, queues with quotas and workloads, drawn at random: for AAML's rules, and as manifests of Kueue."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aaml.cluster.objects import HOSTNAME_LABEL, Node, Taint, Toleration
from aaml.cluster.quantity import CPU, PODS, format_amount
from aaml.scheduling.kueue.admission import Admission
from aaml.scheduling.kueue.objects import (
    ClusterQueue,
    Cohort,
    Flavor,
    PodSet,
    Quota,
    ResourceGroup,
    TopologyRequest,
    Workload,
)

Manifest = dict[str, Any]
BLOCK, RACK, POOL, CHIP = "example.com/block", "example.com/rack", "example.com/pool", "example.com/chip"
VERSION = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
_TAINT = Taint("example.com/apart", "yes")
_TOLERATION = Toleration("example.com/apart", "Exists")


@dataclass
class World:
    """Nodes, flavors, queues and cohorts of one name, of which no other world uses anything.

    `balanced`: for a Kueue with the gate TASBalancedPlacement, which draws among equally good domains.
    """

    seed: int
    name: str
    balanced: bool = False

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.levels = rng.choice([(BLOCK, RACK, HOSTNAME_LABEL)] * 3 + [(RACK, HOSTNAME_LABEL)] * 2 + [(BLOCK, RACK)])
        self.pools = rng.choice([("a",), ("a",), ("a", "b")])
        self.nodes = self._nodes()
        self.flavors = [self._flavor(pool) for pool in self.pools]
        self.cohorts = self._cohorts()
        self.queues = [self._queue(number) for number in range(rng.choice([1, 2, 2, 3]))]
        self.made = 0

    def model(self) -> Admission:
        return Admission(self.queues, self.flavors, self.nodes, self.cohorts, balanced=self.balanced)

    def _nodes(self) -> list[Node]:
        rng, found = self.rng, []
        chips, places = rng.choice([4, 8]), rng.choice([3, 20, 20])
        for block in range(rng.choice([1, 2, 2])):
            for rack in range(rng.randint(1, 3)):
                for number in range(rng.randint(1, 4)):
                    name = f"{self.name}-{block}{rack}{number}"
                    labels = {
                        "world": self.name, BLOCK: f"b{block}", RACK: f"r{rack}", HOSTNAME_LABEL: name,
                        POOL: rng.choice(self.pools),
                    }  # fmt: skip
                    if rng.random() < 0.05:
                        del labels[RACK]
                    taints = (_TAINT,) if rng.random() < 0.08 else ()
                    room = {CPU: rng.choice([8000, 16000, 16000]), CHIP: chips, PODS: places}
                    found.append(Node(name, room, labels, taints, unschedulable=rng.random() < 0.04))
        return found

    def _flavor(self, pool: str) -> Flavor:
        rng = self.rng
        levels = () if pool == "b" and rng.random() < 0.4 else self.levels
        return Flavor(
            f"{self.name}-{pool}", {"world": self.name, POOL: pool}, levels,
            taints=(_TAINT,) if rng.random() < 0.1 else (),
            tolerations=(_TOLERATION,) if rng.random() < 0.1 else (),
        )  # fmt: skip

    def _quotas(self, *, limits: bool, scale: float) -> dict[tuple[str, str], Quota]:
        rng, found = self.rng, {}
        for flavor in self.flavors:
            for resource in (CPU, CHIP):
                whole = sum(
                    node.allocatable[resource] for node in self.nodes if node.labels[POOL] == flavor.name.split("-")[-1]
                )
                unit = 1000 if resource == CPU else 1
                nominal = int(whole * scale * rng.choice([0.0, 0.3, 0.6, 1.0, 1.0, 1.5, 2.0])) // unit * unit
                borrowing = rng.choice([None, None, 0, 4, 8]) if limits else None
                lending = rng.choice([None, None, 0, nominal // unit // 2]) if limits else None
                found[flavor.name, resource] = Quota(
                    nominal, *(None if each is None else each * unit for each in (borrowing, lending))
                )
        return found

    def _cohorts(self) -> list[Cohort]:
        rng = self.rng
        self._joined = rng.choice([[], [f"{self.name}-c"], [f"{self.name}-c", f"{self.name}-d"]])
        if not self._joined or rng.random() < 0.4:
            return []
        if rng.random() < 0.3:
            return [Cohort(name, quotas=self._quotas(limits=False, scale=0.5)) for name in self._joined]
        root = Cohort(f"{self.name}-root", quotas=self._quotas(limits=False, scale=0.5))
        return [root] + [
            Cohort(name, root.name, self._quotas(limits=rng.random() < 0.5, scale=0.3)) for name in self._joined
        ]

    def _queue(self, number: int) -> ClusterQueue:
        rng = self.rng
        flavors = [flavor.name for flavor in self.flavors]
        rng.shuffle(flavors)
        cohort = rng.choice(self._joined) if self._joined and rng.random() < 0.85 else ""
        return ClusterQueue(
            f"{self.name}-q{number}", (ResourceGroup((CPU, CHIP), tuple(flavors)),),
            self._quotas(limits=bool(cohort) and rng.random() < 0.6, scale=1.0 if not cohort else 0.7), cohort,
            "StrictFIFO" if rng.random() < 0.2 else "BestEffortFIFO", borrow_first=rng.random() < 0.7,
        )  # fmt: skip

    def workload(self) -> Workload:
        """Draw one more workload; its time and identity are the API server's."""
        rng, self.made = self.rng, self.made + 1
        sets = 2 if rng.random() < 0.12 else 1
        return Workload(
            f"{self.name}-{self.made}", rng.choice(self.queues).name,
            tuple(self._pod_set("main" if not number else f"more{number}") for number in range(sets)),
            rng.choice([0, 0, 0, 5]),
        )  # fmt: skip

    def _pod_set(self, name: str) -> PodSet:
        rng = self.rng
        chips = rng.choice([0, 1, 2, 4, 4, 8])
        requests = {CPU: rng.choice([500, 1000, 4000]), **({CHIP: chips} if chips else {})}
        how = rng.choice(["required", "required", "preferred", "preferred", "unconstrained", None, None])
        level = "" if how in (None, "unconstrained") else rng.choice([*self.levels] * 4 + [BLOCK])
        return PodSet(
            rng.choice([1, 1, 2, 3, 4, 6, 9]), requests, None if how is None else TopologyRequest(how, level),
            {POOL: rng.choice(self.pools)} if rng.random() < 0.12 else {},
            tolerations=(_TOLERATION,) if rng.random() < 0.15 else (), name=name,
        )  # fmt: skip


def manifests(world: World) -> list[tuple[str, Manifest]]:
    """Return Kueue's objects of a world, by their plural."""
    topology = {"levels": [{"nodeLabel": level} for level in world.levels]}
    found = [("topologies", _object("Topology", world.name, topology))]
    for flavor in world.flavors:
        spec: Manifest = {
            "nodeLabels": dict(flavor.node_labels),
            "nodeTaints": [{"key": each.key, "value": each.value, "effect": each.effect} for each in flavor.taints],
            "tolerations": [_toleration(each) for each in flavor.tolerations],
        }
        if flavor.levels:
            spec["topologyName"] = world.name
        found.append(("resourceflavors", _object("ResourceFlavor", flavor.name, spec)))
    for cohort in world.cohorts:
        names = tuple(dict.fromkeys(flavor for flavor, _ in cohort.quotas))
        spec = {"resourceGroups": [_group(ResourceGroup((CPU, CHIP), names), cohort.quotas)]}
        if cohort.parent:
            spec["parentName"] = cohort.parent
        found.append(("cohorts", _object("Cohort", cohort.name, spec)))
    for queue in world.queues:
        spec = {
            "namespaceSelector": {},
            "queueingStrategy": queue.strategy,
            "resourceGroups": [_group(group, queue.quotas) for group in queue.groups],
            "flavorFungibility": {"whenCanBorrow": "MayStopSearch" if queue.borrow_first else "TryNextFlavor"},
        }
        if queue.cohort:
            spec["cohortName"] = queue.cohort
        found.append(("clusterqueues", _object("ClusterQueue", queue.name, spec)))
        local = _object("LocalQueue", queue.name, {"clusterQueue": queue.name})
        found.append(("namespaces/default/localqueues", local))
    return found


def workload_manifest(workload: Workload) -> Manifest:
    """Return a workload as Kueue makes it of a Job."""
    sets = []
    for pods in workload.pod_sets:
        requests = {name: format_amount(name, amount) for name, amount in pods.requests.items()}
        each: Manifest = {
            "name": pods.name, "count": pods.count, "template": {"spec": {
                "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
                "restartPolicy": "Never", "nodeSelector": dict(pods.node_selector),
                "tolerations": [_toleration(toleration) for toleration in pods.tolerations],
            }},
        }  # fmt: skip
        for container in each["template"]["spec"]["containers"]:
            if CHIP in requests:
                container["resources"]["limits"] = {CHIP: requests[CHIP]}
        if pods.topology is not None:
            asked: Any = True if pods.topology.how == "unconstrained" else pods.topology.level
            each["topologyRequest"] = {pods.topology.how: asked}
        sets.append(each)
    spec = {"queueName": workload.queue, "active": True, "priority": workload.priority, "podSets": sets}
    return _object("Workload", workload.name, spec)


def _object(kind: str, name: str, spec: Mapping[str, Any]) -> Manifest:
    return {**VERSION, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def _group(group: ResourceGroup, quotas: Mapping[tuple[str, str], Quota]) -> Manifest:
    flavors = []
    for flavor in group.flavors:
        resources = []
        for resource in group.resources:
            quota = quotas[flavor, resource]
            amounts = {
                "nominalQuota": quota.nominal, "borrowingLimit": quota.borrowing_limit,
                "lendingLimit": quota.lending_limit,
            }  # fmt: skip
            written = {key: format_amount(resource, value) for key, value in amounts.items() if value is not None}
            resources.append({"name": resource, **written})
        flavors.append({"name": flavor, "resources": resources})
    return {"coveredResources": list(group.resources), "flavors": flavors}


def _toleration(toleration: Toleration) -> Manifest:
    found = {"key": toleration.key, "operator": toleration.operator, "effect": toleration.effect}
    return {key: value for key, value in found.items() if value}
