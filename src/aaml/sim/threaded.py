"""The in-process cluster as a service: one thread schedules on it while others create and delete deployments.

Time is virtual and stands still until everybody who waits allows it to move, so that runs with a player and a scheduler
in threads of their own take the same decisions every time.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.scheduling.ports import BindResult
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.cluster import Feasible, SimCluster
from aaml.workload.deployments import Deployment
from aaml.workload.player import Load

T = TypeVar("T")
_LOOK_EVERY_S = 0.05  # real seconds between looks for an interrupt; the end of a wait is told at once


@dataclass(eq=False, slots=True)
class _Wait:
    """Somebody waits until all `uids` have a node or the clock shows `deadline_s`; without uids, for the clock only."""

    uids: set[str]
    deadline_s: float
    done: "Future[None]" = field(default_factory=Future)


class ThreadedCluster:
    """A `Cluster` (see `aaml.scheduling.ports`) fed by other threads, by way of `ThreadedSink` or `call`.

    The first thread that asks for a pod is the scheduler until it calls `drain`; it alone touches the state, other
    threads' work is done between its decisions (or at once while there is no scheduler). A new scheduler may follow.
    """

    def __init__(self, nodes: Iterable[Node], *, feasible: Feasible | None = None, invariants: bool = False) -> None:
        self._sim = SimCluster(nodes, until_s=0.0, feasible=feasible, invariants=invariants)
        self._condition = threading.Condition(threading.RLock())
        self._scheduler: int | None = None
        self._jobs: deque[Callable[[], None]] = deque()
        self._waits: list[_Wait] = []
        self._ending = False

    # ---- the Cluster port, for the scheduler's thread ----------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The state; only the scheduler's thread may look, others `call`."""
        return self._sim.state

    def now_s(self) -> float:
        """Virtual time."""
        return self._sim.now_s()

    def next_pod(self, timeout_s: float) -> Pod | None:
        """Do what others asked for and return the next pod; waits at most `timeout_s` (real seconds) for one.

        Raises `UserError` when another thread schedules on this cluster.
        """
        with self._condition:
            me = threading.get_ident()
            if self._scheduler not in {None, me}:
                raise UserError("this in-process cluster has a scheduler already: stop that one first")
            self._scheduler = me
            waited = False
            while True:
                while self._jobs:
                    self._jobs.popleft()()
                self._settle()
                pod = self._sim.next_pod()
                if pod is not None:
                    return pod
                if self._settle() or self._jobs:
                    continue
                if waited or self._ending:
                    return None
                waited = True
                self._condition.wait(timeout_s)

    def sort_queue(self, sort: QueueSort | None, backoff_s: tuple[float, float] | None = None) -> None:
        """Hand out waiting pods in this order, with these backoffs, from now on; None: kube-scheduler's, the task's."""
        self._sim.sort_queue(sort, backoff_s)

    def upcoming(self, count: int) -> Sequence[Pod]:
        """Return up to `count` pods that wait behind the current one."""
        return self._sim.upcoming(count)

    def pending_count(self) -> int:
        """Return how many pods wait besides the current one."""
        return self._sim.pending_count()

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [N], which nodes pass the filters."""
        return self._sim.feasible(pod)

    def bind(self, pod: Pod, node_index: int, gpus: tuple[int, ...] | None = None) -> str:
        """Place the pod."""
        return self._sim.bind(pod, node_index, gpus)

    def reject(self, pod: Pod) -> None:
        """The pod fits nowhere now."""
        self._sim.reject(pod)

    def defer(self, pod: Pod) -> None:
        """The policy left the pod pending."""
        self._sim.defer(pod)

    def results(self) -> Sequence[BindResult]:
        """Return the binds since the last call."""
        return self._sim.results()

    @property
    def exhausted(self) -> bool:
        """Whether `end` was called and all that was asked for is done."""
        return self._ending and not self._jobs and not self._waits

    def drain(self) -> None:
        """Give the cluster up as a scheduler; its pods stay, and another scheduler may take over."""
        with self._condition:
            if self._scheduler == threading.get_ident():
                self._give_up()

    def close(self) -> None:
        """Take the cluster from its scheduler, whoever that is; its pods stay."""
        with self._condition:
            self._give_up()

    # ---- for every thread --------------------------------------------------------------------------------------------

    def call(self, action: Callable[[ClusterState], T]) -> T:
        """Return what `action` makes of the state, looked at between two decisions."""
        return self.do(lambda sim: action(sim.state))

    def do(self, action: Callable[[SimCluster], T]) -> T:
        """Carry `action` out between two decisions and return its result."""
        with self._condition:
            if self._scheduler in {None, threading.get_ident()}:
                return action(self._sim)
            done: Future[T] = Future()

            def job() -> None:
                try:
                    done.set_result(action(self._sim))
                except BaseException as error:  # noqa: BLE001  (it belongs to the thread that asked)
                    done.set_exception(error)

            self._jobs.append(job)
            self._condition.notify_all()
        return done.result()

    def wait(self, uids: Iterable[str], duration_s: float, interrupted: Callable[[], bool]) -> None:
        """Wait until all pods have a node, at most `duration_s` of virtual time; without pods, let that time go by.

        Where no scheduler runs, pods are waited for in real time.
        """
        wait = _Wait(set(uids), 0.0)
        with_pods = bool(wait.uids)

        def begin(sim: SimCluster) -> None:
            wait.deadline_s = sim.now_s() + duration_s
            self._waits.append(wait)

        self.do(begin)
        left_s = duration_s
        while left_s > 0.0 and not interrupted():
            with self._condition:
                if self._scheduler is None:
                    if with_pods:
                        left_s -= _LOOK_EVERY_S
                    else:
                        self._run_clock(wait.deadline_s)
                    self._settle()
            with suppress(FutureTimeoutError):
                return wait.done.result(timeout=_LOOK_EVERY_S)
        with self._condition:
            if wait in self._waits:
                self._waits.remove(wait)
        return None

    def end(self) -> None:
        """Nothing more will be asked for: the scheduler's loop may come to its end."""
        with self._condition:
            self._ending = True
            self._condition.notify_all()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
        self._scheduler = None

    def _run_clock(self, until_s: float) -> None:
        self._sim.until_s = until_s
        while self._sim.advance():
            pass

    def _settle(self) -> bool:
        """End the waits that are over, allow the clock what the rest allows; True when one ended."""
        now_s, placed, over = self._sim.now_s(), self._sim.state.placements, False
        for wait in list(self._waits):
            had_pods = bool(wait.uids)
            wait.uids = {uid for uid in wait.uids if uid not in placed}
            if (had_pods and not wait.uids) or now_s >= wait.deadline_s:
                self._waits.remove(wait)
                wait.done.set_result(None)
                over = True
        self._sim.until_s = min((wait.deadline_s for wait in self._waits), default=now_s)
        return over


class ThreadedSink:
    """What a workload player needs of a `ThreadedCluster` (see `aaml.workload.player.Sink`)."""

    def __init__(self, cluster: ThreadedCluster, scheduler_name: str = "custom-scheduler") -> None:
        self._cluster = cluster
        self._scheduler_name = scheduler_name
        self._pods: dict[str, tuple[Pod, ...]] = {}
        self._created = 0
        self._interrupted = threading.Event()

    def now_s(self) -> float:
        """Virtual time."""
        return self._cluster.now_s()

    def create(self, deployments: Sequence[Deployment]) -> None:
        """Let the pods of these arrive together."""
        pods: list[Pod] = []
        for deployment in deployments:
            if deployment.name in self._pods:
                raise UserError(f"deployment {deployment.name!r} is there already")
            self._created += 1
            made = deployment.pods(self._scheduler_name, uid_prefix=f"{id(self):x}/{self._created}/")
            self._pods[deployment.name] = made
            pods += made
        self._cluster.do(lambda sim: sim.submit(pods))

    def delete(self, names: Sequence[str]) -> None:
        """Delete deployments with their pods, placed or not."""
        uids = [pod.uid for name in names for pod in self._pods.pop(name)]

        def delete(sim: SimCluster) -> None:
            for uid in uids:
                sim.delete(uid)

        self._cluster.do(delete)

    def wait_placed(self, names: Sequence[str], timeout_s: float) -> Mapping[str, int]:
        """Wait until every pod of these has a node; returns pods without one, by deployment."""
        uids = {pod.uid for name in names for pod in self._pods[name]}
        if timeout_s > 0 and uids:
            self._cluster.wait(uids, timeout_s, self._interrupted.is_set)

        def pending(state: ClusterState) -> dict[str, int]:
            counts = {name: sum(pod.uid not in state.placements for pod in self._pods[name]) for name in names}
            return {name: count for name, count in counts.items() if count}

        return self._cluster.call(pending)

    def sleep(self, duration_s: float) -> None:
        """Let virtual time go by; deployments of others may end in it."""
        if duration_s > 0:
            self._cluster.wait((), duration_s, self._interrupted.is_set)

    def load(self) -> Load:
        """Return how full the cluster is."""
        return self._cluster.call(Load.of)

    def interrupt(self) -> None:
        """Make waits return at once."""
        self._interrupted.set()

    def close(self) -> None:
        """Nothing to let go of."""
