"""Milliseconds of one decision and its parts: filters, features, network, on clusters that 12 pods a node came to.

    .venv/bin/python benchmarks/bench_decision.py                                  # some minutes
    .venv/bin/python benchmarks/bench_decision.py --csv docs/results/live/decision.csv

Nothing is kept from one decision to the next but what the cluster's state keeps: each decision is bound before the next
one, so features and embeddings are computed again, as on a live cluster. One thread. A policy is `dqn`, `gnn`, `acdqn`,
`acgnn` (as it begins, which costs what it costs later), a heuristic's name, or a model file. `--percentage 0` lets
networks score as many nodes as kube-scheduler does (`aaml schedule --percentage-of-nodes-to-score`).

Networks score nodes that look alike once, so it matters how many differ (the column `kinds`). `--cluster episode` is
what the task `balance` leaves when 12 pods a node have come and some have gone, placed by least-variance; `random`
deals 12 pods to each node by chance, where hardly two are alike.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import copy
import csv
import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.state import ClusterState
from aaml.evaluation.policies import load_policy
from aaml.learning.config import LIVE
from aaml.learning.policy import new_policy
from aaml.policies.registry import make_policy
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.node_sampling import ALL, NodeSampling
from aaml.scheduling.observation import Context
from aaml.scheduling.play import play
from aaml.scheduling.ports import Policy, Sampler
from aaml.sim.tasks import MIXED, find_task

PODS_A_NODE = 12
SEED = 3000
HEADER = (
    "policy", "cluster", "percentage", "nodes", "kinds", "filters_ms", "features_ms", "network_ms", "decision_ms_p50",
    "decision_ms_p99",
)  # fmt: skip


def cluster(nodes: int, kind: str) -> ClusterState:
    """Return a cluster to which `PODS_A_NODE` pods for each node came."""
    task = find_task("balance")
    if kind == "episode":
        episode = task.build(SEED, nodes, pods=(PODS_A_NODE + 1) * nodes)
        play(episode, make_policy("least-variance"), max_decisions=PODS_A_NODE * nodes)
        return episode.state
    state, rng = ClusterState(task.make_nodes(nodes)), np.random.default_rng(SEED)
    workers = np.flatnonzero(state.capacity)
    for number, pod in enumerate(MIXED.generate(PODS_A_NODE * nodes, rng).pods):
        state.assume(pod, state.names[workers[number % len(workers)]])
    return state


def measure(policy: Policy, state: ClusterState, decisions: int) -> list[float]:
    """Return how many nodes differ (mean), and the medians of the parts and of the whole, and its p99, in ms."""
    state, spec = copy.deepcopy(state), spec_of(policy)
    spent, kinds = [], []
    waiting = replace(MIXED, name="new").generate(decisions + 10, np.random.default_rng(SEED + 1)).pods
    for number, pod in enumerate(waiting):
        begun = time.perf_counter()
        mask = feasible(state, pod).mask
        filtered = time.perf_counter()
        context = Context(state, pod, mask, spec)
        observation = context.observation
        seen = time.perf_counter()
        node_index = policy.act(context).node_index
        decided = time.perf_counter()
        spent.append([filtered - begun, seen - filtered, decided - seen, decided - begun])
        if number % 100 == 0:
            kinds.append(len(np.unique(np.hstack([observation.nodes, observation.pairs]), axis=0)))
        if node_index is not None:
            state.assume(pod, state.names[node_index])
    times = 1000.0 * np.array(spent[10:])
    return [float(np.mean(kinds)), *np.median(times, axis=0).tolist(), float(np.percentile(times[:, 3], 99))]


def make(name: str, percentage: int) -> Policy:
    """Return an agent that does not learn, a heuristic, or what a model file holds."""
    policy = new_policy(LIVE[name]) if name in LIVE else load_policy(name)  # type: ignore[index]
    if isinstance(policy, Sampler) and percentage < ALL:
        policy.score_some(NodeSampling(percentage))
    return policy


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1000, 5000, 10_000])
    parser.add_argument("--policies", nargs="*", default=["dqn", "gnn", "acdqn", "acgnn"])
    parser.add_argument("--decisions", type=int, default=300)
    parser.add_argument(
        "--percentage", type=int, nargs="*", default=[ALL], help="of nodes to score, 0 as kube-scheduler"
    )
    parser.add_argument("--cluster", nargs="*", choices=["episode", "random"], default=["episode", "random"])
    parser.add_argument("--csv", type=Path, help="file for the table")
    arguments = parser.parse_args()
    print(*(f"{title:>17}" for title in HEADER))
    rows = []
    for nodes, kind in itertools.product(arguments.nodes, arguments.cluster):
        state = cluster(nodes, kind)
        for percentage, name in itertools.product(arguments.percentage, arguments.policies):
            kinds, *found = measure(make(name, percentage), state, arguments.decisions)
            times = [round(value, 3) for value in found]
            rows.append([Path(name).stem, kind, percentage or "as kube-scheduler", nodes, round(kinds), *times])
            print(*(f"{value!s:>17}" for value in rows[-1]), flush=True)
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
