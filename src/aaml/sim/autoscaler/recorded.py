"""The bill of a recorded cluster: the pods of a trace's window on nodes that an autoscaler buys."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from aaml.cluster.objects import Pod
from aaml.errors import bad_value
from aaml.sim.autoscaler.catalogue import shipped_catalogue
from aaml.sim.autoscaler.task import BILL_TASKS, BillTask, Buyer
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded import TraceTask, trace_task
from aaml.sim.task import Task
from aaml.sim.timeline import DeletePod
from aaml.workload.model import Workload
from aaml.workload.trace.windows import Part, Window

_BEFORE_S = 60.0  # in which nodes are bought for what ran already when a window begins


@dataclass(frozen=True)
class RecordedBillTask(TraceTask):
    """A trace as a bill: its pods come and end as they did, its nodes are left aside.

    What ran when a window began waits from a minute before it, so that there are nodes for it at time 0; that minute
    is not billed. `bill` says who buys, from what, and what waiting counts.
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
        catalogue = shipped_catalogue() if self.bill.catalogue is None else self.bill.catalogue
        supply = self.bill.supply(np.random.default_rng([window.index, len(window.arrivals)]), catalogue)
        most = self.pods if pods is None else pods
        return SimCluster(
            (), _pods(window, most), timeline=[DeletePod(at_s, uid) for at_s, uid in window.removed],
            until_s=window.length_s, supply=supply, invariants=invariants,
        )  # fmt: skip


def _pods(window: Window, most: int | None) -> Workload:
    """Return what ran when a window began, and its arrivals, of which at most so many."""
    running = [_waiting(each.pod, -_BEFORE_S, _BEFORE_S) for each in window.running]
    others = [_waiting(each.pod, each.at_s) for each in window.others]
    return Workload.of([*running, *others, *window.arrivals[:most]], f"window {window.index}")


def _waiting(pod: Pod, created_s: float, longer_s: float = 0.0) -> Pod:
    """Return a pod that had a node as one that waits, and runs for so much longer."""
    lifetime_s = None if pod.lifetime_s is None else pod.lifetime_s + longer_s
    return replace(pod, created_s=created_s, lifetime_s=lifetime_s, node_name="")


def bill_of(task: Task) -> BillTask:
    """Return who buys what at which prices in a task. Raises `UserError` for a task whose nodes stay."""
    if isinstance(task, RecordedBillTask):
        return task.bill
    if not isinstance(task, BillTask):
        raise bad_value("task", task.name, "one whose nodes are bought: bill, bill-when-empty, bill@FOLDER, ...")
    return task


def under(task: Task, autoscaler: Buyer) -> Task:
    """Return a bill with another autoscaler, and the same pods, types and prices. Raises `UserError` as `bill_of`."""
    bill = replace(bill_of(task), autoscaler=autoscaler)
    return replace(task, bill=bill) if isinstance(task, RecordedBillTask) else bill


def recorded_bill(folder: Path, bill: BillTask, part: Part = "holdout") -> RecordedBillTask:
    """Return the bill of a trace. Raises `UserError` for a folder without a trace."""
    plain = trace_task(folder, bill, part)
    return RecordedBillTask(**{each.name: getattr(plain, each.name) for each in fields(plain)}, bill=bill)
