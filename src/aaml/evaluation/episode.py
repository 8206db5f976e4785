"""One run of an evaluation: an episode of a task under one policy, without learning, and its row."""

from typing import Any

import numpy as np

from aaml.evaluation.entries import PolicyEntry
from aaml.scheduling.play import play
from aaml.scheduling.ports import Policy
from aaml.sim.cluster import SimCluster
from aaml.sim.task import Task


def run_episode(
    entry: PolicyEntry, task: Task, seed: int, nodes: int | None = None, pods: int | None = None
) -> dict[str, Any]:
    """Run one episode without learning and return its row."""
    cluster = entry.task(task).build(seed, nodes, pods=pods)
    row = episode_row(task.name, seed, cluster, entry.policy(task, seed), entry.name)
    if task.episodes:
        row["nodes"] = task.nodes  # a trace's nodes come and go, it is one cluster still
    elif cluster.elastic:
        row["nodes"] = task.size(nodes, pods)[0]
    return row


def episode_row(task: str, seed: int, cluster: SimCluster, policy: Policy, name: str) -> dict[str, Any]:
    """Run a policy on a cluster to its end, without learning, and return its row."""
    stats = play(cluster, policy)
    latency_ms = 1000.0 * np.asarray(stats.latency_s or [np.nan])
    return {
        "task": task,
        "nodes": int(cluster.state.capacity.sum()),
        "policy": name,
        "seed": seed,
        **cluster.metrics(),
        "decisions": stats.decisions,
        "latency_p50_ms": float(np.percentile(latency_ms, 50)),
        "latency_p99_ms": float(np.percentile(latency_ms, 99)),
    }
