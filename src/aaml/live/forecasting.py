"""When does it start? A live cluster as it is now, with one of its jobs or a file's, for the simulator to play on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from aaml.cluster.objects import Pod
from aaml.errors import bad_value
from aaml.kube.cluster import KubeCluster, LookingOptions
from aaml.kube.objects import wire
from aaml.kube.objects.manifests import load
from aaml.kube.recorded import RecordedPod, RecordedPodObject, recorded_pod
from aaml.kube.transport import Transport
from aaml.scheduling.lifetimes import LifetimeModel, owner_name
from aaml.sim.cluster import SimCluster
from aaml.sim.forecast import Arrivals, RunningPod, snapshot
from aaml.sim.sooner import needed
from aaml.workload.trace.trace import Life, Trace

KINDS = {
    "pod": "", "job": "Job", "podgroup": "PodGroup", "deployment": "ReplicaSet", "replicaset": "ReplicaSet",
    "statefulset": "StatefulSet",
}  # fmt: skip
_SETTLE_S = 30.0
_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Question:
    """A job that waits, in the cluster as it is now; it has started once `needed` of these pods have nodes.

    `running` of its pods have a node already. `left_out` pods wait for other schedulers, and are not played. `finished`
    are pods that ended and are still listed, which say how long pods run.
    """

    name: str
    cluster: SimCluster
    pods: tuple[Pod, ...]
    needed: int
    running: int
    left_out: int
    finished: tuple[RecordedPod, ...]

    def lifetimes(self, past: Trace | None) -> LifetimeModel:
        """Return what is known of how long pods run: from the past where there is one, and from those that finished."""
        model = LifetimeModel() if past is None else learned_from(past)
        for each in self.finished:
            ran_s = _ran_s(each)
            if ran_s is not None:
                model.learn(each.pod, ran_s)
        return model


def ask(target: str, namespace: str = "default", kubeconfig: Path | None = None) -> Question:
    """Look at a cluster, and find the pods that `target` names: KIND/NAME, the NAME of a pod, or a file's.

    Nothing is written to the cluster. Raises `UserError` for what is not there, or does not wait.
    """
    is_file = Path(target).suffix in _FILES
    submitted = tuple(_within(pod, namespace) for pod in load([Path(target)]).pods) if is_file else ()
    if is_file and not submitted:
        raise bad_value("target", target, "a file with pods or workloads")
    transport = Transport(kubeconfig, connections=1)
    try:
        with transport.explained():
            answer = transport.request("GET", "/api/v1/pods")
    finally:
        transport.close()
    known = msgspec.json.decode(answer, type=wire.ListOf[RecordedPodObject]).items or ()
    seen = [recorded_pod(each) for each in known]
    alive = [each.pod for each in seen if each.ended is None]
    mine = submitted or _named(target, namespace, alive)
    live = KubeCluster.connect(mine[0].scheduler_name, kubeconfig=kubeconfig, options=LookingOptions())
    try:
        live.settle(_SETTLE_S)
        state, now_s = live.state, live.now_s()
        running = [
            RunningPod(each.pod, each.node_name, each.gpus, max(0.0, now_s - each.since_s))
            for each in state.placements.values()
        ]
        waiting = [*live.waiting(), *(replace(pod, created_s=0.0) for pod in submitted)]
        nodes = tuple(state.nodes)
    finally:
        live.close()
    cluster = snapshot(nodes, running, waiting)
    uids = {pod.uid for pod in mine}
    pods = tuple(pod for pod in waiting if pod.uid in uids)
    placed = sum(each.pod.uid in uids for each in running)
    if not pods:
        raise bad_value("target", target, f"something that waits; its {placed} pods have nodes")
    finished = tuple(each for each in seen if each.ended is not None)
    left_out = sum(not pod.node_name and pod.scheduler_name != mine[0].scheduler_name for pod in alive)
    return Question(target, cluster, pods, needed(cluster, pods), placed, left_out, finished)


def _within(pod: Pod, namespace: str) -> Pod:
    """Return a pod of a file in the namespace that was told, where the file names none."""
    return pod if pod.namespace != "default" else replace(pod, namespace=namespace, uid="")


def _named(target: str, namespace: str, alive: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the pods that a name stands for. Raises `UserError` where there are none."""
    kind, _, name = target.rpartition("/")
    if kind.lower() not in ("", *KINDS):
        raise bad_value("target", target, f"KIND/NAME with a kind of {', '.join(KINDS)}, the NAME of a pod, or a file")
    kind = kind.lower() or "pod"
    here = [pod for pod in alive if pod.namespace == namespace]

    def is_meant(pod: Pod) -> bool:
        if kind == "pod":
            return pod.name == name
        if kind == "podgroup":
            return pod.group is not None and pod.group.name == name
        owner = owner_name(pod) if kind == "deployment" else pod.owner.partition("/")[2]
        return pod.owner.startswith(f"{KINDS[kind]}/") and owner == name

    found = tuple(pod for pod in here if is_meant(pod))
    if not found:
        waiting = ", ".join([pod.name for pod in here if not pod.node_name][:5]) or "no pod"
        raise bad_value("target", target, f"a {kind} of namespace {namespace} that has pods; {waiting} waits there")
    of = {pod.group_key for pod in found if pod.group is not None and pod.group.min_count is not None}
    return tuple(pod for pod in here if pod.group_key in of) if of else found  # a gang starts as a whole


# ---- the past --------------------------------------------------------------------------------------------------------


def learned_from(past: Trace) -> LifetimeModel:
    """Return what a recording says of how long pods run; those that still ran at its end count for as long as seen."""
    model = LifetimeModel()
    for life in past.lives.values():
        if life.bound_s is None:
            if life.pod.lifetime_s is not None:
                model.learn(life.pod, life.pod.lifetime_s)
            continue
        ended = life.ran_s is not None and life.how != "unseen"
        to_s = (past.end_s if life.ended_s is None else life.ended_s) - life.bound_s
        model.learn(life.pod, max(0.0, to_s), from_s=max(0.0, -life.bound_s), ended=ended)
    return model


def arrivals_like(past: Trace) -> Arrivals:
    """Return arrivals as in a time of a recording that begins anywhere in it, and goes on at its beginning."""
    came: list[Life] = sorted(
        (life for life in past.lives.values() if life.created_s > 0.0 and not life.found),
        key=lambda life: life.created_s,
    )
    times_s = np.array([life.created_s for life in came])
    span_s = past.end_s

    def draw(seconds: float, rng: np.random.Generator) -> list[Pod]:
        begin_s = float(rng.uniform(0.0, span_s))
        if not came or span_s <= 0.0:
            return []
        pods, round_s = list[Pod](), 0.0
        place = int(np.searchsorted(times_s, begin_s))
        while True:
            if place == len(came):
                place, round_s = 0, round_s + span_s
            at_s = times_s[place] + round_s - begin_s
            if at_s > seconds:
                return pods
            life = came[place]
            group = life.pod.group
            if group is not None:  # one that comes again is another one
                group = replace(group, name=f"{group.name}-{round_s:g}")
            pods.append(replace(life.pod, created_s=float(at_s), lifetime_s=life.ran_s, node_name="", group=group))
            place += 1

    return draw


def _ran_s(each: RecordedPod) -> float | None:
    if each.bound_s is None or each.ended_s is None:
        return None
    return max(0.0, each.ended_s - each.bound_s)
