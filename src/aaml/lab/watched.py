"""A live cluster that is recorded from now on, in a thread of its own."""

import threading
import time
from pathlib import Path
from typing import NamedTuple

from aaml.cluster.objects import Pod
from aaml.insight.replay import Replay
from aaml.kube.watcher import ClusterWatch
from aaml.live.promise import LatestPromise
from aaml.threads import Background

CLUSTER = "the cluster"
"""What the page calls whoever places pods there."""
_TURN_S = 0.5
_KEPT = 100_000  # moves of pods, and placements, of which the older half is forgotten
_MOST_WAITING = 200  # pods that are named


class WaitingPod(NamedTuple):
    """A pod without a node: since when by the cluster's clock, who is to place it, and why it has none, where known."""

    pod: str
    since_unix_s: float
    scheduler: str
    why: str


class ClusterReplay:
    """The replay of a live cluster, made by a watch that may only list and watch nodes and pods.

    It is bounded: of more than `kept` moves, attempts or counts the older half is dropped, and `from_s` is where it
    begins then. `waiting` are the pods that have no node now, those that wait longest first. `promise` is a line about
    what learned nodes promise, "" where they promise nothing.
    """

    def __init__(self, kubeconfig: Path | None, kept: int = _KEPT) -> None:
        """Connect and wait for the first lists; raises `UserError` when there is no cluster or no permission."""
        self._watch = ClusterWatch.connect(kubeconfig, connections=2)
        self._since_s, self.began_unix_s = time.monotonic(), time.time()
        self._kept, self._left = kept, ""
        self.replay = Replay(self._watch.state, self.now_s, CLUSTER)
        self.from_s = 0.0
        self.waiting: tuple[WaitingPod, ...] = ()
        self.promise = ""
        self._promise = LatestPromise(self._watch.transport)
        self._watch.state.observe(self._moved)
        self._stop = threading.Event()
        self._following = Background(self._follow, "lab-watch")

    def now_s(self) -> float:
        """Return the seconds since the replay began."""
        return time.monotonic() - self._since_s

    @property
    def pending(self) -> int:
        """How many pods have no node."""
        return self._watch.pending

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._watch.wake()
        self._following.wait()
        self._watch.close()

    def check(self) -> None:
        """Raise what has ended the watching, if anything has."""
        self._following.check()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._name_waiting()
            self.promise = self._promise.text()
            self._forget()
            self._watch.pump(_TURN_S)

    def _name_waiting(self) -> None:
        self.replay.on_waiting(self._watch.pending)
        unplaced = sorted((self._watch.pods[uid].created_s, uid) for uid in self._watch.why)
        pods = [self._watch.pods[uid] for _, uid in unplaced[:_MOST_WAITING]]
        self.waiting = tuple(
            WaitingPod(pod.key, pod.created_s, pod.scheduler_name, self._watch.why[pod.uid]) for pod in pods
        )

    def _forget(self) -> None:
        replay, running = self.replay, len(self._watch.state.placements)
        times = [each.time_s for each in replay.moves[running:]]  # at least so many come as the replay begins
        for kept in (times, [record.time_s for record in replay.attempts], [at_s for at_s, _ in replay.waits]):
            if len(kept) > self._kept:
                self.from_s = max(self.from_s, kept[len(kept) - self._kept // 2])
                self.replay = replay = replay.later(self.from_s)

    def _moved(self, pod: Pod, node_name: str, placed: bool) -> None:
        """Keep a pod's placement; one that ends or gets other labels leaves and comes, which is none."""
        left, self._left = self._left, "" if placed else pod.uid
        if placed and pod.uid != left:
            self.replay.on_seen(pod, node_name, self._watch.pending)
