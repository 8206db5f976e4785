"""Workloads that no agent of ours was trained on, as tasks: `aaml evaluate --task examples/other_workloads.py:uneven`.

Each is the task `balance` with something replaced. How agents do on them says more of what they are worth elsewhere
than another seed of what they were trained on.
"""

from dataclasses import replace

import numpy as np

import aaml
from aaml.cluster.fleet import NodeShape, workers
from aaml.cluster.objects import Node
from aaml.sim.tasks import MIXED, Mix
from aaml.workload.synthetic import PodShape, WorkloadSpec

GIB = 1 << 30
BALANCE = aaml.task("balance")


def two_sizes(count: int) -> tuple[Node, ...]:
    """Return nodes of 32 and of 96 cores, half of each."""
    large = count // 2
    return (
        *workers(count - large, NodeShape(cpu="32", memory="128Gi"), prefix="small"),
        *workers(large, NodeShape(cpu="96", memory="384Gi"), prefix="large"),
    )


def forty_kinds() -> tuple[PodShape, ...]:
    """Return kinds of pods whose sizes, shares of CPU and memory, and lifetimes have little in common."""
    rng = np.random.default_rng(5)
    return tuple(
        PodShape(
            f"kind-{kind}",
            {"cpu": int(rng.lognormal(7, 1)), "memory": int(rng.lognormal(1, 1.2) * GIB)},
            lifetime_s=float(rng.lognormal(6, 1.2)),
        )
        for kind in range(40)
    )


SMALL = WorkloadSpec(
    shapes=tuple(
        PodShape(f"{milli}m", {"cpu": milli, "memory": memory}, weight)
        for milli, memory, weight in ((250, GIB // 2, 3.0), (500, 2 * GIB, 2.0), (1000, GIB, 1.0))
    ),
    lifetime_s=900.0,
)

uneven = replace(BALANCE, make_nodes=two_sizes)  # nodes of two sizes
small = replace(BALANCE, draw=Mix(0.5, SMALL), pods_per_node=400)  # at most a core a pod, hundreds on a node
bursts = replace(BALANCE, draw=Mix(0.5, replace(MIXED, lifetime="lognormal", uniform_bursts=True), burst=10.0))
kinds = replace(BALANCE, draw=Mix(0.6, WorkloadSpec(forty_kinds(), lifetime_s=900.0)), pods_per_node=100)
full = replace(BALANCE, draw=Mix(0.9))  # nine tenths of the cluster are asked for
