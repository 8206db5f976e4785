"""When will a pod or a job start? The cluster as it is, played on into many futures that might be.

Nobody knows how long pods run on and who comes next. Each future draws both: of each running pod a rest from the life
table of its class, given its age, and arrivals from those of the past. Pods of one group end together. All questions
meet the same futures, so that two forecasts differ by what was asked alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from zlib import crc32

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Node, Pod, PodGroup
from aaml.scheduling.lifetimes import LONGEST_S, LifetimeModel
from aaml.scheduling.loop import SchedulingLoop
from aaml.scheduling.ports import Policy
from aaml.scheduling.queue import QueueSettings
from aaml.sim.cluster import SimCluster
from aaml.sim.timeline import PlacePod
from aaml.workload.model import Workload

FloatArray = npt.NDArray[np.float64]
Arrivals = Callable[[float, np.random.Generator], Sequence[Pod]]
"""(seconds, rng) -> pods that come in so many seconds from now on, `created_s` counted from now, in order."""
_GRACE_S = 30.0  # in which a kubelet ends a pod that is deleted, where nobody says otherwise
STAYS = ("DaemonSet/", "Node/")
"""How owners are named whose pods end with their node."""


def nobody(_seconds: float, _rng: np.random.Generator) -> Sequence[Pod]:
    """No arrivals."""
    return ()


@dataclass(frozen=True)
class RunningPod:
    """A pod that has a node; `age_s`: for how long it has run already."""

    pod: Pod
    node_name: str
    gpus: tuple[int, ...] | None
    age_s: float


@dataclass(frozen=True)
class Forecast:
    """When it starts, in seconds from now: float64 [S] in rising order, one of each future.

    It is inf where it does not start within `horizon_s`.
    """

    starts_s: FloatArray
    horizon_s: float

    def quantile(self, share: float) -> float:
        """Return the time by which it has started in this share of the futures; inf: not within the horizon."""
        return float(np.quantile(self.starts_s, share, method="inverted_cdf"))

    @property
    def never(self) -> float:
        """The share of futures in which it does not start within the horizon."""
        return float(np.isinf(self.starts_s).mean())


def snapshot(nodes: Sequence[Node], running: Sequence[RunningPod], waiting: Sequence[Pod]) -> SimCluster:
    """Return a simulated cluster as a real one is now, which is its time 0; `waiting` in the order of the queue."""
    timeline = [
        PlacePod(
            0.0, replace(each.pod, node_name="", lifetime_s=_lasts(each.pod)), each.node_name, each.gpus, -each.age_s
        )
        for each in running
    ]
    cluster = SimCluster(nodes, (), timeline=timeline, queue=QueueSettings(), averages=False)
    cluster.advance()
    cluster.submit(waiting)
    return cluster


def _future(group: PodGroup | None) -> PodGroup | None:
    """Return a group that comes, which is none of those that are there."""
    return None if group is None else replace(group, name=f"future-{group.name}")


def _lasts(pod: Pod) -> float | None:
    """Return what stands in for a lifetime until a future draws one; None for a pod that never ends by itself."""
    return None if pod.owner.startswith(STAYS) else LONGEST_S


@dataclass(frozen=True)
class Futures:
    """What may come: `samples` futures of at most `horizon_s` seconds, in which `policy` decides."""

    policy: Policy
    lifetimes: LifetimeModel
    arrivals: Arrivals = nobody
    horizon_s: float = 86_400.0
    samples: int = 100
    seed: int = 0

    def forecast(
        self,
        cluster: SimCluster,
        uids: Collection[str],
        needed: int | None = None,
        on_future: Callable[[], object] = lambda: None,
    ) -> Forecast:
        """Say when `needed` (all, when None) of these waiting pods have a node; `cluster` is left as it is."""
        starts = []
        for number in range(self.samples):
            starts.append(self._start_s(cluster.fork(), uids, needed or len(uids), number))
            on_future()
        return Forecast(np.sort(np.array(starts)), self.horizon_s)

    def _start_s(self, cluster: SimCluster, uids: Collection[str], needed: int, number: int) -> float:
        now_s = cluster.now_s()
        rng = np.random.default_rng([self.seed, number])
        coming = tuple(
            replace(pod, uid=f"future-{place}", created_s=now_s + pod.created_s, group=_future(pod.group))
            for place, pod in enumerate(self.arrivals(self.horizon_s, rng))
        )
        cluster.imagine(Workload(coming, "a future"), self._draw(cluster, number, {pod.uid: pod for pod in coming}))
        cluster.until_s = now_s + self.horizon_s
        journal, most_waiting = cluster.journal, len(uids) - needed

        def started() -> bool:
            return sum(uid in journal.waiting_since_s for uid in uids) <= most_waiting

        for _ in SchedulingLoop(cluster, self.policy).events(started):
            pass
        return sorted(journal.waited_s.get(uid, inf) for uid in uids)[needed - 1]

    def _draw(
        self, cluster: SimCluster, number: int, coming: Mapping[str, Pod]
    ) -> Callable[[Pod, float], float | None]:
        """Return the lifetimes of one future; a pod's is that of its group, and the same whenever it is asked for."""
        known: dict[str, float | None] = {}
        now_s = cluster.now_s()

        def lifetime_s(pod: Pod, age_s: float) -> float | None:
            if pod.uid in coming and pod.runs_s is not None:
                return pod.runs_s
            if pod.uid not in known:
                placement = cluster.state.placements.get(pod.uid)
                ran_s = 0.0 if placement is None else max(0.0, now_s - placement.since_s)
                known[pod.uid] = self._lifetime_s(pod, age_s, ran_s, number)
            return known[pod.uid]

        return lifetime_s

    def _lifetime_s(self, pod: Pod, age_s: float, ran_s: float, number: int) -> float | None:
        if pod.owner.startswith(STAYS):
            return None
        if pod.terminating:
            return age_s + _GRACE_S
        share = np.random.default_rng([self.seed, number, crc32((pod.group_key or pod.uid).encode())]).random()
        return age_s + self.lifetimes.remaining_at_s(pod, ran_s, 1.0 - share)
