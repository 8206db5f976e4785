"""What it costs to score some of the nodes in place of all: the variance of use that agents leave either way.

    .venv/bin/python benchmarks/bench_sampling.py --seeds 3000 3001 3002 3003     # 200 nodes; minutes
    .venv/bin/python benchmarks/bench_sampling.py --nodes 1000 --pods 12000

An episode of `balance` is played with each model, once with all nodes scored and once with as many as kube-scheduler
would score, and with least-variance, which looks at all. One thread.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import sys
from pathlib import Path

from aaml.evaluation.policies import load_policy
from aaml.scheduling.node_sampling import ALL, NodeSampling
from aaml.scheduling.play import play
from aaml.scheduling.ports import Sampler
from aaml.sim.tasks import find_task

MODELS = Path(__file__).parents[1] / "models"
SHIPPED = ("DQN_Model_dqn", "GNN_Model_gnn", "Actor_acdqn", "Actor_acgnn")


def variance(spec: str, percentage: int, seed: int, nodes: int, pods: int) -> float:
    """Return the time-averaged variance of use over nodes, by which `balance` is judged."""
    policy = load_policy(spec)
    if percentage < ALL:
        if not isinstance(policy, Sampler):
            sys.exit(f"bench_sampling: models: {spec} scores all nodes whatever is asked; expected a network")
        policy.score_some(NodeSampling(percentage))
    task = find_task("balance")
    episode = task.build(seed, nodes, pods=pods)
    play(episode, policy)
    return float(episode.metrics()[task.metric])


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[f"{MODELS / name}_balance_s0.pth" for name in SHIPPED])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=6000, help="pods of an episode")
    parser.add_argument("--seeds", type=int, nargs="*", default=[3000])
    arguments = parser.parse_args()
    print(f"{'variance x 1,000':36}", *(f"{f'seed {seed}':>9}" for seed in arguments.seeds), f"{'mean':>9}")
    ways = [("least-variance", ALL), *itertools.product(arguments.models, (ALL, 0))]
    for spec, percentage in ways:
        name = f"{Path(spec).stem}, {'all nodes' if percentage == ALL else 'some'}"
        found = [1000 * variance(spec, percentage, seed, arguments.nodes, arguments.pods) for seed in arguments.seeds]
        print(f"{name:36}", *(f"{each:9.3f}" for each in [*found, sum(found) / len(found)]), flush=True)


if __name__ == "__main__":
    main()
