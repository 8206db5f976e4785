"""The bill of a recorded cluster: a window's pods on nodes of an autoscaler, and on those that there were."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from aaml.cluster.objects import (
    NO_VOLUMES,
    ZONE_LABEL,
    Node,
    NodeSelectorTerm,
    Pod,
    Requirement,
    VolumeNeeds,
)
from aaml.cluster.quantity import CPU, MEMORY, PODS, format_bytes, format_cpu
from aaml.errors import UserError, bad_value
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.prices import PriceList, kind
from aaml.nodes.settings import HighNodeUtilizationSettings
from aaml.sim.bill import BILL_TASKS, BillTask, Descheduled, NodeAutoscaler
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded import TraceTask, trace_task
from aaml.sim.task import Task
from aaml.sim.timeline import DeletePod
from aaml.workload.model import Workload
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import Part, Placed, Window, read_windows

_BEFORE_S = 60.0  # in which nodes are provisioned for what ran already when a window begins
_HOUR_S = 3600.0
_OF_ZONES = "/zone"  # how labels of zones end: those of Kubernetes, and those that drivers of volumes write
_OF_NODES = frozenset({"DaemonSet", "Node"})  # owners whose pods come with a node and go with it


@dataclass(frozen=True)
class RecordedBillTask(TraceTask):
    """A trace as a bill: its pods come and end as they did, its nodes are left aside.

    What ran when a window began waits from a minute before it, so that there are nodes for it at time 0; that minute
    is not billed. `bill` says who provisions, from what, and what waiting counts. Pods of DaemonSets and static pods
    are left aside: what DaemonSets request is taken off each node that can be provisioned.
    """

    bill: BillTask = BILL_TASKS["bill"]

    def build(
        self,
        seed: int,
        nodes: int | None = None,
        *,
        pods: int | None = None,
        trace: str | None = None,
        invariants: bool = False,
    ) -> SimCluster:
        """Return the window that a seed stands for, without nodes. Raises `UserError` as a `TraceTask` does."""
        if trace is not None:
            raise bad_value("trace", trace, "none: the task is a trace already")
        self.size(nodes, pods)
        window = self.window(seed)
        supply = self.bill.supply(np.random.default_rng([window.index, len(window.arrivals)]), self.catalogue)
        most = self.pods if pods is None else pods
        return SimCluster(
            (), _pods(window, most), timeline=[DeletePod(at_s, uid) for at_s, uid in window.removed],
            until_s=window.length_s, supply=supply, invariants=invariants,
        )  # fmt: skip

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that all its episodes have."""
        return self.bill.metrics

    @property
    def catalogue(self) -> Catalogue:
        """What can be provisioned, at the prices of the file."""
        return self.bill.sold


def _pods(window: Window, most: int | None) -> Workload:
    """Return what ran when a window began, and its arrivals, of which at most so many."""
    running = [_waiting(each.pod, -_BEFORE_S, _BEFORE_S) for each in window.running]
    others = [_waiting(each.pod, each.at_s) for each in window.others]
    pods = (pod for pod in (*running, *others, *window.arrivals[:most]) if not comes_with_node(pod))
    return Workload.of(map(_with_volumes_of_zones, pods), f"window {window.index}")


def _with_volumes_of_zones(pod: Pod) -> Pod:
    """Return a pod of which the volumes ask for the zones that they are in, and for nothing else.

    What a node's own volume or an unbound claim is bound to is made wherever the pod goes.
    """
    if pod.volumes is NO_VOLUMES:
        return pod
    kept = tuple(
        tuple(NodeSelectorTerm(tuple(replace(each, key=ZONE_LABEL) for each in labels)) for labels in found)
        for found in (
            [[each for each in term.labels if each.key.endswith(_OF_ZONES)] for term in terms]
            for terms in pod.volumes.node_terms
        )
        if all(found)
    )
    labelled = tuple(
        (NodeSelectorTerm((Requirement(ZONE_LABEL, "In", tuple(sorted(values))),)),)
        for key, values in pod.volumes.zones
        if key.endswith(_OF_ZONES)
    )
    return replace(pod, volumes=VolumeNeeds(kept or labelled, exclusive=pod.volumes.exclusive))


def comes_with_node(pod: Pod) -> bool:
    """Whether each node brings such a pod, of a DaemonSet or its own, so that nobody provisions nodes for it."""
    return pod.owner.partition("/")[0] in _OF_NODES


def daemon_requests(trace: Trace) -> Mapping[str, int]:
    """Return what the DaemonSets that are on every node request of it, with a place for a pod each."""
    latest = {
        (life.pod.namespace, life.pod.owner): life.pod.requests
        for life in trace.lives.values()
        if life.pod.owner.startswith("DaemonSet/") and not life.pod.node_selector
    }
    requested = Counter({PODS: len(latest)})
    for requests in latest.values():
        requested.update(requests)
    return {name: amount for name, amount in requested.items() if amount}


def _for_pods(catalogue: Catalogue, folder: Path) -> Catalogue:
    """Return what types have for pods, where a trace's DaemonSets have taken theirs; those without room are left out.

    Raises `UserError` where no type has room.
    """
    taken = daemon_requests(read_windows(folder).trace)
    left = [
        replace(each, allocatable=tuple((name, max(0, value - taken.get(name, 0))) for name, value in each.allocatable))
        for each in catalogue.types
    ]
    usable = [each for each in left if all(dict(each.allocatable)[name] for name in (CPU, MEMORY))]
    if not usable:
        requested = f"{format_cpu(taken.get(CPU, 0))} cores, {format_bytes(taken.get(MEMORY, 0))}"
        raise UserError(
            f"instance types: none has room for pods beside the trace's DaemonSets, which ask for {requested}"
        )
    return Catalogue(tuple(usable))


def recorded_dollars(window: Window, prices: PriceList) -> tuple[Mapping[str, float], Counter[str]]:
    """Return what the recorded nodes cost in a window, by the names of `BILLED`, and its nodes without a price by type.

    A node counts from when it was seen until it was removed; control planes and cores of DaemonSets are left aside. NaN
    where a node has no price.
    """
    there: dict[str, tuple[Node, float]] = {node.name: (node, 0.0) for node in window.nodes}
    spans: list[tuple[Node, float]] = []  # nodes, and for how long
    for change in window.changes:
        before = there.pop(change.name, None)
        if change.node is not None:
            there[change.name] = change.node, change.at_s if before is None else before[1]
        elif before is not None:
            spans.append((before[0], change.at_s - before[1]))
    spans += [(node, window.length_s - from_s) for node, from_s in there.values()]
    workers = [(node, seconds) for node, seconds in spans if not node.is_control_plane]
    priced = [(prices.price(node), node, seconds) for node, seconds in workers]
    unpriced = Counter(kind(node) for price, node, _ in priced if price is None)
    dollars = math.nan if unpriced else sum((price or 0.0) * seconds for price, _, seconds in priced) / _HOUR_S
    core_hours = sum(_core_seconds(each, window.length_s) for each in _placed(window)) / _HOUR_S
    hours = window.length_s / _HOUR_S
    return {
        "bill": dollars / hours, "bill_per_core_hour": dollars / core_hours if core_hours else math.nan,
        "mean_nodes": sum(seconds for _, seconds in workers) / window.length_s,
    }, unpriced  # fmt: skip


def _placed(window: Window) -> Iterable[Placed]:
    every = (*window.running, *window.others, *window.chosen.values())
    return (each for each in every if not comes_with_node(each.pod))


def _core_seconds(placed: Placed, length_s: float) -> float:
    lifetime_s = math.inf if placed.pod.lifetime_s is None else placed.pod.lifetime_s
    return placed.pod.requests.get(CPU, 0) / 1000 * max(min(lifetime_s, length_s - placed.at_s), 0.0)


def _waiting(pod: Pod, created_s: float, longer_s: float = 0.0) -> Pod:
    """Return a pod that had a node as one that waits, and runs for so much longer."""
    lifetime_s = None if pod.lifetime_s is None else pod.lifetime_s + longer_s
    return replace(pod, created_s=created_s, lifetime_s=lifetime_s, node_name="")


def bill_of(task: Task) -> BillTask:
    """Return who provisions what at which prices in a task. Raises `UserError` for a task whose nodes stay."""
    if isinstance(task, RecordedBillTask):
        return task.bill
    if not isinstance(task, BillTask):
        raise bad_value("task", task.name, "one whose nodes are provisioned: bill, bill-when-empty, bill@FOLDER, ...")
    return task


def under(task: Task, who: NodeAutoscaler | HighNodeUtilizationSettings) -> Task:
    """Return a bill with another autoscaler, or a descheduler beside its own, and the same pods, types and prices.

    A descheduler that the bill has goes on beside the other autoscaler. Raises `UserError` as `bill_of`, and for a
    second descheduler.
    """
    bill = bill_of(task)
    if isinstance(who, HighNodeUtilizationSettings):
        if isinstance(bill.autoscaler, Descheduled):
            raise bad_value("nodes", "a descheduler", f"none for {task.name}, which has one")
        who = Descheduled(who, bill.autoscaler)
    elif isinstance(bill.autoscaler, Descheduled) and not isinstance(who, Descheduled):
        who = Descheduled(bill.autoscaler.descheduler, who)
    bill = replace(bill, autoscaler=who)
    return replace(task, bill=bill) if isinstance(task, RecordedBillTask) else bill


def recorded_bill(folder: Path, bill: BillTask, part: Part = "holdout") -> RecordedBillTask:
    """Return the bill of a trace. Raises `UserError` for a folder without a trace."""
    plain = trace_task(folder, bill, part)
    bill = replace(bill, catalogue=_for_pods(bill.catalogue or bill.shipped({}), folder))
    return RecordedBillTask(**{each.name: getattr(plain, each.name) for each in fields(plain)}, bill=bill)


def provisioned_from(task: RecordedBillTask, catalogue: Catalogue) -> RecordedBillTask:
    """Return the bill of the same trace with other types that can be provisioned."""
    return replace(task, bill=replace(task.bill, catalogue=_for_pods(catalogue, task.folder)))
