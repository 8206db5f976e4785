"""Puts the same cluster before the real kube-scheduler and before AAML's filters and scores, and compares."""

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from aaml.cluster.filters import Feasibility, feasible
from aaml.cluster.objects import DisruptionBudget, Pod
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.objects.convert import node_from_json, pod_from_json
from aaml.kube.transport import ApiError
from aaml.policies.kube_scores import KubeSchedulerConfig, plugin_scores
from aaml.policies.kube_scores.total import DEFAULT
from aaml.scheduling import preemption
from support.real_scheduler import RealScheduler, Verdict
from support.scheduling_cases import (
    DRIVER,
    NAMESPACES,
    PRIORITIES,
    RUNTIME_CLASS,
    Cases,
    Manifest,
    csi_node,
    priority_class,
    storage,
)
from support.strange_cases import RUNTIME_CLASSES

_PATIENCE_S = 10.0
_SHOWN = 10  # mismatches
_GAVE_UP_SCORING = 'running PreScore plugin "NodeAffinity"'  # a preferred term whose bound of Gt or Lt is no integer
_OF_DRA, _LOST_DRA = "no new claims to deallocate, ", " not found"


@dataclass
class Tally:
    """How many comparisons were made of each kind, and every mismatch with the seed that draws it again."""

    counts: dict[str, int] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)

    def compare(self, what: str, ours: Any, theirs: Any, context: str) -> None:
        self.count(what)
        if ours != theirs:
            self.mismatches.append(f"{what}: ours {ours}, kube-scheduler's {theirs}; {context}")

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def report(self, what: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Print how many comparisons were made, and fail where there was a mismatch."""
        with capsys.disabled():
            print(f"\n{what}: {len(self.mismatches)} mismatches in {sum(self.counts.values())} comparisons")
            for kind, count in self.counts.items():
                print(f"  {count:6} {kind}")
        assert not self.mismatches, "\n".join(self.mismatches[:_SHOWN])


class Storage:
    """The claims and volumes that exist, for the conversion of pods."""

    def __init__(self) -> None:
        self.claims: dict[str, wire.ClaimObject] = {}
        self.volumes: dict[str, wire.VolumeObject] = {}

    def add(self, path: str, manifest: Manifest) -> None:
        if path.endswith("persistentvolumes"):
            self.volumes[manifest["metadata"]["name"]] = msgspec.convert(manifest, wire.VolumeObject)
        else:
            key = f"{path.split('/')[-2]}/{manifest['metadata']['name']}"
            self.claims[key] = msgspec.convert(manifest, wire.ClaimObject)

    def claim(self, namespace: str, name: str) -> wire.ClaimObject | None:
        return self.claims.get(f"{namespace}/{name}")

    def volume(self, name: str) -> wire.VolumeObject | None:
        return self.volumes.get(name)

    def storage_class(self, _name: str) -> None:
        return None


class Bench:
    """A real scheduler with the namespaces, volumes and classes that cases use; episodes come and go on it."""

    def __init__(self, real: RealScheduler) -> None:
        self.real, self.api, self.storage = real, real.api, Storage()
        self.limits: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(4)
        for each in (RUNTIME_CLASS, *RUNTIME_CLASSES):
            self.api.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", each)
        for name in PRIORITIES:
            self.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority_class(name))
        for name, labels in NAMESPACES.items():
            if name != "default":
                self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
                account = {"metadata": {"name": "default"}}
                self.api.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
            for path, manifest in storage(name):
                self.api.request("POST", path, manifest)
                self.storage.add(path, manifest)

    def get(self, path: str) -> list[dict[str, Any]]:
        return json.loads(self.api.request("GET", path))["items"]

    def reset(
        self, cases: Cases, nodes: Iterable[Manifest], placed: Iterable[Manifest], budgets: Iterable[Manifest] = ()
    ) -> ClusterState:
        """Make the cluster that of a case and return AAML's view of it, once the scheduler has seen all of it."""
        for namespace in NAMESPACES:
            self.api.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")
            self.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        self.api.request("DELETE", "/apis/storage.k8s.io/v1/csinodes")
        self.api.request("DELETE", "/api/v1/nodes")
        nodes = list(nodes)
        self.limits = {node["metadata"]["name"]: cases.rng.randint(1, 4) for node in nodes if cases.chance(0.4)}
        for name, limit in self.limits.items():
            self.api.request("POST", "/apis/storage.k8s.io/v1/csinodes", csi_node(name, limit))
        for budget in budgets:
            path = f"/apis/policy/v1/namespaces/{budget['metadata']['namespace']}/poddisruptionbudgets"
            created = json.loads(self.api.request("POST", path, budget))
            created["status"] = budget["status"]
            self.api.request("PUT", f"{path}/{budget['metadata']['name']}/status", created)
        list(self._pool.map(self._create_node, nodes))
        list(self._pool.map(self._create_pod, placed))
        self._pass_barrier(cases)
        state = ClusterState()
        for namespace in self.get("/api/v1/namespaces"):
            state.label_namespace(namespace["metadata"]["name"], namespace["metadata"]["labels"])
        for item in self.get("/api/v1/nodes"):
            node = node_from_json(item)
            limit = self.limits.get(node.name)
            state.upsert_node(replace(node, volume_limits={DRIVER: limit} if limit is not None else {}))
        for item in self.get("/api/v1/pods"):
            state.upsert_pod(self.pod(item))
        return state

    def pod(self, item: dict[str, Any], **changes: Any) -> Pod:
        return replace(pod_from_json(item, self.storage), **changes)

    def delete_pod(self, pod: Pod) -> None:
        """Delete a pod at once, whether or not it is there still."""
        try:
            self.api.request("DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}?gracePeriodSeconds=0")
        except ApiError as error:
            if error.status != 404:
                raise

    def _create_node(self, node: Manifest) -> None:
        name = node["metadata"]["name"]
        self.api.request("POST", "/api/v1/nodes", node)
        # Admission taints every new node as not ready.
        self.api.request("PUT", f"/api/v1/nodes/{name}", node)

    def _create_pod(self, pod: Manifest) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        terminating, started, disrupted = (pod.pop(name, None) for name in ("terminating", "started", "disrupted"))
        created = json.loads(self.api.request("POST", path, pod))
        name = pod["metadata"]["name"]
        if started is not None:
            conditions = [{"type": "DisruptionTarget", **disrupted}] if disrupted else []
            created["status"] = {**created["status"], "startTime": started, "conditions": conditions}
            self.api.request("PUT", f"{path}/{name}/status", created)
        if terminating:
            self.api.request("DELETE", f"{path}/{name}?gracePeriodSeconds=3600")

    def _pass_barrier(self, cases: Cases) -> None:
        """Let a pod be scheduled that can only be once the last node and the last placed pod have been seen."""
        name, labels = f"{cases.prefix}-barrier", {"barrier": cases.prefix}
        allocatable = {"cpu": "1", "memory": "1Gi", "pods": "3"}
        node = {
            "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
            "spec": {"taints": [{"key": "barrier", "effect": "NoSchedule"}]},
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }
        self._create_node(node)
        spec = {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}
        meta = {"name": name, "namespace": "default", "labels": labels}
        self._create_pod({"metadata": meta, "spec": {**spec, "nodeName": name}})
        near = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
        probe = {"metadata": {"name": f"{name}-probe", "namespace": "default"}, "spec": {**spec, "affinity": affinity}}
        created = json.loads(self.api.request("POST", "/api/v1/namespaces/default/pods", probe))
        self.real.wait(created["metadata"]["uid"], lambda pod: pod["spec"].get("nodeName"))


def compare_decision(
    bench: Bench,
    state: ClusterState,
    manifest: Manifest,
    tally: Tally,
    seed: int,
    *,
    huge: bool = False,
    config: KubeSchedulerConfig = DEFAULT,
) -> Verdict:
    """Let both judge one pod, then bring AAML's state to where the real scheduler left the cluster.

    `config` is what AAML makes of the profile that the pod names.

    Among `huge` amounts, which AAML does not tell apart and kube-scheduler counts with overflows, AAML must not find a
    node feasible that kube-scheduler does not.
    """
    verdict = bench.real.decide(manifest)
    pod = bench.pod(verdict.pod, node_name="", nominated_node="", gates=())
    context = f"seed {seed}, {json.dumps(manifest)}"
    ours = feasible(state, pod)
    names = {state.names[node_index] for node_index in np.flatnonzero(ours.mask)}
    if huge:
        tally.compare("huge amounts: nodes feasible here only", sorted(names - verdict.passed), [], context)
        ours.message(preemption.attempt(state, pod, verdict=ours).message)
        plugin_scores(state, pod, ours.mask)
    else:
        _compare_verdicts(state, pod, ours, verdict, tally, context, config)
    if verdict.node:
        state.upsert_pod(bench.pod(verdict.pod))
    else:
        bench.delete_pod(pod)
    return verdict


def _compare_verdicts(
    state: ClusterState,
    pod: Pod,
    ours: Feasibility,
    verdict: Verdict,
    tally: Tally,
    context: str,
    config: KubeSchedulerConfig = DEFAULT,
) -> None:
    names = {state.names[node_index] for node_index in np.flatnonzero(ours.mask)}
    tally.compare("feasible nodes", sorted(names), sorted(verdict.passed), context)
    if verdict.message.startswith(_GAVE_UP_SCORING):
        tally.count("given up by kube-scheduler while scoring")
    elif verdict.message:
        said = ours.message(preemption.attempt(state, pod, verdict=ours).message)
        tally.compare("message", *_without_dra(said, verdict.message), context)
    if verdict.scores and names == verdict.passed:
        _compare_scores(state, pod, ours.mask, verdict, tally, context, config)


def compare_preemption(
    bench: Bench,
    state: ClusterState,
    manifest: Manifest,
    budgets: list[Manifest],
    tally: Tally,
    seed: int,
    nominated: str = "",
) -> None:
    """Let both judge one important pod, then take it and its victims away, so that only those that run stay.

    It may be `nominated` to a node already, and then waits for pods that were preempted there. Where several nodes are
    equally good either may choose any: what kube-scheduler takes must be as harmless as our choice, and its victims
    there must be ours.
    """
    verdict = bench.real.decide(manifest, nominated)
    pod = bench.pod(verdict.pod, node_name="", nominated_node=nominated)
    context = f"seed {seed}, nominated {nominated!r}, {json.dumps(manifest)}"
    ours = feasible(state, pod)
    if not verdict.message:
        tally.compare("fits without preemption", bool(ours.mask.any()), True, context)
        bench.delete_pod(pod)
        return
    protection = [budget_from(each) for each in budgets]
    result = preemption.attempt(state, pod, protection, ours)
    tally.compare("message", *_without_dra(ours.message(result.message), verdict.message), context)
    node = verdict.pod["status"].get("nominatedNodeName", "")
    if result.message in {preemption.NEVER, preemption.WAITING}:
        tally.compare("stays nominated", nominated, node, context)
        node = ""
    tally.compare("preempts", result.preemption is not None, bool(node), context)
    if result.preemption is not None and node:
        there = preemption._victims_on(state.fork(), state.index[node], pod, protection)
        assert isinstance(there, preemption.Preemption)
        harm = preemption._harm(there), preemption._harm(result.preemption)
        tally.compare("harm of the preemption", harm[1], harm[0], context)
        # Those that are leaving already are not deleted again.
        expected = sorted(victim.uid for victim in there.victims if not victim.terminating)
        tally.compare("victims", expected, _victims(bench, state, node, expected), context)
        bench.delete_pod(pod)
        for victim in there.victims:
            bench.delete_pod(victim)
            state.remove_pod(victim.uid)
    else:
        bench.delete_pod(pod)


def _without_dra(ours: str, theirs: str) -> tuple[str, str]:
    """Return both messages without what dynamic resource allocation adds, which AAML leaves out.

    It has no claims to deallocate for any pod. Where a pod is rejected before it had its turn it fails with "not
    found" instead, and preemption is not reached, which could not help such a pod anyway.
    """
    if theirs.endswith(_LOST_DRA):
        return ours.partition(" preemption: ")[0], theirs.removesuffix(_LOST_DRA)
    return ours, theirs.replace(_OF_DRA, "")


def budget_from(manifest: Manifest) -> DisruptionBudget:
    """Return the value object of a PodDisruptionBudget manifest."""
    term = {"topologyKey": "k", "labelSelector": manifest["spec"]["selector"]}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    reader = pod_from_json({"metadata": {"name": "reader", "uid": "u"}, "spec": {"affinity": affinity}})
    meta = manifest["metadata"]
    return DisruptionBudget(
        meta["name"],
        meta["namespace"],
        reader.affinity.required_pods[0].selector,
        manifest["status"]["disruptionsAllowed"],
    )


def _victims(bench: Bench, state: ClusterState, node: str, expected: list[str]) -> list[str]:
    """Return the uids of the pods that the scheduler has deleted from a node, once it has had the time to."""
    deadline = time.monotonic() + _PATIENCE_S
    known = state.node_pods[state.index[node]]
    while True:
        there = bench.real.pods()
        gone = [
            uid for uid, pod in known.items() if uid not in there or (not pod.terminating and _is_disrupted(there[uid]))
        ]
        if set(gone) >= set(expected) or time.monotonic() > deadline:
            return sorted(gone)
        time.sleep(0.01)


def _is_disrupted(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "DisruptionTarget" for each in pod["status"].get("conditions", ()))


def _compare_scores(
    state: ClusterState,
    pod: Pod,
    mask: np.ndarray,
    verdict: Verdict,
    tally: Tally,
    context: str,
    config: KubeSchedulerConfig,
) -> None:
    indices = {state.names[node_index]: int(node_index) for node_index in np.flatnonzero(mask)}
    found = plugin_scores(state, pod, mask, config)
    total = sum((score * config.weights[plugin] for plugin, score in found.items()), np.zeros(len(mask), np.int64))
    for plugin, weight in config.weights.items():
        ours = {
            name: int(found[plugin][node_index]) * weight if plugin in found else 0
            for name, node_index in indices.items()
        }
        theirs = verdict.scores.get(plugin, dict.fromkeys(indices, 0))
        tally.compare(f"score of {plugin}", ours, theirs, context)
    totals = {name: int(total[node_index]) for name, node_index in indices.items()}
    tally.compare("total score", totals, verdict.totals, context)
    best = {name for name, score in totals.items() if score == max(totals.values())}
    tally.compare("chosen node is among our best", verdict.node in best, True, context)
