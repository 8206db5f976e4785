"""What is left to win of a bill, as rows: a packing with every pod known beforehand, and the fluid bound."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aaml.evaluation.identity import identity
from aaml.progress import progress_bar
from aaml.sim.autoscaler.clairvoyant import fluid_bill, offline_bill
from aaml.sim.autoscaler.task import BILL_TASKS
from aaml.sim.metrics import METRICS

_HOUR_S = 3600.0
OFFLINE, FLUID = "offline-packing", "fluid-bound"


def bound_bill(
    name: str,
    seeds: Sequence[int],
    nodes: int | None = None,
    pods: int | None = None,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield two rows a seed in the format of `aaml evaluate`, each told in a line, until `stopped()`.

    They hold the bill alone, which is their cost too: nobody waits, nothing is evicted.
    """
    task = BILL_TASKS[name]
    with progress_bar(f"bound {name}", len(seeds), "seed") as bar:
        for seed in seeds:
            if stopped():
                return
            cluster, catalogue = task.build(seed, nodes, pods=pods), task.drawn_catalogue(seed)
            workload, until_s = cluster.workload, cluster.until_s
            offline, fluid = offline_bill(workload, catalogue, until_s), fluid_bill(workload, catalogue, until_s)
            for policy, dollars in ((OFFLINE, offline), (FLUID, fluid)):
                an_hour = dollars / (until_s / _HOUR_S)
                yield {
                    "task": name, "nodes": task.size(nodes, pods)[0], "policy": policy, "seed": seed,
                    **dict.fromkeys(METRICS, math.nan), "bill": an_hour, "cost": an_hour,
                    "fluid_ratio": dollars / fluid, **identity(task, pods),
                }  # fmt: skip
            bar.write(f"seed {seed}: offline packing {offline / fluid:.3f} of the fluid bound")
            bar.update()
