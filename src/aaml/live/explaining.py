"""Why a node: explanations from a scheduler's log, from a run folder, or from a cluster as it is now."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aaml.errors import UserError, bad_value
from aaml.insight.explanation import Explanation

if TYPE_CHECKING:
    from aaml.cluster.objects import Pod

_NOW = "by the cluster as it is now: it may have been another one when the pod was decided on"
_NOT_LOOKED_AT = "volumes and selectors of namespaces are not looked at"


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
                if '"explanation"' in line and (content := json.loads(line)).get("kind") == "explanation":
                    yield {**content["explanation"], "written": content["time"]}
    except (OSError, ValueError, KeyError) as error:
        raise bad_value("run", str(path), f"a log as `aaml schedule` writes it ({error})") from error


def live(pod: str, policy: str = "kube-scheduler", *, kubeconfig: Path | None = None) -> Explanation:
    """Say where a policy would put a pod of a live cluster, by the cluster as it is now without that pod.

    Nothing is written to the cluster. Raises `UserError` when there is no such pod or no permission to look.
    """
    from aaml.cluster.filters import feasible
    from aaml.evaluation.policies import load_policy
    from aaml.insight.explain import explain
    from aaml.kube.watcher import ClusterWatch
    from aaml.scheduling.cycle import spec_of
    from aaml.scheduling.observation import Context
    from aaml.scheduling.ports import Decision

    player = load_policy(policy)
    watch = ClusterWatch.connect(kubeconfig, connections=2)
    try:
        found = _find(watch.pods.values(), pod)
        state = watch.state
        placement = state.remove_pod(found.uid)
        waiting = replace(found, node_name="")
        context = Context(state, waiting, feasible(state, waiting).mask, spec_of(player), queue_length=watch.pending)
        decided = None
        notes = [_NOT_LOOKED_AT]
        if placement is not None:
            row = state.index[placement.node_name]
            decided = Decision(row)
            notes = [_NOW, _NOT_LOOKED_AT]
            if not context.mask[row]:
                notes.append(f"it runs on {placement.node_name}, which the filters refuse now")
        explained = explain(context, player, decided)
    finally:
        watch.close()
    if decided is not None and explained.scores is not None and np.isfinite(explained.scores).any():
        best = explained.nodes[int(np.nanargmax(explained.scores))]
        notes.append(f"it runs on {explained.node}; {player.name} has the highest score for {best}")
    return replace(explained, time_s=None, notes=(*explained.notes, *notes))


def _find(pods: "object", name: str) -> "Pod":
    known = {pod.key: pod for pod in pods}  # type: ignore[attr-defined]
    if pod_key(name) not in known:
        some = ", ".join(list(known)[:3]) or "none"
        raise bad_value("pod", name, f"a pod of the cluster that has not finished, such as {some}")
    return known[pod_key(name)]  # type: ignore[no-any-return]
