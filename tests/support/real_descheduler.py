"""The descheduler's own HighNodeUtilization, asked which pods it would evict, and ours on the same scenes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.kube.provision.binaries import compile_program
from aaml.kube.provision.toolchain import find_go
from aaml.nodes.budgets import PodBudget, blocked_pods
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.descheduler import HighNodeUtilization
from aaml.nodes.ports import Evict, Observed, OwnedNode
from aaml.nodes.settings import HighNodeUtilizationSettings
from support.answering import AnsweringProgram, built

_MODULE = Path(__file__).with_name("descheduler")
_GO = (1, 26)
_OWN, _KARPENTERS = "descheduler.alpha.kubernetes.io/prefer-no-eviction", "karpenter.sh/do-not-disrupt"
_OWNERS = ("ReplicaSet/web", "ReplicaSet/web", "ReplicaSet/api", "Job/night", "StatefulSet/db", "DaemonSet/agent", "")
_CLASSES = ("BestEffort", "Burstable", "Guaranteed")
_GIB = 1 << 30


def program() -> Path:
    """Return the program, built if need be: minutes, unless Go has compiled the same packages before."""
    read = b"".join((_MODULE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    return built(
        "descheduler-evict", read,
        lambda output: compile_program(find_go(_GO), _MODULE, ".", "-s -w", output, progress=False),
    )  # fmt: skip


class RealDescheduler(AnsweringProgram):
    """Which pods the descheduler would evict, question by question."""

    def __init__(self) -> None:
        super().__init__(program())

    def evicted(self, question: dict[str, Any]) -> list[str]:
        """Return the names of the evicted pods, in order. Raises RuntimeError where it ends with an error."""
        return list(self.ask(question)["evicted"])


class _Nobody:
    """An autoscaler that does nothing."""

    next_s = float("inf")

    def act(self, _seen: Observed) -> list[Any]:
        return []

    def copy(self) -> Self:
        return self


@dataclass(frozen=True)
class EvictionScene:
    """Nodes with pods, of which no two on a node are alike to the descheduler, which takes those in random order."""

    settings: HighNodeUtilizationSettings
    catalogue: Catalogue
    nodes: dict[str, OwnedNode]
    pods: dict[str, dict[str, Pod]]
    stopping: frozenset[str]
    budgets: tuple[PodBudget, ...]

    @classmethod
    def drawn(cls, seed: int) -> "EvictionScene":
        rng = np.random.default_rng([38, seed])
        kinds = [
            InstanceType(
                f"t{k}", ((CPU, int(rng.integers(2, 33)) * 500), (MEMORY, int(rng.integers(2 * _GIB, 64 * _GIB))),
                          (PODS, int(rng.integers(6, 40)))), (Offering(1.0 + k),),
            )
            for k in range(4)
        ]  # fmt: skip
        use, nodes, pods = float(rng.uniform(0.1, 1.2)), {}, {}
        for number in range(int(rng.integers(2, 13))):
            kind = kinds[int(rng.integers(len(kinds)))]
            going = bool(rng.random() < 0.1)
            name = f"n{number}"
            nodes[name] = OwnedNode(name, kind, kind.cheapest, 0.0, 0.0, deleting=going)
            pods[name] = _pods_of(name, kind, use * float(rng.uniform(0.0, 1.0)), rng)
        every = [uid for of_node in pods.values() for uid in of_node]
        return cls(
            _settings(rng), Catalogue(tuple(kinds)), nodes, pods,
            frozenset(uid for uid in every if rng.random() < 0.03), _budgets(rng),
        )  # fmt: skip

    @property
    def tied(self) -> bool:
        """Whether two nodes with pods are used alike: the descheduler takes these in any order."""
        used = [
            sum(pod.request(CPU) + pod.request(MEMORY) + 1 for pod in of_node.values())
            for of_node in self.pods.values()
            if of_node
        ]
        return len(set(used)) < len(used)

    def question(self) -> dict[str, Any]:
        """Return it as the program reads it."""
        told, pods = self.settings, [(name, pod) for name, found in self.pods.items() for pod in found.values()]
        spared = told.no_eviction_policy == "Mandatory"
        marks = {_KARPENTERS: "true", **({_OWN: ""} if spared else {})}
        return {
            "nodes": [
                {"name": name, "taint": "karpenter.sh/disrupted" if node.deleting else "", **_offered(node.type)}
                for name, node in self.nodes.items()
            ],
            "pods": [
                {
                    "name": pod.uid, "node": name, "cpuMilli": pod.request(CPU), "memory": pod.request(MEMORY),
                    "priority": pod.priority, "guaranteed": pod.qos == "Guaranteed",
                    "ownerKind": pod.owner.partition("/")[0], "terminating": pod.uid in self.stopping,
                    "labels": dict(pod.labels), "annotations": marks if pod.do_not_disrupt else {},
                }
                for name, pod in pods
            ],
            "budgets": [
                {"labels": dict(one.labels), "maxUnavailable": one.max_unavailable, "minAvailable": one.min_available}
                for one in self.budgets
            ],
            "thresholds": dict(told.percent), "numberOfNodes": told.number_of_nodes,
            "evictionModes": list(told.eviction_modes), "noEvictionPolicy": told.no_eviction_policy,
            "maxNoOfPodsToEvictPerNode": told.max_no_of_pods_to_evict_per_node,
            "maxNoOfPodsToEvictTotal": told.max_no_of_pods_to_evict_total,
        }  # fmt: skip

    def ours(self) -> list[str]:
        """Return the pods that ours evicts, in order."""
        rule, found = HighNodeUtilization(self.settings, _Nobody(), self.catalogue), list[str]()
        every = [pod for of_node in self.pods.values() for pod in of_node.values()]
        while True:
            gone = self.stopping | set(found)
            running = [pod for pod in every if pod.uid not in gone]
            blocked = blocked_pods(self.budgets, running, [pod for pod in every if pod.uid in gone])
            seen = Observed(10.0, self.nodes, self.pods, blocked=blocked, stopping=set(gone))
            orders = rule.act(seen)
            if not orders:
                return found
            (order,) = orders
            assert isinstance(order, Evict)
            found.append(order.uid)


def _pods_of(name: str, kind: InstanceType, use: float, rng: np.random.Generator) -> dict[str, Pod]:
    """Draw pods that ask for about such a share of a node, each with a priority and class of its own."""
    room = dict(kind.allocatable)
    count = int(rng.integers(0, min(room[PODS], 15) + 1)) if use else 0
    ranks = rng.permutation([(priority, each) for priority in (-5, 0, 0, 7, 1000, 2_000_000_000) for each in range(3)])
    found: dict[str, Pod] = {}
    for number, (priority, of_class) in enumerate(np.unique(ranks, axis=0)[rng.permutation(15)][:count].tolist()):
        requests = {
            CPU: max(1, int(room[CPU] * use * rng.exponential() / count)),
            MEMORY: max(1, int(room[MEMORY] * use * rng.exponential() / count)),
        }
        if of_class == 0:
            requests = {}
        elif of_class == 1 and rng.random() < 0.3:
            requests.pop(CPU if rng.random() < 0.5 else MEMORY)
        owner = _OWNERS[int(rng.integers(len(_OWNERS)))]
        labels = {"app": owner.partition("/")[2]} if owner else {}
        found[f"{name}-{number}"] = Pod(
            f"{name}-{number}", uid=f"{name}-{number}", requests=requests, priority=priority, qos=_CLASSES[of_class],
            owner=owner, labels={**labels, "tier": "front" if rng.random() < 0.5 else "back"},
            do_not_disrupt=bool(rng.random() < 0.15),
        )  # fmt: skip
    return found


def _settings(rng: np.random.Generator) -> HighNodeUtilizationSettings:
    names = [name for name in ("cpu", "memory", "pods") if rng.random() < 0.7] or ["cpu"]
    return HighNodeUtilizationSettings(
        thresholds=tuple(f"{name}={int(rng.integers(10, 81))}" for name in names),
        number_of_nodes=int(rng.integers(0, 3)) if rng.random() < 0.2 else 0,
        eviction_modes=("OnlyThresholdingResources",) if rng.random() < 0.2 else (),
        no_eviction_policy="Mandatory" if rng.random() < 0.3 else "Preferred",
        max_no_of_pods_to_evict_per_node=int(rng.integers(0, 4)) if rng.random() < 0.2 else None,
        max_no_of_pods_to_evict_total=int(rng.integers(0, 8)) if rng.random() < 0.2 else None,
    )  # fmt: skip


def _budgets(rng: np.random.Generator) -> tuple[PodBudget, ...]:
    if rng.random() < 0.5:
        return ()
    most: int | str = int(rng.integers(0, 3)) if rng.random() < 0.5 else f"{int(rng.integers(0, 101))}%"
    first = PodBudget({"app": "web"}, **{("max_unavailable", "min_available")[int(rng.integers(2))]: most})
    return (first, PodBudget({"tier": "front"}, max_unavailable="50%")) if rng.random() < 0.3 else (first,)


def _offered(kind: InstanceType) -> dict[str, int]:
    room = dict(kind.allocatable)
    return {"cpuMilli": room[CPU], "memory": room[MEMORY], "pods": room[PODS]}
