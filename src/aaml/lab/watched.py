"""A live cluster that is filmed from now on, in a thread of its own."""

import threading
import time
from pathlib import Path

from aaml.cluster.objects import Pod
from aaml.insight.film import Film
from aaml.kube.watcher import ClusterWatch
from aaml.threads import Background

CLUSTER = "the cluster"
"""What the page calls whoever places pods there."""
_TURN_S = 0.5


class Watched:
    """A film of a live cluster; only looked at, with no more rights than to list and watch nodes and pods."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Connect and wait for the first lists; raises `UserError` when there is no cluster or no permission."""
        self._watch = ClusterWatch.connect(kubeconfig, connections=2)
        self._since_s = time.monotonic()
        self.film = Film(self._watch.state, self.now_s, CLUSTER)
        self._placed = set(self._watch.state.placements)
        self._watch.state.observe(self._moved)
        self._stop = threading.Event()
        self._following = Background(self._follow, "lab-watch")

    def now_s(self) -> float:
        """Return the seconds since the film began."""
        return time.monotonic() - self._since_s

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
            self._watch.pump(_TURN_S)

    def _moved(self, pod: Pod, node_name: str, placed: bool) -> None:
        """Keep a pod's first placement; a change of its labels comes as another one."""
        if placed and pod.uid not in self._placed:
            self._placed.add(pod.uid)
            self.film.on_seen(pod, node_name, self._watch.pending)
