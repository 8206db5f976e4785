"""Look-ahead in the simulated cluster: the best of a policy's favourite nodes by short roll-outs."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.scheduling.loop import SchedulingLoop
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Policy
from aaml.sim.cluster import SimCluster
from aaml.sim.search_config import SearchConfig
from aaml.sim.task import Task
from aaml.workload.model import Workload

FloatArray = npt.NDArray[np.float64]
Grade = Callable[[Context], FloatArray]
"""A context -> [N], how good each node is; entries of infeasible nodes have no meaning."""
_CAUTION = 2.0  # standard errors by which another node than the favourite has to be better
_LIFETIME_SEED, _LIFETIMES = 71_077, 2_000  # a fixed sample of the task's pods, by which lifetimes are drawn


class Future:
    """Draws what may come next, as somebody who knows a task's distribution but nothing of the episode's own future.

    Arrivals are drawn by the task itself, from now on. A pod that has run for `age_s` gets the lifetime of a random pod
    of its kind (owner) in a fixed sample of the task's pods among those that lived longer; a waiting pod, of any.
    """

    def __init__(self, task: Task, trace: str | None = None) -> None:
        self._task, self._trace = task, trace
        rng = np.random.default_rng(_LIFETIME_SEED)
        kinds: dict[str, list[float]] = defaultdict(list)
        for pod in task.arrivals(task.make_nodes(task.nodes), _LIFETIMES, rng, trace):
            kinds[pod.owner].append(np.inf if pod.lifetime_s is None else pod.lifetime_s)
        self._kinds = {kind: np.sort(values) for kind, values in kinds.items()}
        self._any = np.sort(np.concatenate(list(self._kinds.values())))

    def imagine(self, cluster: SimCluster, arrivals: int, rng: np.random.Generator) -> None:
        """Give a fork a future of so many arrivals."""
        drawn = self._task.arrivals(tuple(cluster.state.nodes), arrivals, rng, self._trace)[:arrivals]
        now_s = cluster.now_s()
        pods = tuple(
            replace(pod, uid=f"imagined-{number}", created_s=now_s + pod.created_s) for number, pod in enumerate(drawn)
        )
        known = {pod.uid: pod.lifetime_s for pod in pods}

        def lifetime_s(pod: Pod, age_s: float) -> float | None:
            if pod.uid not in known:
                known[pod.uid] = self._lifetime(pod, age_s, rng)
            return known[pod.uid]

        cluster.imagine(Workload(pods, "imagined"), lifetime_s)

    def _lifetime(self, pod: Pod, age_s: float, rng: np.random.Generator) -> float | None:
        values = self._kinds.get(pod.owner, self._any)
        longer = values[np.searchsorted(values, age_s, side="right") :]
        drawn = longer[rng.integers(len(longer))] if len(longer) else age_s + values[rng.integers(len(values))]
        return None if drawn == np.inf else float(drawn)


class Search:
    """One step of policy improvement by roll-outs (Bertsekas, Tsitsiklis, Wu: Rollout Algorithms, 1997).

    The nodes that `grade` wants most (nodes in the same state count once) are each tried on forks of the cluster: the
    pod goes there, then `rollout` (a policy without memory) decides until the last arrival of an imagined future, and
    what the task is judged by over that time is the node's value. All nodes meet the same futures, none of which is the
    true one (see `Future`). Chosen is the node with the highest mean gain over `grade`'s favourite less two standard
    errors of that gain, so that noise alone changes few decisions. The horizon has to be as long as pods live: what a
    placement costs or saves may come when they leave.
    """

    def __init__(self, future: Future, task: Task, grade: Grade, rollout: Policy, config: SearchConfig) -> None:
        self.config = config
        self._future, self._task = future, task
        self._grade, self._rollout = grade, rollout

    def choose(self, cluster: SimCluster, context: Context, rng: np.random.Generator) -> Decision:
        """Return the expert's choice for the pod that `cluster` has handed out; `cluster` is left as it is."""
        node_indices = self._candidates(context)
        if len(node_indices) == 1:
            return Decision(node_indices[0])
        values = np.array([self._values(cluster, context.pod, node_indices, rng) for _ in range(self.config.samples)])
        gain = values - values[:, :1]
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
        return Decision(node_indices[int(np.argmax(gain.mean(axis=0) - _CAUTION * error))])

    def _candidates(self, context: Context) -> list[int]:
        """Return node indices, most wanted first."""
        state, scores = context.state, np.where(context.mask, self._grade(context), -np.inf)
        found: dict[bytes, int] = {}
        for node_index in np.argsort(-scores, kind="stable")[: int(context.mask.sum())].tolist():
            of_node = (array[node_index] for array in (state.allocatable, state.requested, state.gpu_free, scores))
            found.setdefault(b"".join(np.asarray(part).tobytes() for part in of_node), node_index)
            if len(found) == self.config.candidates:
                break
        return list(found.values())

    def _values(self, cluster: SimCluster, pod: Pod, node_indices: list[int], rng: np.random.Generator) -> FloatArray:
        """Return what each node is worth in one future, higher is better; 0 when no time passes in it."""
        imagined = cluster.fork()
        self._future.imagine(imagined, self.config.horizon, rng)
        values = []
        for node_index in node_indices:
            twin = imagined.fork()
            twin.bind(pod, node_index)
            for _ in SchedulingLoop(twin, self._rollout).events():
                pass
            values.append(self._task.value(twin.metrics()))
        worth = np.nan_to_num(np.array(values, dtype=np.float64))
        return worth if self._task.higher_is_better else -worth
