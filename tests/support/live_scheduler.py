"""A scheduler on a real cluster in a thread, with what it said."""

import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from aaml.cluster.objects import Pod
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.scheduling.ports import BindResult, Cluster, Observer


class Results(Observer):
    """Keeps the results of binds; `list` grows as they come."""

    def __init__(self) -> None:
        self.list: list[BindResult] = []

    def on_result(self, result: BindResult) -> None:
        self.list.append(result)


class LiveScheduler:
    """Schedules until the block ends; `results` grows meanwhile."""

    def __init__(self, name: str, kubeconfig: Path, options: LiveOptions | None = None) -> None:
        self.cluster = KubeCluster.connect(name, kubeconfig=kubeconfig, options=options)
        self._results = Results()
        self.results = self._results.list
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            play(
                self.cluster,
                make_policy("least-allocated"),
                observers=[self._results],
                stop=lambda: self.cluster._stopped,
            )
        except BaseException as error:
            self.error = error
            raise

    def bound(self) -> Counter[str]:
        """Return how often each pod was reported bound."""
        return Counter(result.pod.uid for result in list(self.results) if result.status == "bound")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.cluster.close()
        if self.error is not None:
            raise self.error


def take(cluster: Cluster, wait_s: float = 30.0) -> Pod:
    """Return the next pod; fails without one."""
    pod = cluster.next_pod(wait_s)
    assert pod is not None, f"no pod came in {wait_s:g} s"
    return pod


def result_of(cluster: Cluster, pod: Pod) -> BindResult:
    """Return the result of a pod's bind, taking in what happens until it is there."""
    for _ in range(300):
        for result in cluster.results():
            if result.pod.uid == pod.uid:
                return result
        cluster.next_pod(0.1)
    raise AssertionError(f"no result for {pod.key}")
