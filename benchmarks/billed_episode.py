"""An episode of a bill on a real cluster with Karpenter, and what came of it by the simulator's own meter.

Pods are created when they are due, and deleted when they have run for their lifetime; this module is their owner, and
makes them anew where they are evicted, as the simulator does: a service for the rest of its time, a job from the start.
Times are those of the workload, `speed` times as fast as this machine's. A node counts from the launch of its NodeClaim
until the claim is gone.
"""

import heapq
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, TYPE_LABEL, Pod
from aaml.errors import StoppedError, UserError
from aaml.kube.objects.manifest import owner_references, pod_to_json
from aaml.kube.provision import KwokCluster
from aaml.kube.transport import ApiError, Transport
from aaml.live.recorder import Recorder
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.fluid import Fluid
from aaml.nodes.meter import Meter
from aaml.nodes.ports import OwnedNode
from aaml.nodes.settings import NodeTimes
from aaml.progress import progress_bar
from aaml.sim.journal import Journal
from aaml.workload.trace.events import AnyEvent, PodBound, PodEnded, PodSeen

CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_PODS = "/api/v1/namespaces/default/pods"
_PROVIDER = "kwok://"  # and the name of the node
_LOOK_S = 0.2  # of this machine's time, between two looks at the claims
_NOT_FOUND = 404
_JOB = "Job"
_OWNER = "ReplicaSet"  # of all: KWOK ends the pods of a Job by itself


@dataclass
class _Life:
    """A pod of the workload: which of its pods on the cluster is the current one, and how far it has come."""

    pod: Pod
    left_s: float | None  # of its lifetime, when it is bound next
    name: str = ""
    node_name: str = ""
    bound_s: float = 0.0
    ending: bool = False


class BilledEpisode:
    """Plays `pods` on a cluster whose Karpenter provisions from `catalogue`."""

    def __init__(
        self, cluster: KwokCluster, pods: Sequence[Pod], until_s: float, catalogue: Catalogue, speed: int
    ) -> None:
        self._cluster, self._until_s, self._catalogue, self._speed = cluster, until_s, catalogue, speed
        self._api = cluster.api()
        self._meter, self._journal = Meter(Fluid(catalogue)), Journal()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._begun_s: float | None = None
        self._stop = False
        self._lives: dict[str, _Life] = {}  # by the name of the current pod
        self._names: Counter[str] = Counter()
        self._by_uid: dict[str, str] = {}  # uid on the cluster -> name
        self._nodes: dict[str, OwnedNode] = {}
        self.late_s = 0.0
        """The most, in the workload's time, that something was done later than it was due."""
        for pod in pods:
            self._put(pod.created_s, partial(self._create, _Life(pod, pod.runs_s)))

    def play(self, *, progress: bool = True) -> Mapping[str, float]:
        """Play from beginning to end, and return metrics under the simulator's names, with `late_s`.

        Raises `StoppedError` after `stop`, and `UserError` when Karpenter, or another part of the cluster, has ended.
        """
        recorder = Recorder(Transport(self._cluster.kubeconfig, connections=4), self._take, clock=self._now_s)
        bar = progress_bar(self._cluster.name, int(self._until_s), "s", enabled=progress)
        with closing(self._api), closing(recorder), self._api.explained(), bar:
            recorder.start()
            self._begun_s, look_s = time.monotonic(), 0.0
            while (now_s := self._now_s()) < self._until_s:
                while self._due and self._due[0][0] <= self._now_s():
                    due_s, _, happen = heapq.heappop(self._due)
                    self.late_s = max(self.late_s, self._now_s() - due_s)
                    happen()
                if self._now_s() >= look_s:
                    self._look()
                    look_s = self._now_s() + _LOOK_S * self._speed
                next_s = min(look_s, self._due[0][0] if self._due else self._until_s)
                recorder.pump(max(next_s - self._now_s(), 0.0) / self._speed)
                bar.update(int(now_s) - bar.n)
                if self._stop:
                    raise StoppedError("the episode was stopped")
            bar.update(int(self._until_s) - bar.n)
            self._meter.hold(self._until_s)
        if stopped := self._cluster.stopped():
            raise UserError(f"cluster {self._cluster.name!r}: {', '.join(stopped)} ended while the pods were played")
        return self._metrics()

    def stop(self) -> None:
        """Let `play` end soon, from another thread."""
        self._stop = True

    def _metrics(self) -> dict[str, float]:
        waits_s = self._journal.waiting_times_s(self._until_s)
        p50_s, p99_s = np.percentile(waits_s, (50, 99)) if waits_s.size else (0.0, 0.0)
        return {
            **self._meter.metrics(self._until_s),
            "waiting_mean_s": float(waits_s.mean()) if waits_s.size else 0.0,
            "waiting_p50_s": float(p50_s),
            "waiting_p99_s": float(p99_s),
            "pending": float(len(self._journal.waiting_since_s)),
            "evicted": float(self._journal.counts["evicted"]),
            "late_s": self.late_s,
        }

    def _now_s(self) -> float:
        """Return the workload's time, 0 before it begins."""
        return 0.0 if self._begun_s is None else (time.monotonic() - self._begun_s) * self._speed

    def _put(self, at_s: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), happen))

    # ---- what is done ------------------------------------------------------------------------------------------------

    def _create(self, life: _Life) -> None:
        pod = life.pod
        again = self._names[pod.name]
        self._names[pod.name] += 1
        life.name, life.node_name = f"{pod.name}-again-{again}" if again else pod.name, ""
        self._lives[life.name] = life
        kept_s = pod.do_not_disrupt_s / self._speed
        body = pod_to_json(replace(pod, name=life.name, node_name="", owner="", do_not_disrupt_s=kept_s))
        body["metadata"]["ownerReferences"] = owner_references(pod, _OWNER)
        body["spec"]["terminationGracePeriodSeconds"] = 0
        self._journal.waits(pod, self._now_s())
        self._api.request("POST", _PODS, body)

    def _end(self, name: str) -> None:
        """Delete a pod that has run for its lifetime, unless it is gone."""
        if (life := self._lives.get(name)) is None:
            return
        life.ending = True
        try:
            self._api.request("DELETE", f"{_PODS}/{name}", query={"gracePeriodSeconds": "0"})
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise

    # ---- what is seen ------------------------------------------------------------------------------------------------

    def _take(self, event: AnyEvent) -> None:
        if isinstance(event, PodSeen):
            self._by_uid[event.pod.uid] = event.pod.name
        elif isinstance(event, PodBound):
            self._bound(self._by_uid[event.uid], event.node_name)
        elif isinstance(event, PodEnded):
            self._gone(self._by_uid.pop(event.uid))

    def _bound(self, name: str, node_name: str) -> None:
        life, now_s = self._lives.get(name), self._now_s()
        if life is None:
            return
        life.node_name, life.bound_s = node_name, now_s
        self._journal.bound(life.pod.uid, now_s)
        self._hold(life, 1)
        if life.left_s is not None:
            self._put(now_s + life.left_s, partial(self._end, name))

    def _gone(self, name: str) -> None:
        """A pod is gone: it has ended, or it was evicted and is made anew."""
        life, now_s = self._lives.pop(name, None), self._now_s()
        if life is None:
            return
        if life.node_name:
            self._hold(life, -1)
        if life.ending:
            self._journal.counts["departed"] += 1
            return
        self._journal.gone(life.pod.uid)
        self._journal.counts["evicted"] += 1
        if life.left_s is not None and life.node_name and not life.pod.owner.startswith(_JOB):
            life.left_s = max(life.left_s - (now_s - life.bound_s), 0.0)
        self._put(now_s + NodeTimes().recreate_s, partial(self._create, life))

    def _hold(self, life: _Life, sign: int) -> None:
        """Count what a pod asks for on a node, from now on or no more."""
        if (node := self._nodes.get(life.node_name)) is not None:
            self._meter.hold(self._now_s())
            self._meter.placed(life.pod, node, sign)

    def _look(self) -> None:
        """See which nodes are paid for now."""
        claims = json.loads(self._api.request("GET", CLAIMS))["items"]
        launched = {_node_name(claim): claim for claim in claims if _node_name(claim)}
        now_s = self._now_s()
        self._meter.hold(now_s)
        for name in launched.keys() - self._nodes.keys():
            labels = launched[name]["metadata"]["labels"]
            kind = self._catalogue[labels[TYPE_LABEL]].of((labels[CAPACITY_TYPE_LABEL],))
            node = self._nodes[name] = OwnedNode(name, kind, kind.cheapest, now_s)
            self._meter.launched(node)
        for name in self._nodes.keys() - launched.keys():
            self._meter.gone(self._nodes.pop(name))


def _node_name(claim: Mapping[str, Any]) -> str:
    """Return the node of a claim that is launched, "" before."""
    return str(claim.get("status", {}).get("providerID", "")).removeprefix(_PROVIDER)
