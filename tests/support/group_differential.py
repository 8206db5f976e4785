"""Puts the same pod group before the real kube-scheduler and before AAML's rules, and compares what becomes of it.

Of equal nodes, and of domains that suit a group equally, kube-scheduler draws one. So its decision is followed: each of
its nodes has to be among the best that AAML sees at that moment, and its domain among the best ones. What a trial in
another domain comes to may hang on draws too: AAML tries it several times, and one that agrees is enough.
"""

import json
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Pod, PodGroup
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.objects.convert import pod_group_from_api, read_object
from aaml.policies.kube_scores import total_scores
from aaml.scheduling.group_preemption import Imagined
from aaml.scheduling.pod_groups import GroupAttempt
from aaml.scheduling.queue_entries import Member, QueuedGroup
from aaml.scheduling.victims import priority_of
from support.differential import Bench, Tally, _is_disrupted, budget_from
from support.real_scheduler import condition
from support.scheduling_cases import Manifest

GROUPS = "/apis/scheduling.k8s.io/v1beta1"
_GATE = "test/complete"
_WAIT_S = 20.0
_TRIES = 40
_PATIENCE_S = 10.0


@dataclass
class GroupVerdict:
    """What the real scheduler made of a group: its object, and its pods in the order of their making."""

    group: dict[str, Any]
    pods: list[dict[str, Any]]

    @property
    def condition(self) -> dict[str, Any]:
        return self.group["status"]["conditions"][0]

    @property
    def scheduled(self) -> bool:
        """Whether a pod has a node; the condition may tell of the try of those that were left, a moment later."""
        return any(pod["spec"].get("nodeName") for pod in self.pods)


def decide_group(bench: Bench, group: Manifest, pods: list[Manifest]) -> GroupVerdict:
    """Create a group whose last pod completes it, and wait until the scheduler is done with all of its pods."""
    namespace, name = group["metadata"]["namespace"], group["metadata"]["name"]
    path = f"{GROUPS}/namespaces/{namespace}/podgroups"
    bench.api.request("POST", path, group)
    uids = []
    for pod in pods:
        gated = {**pod, "spec": {**pod["spec"], "schedulingGates": [{"name": _GATE}]}}
        created = json.loads(bench.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", gated))
        uids.append(created["metadata"]["uid"])
    for pod in pods:
        patch = {"spec": {"schedulingGates": []}, "metadata": {}}
        bench.api.request(
            "PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", patch,
            content_type="application/merge-patch+json",
        )  # fmt: skip
    deadline = time.monotonic() + _WAIT_S
    while not (seen := json.loads(bench.api.request("GET", f"{path}/{name}"))).get("status", {}).get("conditions"):
        assert time.monotonic() < deadline, f"no decision on group {namespace}/{name}\n{bench.real.output()[-3000:]}"
        time.sleep(0.004)

    def decided(pod: dict[str, Any]) -> bool:
        return bool(pod["spec"].get("nodeName") or condition(pod))

    found = [bench.real.wait(uid, decided) for uid in uids]
    verdict = GroupVerdict(seen, found)
    if verdict.scheduled and not all(pod["spec"].get("nodeName") for pod in found):
        time.sleep(0.3)  # those that are left are tried once more at once
        verdict.pods = [bench.real.wait(uid, decided) for uid in uids]
    return verdict


def compare_group(
    bench: Bench, state: ClusterState, group: Manifest, pods: list[Manifest], tally: Tally, seed: int
) -> GroupVerdict:
    """Let both judge one group, then bring AAML's state to where the real scheduler left the cluster."""
    verdict = decide_group(bench, group, pods)
    context = f"seed {seed}, {json.dumps(group)}, {json.dumps(pods)}"
    known = pod_group_from_api(read_object(verdict.group, wire.PodGroupObject, "group"))
    waiting = [bench.pod(each, node_name="", nominated_node="", gates=(), group=known) for each in verdict.pods]
    chosen = {
        pod.uid: each["spec"]["nodeName"]
        for pod, each in zip(waiting, verdict.pods, strict=True)
        if each["spec"].get("nodeName")
    }
    tally.count("groups")
    _follow(state.fork(), known, waiting, chosen, verdict, tally, context)
    for pod, each in zip(waiting, verdict.pods, strict=True):
        if pod.uid in chosen:
            state.upsert_pod(bench.pod(each, group=known))
        else:
            bench.delete_pod(pod)
    return verdict


def _follow(
    state: ClusterState, group: PodGroup, waiting: list[Pod], chosen: dict[str, str], verdict: GroupVerdict,
    tally: Tally, context: str,
) -> None:  # fmt: skip
    """Try the group as the real scheduler did, until as many pods have a node, or it was refused as well."""
    left, first = waiting, True
    while True:
        said = ""
        for number in range(_TRIES):
            twin = state.fork()
            attempt, said = _attempt(twin, group, left, chosen, np.random.default_rng(number))
            if not said:
                break
        if first:
            tally.compare("scheduled", attempt.outcome == "scheduled", verdict.scheduled, f"{said}; {context}")
            if not verdict.scheduled:
                ours, theirs = (each.partition(" first placement status")[0] for each in
                                (attempt.message, verdict.condition["message"]))  # fmt: skip
                tally.compare("message", ours, theirs, context)
        if said:
            tally.mismatches.append(f"{said}; {context}")
            return
        if attempt.outcome != "scheduled":
            missing = [pod.name for pod in left if pod.uid in chosen]
            tally.compare("pods left without a node", missing, [], context)
            return
        state, first = twin, False
        left = [pod for pod in left if pod.uid not in state.placements]
        if not left:
            return


def _attempt(
    state: ClusterState, group: PodGroup, left: list[Pod], chosen: dict[str, str], rng: np.random.Generator
) -> tuple[GroupAttempt, str]:
    """Try a group, in the real scheduler's domain with its nodes, elsewhere with drawn ones of the best.

    Returns the try, and what the real scheduler did that AAML would not have done, "" for nothing.
    """
    queued = QueuedGroup(left[0], 0.0, 0.0, group=group, members=[Member(pod, i) for i, pod in enumerate(left)])
    attempt = GroupAttempt(state, queued, rng)
    theirs = {_domain(state, group, chosen[pod.uid]) for pod in left if pod.uid in chosen}
    said: list[str] = []
    while not attempt.outcome:
        attempt.turn(0.0)
        pod = attempt.pod
        if pod is None:
            continue
        mask = attempt.narrow(feasible(state, pod).mask)
        wanted = state.index.get(chosen.get(pod.uid, ""), -1) if attempt.domain in theirs else -1
        if not mask.any():
            attempt.skip("")
            continue
        scores = total_scores(state, pod, mask)
        best = np.flatnonzero(scores == scores.max())
        if attempt.domain in theirs and pod.uid not in chosen:
            said.append(f"{pod.name} fits on {[state.names[i] for i in best]} and was left")
        elif attempt.domain in theirs and wanted not in best:
            names = {state.names[i]: int(scores[i]) for i in np.flatnonzero(mask)}
            said.append(f"{pod.name} went to {chosen[pod.uid]}, of {names}")
        attempt.place(wanted if wanted in best else int(rng.choice(best)), None, 0.0)
    if theirs and attempt.outcome == "scheduled" and not theirs & set(attempt.best):
        said.append(f"{sorted(theirs)} was taken, and {attempt.best} are better")
    elif bool(theirs) is not (attempt.outcome == "scheduled"):
        said.append(f"{attempt.outcome} here: {attempt.message}")
    if theirs and not said:  # what was drawn here may be another domain that is as good
        for each in attempt.placed:
            state.forget(each.pod.uid)
        for pod in left:
            if pod.uid in chosen and _placed_now(attempt, pod, theirs):
                state.assume(pod, chosen[pod.uid])
    return attempt, "; ".join(said)


def _placed_now(attempt: GroupAttempt, pod: Pod, theirs: set[str]) -> bool:
    trial = next(trial for trial in attempt._trials if trial.domain in theirs)
    return any(each.pod.uid == pod.uid for each in trial.assignments)


def _domain(state: ClusterState, group: PodGroup, node_name: str) -> str:
    if not group.topology_key:
        return ""
    return state.nodes[state.index[node_name]].labels[group.topology_key]


def create_groups(bench: Bench, groups: list[Manifest]) -> None:
    """Create groups of pods that are to run already."""
    for group in groups:
        bench.api.request("POST", f"{GROUPS}/namespaces/{group['metadata']['namespace']}/podgroups", group)


def know_groups(bench: Bench, state: ClusterState) -> None:
    """Give the placed pods of a state the groups that they name."""
    known = {}
    for item in bench.get(f"{GROUPS}/podgroups"):
        group = pod_group_from_api(read_object(item, wire.PodGroupObject, "group"))
        known[f"{item['metadata']['namespace']}/{group.name}"] = group
    for placement in list(state.placements.values()):
        if placement.pod.group is not None:
            state.upsert_pod(replace(placement.pod, group=known[placement.pod.group_key]))


def compare_group_preemption(
    bench: Bench, state: ClusterState, group: Manifest, pods: list[Manifest], budgets: list[Manifest], tally: Tally,
    seed: int,
) -> None:  # fmt: skip
    """Let both judge one important group, then take it and its victims away, so that only those that run stay."""
    _forget_gone(bench, state)
    verdict = decide_group(bench, group, pods)
    context = f"seed {seed}, {json.dumps(group)}, {json.dumps(pods)}"
    known = pod_group_from_api(read_object(verdict.group, wire.PodGroupObject, "group"))
    waiting = [bench.pod(each, node_name="", nominated_node="", gates=(), group=known) for each in verdict.pods]
    try:
        if verdict.scheduled:
            tally.count("fits without preemption")
            chosen = {
                pod.uid: each["spec"]["nodeName"]
                for pod, each in zip(waiting, verdict.pods, strict=True)
                if each["spec"].get("nodeName")
            }
            _follow(state.fork(), known, waiting, chosen, verdict, tally, context)
            return
        _compare_victims(bench, state, known, waiting, [budget_from(each) for each in budgets], verdict, tally, context)
    finally:
        for pod in waiting:
            bench.delete_pod(pod)


def _compare_victims(
    bench: Bench, state: ClusterState, group: PodGroup, waiting: list[Pod], budgets: list[Any], verdict: GroupVerdict,
    tally: Tally, context: str,
) -> None:  # fmt: skip
    message = verdict.condition["message"].partition("pod group preemption: ")[2]
    nominated = {
        pod.uid: each["status"]["nominatedNodeName"]
        for pod, each in zip(waiting, verdict.pods, strict=True)
        if each["status"].get("nominatedNodeName")
    }
    first = Imagined(state, group, waiting)
    if first.refusal:
        tally.compare("refusal", first.refusal, message, context)
        return
    for number in range(_TRIES):
        imagined = Imagined(state, group, waiting)
        attempt, said = _attempt(imagined.state, group, waiting, nominated, np.random.default_rng(number))
        if not said:
            break
    tally.compare("preempts", attempt.outcome == "scheduled", bool(nominated), f"{said}; {context}")
    if said:
        tally.mismatches.append(f"{said}; {context}")
        return
    if not nominated:
        return
    trial = next(
        trial
        for trial in attempt._trials
        if trial.domain in {_domain(state, group, each) for each in nominated.values()}
    )
    found = imagined.spare(trial.assignments, budgets)
    expected = {victim.uid for victim in found.victims}
    tally.compare("message of the preemption", found.message, message, context)
    gone = _gone(bench, state, expected)
    tally.compare("victims", sorted(expected), sorted(gone), context)
    whole = [victim for victim in found.victims if victim.group is not None and victim.group.whole]
    tally.count("victims of groups that leave as a whole", len(whole))
    assert all(priority_of(victim) < group.priority for victim in found.victims)
    for uid in expected | gone:
        bench.delete_pod(state.placements[uid].pod)
        state.remove_pod(uid)


def _forget_gone(bench: Bench, state: ClusterState) -> None:
    """Take away the victims of pods that a group had left: these are tried after it was placed, and may preempt."""
    for uid in _gone(bench, state, set()):
        bench.delete_pod(state.placements[uid].pod)
        state.remove_pod(uid)


def _gone(bench: Bench, state: ClusterState, expected: set[str]) -> set[str]:
    """Return the uids of the pods that the scheduler has deleted, once it has had the time to."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        there = bench.real.pods()
        gone = {uid for uid in state.placements if uid not in there or _is_disrupted(there[uid])}
        if gone >= expected or time.monotonic() > deadline:
            return gone
        time.sleep(0.01)
