"""A scheduler on a real cluster in a thread, with what it said."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from aaml.cluster.objects import Pod
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.observation import Featurizer
from aaml.scheduling.ports import BindResult, Cluster
from aaml.scheduling.registry import make_policy, make_reward


def loop_over(cluster: Cluster, on_result: Callable[[BindResult], None] | None = None) -> SchedulerLoop:
    """Return the loop of a least-allocated scheduler."""
    cycle = SchedulingCycle(cluster, make_reward("balance"), Featurizer())
    return SchedulerLoop(cycle, make_policy("least-allocated"), learn=False, on_result=on_result)


class LiveScheduler:
    """Schedules until the block ends; `results` grows meanwhile."""

    def __init__(self, name: str, kubeconfig: Path, options: LiveOptions | None = None) -> None:
        self.cluster = KubeCluster.connect(name, kubeconfig=kubeconfig, options=options)
        self.results: list[BindResult] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            loop_over(self.cluster, self.results.append).run(stop=lambda: self.cluster._stopped)
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
