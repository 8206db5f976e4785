"""Cluster and workload YAML through the simulator: the placements as objects, and what the cluster looks like after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Pod, PodGroup
from aaml.cluster.quantity import format_amount
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.evaluation.policies import load_policy
from aaml.kube.objects.manifest import pod_to_json
from aaml.kube.objects.manifests import Manifests
from aaml.kube.objects.wire import GPU_INDEX
from aaml.policies.heuristics import PolicyOptions, ScorePolicy
from aaml.policies.registry import make_policy
from aaml.scheduling.observation import Context
from aaml.scheduling.play import play
from aaml.scheduling.pod_groups import UNSCHEDULABLE, InvalidGroupError, check, domains, placed_of
from aaml.scheduling.ports import Policy
from aaml.sim.cluster import SimCluster
from aaml.workload.hierarchy import write_documents
from aaml.workload.model import Workload
from aaml.workload.tuning import tune


@dataclass(frozen=True)
class Applied:
    """What came of a run: the cluster's final state, and the pods left over with kube-scheduler's words for why."""

    state: ClusterState
    pending: tuple[tuple[Pod, str], ...]

    def documents(self) -> list[dict[str, Any]]:
        """Return every placed pod as an object with its node, and its devices as the openb annotation."""
        result = []
        for placement in sorted(self.state.placements.values(), key=lambda each: each.pod.key):
            document = pod_to_json(replace(placement.pod, node_name=placement.node_name))
            if placement.gpus:
                annotations = document["metadata"].setdefault("annotations", {})
                annotations[GPU_INDEX] = "-".join(map(str, placement.gpus))
            result.append(document)
        return result

    def node_table(self) -> pd.DataFrame:
        """Return a row a node: pods, and requested of allocatable for each resource that anybody offers."""
        state = self.state
        rows = []
        for row, name in enumerate(state.names):
            entry: dict[str, object] = {"node": name, "pods": len(state.node_pods[row])}
            for column, resource in enumerate(state.resources):
                if resource != "pods" and state.allocatable[:, column].any():
                    used, offered = int(state.requested[row, column]), int(state.allocatable[row, column])
                    entry[resource] = f"{format_amount(resource, used)}/{format_amount(resource, offered)}"
            if state.gpu_count.any():
                devices = int(state.gpu_count[row])
                entry["gpu"] = f"{devices - state.gpu_free[row, :devices].sum() / 1000:.2f}/{devices}"
            rows.append(entry)
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, float]:
        """Return percent of CPU, memory and GPU that is requested, and how many pods were placed and left."""
        state = self.state
        offered = state.allocatable.sum(axis=0)
        used = state.requested.sum(axis=0)
        result = {
            "placed": float(len(state.placements)),
            "pending": float(len(self.pending)),
            "cpu %": 100.0 * float(used[0]) / max(float(offered[0]), 1.0),
            "memory %": 100.0 * float(used[1]) / max(float(offered[1]), 1.0),
        }
        devices = int(state.gpu_count.sum())
        if devices:
            result["gpu %"] = 100.0 * (1.0 - float(state.gpu_free.sum()) / (1000.0 * devices))
        return result


def weighted_policy(weights: Mapping[str, float], expected: Sequence[Pod]) -> Policy:
    """Return the policy of a weighted sum of scores; a single one is that policy itself. `UserError` for non-scores."""
    options = PolicyOptions(expected=expected)
    if len(weights) == 1:
        return load_policy(next(iter(weights)), expected=expected)
    parts = []
    for name, weight in weights.items():
        part = make_policy(name, options)
        if not isinstance(part, ScorePolicy):
            raise UserError(f"score plugins: {name} gives no scores and cannot be weighted with others")
        parts.append((weight, part))

    def total(context: Context) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(np.sum([weight * part.scores(context) for weight, part in parts], axis=0))

    return ScorePolicy("+".join(weights), total, options)


def order(read: Manifests, *, shuffle: bool = False, tune_ratio: float | None = None, seed: int = 0) -> list[Pod]:
    """Return the pods in order of arrival: as listed, shuffled, or tuned to a share of the GPU capacity."""
    pods = list(read.pods)
    if tune_ratio is not None:
        chosen = tune(pods, read.nodes, seed, tune_ratio).pods
        return [replace(pods[row], name=f"{pods[row].name}-{i}", uid="") for i, row in enumerate(chosen.tolist())]
    if shuffle:
        return [pods[row] for row in np.random.default_rng(seed).permutation(len(pods))]
    return pods


def apply(read: Manifests, pods: Sequence[Pod], policy: Policy) -> Applied:
    """Place pods one after another; those that are bound already stay where they are. `UserError` without nodes."""
    if not read.nodes:
        raise UserError("cluster: no Node among the objects; expected at least one")
    names = {node.name for node in read.nodes}
    cluster = SimCluster(read.nodes, Workload.of(replace(pod, created_s=0.0) for pod in pods if not pod.node_name))
    for pod in pods:
        if pod.node_name and pod.node_name not in names:
            raise UserError(f"pod {pod.key}: spec.nodeName: {pod.node_name!r} is none of the nodes")
        if pod.node_name:
            cluster.state.upsert_pod(pod)
    play(cluster, policy)
    state = cluster.state
    left = (pod for pod in pods if pod.uid not in state.placements)
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        members.setdefault(pod.group_key, []).append(pod)
    return Applied(state, tuple((pod, _why(state, pod, members[pod.group_key])) for pod in left))


def _why(state: ClusterState, pod: Pod, members: Sequence[Pod]) -> str:
    """Say why a pod has no node; `members` are all pods of its group."""
    return feasible(state, pod).message() if pod.group is None else _why_of_group(state, pod, pod.group, members)


def _why_of_group(state: ClusterState, pod: Pod, group: PodGroup, members: Sequence[Pod]) -> str:
    verdict = feasible(state, pod)
    if not group.seen:
        return f"waits for PodGroup {pod.group_key}, which the files do not have"
    if len(members) < group.least:
        return f"waits for more pods of pod group {group.name}: {len(members)} of minCount {group.least}"
    placed = placed_of(state, pod.group_key)
    try:
        check(group, members)
        places = domains(state, group, placed)
    except InvalidGroupError as error:
        return f"{UNSCHEDULABLE}, {error}"
    if verdict.mask.any() and not any((verdict.mask & nodes).any() for nodes in places.values()):
        where = f"{group.topology_key} {', '.join(places)}" if places else f"any domain of {group.topology_key}"
        return f"fits on no node in {where}, where pod group {group.name} has to be"
    if not verdict.mask.any() or group.min_count is None:
        return verdict.message()
    where = f"in one domain of {group.topology_key}" if group.topology_key else "together"
    return f"fits alone, but not so many of pod group {group.name} {where} (minCount {group.least})"


def write(applied: Applied, folder: Path) -> list[Path]:
    """Write placements.yaml and nodes.csv and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    placements, nodes = folder / "placements.yaml", folder / "nodes.csv"
    write_documents(placements, applied.documents())
    applied.node_table().to_csv(nodes, index=False)
    return [placements, nodes]
