"""Plays windows of a trace on a real KWOK cluster in scaled time, and measures them by the simulator's metrics.

Nodes and pods are created at their recorded times divided by a speed. Pods end after their recorded run time, divided
by it too. A policy places them through the API server, as in any live run. Meanwhile the recorder watches, with a clock
that runs faster by the same speed: its recording is a window of a trace again, and is measured as one. Whatever takes
real time, such as an answer of the API server or a backoff, counts `speed` times as long on that clock.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.policies import frozen
from aaml.evaluation.what_if import recorded_metrics
from aaml.kube import rights
from aaml.kube.cluster import KubeCluster
from aaml.kube.objects import wire
from aaml.kube.objects.manifest import IMAGE, owner_references, pod_to_json
from aaml.kube.provision import cluster_of, create_nodes, records, wait_schedulable
from aaml.kube.provision.stage import (
    SCHEDULER,
    WAIT_S,
    add_namespace,
    add_priority_class,
    class_name,
    clear,
    delete,
    replace_node,
    without_nodes,
)
from aaml.kube.transport import ApiError, Transport
from aaml.live.recorder import Recorder
from aaml.live.scheduler import Scheduler
from aaml.live.warm_up import warm_up
from aaml.progress import progress_bar
from aaml.scheduling.play import Stats, play
from aaml.scheduling.ports import BindResult, Observer, Policy
from aaml.sim.recorded import TraceTask
from aaml.threads import Background, ThreadPool
from aaml.workload.trace.events import AnyEvent, PodBound, PodSeen
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import NodeChange, Placed, Split, Window, Windows, read_windows

_AT_ONCE = 16
_LOOK_S = 0.2
_ENDS, _NODES, _PODS = range(3)  # what happens at the same time, in the simulator's order


@dataclass(frozen=True)
class LiveReplay:
    """The result of a policy on a window: on a real cluster, beside that in the simulator.

    `row` is a row of `aaml.evaluation.Results`. Of the window's arrivals the policy placed `placed` pods on the cluster
    and `placed_sim` in the simulator, `equal` of them on the same node. `late_s` is the largest delay of an action, in
    seconds of the trace.
    """

    policy: str
    row: dict[str, Any]
    placed: int
    placed_sim: int
    equal: int
    late_s: float

    def __str__(self) -> str:
        return (
            f"{self.row['policy']}, window {self.row['seed']}: {self.placed} pods placed, {self.placed_sim} in the "
            f"simulator, {self.equal} on the same node; at most {self.late_s:.1f} s of the trace late"
        )


def replay_live(
    task: TraceTask, policies: Sequence[PolicyEntry], cluster: str, speed: float, *, progress: bool = True
) -> list[LiveReplay]:
    """Play every window of the task's episodes under each policy, `speed` times as fast as it was recorded.

    `cluster` names a cluster of `aaml cluster up` without a workload. The trace's nodes replace its own nodes, which
    are made again afterwards. Raises `UserError` for any other cluster, and where the cluster refuses or fails.
    """
    record = records.load(cluster)
    api = cluster_of(cluster, record.runtime).api()
    rights.check(api, rights.REPLAY)
    windows = read_windows(task.folder)
    found = []
    with closing(api), api.explained(), without_nodes(api, cluster):
        for number in task.episodes:
            for entry in policies:
                with frozen(entry.spec):
                    found.append(_play(task, windows.window(number), entry, cluster, speed, api, progress=progress))
    return found


def _play(
    task: TraceTask, window: Window, entry: PolicyEntry, cluster: str, speed: float, api: Transport, *,
    progress: bool,
) -> LiveReplay:  # fmt: skip
    simulated = _Placements()
    play(task.build(window.index), entry.policy(task, window.index), observers=[simulated])
    warm_up(entry.policy(task, window.index))
    playing = _Playing(api, records.kubeconfig_path(cluster), window, speed)
    stats = playing.run(entry.policy(task, window.index), progress=progress)
    both = playing.placed.keys() & simulated.nodes.keys()
    latency_ms = 1000.0 * np.asarray(stats.latency_s or [np.nan])
    row = {
        "task": task.name, "nodes": task.nodes, "policy": f"{entry.name} on {cluster}", "seed": window.index,
        **recorded_metrics(playing.seen()), "decisions": stats.decisions,
        "latency_p50_ms": float(np.percentile(latency_ms, 50)), "latency_p99_ms": float(np.percentile(latency_ms, 99)),
    }  # fmt: skip
    return LiveReplay(
        entry.name, row, len(playing.placed), len(simulated.nodes),
        sum(playing.placed[uid] == simulated.nodes[uid] for uid in both), playing.late_s,
    )  # fmt: skip


@dataclass
class _Placements(Observer):
    """Notes the first node of each pod, by the pod's uid."""

    nodes: dict[str, str] = field(default_factory=dict)

    def on_result(self, result: BindResult) -> None:
        if result.status == "bound":
            self.nodes.setdefault(result.pod.uid, result.node_name)


class _Playing:
    """The state of a window that is being played: actions that are due, events seen, and when it began."""

    def __init__(self, api: Transport, kubeconfig: Any, window: Window, speed: float) -> None:
        self._api, self._kubeconfig, self._window, self._speed = api, kubeconfig, window, speed
        self._due: list[tuple[float, int, int, Callable[[], object]]] = []
        self._order = count()
        self._begun_s: float | None = None
        self._events: list[AnyEvent] = []
        self._pods: dict[str, Pod] = {}  # by namespace/name on the cluster
        self._names: Counter[str] = Counter()
        self._keys: dict[str, str] = {}  # by uid on the cluster
        self._nodes: dict[str, str] = {}  # namespace/name -> node, of those that run now
        self._ends_s: dict[str, float] = {}
        self.placed: dict[str, str] = {}
        self.late_s = 0.0

    def run(self, policy: Policy, *, progress: bool) -> Stats:
        """Play from beginning to end and leave the cluster without pods and nodes."""
        window = self._window
        with ExitStack() as stack:
            stack.callback(clear, self._api)
            self._prepare()
            cluster = stack.enter_context(closing(KubeCluster.connect(SCHEDULER, kubeconfig=self._kubeconfig)))
            recorder = Recorder(Transport(self._kubeconfig, connections=4), self._take, clock=self._now_s)
            stack.callback(recorder.close)
            recorder.start()
            bar = stack.enter_context(
                progress_bar(f"window {window.index} under {policy.name}", int(window.length_s), "s", enabled=progress)
            )
            scheduler = Scheduler(cluster, policy)
            running = Background(scheduler.run, "replay-scheduler")
            stack.callback(running.wait)
            stack.callback(scheduler.stop)
            self._begun_s = time.monotonic()
            while (now_s := self._now_s()) < window.length_s:
                while self._due and self._due[0][0] <= self._now_s():
                    due_s, *_, happen = heapq.heappop(self._due)
                    self.late_s = max(self.late_s, self._now_s() - due_s)
                    happen()
                next_s = min(self._due[0][0] if self._due else window.length_s, window.length_s)
                recorder.pump(min(max(next_s - self._now_s(), 0.0) / self._speed, _LOOK_S))
                running.check()
                bar.update(min(int(now_s), int(window.length_s)) - bar.n)
            bar.update(int(window.length_s) - bar.n)
            recorder.watched()
            scheduler.stop()
            return running.result()

    def seen(self) -> Window:
        """Return the window that was recorded. Raises `UserError` when the connection was lost meanwhile."""
        found = Windows(Trace.of(self._events), Split(self._window.length_s, 0.0))
        if not found.numbers:
            raise UserError("the connection to the cluster was lost while the window was played; play it again")
        return replace(found.window(0), index=self._window.index)

    def _now_s(self) -> float:
        """Return the trace's time, 0 before it begins."""
        return 0.0 if self._begun_s is None else (time.monotonic() - self._begun_s) * self._speed

    def _prepare(self) -> None:
        """Create the nodes and pods that were there when the window began, and schedule all other events."""
        window, api = self._window, self._api
        pods = [*(each.pod for each in (*window.running, *window.others)), *window.arrivals]
        for namespace in sorted({pod.namespace for pod in pods}):
            add_namespace(api, namespace)
        for priority, policy in sorted({(pod.priority, pod.preemption_policy) for pod in pods if pod.priority}):
            add_priority_class(api, priority, policy)
        create_nodes(api, window.nodes, progress=False)
        open_nodes = sum(not (node.taints or node.unschedulable or node.is_control_plane) for node in window.nodes)
        wait_schedulable(api, open_nodes, wait_s=WAIT_S, progress=False)
        with ThreadPool(_AT_ONCE, "replay") as pool:
            list(pool.map(lambda placed: self._create(placed.pod, placed), window.running))
        for placed in window.others:
            self._put(placed.at_s, _NODES, partial(self._create, placed.pod, placed))
        for change in window.changes:
            self._put(change.at_s, _NODES, partial(self._change, change))
        for pod in window.arrivals:
            self._put(pod.created_s, _PODS, partial(self._create, pod))
        for at_s, uid in window.removed:
            self._put(at_s, _NODES, partial(self._remove, uid))

    def _put(self, at_s: float, kind: int, happen: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at_s, kind, next(self._order), happen))

    # ---- what is done ------------------------------------------------------------------------------------------------

    def _create(self, pod: Pod, placed: Placed | None = None) -> None:
        """Create a pod. It waits for the policy, unless another scheduler placed it."""
        self._names[pod.key] += 1
        again = self._names[pod.key] - 1  # a name may come again before its bearer here has ended
        name, kept_s = f"{pod.name}-again-{again}" if again else pod.name, pod.do_not_disrupt_s / self._speed
        named = replace(pod, name=name, do_not_disrupt_s=kept_s)
        self._pods[named.key] = pod
        node_name = "" if placed is None else placed.node_name
        image = next(iter(pod.images), IMAGE)
        body = pod_to_json(replace(named, node_name=node_name, scheduler_name=SCHEDULER), image=image)
        if placed is not None and placed.gpus is not None:
            body["metadata"]["annotations"][wire.GPU_INDEX] = "-".join(map(str, placed.gpus))
        if pod.priority:
            body["spec"]["priorityClassName"] = class_name(pod.priority, pod.preemption_policy)
        if references := owner_references(pod):
            body["metadata"]["ownerReferences"] = references
        try:
            self._api.request("POST", f"/api/v1/namespaces/{pod.namespace}/pods", body)
        except ApiError as error:
            raise UserError(f"pod {named.key} of the trace: {error.message}") from error
        if placed is not None:
            self._nodes[named.key] = node_name
            self._live_on(named.key, placed.at_s)

    def _live_on(self, key: str, since_s: float) -> None:
        """Schedule the end of a pod that has run since then."""
        if (runs_s := self._pods[key].runs_s) is not None:
            self._ends_s[key] = since_s + runs_s
            self._put(since_s + runs_s, _ENDS, partial(self._end, key, since_s + runs_s))

    def _end(self, key: str, due_s: float) -> None:
        if self._ends_s.get(key) == due_s:
            self._delete(key)

    def _delete(self, key: str) -> None:
        self._ends_s.pop(key, None)
        self._nodes.pop(key, None)
        namespace, _, name = key.partition("/")
        delete(self._api, f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds="0")

    def _remove(self, uid: str) -> None:
        for key in [key for key, pod in self._pods.items() if pod.uid == uid]:
            self._delete(key)

    def _change(self, change: NodeChange) -> None:
        """Let a node join, change or leave.

        Pods of one that leaves wait again, as their controllers make them anew; but where it was the pod's node in the
        trace too, its successor is in the trace.
        """
        if change.node is not None:
            if not create_nodes(self._api, [change.node], progress=False):
                replace_node(self._api, change.node)
            return
        delete(self._api, f"/api/v1/nodes/{change.name}")
        for key in [key for key, node_name in self._nodes.items() if node_name == change.name]:
            self._delete(key)
            pod = self._pods[key]
            chosen = self._window.chosen.get(pod.uid)
            if chosen is None or chosen.node_name != change.name:
                self._create(pod)

    # ---- what is seen ------------------------------------------------------------------------------------------------

    def _take(self, event: AnyEvent) -> None:
        self._events.append(event)
        if isinstance(event, PodSeen):
            self._keys[event.pod.uid] = event.pod.key
        elif isinstance(event, PodBound) and (key := self._keys[event.uid]) in self._pods and key not in self._nodes:
            self._nodes[key] = event.node_name
            self.placed.setdefault(self._pods[key].uid, event.node_name)
            self._live_on(key, event.at)
