"""Decisions per second of the simulated kube-scheduler: in Python, and compiled as `aaml search scheduler` plays it.

    .venv/bin/python benchmarks/bench_tune.py                       # balance at 10, 40 and 100 nodes
    .venv/bin/python benchmarks/bench_tune.py --task waiting --nodes 10
    .venv/bin/python benchmarks/bench_tune.py --task bill --nodes 20 100 400            # Karpenter provisions the nodes
    .venv/bin/python benchmarks/bench_tune.py --task bill --nodes 20 100 400 --learned   # learned nodes

Both play the same episodes to the same metrics, in turns; one core each.
"""

import argparse
import time

import numpy as np

from aaml.episodes.kube_flow import KubeFlow
from aaml.nodes.node_policy import NodePolicy
from aaml.policies.kube_scores import KubeScheduler, KubeSchedulerConfig
from aaml.scheduling.play import play
from aaml.sim.recorded_bill import under
from aaml.sim.tasks import find_task


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="balance")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 40, 100])
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--learned", action="store_true")
    args = parser.parse_args()
    task, config = find_task(args.task), KubeSchedulerConfig(ties="fixed")
    if args.learned:
        task = under(task, NodePolicy())
    KubeFlow.of(task.build(0, 2)).play(config)  # compiles
    print("| nodes | in Python, decisions/s | compiled, decisions/s | times | s an episode, in Python | compiled |")
    print("| --- | --- | --- | --- | --- | --- |")
    for nodes in args.nodes:
        rates = []
        for seed in range(args.episodes):
            cluster, flow = task.build(seed, nodes), KubeFlow.of(task.build(seed, nodes))
            flow.play(config)  # grows its arrays
            began_s = time.perf_counter()
            play(cluster, KubeScheduler(np.random.default_rng(0), config))
            middle_s = time.perf_counter()
            metrics = flow.play(config)
            ended_s = time.perf_counter()
            if not np.isclose(metrics[task.metric], cluster.metrics()[task.metric], rtol=1e-12):
                raise SystemExit(f"seed {seed}: {task.metric} differs")
            spent_s = middle_s - began_s, ended_s - middle_s
            rates.append((metrics["bound"] / spent_s[0], metrics["bound"] / spent_s[1], *spent_s))
        python, compiled, python_s, compiled_s = np.median(rates, axis=0)
        row = (f"{python:,.0f}", f"{compiled:,.0f}", f"{compiled / python:.0f}", f"{python_s:.2f}", f"{compiled_s:.3f}")
        print(f"| {nodes} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
