"""What is left to win of a bill, as rows: a packing with every pod known beforehand, and what no packing is below.

Few pods are packed by a solver, which says in its bound how much cheaper a packing could be; many by a heuristic. Both
go by requests alone: what else pods ask for can only make a bill higher.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from aaml.evaluation.bill_optimum import MOST_PODS, best_packing
from aaml.evaluation.identity import identity
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.clairvoyant import fluid_bill, intervals_of, offline_packing
from aaml.nodes.constraints import is_constrained
from aaml.progress import progress_bar
from aaml.sim.bill import BillTask
from aaml.sim.metrics import METRICS
from aaml.sim.recorded_bill import RecordedBillTask

_HOUR_S = 3600.0
OFFLINE, SOLVER, FLUID = "offline-packing", "cp-sat-bound", "fluid-bound"


def bound_bill(
    task: BillTask | RecordedBillTask,
    seeds: Sequence[int],
    nodes: int | None = None,
    pods: int | None = None,
    *,
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield two or three rows a seed in the format of `aaml evaluate`, each told in a line, until `stopped()`.

    They hold the bill alone, which is their cost too: nobody waits, nothing is evicted. At most `MOST_PODS` pods
    without GPUs are packed by the solver in `limit_s` seconds, where it is installed; others by the heuristic. A line
    says how many pods ask for more than room. Raises `UserError` for a seed that is no window of a trace.
    """
    name = task.name
    with progress_bar(f"bound {name}", len(seeds), task.unit) as bar:
        for seed in seeds:
            if stopped():
                return
            cluster, catalogue = task.build(seed, nodes, pods=pods), _catalogue(task, seed)
            workload, until_s = cluster.workload, cluster.until_s
            intervals, fluid = intervals_of(workload, catalogue, until_s), fluid_bill(workload, catalogue, until_s)
            packing = offline_packing(intervals, catalogue)
            offline, how, found = packing.dollars, "packed by the heuristic", []
            if (
                len(intervals) <= MOST_PODS
                and not any(pod.gpu.total_milli for pod in workload)
                and find_spec("ortools")
            ):
                best = best_packing(intervals, catalogue, packing, fluid, limit_s=limit_s, stopped=stopped)
                if stopped():  # the solver was cut short
                    return
                offline, found = best.dollars, [(SOLVER, best.bound)]
                proven = "proven" if best.proven else f"not proven in {limit_s:g} s"
                how = f"packed by CP-SAT, bound {best.bound / fluid:.3f} ({proven}), "
                how += f"heuristic {packing.dollars / fluid:.3f}"
            for policy, dollars in ((OFFLINE, offline), *found, (FLUID, fluid)):
                an_hour = dollars / (until_s / _HOUR_S)
                yield {
                    "task": name, "nodes": task.size(nodes, pods)[0], "policy": policy, "seed": seed,
                    **dict.fromkeys(METRICS, math.nan), "bill": an_hour, "cost": an_hour,
                    "fluid_ratio": dollars / fluid, **identity(task, pods),
                }  # fmt: skip
            constrained = sum(map(is_constrained, workload))
            if constrained:
                how += f"; {constrained} of {len(workload)} pods ask for zones, other pods, ports or volumes, too,"
                how += " which is not heeded"
            bar.write(f"{task.unit} {seed}: offline packing {offline / fluid:.3f} of the fluid bound, {how}")
            bar.update()


def _catalogue(task: BillTask | RecordedBillTask, seed: int) -> Catalogue:
    return task.catalogue if isinstance(task, RecordedBillTask) else task.drawn_catalogue(seed)
