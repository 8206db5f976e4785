"""Bills drawn by a seed, of all that a task says and compiled episodes take together: what one alone does not show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    RACK_LABEL,
    ZONE_LABEL,
    Pod,
    Requirement,
    Taint,
    Toleration,
)
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY
from aaml.nodes.budgets import PodBudget
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.catalogue_file import openb_catalogue, shipped_catalogue
from aaml.nodes.commitments import Commitments, Reservation, SavingsPlan
from aaml.nodes.committed import zoned
from aaml.nodes.node_policy import NodePolicy, Promise
from aaml.nodes.settings import (
    ClusterAutoscalerSettings,
    HighNodeUtilizationSettings,
    KarpenterSettings,
    NodeTimes,
    Prices,
)
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeSchedulerConfig
from aaml.policies.kube_scores.config import GPU_MILLI
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.bill import BillTask, Descheduled
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import find_task
from aaml.workload.model import Workload
from support.bills import BILL, OPENB, hastened, naming_models

MOST_PODS = 160
TOLERATED = Toleration("x", "Equal", "y", "NoSchedule")
OWNERS = ("ReplicaSet/web", "StatefulSet/db", "ReplicationController/old", "Job/work", "DaemonSet/agent", "Node/n", "")
Draw = Callable[[int, np.random.Generator], tuple[Workload, float]]


@dataclass(frozen=True)
class DrawnBill:
    """A bill with its budgets of pods, on about so many nodes."""

    task: BillTask
    nodes: int
    budgets: tuple[PodBudget, ...]

    def build(self, seed: int, _nodes: int = 0) -> SimCluster:
        """Return the cluster at the beginning of an episode."""
        cluster = self.task.build(seed, self.nodes)
        cluster.supply.budgets = self.budgets
        return cluster


@dataclass(frozen=True)
class DrawnNodes:
    """Pods of a task on nodes that stay: some have taints, are cordoned, or lack labels."""

    task: str
    nodes: int
    pods: int
    seed: int

    def build(self, seed: int, _nodes: int = 0) -> SimCluster:
        """Return the cluster at the beginning of an episode."""
        cluster = find_task(self.task).build(seed, self.nodes, pods=self.pods)
        chance = Chance(np.random.default_rng([self.seed, seed]))
        pods = tuple(
            replace(
                pod, tolerations=chance.one((), (Toleration(operator="Exists"),), (TOLERATED,)), **_owned(chance, i)
            )
            for i, pod in enumerate(cluster.workload.pods)
        )
        nodes = [
            replace(
                node, unschedulable=chance.is_so(0.15), labels=_labels(chance, node.name),
                taints=chance.one((), (), (Taint("x", "y", "NoSchedule"),), (Taint("z", "", "NoExecute"),)),
            )
            for node in cluster.state.nodes
        ]  # fmt: skip
        return SimCluster(nodes, replace(cluster.workload, pods=pods), until_s=cluster.until_s)


@dataclass(frozen=True)
class Looks:
    """What the rows of a batch have in common: what a policy is shown, what counts, and in which order pods wait."""

    spec: ObservationSpec
    reward: str
    sort: QueueSort | None


class Chance:
    """Draws settings."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def is_so(self, share: float = 0.5) -> bool:
        """Return whether, so often."""
        return bool(self.rng.random() < share)

    def one(self, *values: Any) -> Any:
        """Return one of these."""
        return values[int(self.rng.integers(len(values)))]

    def some(self, *values: Any) -> tuple[Any, ...]:
        """Return some of these, one at least."""
        kept = tuple(each for each in values if self.is_so())
        return kept or (self.one(*values),)

    def told(self, share: float, **values: Sequence[Any]) -> dict[str, Any]:
        """Return settings of which each is told so often, as one of its values, and else stays what it is."""
        return {name: self.one(*those) for name, those in values.items() if self.is_so(share)}


def drawn_bill(rng: np.random.Generator, *, gpus: bool | None = None, one_zone: bool = False) -> DrawnBill:
    """Draw a bill; with GPUs, without, or either; `one_zone`: as kube-scheduler's compiled scores take it."""
    chance = Chance(rng)
    gpus = chance.is_so(0.2) if gpus is None else gpus
    catalogue = _catalogue(chance, gpus, one_zone)
    beside = _autoscaler(chance, gpus)
    autoscaler = Descheduled(_descheduler(chance), beside) if chance.is_so() else beside
    task = replace(
        OPENB if gpus else BILL, autoscaler=autoscaler, catalogue=catalogue, fixed_prices=chance.is_so(),
        rhythm=_pods(chance, gpus, simple=one_zone), times=_times(chance), commitments=_commitments(chance, catalogue),
        prices=Prices(**chance.told(0.3, wait_target_s=(0.0, 5.0), wait_per_hour=(0.0, 9.0), eviction=(0.0, 0.5))),
        carbon_g_per_kwh=chance.one((), (310.0, 90.0)),
        promise=Promise(**chance.told(0.2, wait_p99_s=(9.0, 45.0), wait_mean_s=(3.0,), evictions_per_pod_hour=(1.0,))),
    )  # fmt: skip
    return DrawnBill(task, int(rng.integers(1, 7)), _budgets(chance) if chance.is_so() else ())


def drawn_nodes(rng: np.random.Generator) -> DrawnNodes:
    """Draw an episode whose nodes stay."""
    task = Chance(rng).one("balance", "varied", "waiting", "fragmentation", "churn")
    return DrawnNodes(task, int(rng.integers(2, 9)), int(rng.integers(30, MOST_PODS)), int(rng.integers(1 << 30)))


def drawn_looks(rng: np.random.Generator, expected: Sequence[Pod], *, stay: bool = False) -> Looks:
    """Draw what a policy is shown where such pods are expected, on nodes that `stay` or are bought."""
    chance = Chance(rng)
    model = chance.one(None, None, LifetimeModel.of_history(expected[:200]), KnownLifetimes())
    spec = ObservationSpec(
        lookahead=chance.one(0, 0, 3), lifetimes=chance.is_so(0.3), lifetime_model=model, costs=chance.is_so(0.7)
    )
    numbers = chance.told(0.5, cpu_s=(50.0,), memory_s=(-20.0, 5.0), larger_s=(90.0,))
    if model is not None and (stay or not isinstance(model, KnownLifetimes)):
        numbers |= chance.told(0.3, rest=(1.0, -0.5), work=(2.0,))
    reward = chance.one(
        "balance", "balance-level", "compress", "waiting-time", *(("seed-a",) if stay else ("bill",) * 3)
    )
    return Looks(spec, reward, QueueSort(**numbers) if chance.is_so(0.3) else None)


def drawn_scores(rng: np.random.Generator, *keys: str) -> KubeSchedulerConfig:
    """Draw a configuration of kube-scheduler's scores that compiled episodes know where nodes differ by such labels."""
    chance = Chance(rng)
    own = {"NodeResourcesFit": int(rng.integers(1, 5)), "PodTopologySpread": int(rng.integers(0, 6))}
    strategy = chance.one("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")
    over = tuple((int(rng.integers(1, 7)), chance.one(*keys)) for _ in range(int(rng.integers(4))))
    spreading = {"default_spreading": over, "system_spreading": chance.is_so()}
    others = tuple(
        (name, int(rng.integers(1, 4)))
        for name in (GPU_MILLI, "nvidia.com/gpu", EPHEMERAL_STORAGE)
        if chance.is_so(0.3)
    )
    return KubeSchedulerConfig(
        chance.one(DEFAULT_WEIGHTS, own, {"PodTopologySpread": 1}), strategy,
        ((CPU, int(rng.integers(1, 4))), (MEMORY, 1), *others), ties="fixed",
        shape=chance.one(((0, 0), (100, 10)), ((0, 0), (30, 10), (100, 0))),
        **chance.told(0.3, percentage_of_nodes_to_score=(10, 40, 100), backoff_s=((1, 1), (1, 20), (5, 5))),
        **(spreading if chance.is_so() else {}),
    )  # fmt: skip


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def _catalogue(chance: Chance, gpus: bool, one_zone: bool) -> Catalogue:
    """Draw what can be bought: on demand, in zones, on spot and reserved."""
    types = list((openb_catalogue() if gpus else shipped_catalogue()).types)
    if chance.is_so(0.3):
        types = [each for each in types if chance.is_so()] or types
    zone = chance.one("", "a")
    if one_zone or chance.is_so():
        ways = [Offering(1.0, zone=zone)]
        if chance.is_so():
            ways += [Offering(chance.one(0.3, 1.0), "spot", zone)]
        if chance.is_so(0.2):
            ways += [Offering(0.1, "reserved", zone)]
    else:
        ways = [Offering(1.0, zone="a"), Offering(chance.one(0.9, 1.0), zone="b"), Offering(0.4, "spot", "b")]
        ways = list(chance.some(*ways[1:])) + ways[:1]
    found = []
    for kind in types:
        mine = ways if len(ways) == 1 or chance.is_so(0.9) else ways[:1]
        price = kind.cheapest.price
        found.append(replace(kind, offerings=tuple(replace(way, price=way.price * price) for way in mine)))
    return Catalogue(_always_on_demand(found))


def _always_on_demand(types: Sequence[InstanceType]) -> tuple[InstanceType, ...]:
    """Return types of which each is sold on demand: what is provisioned where nobody says otherwise."""
    return tuple(each for each in types if each.of(("on-demand",)).offerings)


def _autoscaler(chance: Chance, gpus: bool) -> KarpenterSettings | NodePolicy | ClusterAutoscalerSettings:
    kind = chance.one("karpenter", "karpenter", "learned", "learned", *(() if gpus else ("cluster autoscaler",)))
    if kind == "learned":
        return NodePolicy(
            **chance.told(
                0.25, idle_s=(1.0, 15.0), patience_s=(5.0, 50.0), patience_growth=(0.7,), spare_value=(0.0, 0.6),
                spare_growth=(0.0, 1.0), spare_swing=(0.0, 1.0), size_power=(0.1, -0.5), largest_share=(0.1, 1.0),
                look_s=(1.0, 10.0), empty_s=(15.0,), horizon_s=(50.0, 2000.0), eviction_dollars=(0.0, 0.001, 0.15),
                job_times=(0.0,), margin=(0.0, 0.05), most_at_once=(1.0, 0.05), wait_p99_s=(45.0,), wait_mean_s=(9.0,),
                evictions_per_pod_hour=(0.0, 2.0),
            )
        )  # fmt: skip
    if kind == "cluster autoscaler":
        return ClusterAutoscalerSettings(
            scale_down_unneeded_time_s=chance.one(0.0, 20.0, 60.0),
            scale_down_delay_after_add_s=chance.one(0.0, 20.0, 60.0),
            **chance.told(
                0.3, expander=("price",), scan_interval_s=(2.0, 30.0), scale_down_utilization_threshold=(0.0, 0.7, 1.0),
                max_empty_bulk_delete=(1,), max_nodes_total=(1, 3),
            ),
        )  # fmt: skip
    anyway = {"requirements": chance.one((), (Requirement(CAPACITY_TYPE_LABEL, "In", ("on-demand", "spot")),))}
    return KarpenterSettings(
        consolidate_after_s=chance.one(0.0, 5.0, 15.0, 40.0, None),
        budgets=chance.one((), ("10%",), ("100%",), ("30%",), ("2",), ("60%", "3"), ("0",)),
        **(anyway if chance.is_so(0.6) else {}),
        **chance.told(
            0.25, consolidation_policy=("WhenEmpty", "Balanced"), batch_idle_duration_s=(0.2, 5.0),
            batch_max_duration_s=(3.0, 15.0), spot_to_spot_consolidation=(True, True), poll_s=(3.0, 30.0),
            validation_s=(0.0, 3.0),
        ),
    )  # fmt: skip


def _descheduler(chance: Chance) -> HighNodeUtilizationSettings:
    limits = (
        ("cpu=60",), ("memory=70", "cpu=50"), ("pods=40",), ("cpu=60", "memory=70", "pods=30"), ("cpu=100",), ("cpu=0",)
    )  # fmt: skip
    return HighNodeUtilizationSettings(
        thresholds=chance.one(*limits), descheduling_interval_s=chance.one(0.5, 7.0, 20.0, 40.0, 120.0),
        **chance.told(
            0.25, number_of_nodes=(1, 3), eviction_modes=(("OnlyThresholdingResources",),),
            no_eviction_policy=("Mandatory",), max_no_of_pods_to_evict_per_node=(0, 1, 3),
            max_no_of_pods_to_evict_total=(0, 1, 5),
        ),
    )  # fmt: skip


def _times(chance: Chance) -> NodeTimes:
    return NodeTimes(
        grace_s=chance.one(0.0, 0.0, 3.0, 30.0),
        **chance.told(
            0.3, registration_delay_s=(0.0, 3.0), initialization_s=(0.0,), initialization_spread_s=(0.0, 5.0),
            join_step_s=(0.1, 3.0), min_drain_s=(0.0, 20.0), recreate_s=(0.0, 9.0), retry_s=(0.5, 20.0),
            pod_event_s=(0.0, 30.0), failed_try_s=(0.02, 0.7),
        ),
    )  # fmt: skip


def _commitments(chance: Chance, catalogue: Catalogue) -> Commitments | None:
    if chance.is_so(0.6):
        return None
    names = [each.name for each in catalogue.types]
    families = sorted({name.partition("-")[0] for name in names})
    plans = (
        SavingsPlan(dollars_per_hour=0.2, discount=0.3, discounts={chance.one(*names): 0.4}),
        SavingsPlan(dollars_per_hour=0.1, discount=0.5, families=chance.some(*families)),
        SavingsPlan(dollars_per_hour=chance.one(0.05, 3.0), discount=0.5, instance_types=chance.some(*names)),
    )
    reserved = Reservation(instance_type=chance.one(*names), count=chance.one(0, 2, 9), dollars_per_hour=0.02)
    if len({offering.zone for each in catalogue.types for offering in each.offerings}) == 1:
        zone = chance.one("", catalogue.types[0].cheapest.zone, "elsewhere")
        reserved = msgspec.structs.replace(reserved, zone=zone)
    kept = chance.some(*plans, reserved)
    found = Commitments(
        savings_plans=tuple(each for each in kept if isinstance(each, SavingsPlan)),
        reservations=tuple(each for each in kept if isinstance(each, Reservation)),
    )
    sold = [[each.of(kinds) for each in catalogue.types] for kinds in (("on-demand",), ("on-demand", "spot"))]
    is_zoned = any(zoned(found, types) for types in (catalogue.types, *sold))
    return None if is_zoned else found  # compiled episodes refuse these


def _budgets(chance: Chance) -> tuple[PodBudget, ...]:
    return chance.some(
        PodBudget({"app": "a"}, max_unavailable=chance.one(0, 1, 2, "30%", "0%")),
        PodBudget({"app": "b"}, min_available=chance.one(1, "60%", "85%", "100%")),
        PodBudget({"tier": "front"}, min_available=1),
        PodBudget({}, max_unavailable=chance.one(0, 2), namespace="other"),
    )


def _labels(chance: Chance, name: str) -> dict[str, str]:
    labels = {HOSTNAME_LABEL: name, ZONE_LABEL: chance.one("a", "b", "c"), RACK_LABEL: chance.one("1", "2")}
    return {key: value for key, value in labels.items() if chance.is_so(0.9)}


def _owned(chance: Chance, number: int, owners: Sequence[str] = OWNERS) -> dict[str, Any]:
    """Draw whose a pod is, what it is called by, and its class."""
    app, owner = chance.one("a", "b", "c"), chance.one(*owners)
    labels = chance.one(
        {"app": app}, {"app": app, "tier": "front"}, {"app": app, "pod-template-hash": app},
        {"app": app, "apps.kubernetes.io/pod-index": str(number)}, {},
    )  # fmt: skip
    return {
        "owner": owner and f"{owner}-{app}", "namespace": chance.one("default", "default", "other"), "labels": labels,
        "qos": chance.one("Guaranteed", "Burstable", "BestEffort", ""),
    }  # fmt: skip


def _pods(chance: Chance, gpus: bool, *, simple: bool) -> Draw:
    """Return what draws the pods of an episode: those of a bill, of owners, labels and tolerations of their own."""
    rhythm = OPENB.rhythm if gpus else BILL.rhythm
    if gpus and chance.is_so():
        rhythm = naming_models
    rhythm = hastened(rhythm, 40.0 if gpus else chance.one(0.2, 1.0, 1.0, 1.0))
    whole, kept, stays, own = chance.is_so(0.3), chance.one(0.0, 0.3), chance.one(0.0, 0.1), chance.is_so(0.7)
    kept_s, tolerant = chance.one(30.0, 200.5, math.inf), chance.one(0.0, 0.3)
    owners, salt = chance.some(*OWNERS), int(chance.rng.integers(1 << 30))

    def drawn(count: int, rng: np.random.Generator) -> tuple[Workload, float]:
        workload, until_s = rhythm(count, rng)
        own_rng = Chance(np.random.default_rng([salt, count]))
        pods = [changed(own_rng, number, pod) for number, pod in enumerate(workload.pods[:MOST_PODS])]
        if len(workload) > MOST_PODS:
            until_s = min(until_s, pods[-1].created_s + 60.0)
        return replace(workload, pods=tuple(pods)), until_s

    def changed(pod_rng: Chance, number: int, pod: Pod) -> Pod:
        told: dict[str, Any] = {}
        if own:
            told |= _owned(pod_rng, number, owners)
        if pod_rng.is_so(kept):
            told |= {"do_not_disrupt": True, "do_not_disrupt_s": kept_s}
        if pod_rng.is_so(tolerant):
            told["tolerations"] = pod_rng.one((Toleration(operator="Exists"),), (TOLERATED,))
        if whole:  # so that things happen at once
            told |= {"created_s": float(math.floor(pod.created_s)), "lifetime_s": float(round(pod.lifetime_s or 0.0))}
        if pod_rng.is_so(stays):
            told["lifetime_s"] = None
        if not simple and pod_rng.is_so(0.05):
            told["requests"] = {name: each for name, each in pod.requests.items() if name != pod_rng.one(CPU, MEMORY)}
        return replace(pod, **told)

    return drawn
