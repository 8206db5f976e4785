"""What a bill is made of: the parts of it that are above the fluid bound, as shares of the bound.

    python benchmarks/bench_bill_parts.py --out runs/bill-parts                  # three sizes: 12 minutes of two cores
    python benchmarks/bench_bill_parts.py --nodes 20 --seeds 1000..1003 --out runs/bill-parts

At each moment the bound has a price for CPU and one for memory (the dual of its linear programme): what is requested,
times these, is the bound, and no node is worth more than it costs. So each dollar of a node above the worth of its pods
is one of

making     of a node that takes no pods yet
leaving    of a node on its way out
room       of what pods could still have: of a node's worth, the smaller of the free shares of CPU and of memory
uneven     of the rest of what is free: one of the two is used up first
types      what a node costs above its worth: the bound has the best types, in fractions

They add up to the bill. Rows go to parts.csv: means over the episodes.
"""

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, ClusterState
from aaml.evaluation.entries import PolicyEntry, policy_entries
from aaml.evaluation.evaluate import parse_seeds
from aaml.files import RowWriter
from aaml.nodes.meter import Meter
from aaml.nodes.ports import OwnedNode
from aaml.parallel.pool import open_pool
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.supply import NodeSupply

EXAMPLES = Path(__file__).parents[1] / "examples"
TUNED = f"packing+nodepool-tuned=kube-scheduler-packing+{EXAMPLES / 'packing' / 'nodepool-tuned.yaml'}"
LARGE = f"first-come-packing+nodes_large=first-come-packing+{EXAMPLES / 'nodes_large.yaml'}"
POLICIES = ("kube-scheduler", "kube-scheduler-packing", TUNED, "first-come-packing+learned", LARGE)
PARTS = ("making", "leaving", "room", "uneven", "types")
HEADER = ("nodes", "policy", "episodes", *PARTS, "above")
_HOUR_S, _EXACT = 3600.0, 1e-6
FloatArray = npt.NDArray[np.float64]


@dataclass
class PartsMeter(Meter):
    """A meter that knows whose dollars it counts. `look` is called after each change of a node or a pod."""

    bought_nodes: dict[str, OwnedNode] = field(default_factory=dict, repr=False)  # by name
    state: ClusterState = field(default_factory=ClusterState, repr=False)
    parts: FloatArray = field(default_factory=lambda: np.zeros(len(PARTS)))  # dollars so far
    _now: FloatArray = field(default_factory=lambda: np.zeros(len(PARTS)))  # dollars an hour

    def hold(self, now_s: float) -> None:
        """Count the parts as they were too."""
        hours = max(now_s - max(self.metered_s, 0.0), 0.0) / _HOUR_S
        super().hold(now_s)
        self.parts += self._now * hours
        self.look()

    def gone(self, node: OwnedNode) -> None:
        """A node is terminated: `hold` was told before it went."""
        super().gone(node)
        self.look()

    def look(self) -> None:
        """Take note of what each part costs now."""
        state, nodes = self.state, list(self.bought_nodes.values())
        self._now = np.zeros(len(PARTS))
        if not nodes:
            return
        node_indices = [state.index.get(node.name) for node in nodes]
        used = np.zeros((len(nodes), 2))
        for place, node_index in enumerate(node_indices):
            if node_index is not None:
                used[place] = state.requested[node_index, CPU_COLUMN], state.requested[node_index, MEMORY_COLUMN]
        worth = self._worth(used.sum(axis=0))
        offers = np.array([[dict(node.type.allocatable)[name] for name in (CPU, MEMORY)] for node in nodes])
        prices = np.array([node.price for node in nodes])
        making = np.array([node.initialized_s is None for node in nodes])
        leaving = np.array([node.deleting for node in nodes]) & ~making
        above = prices - used @ worth
        room = np.minimum.reduce((offers - used) / offers, axis=1) * (offers @ worth)
        types = prices - offers @ worth
        stays = ~making & ~leaving
        self._now = np.array([
            above[making].sum(), above[leaving].sum(), room[stays].sum(), (above - room - types)[stays].sum(),
            types[stays].sum(),
        ])  # fmt: skip

    def _worth(self, requested: FloatArray) -> FloatArray:
        """Return [2], dollars an hour of a milli-core and of a byte at the bound's prices."""
        corners = np.asarray(self.fluid.corners)
        return np.asarray(corners[int((corners @ requested).argmax())])


def parts_of(entry: PolicyEntry, task: BillTask, seed: int, nodes: int) -> FloatArray:
    """Return the parts of an episode's bill above the fluid bound, as shares of the bound."""
    told = entry.task(task)
    assert isinstance(told, BillTask)
    cluster = told.build(seed, nodes)
    supply = cluster.supply
    assert isinstance(supply, NodeSupply)
    meter = supply.meter = PartsMeter(supply.meter.fluid, bought_nodes=supply.seen.nodes, state=cluster.state)
    turn = supply.turn

    def turned() -> bool:
        meter.hold(cluster.now_s())
        happened = turn()
        meter.look()
        return happened

    supply.turn = turned  # type: ignore[method-assign]
    play(cluster, entry.policy(told, seed))
    above = cluster.metrics()["fluid_ratio"] - 1.0
    found = meter.parts / meter.fluid_dollars
    if abs(found.sum() - above) > _EXACT:
        raise RuntimeError(f"seed {seed}: the parts come to {found.sum()}, the whole is {above}")
    return found


def main() -> None:
    """Play, print, and write each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--seeds", default="1000..1007")
    parser.add_argument("--nodes", type=int, nargs="+", default=[20, 100, 400])
    parser.add_argument("--workers", default="2")
    parser.add_argument("--out", type=Path, default=Path("runs/bill-parts"))
    args = parser.parse_args()
    seeds, found = list(parse_seeds(args.seeds)), policy_entries(args.policies)
    writer, task = RowWriter(args.out / "parts.csv", HEADER), BILL_TASKS["bill"]
    total = len(args.nodes) * len(found) * len(seeds)
    with open_pool(args.workers) as pool, progress_bar("bills", total, "episode") as bar:
        for nodes in args.nodes:
            for each in found:
                jobs = [(each, replace(task, nodes=nodes), seed, nodes) for seed in seeds]
                runs = np.zeros((len(seeds), len(PARTS)))
                for place, parts in pool.run(parts_of, jobs):
                    runs[place] = parts
                    bar.update()
                means = runs.mean(axis=0)
                row = (nodes, each.name, len(seeds), *(f"{value:.3f}" for value in (*means, means.sum())))
                writer.write(dict(zip(HEADER, map(str, row), strict=True)))
                bar.write(" ".join(map(str, row)))


if __name__ == "__main__":
    main()
