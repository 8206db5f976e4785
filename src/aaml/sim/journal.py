"""Journal: what a simulation is judged by, kept over virtual time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aaml.cluster.metrics import TimeAverages, summary, usage
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState


@dataclass(slots=True)
class Journal:
    """Time averages, waiting times and counts of a run.

    `counts`: arrived, bound, departed, deleted, evicted, migrated, rejected (tries that found no node), declined, lost
    (evicted without an owner who would make them anew).
    `waited_s`: by pod uid, the seconds it has waited in all, up to its latest bind. `waiting_since_s`: by uid, since
    when it waits now. `asked_milli`: by uid of those that wait, the GPU that they ask for, where they do.
    """

    averages: TimeAverages = field(default_factory=TimeAverages)
    counts: Counter[str] = field(default_factory=Counter)
    waited_s: dict[str, float] = field(default_factory=dict)
    waiting_since_s: dict[str, float] = field(default_factory=dict)
    asked_milli: dict[str, int] = field(default_factory=dict)

    def waits(self, pod: Pod, now_s: float) -> None:
        """A pod begins to wait."""
        self.waiting_since_s[pod.uid] = now_s
        if pod.gpu.total_milli:
            self.asked_milli[pod.uid] = pod.gpu.total_milli

    def gone(self, uid: str) -> bool:
        """A pod is deleted; returns whether it waited."""
        self.asked_milli.pop(uid, None)
        return self.waiting_since_s.pop(uid, None) is not None

    def hold(self, state: ClusterState, seconds: float) -> None:
        """Count what is as it was for so many seconds."""
        self.averages.hold(state, len(self.waiting_since_s), sum(self.asked_milli.values()), seconds)

    def bound(self, uid: str, now_s: float) -> None:
        """A pod has a node."""
        since = self.waiting_since_s.pop(uid)
        self.asked_milli.pop(uid, None)
        self.waited_s[uid] = self.waited_s.get(uid, 0.0) + now_s - since
        self.counts["bound"] += 1

    def waiting_times_s(self, now_s: float) -> npt.NDArray[np.float64]:
        """Return the seconds each pod has waited, those that still wait included: nobody gains by starving a pod."""
        totals = dict(self.waited_s)
        for uid, since in self.waiting_since_s.items():
            totals[uid] = totals.get(uid, 0.0) + now_s - since
        return np.fromiter(totals.values(), dtype=np.float64, count=len(totals))

    def metrics(self, state: ClusterState, now_s: float) -> Mapping[str, float]:
        """Return every scalar by name: `mean_*` over virtual time, `final_*` now, waiting times, counts.

        NaN for a mean before any time has passed.
        """
        waits = self.waiting_times_s(now_s)
        return summary(self.averages.means(), usage(state), waits, len(self.waiting_since_s), self.counts)

    def copy(self) -> "Journal":
        """Return an independent copy."""
        return Journal(
            self.averages.copy(), Counter(self.counts), dict(self.waited_s), dict(self.waiting_since_s),
            dict(self.asked_milli),
        )  # fmt: skip
