"""Milliseconds of one decision and its parts: filters, features, network, on clusters with 12 pods a node.

    .venv/bin/python benchmarks/bench_decision.py                                  # about a minute
    .venv/bin/python benchmarks/bench_decision.py --csv docs/results/live/decision.csv

Nothing is kept from one decision to the next but what the cluster's state keeps: each decision is bound before the next
one, so features and embeddings are computed again, as on a live cluster. One thread. A policy is `dqn`, `gnn`, `acdqn`,
`acgnn` (as it begins, which costs what it costs later), a heuristic's name, or a model file. `--percentage 0` lets
networks score as many nodes as kube-scheduler does (`aaml schedule --percentage-of-nodes-to-score`).
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.fleet import standard_nodes
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.evaluation.policies import load_policy
from aaml.learning.agent import make_agent
from aaml.learning.config import LIVE
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.node_sampling import ALL, NodeSampling
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Policy, Sampler

SHAPES = ((500, 1024), (1000, 2048), (2000, 8192), (4000, 4096))  # cpu_milli, memory in MiB, taken in turn
PODS_A_NODE = 12
PODS_A_DEPLOYMENT = 20
HEADER = (
    "policy", "percentage", "nodes", "filters_ms", "features_ms", "network_ms", "decision_ms_p50", "decision_ms_p99",
)  # fmt: skip


def pods(name: str) -> Iterator[Pod]:
    """Yield pods of four sizes without end."""

    def pod(number: int) -> Pod:
        cpu, memory = SHAPES[number % len(SHAPES)]
        owner = f"{name}-{number // PODS_A_DEPLOYMENT}"
        requests = {CPU: cpu, MEMORY: memory << 20}
        return Pod(f"{name}-{number}", uid=f"{name}-{number}", requests=requests, owner=owner)

    return map(pod, itertools.count())


def cluster(nodes: int) -> ClusterState:
    """Return a cluster with `PODS_A_NODE` pods on each node."""
    state = ClusterState(standard_nodes(nodes))
    for number, pod in enumerate(itertools.islice(pods("old"), nodes * PODS_A_NODE)):
        state.assume(pod, state.names[number % nodes])
    return state


def measure(policy: Policy, nodes: int, decisions: int) -> list[float]:
    """Return the medians of the parts and of the whole, and the whole's 99th percentile, in milliseconds."""
    state, spec = cluster(nodes), spec_of(policy)
    spent = []
    for pod in itertools.islice(pods("new"), decisions + 10):
        begun = time.perf_counter()
        mask = feasible(state, pod).mask
        filtered = time.perf_counter()
        context = Context(state, pod, mask, spec)
        _ = context.observation
        seen = time.perf_counter()
        row = policy.act(context).row
        decided = time.perf_counter()
        spent.append([filtered - begun, seen - filtered, decided - seen, decided - begun])
        if row is not None:
            state.assume(pod, state.names[row])
    times = 1000.0 * np.array(spent[10:])
    return [*np.median(times, axis=0).tolist(), float(np.percentile(times[:, 3], 99))]


def make(name: str, percentage: int) -> Policy:
    """Return an agent that does not learn, a heuristic, or what a model file holds."""
    policy = make_agent(LIVE[name], learn=False) if name in LIVE else load_policy(name)  # type: ignore[index]
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
    parser.add_argument("--csv", type=Path, help="file for the table")
    arguments = parser.parse_args()
    print(*(f"{title:>17}" for title in HEADER))
    rows = []
    for nodes, percentage, name in itertools.product(arguments.nodes, arguments.percentage, arguments.policies):
        found = [round(value, 3) for value in measure(make(name, percentage), nodes, arguments.decisions)]
        rows.append([Path(name).stem, percentage or "as kube-scheduler", nodes, *found])
        print(*(f"{value!s:>17}" for value in rows[-1]), flush=True)
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
