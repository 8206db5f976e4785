"""What looking ahead is worth: a policy alone and searched from, on the same episodes, and the time a decision takes.

    python benchmarks/bench_search.py --task compress --nodes 10 --base most-allocated --seeds 500..509

Printed are each seed's metric under the search, the base policy and --others, then the mean gains of the search over
each with 95% intervals over seeds. Decisions are timed in CPU seconds of one thread.
"""

import argparse
import time

import numpy as np

from aaml.evaluation.evaluate import parse_seeds
from aaml.evaluation.statistics import mean_interval
from aaml.scheduling.observation import Context
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision
from aaml.sim.cluster import SimCluster
from aaml.sim.search import Search
from aaml.sim.search_config import SearchConfig
from aaml.sim.tasks import find_task
from aaml.training.rollouts import EnvConfig, EnvFactory


class Searcher:
    """A search in one cluster, and the CPU seconds it took."""

    name = "search"

    def __init__(self, search: Search, cluster: SimCluster, seed: int) -> None:
        self._search, self._cluster, self._rng = search, cluster, np.random.default_rng(seed)
        self.seconds, self.decisions = 0.0, 0

    def act(self, context: Context) -> Decision:
        """Choose."""
        started = time.process_time()
        decision = self._search.choose(self._cluster, context, self._rng)
        self.seconds += time.process_time() - started
        self.decisions += 1
        return decision


def main() -> None:
    """Play every seed with every policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="compress")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--pods", type=int)
    parser.add_argument("--base", default="most-allocated")
    parser.add_argument("--others", nargs="*", default=["best-fit"])
    parser.add_argument("--seeds", default="500..509")
    for name, value in (("candidates", 3), ("samples", 8), ("horizon", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    task = find_task(args.task)
    factory = EnvFactory(EnvConfig(args.task, (args.nodes,), args.pods, lookahead=task.lookahead))
    base = factory.policy(args.base)
    search = factory.search(SearchConfig(args.candidates, args.samples, args.horizon), base.scores, base)
    rows = []
    for seed in parse_seeds(args.seeds):
        cluster = factory.build(seed, args.nodes)
        searcher = Searcher(search, cluster, seed)
        play(cluster, searcher)
        alone = [
            factory.play(factory.policy(name), seed, args.nodes)[task.metric] for name in (args.base, *args.others)
        ]
        rows.append([cluster.metrics()[task.metric], *alone])
        speed = 1000.0 * searcher.seconds / searcher.decisions
        print(seed, *(f"{value:.4f}" for value in rows[-1]), f"{speed:.0f} ms a decision", flush=True)
    values = np.array(rows)
    for column, name in enumerate((args.base, *args.others), 1):
        gain = (values[:, 0] - values[:, column]) * (1.0 if task.higher_is_better else -1.0)
        print(f"search gains over {name}: {mean_interval(gain)}")


if __name__ == "__main__":
    main()
