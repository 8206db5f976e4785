"""What is left to win of a bill, as rows: a packing with every pod known beforehand, and what nobody is below.

Few pods are packed by a solver, which says in its bound how much cheaper a packing could be; many by a heuristic. Both
go by requests alone: what else pods ask for can only make a bill higher.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from typing import Any

from aaml.cluster.objects import Pod
from aaml.evaluation.bound_names import FLUID, OFFLINE, SOLVER
from aaml.evaluation.identity import identity
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.constraints import is_constrained
from aaml.optimum.clairvoyant import intervals_of, offline_packing
from aaml.optimum.packing import MOST_PODS, best_packing
from aaml.optimum.relaxation import fluid_bill, relaxed
from aaml.progress import progress_bar
from aaml.sim.bill import BillTask
from aaml.sim.metrics import METRICS, OF_JOBS
from aaml.sim.recorded_bill import RecordedBillTask
from aaml.sim.task import Task

_HOUR_S = 3600.0


def bound_bill(
    task: BillTask | RecordedBillTask,
    seeds: Sequence[int],
    nodes: int | None = None,
    pods: int | None = None,
    *,
    others: Sequence[Task] = (),
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield two or three rows a seed in the format of `aaml evaluate`, each told in a line, until `stopped()`.

    A packing's bill is its cost too: nobody waits, nothing is evicted. No packing is below the solver's bound, and no
    policy below the LP relaxation, whose cost counts waits and evictions too (see `Relaxed`). The solver packs at most
    `MOST_PODS` pods without GPUs in `limit_s` seconds, where it is installed; the heuristic packs all else. Where the
    solver takes some seeds alone, its bound on the others is what nodes cost by the second. A line
    says how many pods fit no type, and how many have scheduling constraints. What is provisioned is whatever can be
    provisioned in the task or in one of `others`, which are the same with other NodePools. Raises `UserError` for a
    seed that is no window of a trace.
    """
    unsolved, solved = list[tuple[int, float, float]](), False

    def row(policy: str, seed: int, bill: float, cost: float, ratio: float) -> dict[str, Any]:
        return {
            "task": task.name, "nodes": task.size(nodes, pods)[0], "policy": policy, "seed": seed,
            **{name: math.nan for name in METRICS if name not in OF_JOBS},
            "bill": bill, "cost": cost, "fluid_ratio": ratio, **identity(task, pods),
        }  # fmt: skip

    name, bills = task.name, [each for each in others if isinstance(each, BillTask | RecordedBillTask)]
    with progress_bar(f"bound {name}", len(seeds), task.unit) as bar:
        for seed in seeds:
            if stopped():
                return
            cluster, catalogue = task.build(seed, nodes, pods=pods), _of_any([task, *bills], seed)
            workload, until_s = _ended(task, seed, cluster.workload), cluster.until_s
            intervals, fluid = intervals_of(workload, catalogue, until_s), fluid_bill(workload, catalogue, until_s)
            packing = offline_packing(intervals, catalogue)
            offline, how, found = packing.dollars, "packed by the heuristic", []
            if (
                0 < len(intervals) <= MOST_PODS
                and not any(pod.gpu.total_milli for pod in workload)
                and find_spec("ortools")
            ):
                best = best_packing(intervals, catalogue, packing, fluid, limit_s=limit_s, stopped=stopped)
                if stopped():  # the solver was cut short
                    return
                offline, found = best.dollars, [(SOLVER, best.bound, best.bound)]
                proven = "proven" if best.proven else f"not proven in {limit_s:g} s"
                how = f"packed by CP-SAT, bound {_ratio(best.bound, fluid):.3f} ({proven}), "
                how += f"heuristic {_ratio(packing.dollars, fluid):.3f}"
            bill = task.bill if isinstance(task, RecordedBillTask) else task
            least = relaxed(
                cluster.workload, catalogue, until_s, bill.prices, bill.times.recreate_s, _removed(task, seed)
            )
            hours = until_s / _HOUR_S
            for policy, dollars, cost in ((OFFLINE, offline, offline), *found, (FLUID, least.bill, least.cost)):
                yield row(policy, seed, dollars / hours, cost / hours, _ratio(dollars, fluid))
            solved |= bool(found)
            if not found:
                unsolved.append((seed, fluid / hours, _ratio(fluid, fluid)))
            how += _left_out(workload, catalogue)
            bar.write(f"{task.unit} {seed}: offline packing {_ratio(offline, fluid):.3f} of the LP relaxation, {how}")
            bar.update()
        for seed, least_bill, ratio in unsolved if solved else ():  # so that all seeds are paired
            yield row(SOLVER, seed, least_bill, least_bill, ratio)


def _left_out(pods: Sequence[Pod], catalogue: Catalogue) -> str:
    """Return in words what is not heeded of pods."""
    unfit, constrained = sum(not catalogue.fits(pod).any() for pod in pods), sum(map(is_constrained, pods))
    how = f"; {unfit} of {len(pods)} pods fit no type and are left out" if unfit else ""
    if constrained:
        how += f"; {constrained} of {len(pods)} pods ask for zones, other pods, ports or volumes, too,"
        how += " which is not heeded"
    return how


def _catalogue(task: BillTask | RecordedBillTask, seed: int) -> Catalogue:
    return task.catalogue if isinstance(task, RecordedBillTask) else task.drawn_catalogue(seed)


def _of_any(tasks: Iterable[BillTask | RecordedBillTask], seed: int) -> Catalogue:
    """Return what can be provisioned in one of these tasks, in every offering that it has in one."""
    first, *others = dict.fromkeys(_catalogue(task, seed) for task in tasks)
    if not others:
        return first
    ways: dict[InstanceType, dict[Offering, None]] = {}
    for kind in chain(*(each.types for each in (first, *others))):
        ways.setdefault(replace(kind, offerings=()), {}).update(dict.fromkeys(kind.offerings))
    return Catalogue(tuple(replace(kind, offerings=tuple(found)) for kind, found in ways.items()))


def _removed(task: BillTask | RecordedBillTask, seed: int) -> Mapping[str, float]:
    """Return by uid when pods of a recording are deleted, which never had a node there."""
    return {uid: at_s for at_s, uid in task.window(seed).removed} if isinstance(task, RecordedBillTask) else {}


def _ended(task: BillTask | RecordedBillTask, seed: int, pods: Iterable[Pod]) -> list[Pod]:
    """Return pods with a lifetime to when they are deleted, where they are."""
    removed = _removed(task, seed)
    return [
        replace(pod, lifetime_s=max(removed[pod.uid] - pod.created_s, 0.0)) if pod.uid in removed else pod
        for pod in pods
    ]


def _ratio(dollars: float, fluid: float) -> float:
    return dollars / fluid if fluid else math.nan
