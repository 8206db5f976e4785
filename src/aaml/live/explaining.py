"""Why a node: explanations from a scheduler's log, from a run folder, or from a cluster as it is now."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aaml.errors import UserError, bad_value
from aaml.evaluation.policies import load_policy, needs_expected_pods
from aaml.insight.explain import explain
from aaml.insight.explanation import Explanation
from aaml.kube.cluster import KubeCluster, LookingOptions
from aaml.kube.objects import wire
from aaml.kube.sources import see_pod
from aaml.kube.transport import Transport
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision

if TYPE_CHECKING:
    from aaml.cluster.objects import Pod

_NOW = "by the cluster as it is now: it may have been another one when the pod was decided on"
_SETTLE_S = 30.0


def pod_key(name: str) -> str:
    """Return `namespace/name`, in the namespace default where none is named."""
    return name if "/" in name else f"default/{name}"


def logged(path: Path, which: int | str) -> Explanation:
    """Return what a scheduler's log (`aaml schedule ... --explain`) holds of a decision, by its number or its pod.

    The latest one of a pod counts. Raises `UserError` when there is none.
    """
    found, number = None, 0
    for fields in _lines(path):
        number += 1
        if which in (fields["number"], fields["pod"]) or (isinstance(which, str) and fields["pod"] == pod_key(which)):
            found = fields
    if not number:
        raise UserError(f"{path}: has no explanations in it; run the scheduler with --explain")
    if found is None:
        raise bad_value("pod", which, f"a pod or the number of a decision of the {number} in {path}")
    explained = Explanation.from_dict(found)
    decided = f"decided on {datetime.fromtimestamp(found['written']).astimezone():%Y-%m-%d at %H:%M:%S}"
    return replace(explained, time_s=None, notes=(decided, *explained.notes))  # the log's clock began with the machine


def _lines(path: Path) -> Iterator[dict]:  # type: ignore[type-arg]
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    return  # half a line: it is being written, or was when the disk was full
                if '"explanation"' in line and (content := json.loads(line)).get("kind") == "explanation":
                    yield {**content["explanation"], "written": content["time"]}
    except (OSError, ValueError, KeyError) as error:
        raise bad_value("run", str(path), f"a log as `aaml schedule` writes it ({error})") from error


def live(
    pod: str, policy: str = "kube-scheduler", *, kubeconfig: Path | None = None, expected: Sequence["Pod"] = ()
) -> Explanation:
    """Say where a policy would put a pod of a live cluster, by the cluster as it is now without that pod.

    The cluster is seen as `aaml schedule` sees it, volumes and selectors of namespaces included, so that both say the
    same. Nothing is written to it. `expected` are pods like those to come. Raises `UserError` when there is no such pod
    or no permission to look, and for a policy that weighs fragments of GPUs without such pods.
    """
    player = load_policy(policy, expected=expected)
    if needs_expected_pods(player):
        raise UserError(f"expected-pods: none with a GPU; expected an openb trace or a file of pods, for {player.name}")
    spec = spec_of(player)
    found = _find(kubeconfig, pod)
    cluster = KubeCluster.connect(found.scheduler_name, kubeconfig=kubeconfig, options=LookingOptions())
    try:
        notes = [] if cluster.settle(_SETTLE_S) else [f"not all of its volumes were known after {_SETTLE_S:g} s"]
        state, decided = cluster.state, None
        queued, placement = cluster.waits(found.uid), state.remove_pod(found.uid)
        waiting = replace(found if queued is None else queued, node_name="")
        if placement is not None:
            waiting = replace(placement.pod, node_name="")
            node_index = state.index[placement.node_name]
            decided = Decision(node_index)
        upcoming = [each for each in cluster.upcoming(spec.lookahead + 1) if each.uid != found.uid][: spec.lookahead]
        context = Context(
            state, waiting, cluster.feasible(waiting), spec, tuple(upcoming),
            cluster.pending_count() - (queued is not None), cluster.now_s(),
        )  # fmt: skip
        if placement is not None:
            notes.append(_NOW)
            if not context.mask[node_index]:
                notes.append(f"it runs on {placement.node_name}, which the filters refuse now")
        explained = explain(context, player, decided)
    finally:
        cluster.close()
    if decided is not None and explained.margin is not None and explained.margin < 0 and explained.second is not None:
        notes.append(
            f"it runs on {explained.node}; {player.name} has a higher score for {explained.nodes[explained.second]}"
        )
    return replace(explained, time_s=None, notes=(*explained.notes, *notes))


def _find(kubeconfig: Path | None, name: str) -> "Pod":
    """Return a pod that has not finished, without its volumes' needs."""
    key = pod_key(name)
    namespace, _, own = key.partition("/")
    transport = Transport(kubeconfig, connections=1)
    lists = (
        (f"/api/v1/namespaces/{namespace}/pods", {"fieldSelector": f"metadata.name={own}"}),
        ("/api/v1/pods", {"limit": "100"}),
    )
    known: list[Pod] = []
    try:
        for path, query in lists:
            with transport.explained():
                answer = msgspec.json.decode(
                    transport.request("GET", path, query=query), type=wire.ListOf[wire.PodObject]
                )
            known = [
                see_pod(each).pod for each in answer.items or () if each.status.phase not in ("Succeeded", "Failed")
            ]
            for each in known:
                if each.key == key:
                    return each
    finally:
        transport.close()
    some = ", ".join(each.key for each in known[:3]) or "none"
    raise bad_value("pod", name, f"a pod of the cluster that has not finished, such as {some}")
