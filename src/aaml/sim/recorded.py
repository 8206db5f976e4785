"""A recorded cluster in the simulator: a window of a trace as an episode, and a trace as a task.

What ran when the window began runs on where it was, pods arrive when they did and run as long as they did, nodes come
and go as they did; only who decides is another. Seeds of a trace's task are the numbers of its windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from aaml.cluster.objects import Node, Pod
from aaml.errors import bad_value
from aaml.scheduling.queue import QueueSettings
from aaml.sim.cluster import SimCluster
from aaml.sim.task import Task
from aaml.sim.timeline import AddNode, DeletePod, PlacePod, RemoveNode, TimelineEvent
from aaml.workload.model import Workload
from aaml.workload.trace.windows import Part, Window, read_windows

VALIDATION_SEEDS, TRAINING_SEEDS = 1 << 30, 1 << 31  # as training has them: those of judging lie below both
_EXPECTED_PODS = 2_000


def cluster_of(window: Window, *, pods: int | None = None, invariants: bool = False) -> SimCluster:
    """Return the cluster as it was when the window began; at most `pods` of its arrivals come."""
    timeline: list[TimelineEvent] = [
        *(
            PlacePod(each.at_s, each.pod, each.node_name, each.gpus, each.since_s)
            for each in (*window.running, *window.others)
        ),
        *(
            RemoveNode(change.at_s, change.name) if change.node is None else AddNode(change.at_s, change.node)
            for change in window.changes
        ),
        *(DeletePod(at_s, uid) for at_s, uid in window.removed),
    ]
    arrivals = Workload(tuple(islice(window.arrivals, pods)), f"window {window.index}")
    return SimCluster(
        window.nodes, arrivals, timeline=timeline, until_s=window.length_s, queue=QueueSettings(), invariants=invariants
    )


@dataclass(frozen=True)
class TraceTask(Task):
    """A trace as a task: episodes are its windows, those of the holdout where a policy is judged.

    Seeds below those of validation and training are the numbers of windows, as `episodes` lists them; a seed of
    training or validation stands for one of the windows that are for that.
    """

    folder: Path = Path()
    part: Part = "holdout"

    @property
    def unit(self) -> str:
        """What its episodes are: windows of time."""
        return "window"

    def build(
        self,
        seed: int,
        nodes: int | None = None,
        *,
        pods: int | None = None,
        trace: str | None = None,
        invariants: bool = False,
    ) -> SimCluster:
        """Return the window that a seed stands for at its beginning.

        Raises `UserError` for a seed that is no window of the holdout, and for another number of nodes than there are.
        """
        self.size(nodes, pods)
        if trace is not None:
            raise bad_value("trace", trace, "none: the task is a trace already")
        limit = self.pods if pods is None else pods
        return cluster_of(self.window(seed), pods=limit, invariants=invariants)

    def window(self, seed: int) -> Window:
        """Return the window that a seed stands for. Raises `UserError` as `number` does."""
        return read_windows(self.folder).window(self.number(seed))

    def number(self, seed: int) -> int:
        """Return the number of a seed's window. Raises `UserError` for one that is none of the holdout."""
        windows = read_windows(self.folder)
        if seed >= VALIDATION_SEEDS:
            own = windows.part("training" if seed >= TRAINING_SEEDS else "validation")
            return own[seed % len(own)]
        if seed not in windows.part(self.part):
            numbers = ", ".join(map(str, windows.part(self.part)))
            raise bad_value("seeds", seed, f"windows of the trace's {self.part}: {numbers}")
        return seed

    def size(self, nodes: int | None = None, pods: int | None = None) -> tuple[int, int]:
        """Return how many nodes the trace begins with, and its arrivals a window on average."""
        if nodes not in (None, self.nodes):
            raise bad_value("nodes", nodes, f"{self.nodes}, which the trace brings, or none")
        return self.nodes, pods or max(1, round(self.pods_per_node * self.nodes))

    def expected(self, trace: str | None = None) -> Sequence[Pod]:
        """Return pods of the time before the holdout, or of the whole trace where nothing is for training."""
        del trace
        windows = read_windows(self.folder)
        lives = list(windows.trace.lives.values())
        early = [life.pod for life in lives if life.created_s < windows.split.holdout_from_s]
        return (early or [life.pod for life in lives])[-_EXPECTED_PODS:]


def _no_nodes(_count: int) -> tuple[Node, ...]:
    raise AssertionError("a trace brings its own nodes")


def _no_draw(_nodes: tuple[Node, ...], _pods: int, _rng: np.random.Generator) -> Workload:
    raise AssertionError("a trace brings its own pods")


def trace_task(folder: Path, goal: Task, part: Part = "holdout") -> TraceTask:
    """Return the task of a trace, with what another task is judged by for its goal.

    Raises `UserError` for a folder without a trace.
    """
    windows = read_windows(folder)
    numbers = windows.part(part)
    first = windows.window(numbers[0])
    nodes = sum(not node.is_control_plane for node in first.nodes)
    arrivals = sum(life.created_s >= 0 for life in windows.trace.lives.values())
    per_window = arrivals * windows.split.window_s / max(windows.trace.end_s, windows.split.window_s)
    return TraceTask(
        f"{goal.name}@{folder}", f"the trace {folder}, {goal.summary.rpartition('; ')[2]}", goal.metric, goal.reward,
        nodes, per_window / max(nodes, 1), _no_nodes, _no_draw, lookahead=goal.lookahead, also=goal.also,
        episodes=numbers, folder=folder, part=part,
    )  # fmt: skip
