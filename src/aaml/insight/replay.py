"""The replay of a run: every placement, removal and scheduling attempt, so that any moment can be looked at again.

It is a log of events and holds no states. The use of all nodes at any time, and the state in which a decision was made,
are computed from the events.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters import feasible
from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import RACK_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Attempt, Cluster, Decision, Observer, OutcomeKind, Policy

FloatArray = npt.NDArray[np.float64]
GPU = "gpu"
RESOURCES = (CPU, MEMORY, GPU, PODS)
"""The resources whose use is shown."""


class Move(NamedTuple):
    """A pod comes to a node (it runs there since `since_s`) or leaves it.

    `pod` and `node` are indices into the replay's lists.
    """

    time_s: float
    pod: int
    node: int
    comes: bool
    gpus: tuple[int, ...] = ()
    since_s: float = 0.0


class AttemptRecord(NamedTuple):
    """One attempt to place a pod.

    `pod`, `node` and `upcoming` are indices into the replay's lists; `node` is -1 where no node was chosen, `upcoming`
    are the pods that the policy could see behind this one. `moves` is the number of moves before the attempt, `pending`
    that of the other pods that waited. `filter_s` and `policy_s` are the seconds that the filters and the policy took.
    `by` names who decided, "" where the replay's own policy did.
    """

    time_s: float
    pod: int
    kind: OutcomeKind
    node: int
    moves: int
    pending: int
    feasible: int
    filter_s: float
    policy_s: float
    explored: bool = False
    upcoming: tuple[int, ...] = ()
    by: str = ""


class Replay(Observer):
    """An observer that records a run. `nodes`, `pods`, `moves` and `attempts` only grow.

    `decisions` are the attempts in which the policy was called, in order. The first one has the number `forgotten`,
    which is 0 unless older events were dropped (`later`). `waits` are the times at which the number of waiting pods
    changed, where `on_waiting` is called; otherwise that number is known at attempts only. `nodes` are all that were
    there at any time, as last seen; `comings` are the times at which one came or went, with its index and whether it
    came, as noticed at the next attempt or move.
    """

    def __init__(self, state: ClusterState, now_s: Callable[[], float], policy: str = "") -> None:
        self.policy = policy
        self.nodes: list[Node] = []
        self.pods: list[Pod] = []
        self.moves: list[Move] = []
        self.attempts: list[AttemptRecord] = []
        self.decisions: list[AttemptRecord] = []
        self.forgotten = 0
        self.waits: list[tuple[float, int]] = []
        self.comings: list[tuple[float, int, bool]] = []
        self._state, self._now_s = state, now_s
        self._node_of: dict[str, int] = {}
        self._pod_of: dict[str, int] = {}
        self._seen_nodes, self._there = -1, frozenset[str]()
        self._kept: tuple[npt.NDArray[Any], ...] = (np.zeros(0),) * 3
        self._queue: tuple[FloatArray, FloatArray, FloatArray] = (np.zeros(0),) * 3
        self._queued = (0, 0)
        self._latest_state: tuple[AttemptRecord | None, ClusterState] = (None, state)
        self._pending: Callable[[], int] = lambda: 0
        self._look_at_nodes()
        for placement in state.pods():
            self._moved(placement.pod, placement.node_name, True)
        self._end = state.observe(self._moved)

    @classmethod
    def of(cls, cluster: Cluster, policy: Policy) -> "Replay":
        """Return a replay that records a policy: pass it to `play` or to a `Scheduler` as an observer."""
        replay = cls(cluster.state, cluster.now_s, policy.name)
        replay._pending = cluster.pending_count
        return replay

    def on_attempt(self, attempt: Attempt) -> None:
        """Record an attempt to place a pod."""
        outcome, context = attempt.outcome, attempt.context
        self._look_at_nodes()
        placed = outcome.kind == "assumed"
        record = AttemptRecord(
            self._now_s(), self._pod(attempt.pod), outcome.kind,
            self._node_of[outcome.node_name] if placed else -1, len(self.moves) - placed, self._pending(),
            0 if context is None else int(context.mask.sum()), max(attempt.latency_s - attempt.policy_s, 0.0),
            attempt.policy_s, bool(attempt.decision and attempt.decision.info.get("explored")),
            () if context is None else tuple(map(self._pod, context.upcoming)),
            "" if attempt.decision is None else attempt.decision.by,
        )  # fmt: skip
        self.attempts.append(record)
        if attempt.decision is not None:
            self.decisions.append(record)

    def on_seen(self, pod: Pod, node_name: str, pending: int) -> None:
        """Record a placement by another scheduler, which the state has just received."""
        node = self._node_of[node_name]
        record = AttemptRecord(
            self._now_s(), self._pod(pod), "bound", node, len(self.moves) - 1, pending, 0, 0.0, 0.0,
            by=pod.scheduler_name,
        )  # fmt: skip
        self.attempts.append(record)
        self.decisions.append(record)

    def on_waiting(self, pending: int) -> None:
        """Record how many pods wait from now on."""
        if not self.waits or self.waits[-1][1] != pending:
            self.waits.append((self._now_s(), pending))

    def later(self, time_s: float) -> "Replay":
        """Return a replay that begins at `time_s` and goes on in place of this one, which stays as it is.

        Pods that ran at that time come to their nodes at it.
        """
        self._end()
        twin = copy(self)
        twin.begin_at(time_s)
        return twin

    def begin_at(self, time_s: float) -> None:
        """Drop what happened before a time; pods, nodes and moves get new indices in new lists."""
        gone = sum(move.time_s < time_s for move in self.moves)
        here = [(time_s, int(place), True) for place in np.flatnonzero(self.there(np.array([time_s]))[0])]
        comings = [*here, *(each for each in self.comings if each[0] > time_s)]
        running: dict[int, Move] = {}
        for move in self.moves[:gone]:
            if move.comes:
                running[move.pod] = move._replace(time_s=time_s)
            else:
                running.pop(move.pod, None)
        moves = [*running.values(), *self.moves[gone:]]
        attempts = [record for record in self.attempts if record.time_s >= time_s]
        there = {place for place, node in enumerate(self.nodes) if node.name in self._state.index}
        nodes = sorted(
            there
            | {place for _, place, _ in comings}
            | {move.node for move in moves}
            | {record.node for record in attempts if record.node >= 0}
        )
        pods = sorted(
            {move.pod for move in moves} | {place for each in attempts for place in (each.pod, *each.upcoming)}
        )
        node_of, pod_of = ({old: new for new, old in enumerate(kept)} for kept in (nodes, pods))
        decided = {id(record) for record in self.decisions}
        self.forgotten += sum(record.time_s < time_s for record in self.decisions)
        self.nodes, self.pods = [self.nodes[place] for place in nodes], [self.pods[place] for place in pods]
        self._node_of = {node.name: place for place, node in enumerate(self.nodes)}
        self._pod_of = {pod.uid: place for place, pod in enumerate(self.pods)}
        self.comings = [(at_s, node_of[place], came) for at_s, place, came in comings]
        self.moves = [move._replace(pod=pod_of[move.pod], node=node_of[move.node]) for move in moves]
        self.attempts = [
            record._replace(
                pod=pod_of[record.pod], node=node_of.get(record.node, -1),
                upcoming=tuple(pod_of[place] for place in record.upcoming),
                moves=max(record.moves - gone, 0) + len(running),
            )
            for record in attempts
        ]  # fmt: skip
        self.decisions = [new for old, new in zip(attempts, self.attempts, strict=True) if id(old) in decided]
        earlier = [pending for at_s, pending in self.waits if at_s < time_s][-1:]
        self.waits = [*((time_s, pending) for pending in earlier), *(each for each in self.waits if each[0] >= time_s)]
        self._seen_nodes, self._kept, self._queued = -1, (np.zeros(0),) * 3, (-1, -1)
        self._latest_state = (None, self._state)
        self._end = self._state.observe(self._moved)

    # ---- queries -----------------------------------------------------------------------------------------------------

    @property
    def span_s(self) -> tuple[float, float]:
        """The times of the first and the last thing that happened."""
        times = [each[place].time_s for each in (self.moves, self.attempts) if each for place in (0, -1)]
        return (min(times), max(times)) if times else (0.0, 0.0)

    @property
    def workers(self) -> int:
        """How many of the nodes are not the control plane."""
        return sum(not node.is_control_plane for node in self.nodes)

    @property
    def racks(self) -> list[str]:
        """The rack of each node, "" where it has none."""
        return [node.labels.get(RACK_LABEL, "") for node in self.nodes]

    def offers(self) -> FloatArray:
        """Return [N, 4], what each node offers of `RESOURCES`; GPUs are counted in devices."""
        return np.array(
            [
                [node.gpu_count if name == GPU else node.allocatable.get(name, 0) for name in RESOURCES]
                for node in self.nodes
            ],
            dtype=np.float64,
        ).reshape(len(self.nodes), len(RESOURCES))

    def use(
        self, times_s: FloatArray, groups: Sequence[int] | None = None, of: Sequence[str] = RESOURCES
    ) -> FloatArray:
        """Return [T, G, R], the fraction that is requested at these times, which rise, of what each group offers.

        `groups` [N] has the group of each node from 0, -1 for a node to be left out; by default each node is one. `of`
        names R of the `RESOURCES`. NaN where a group offers none of a resource.
        """
        count = len(self.moves)  # it may grow meanwhile, in another thread, as the nodes may
        columns = [RESOURCES.index(name) for name in of]
        group = np.arange(len(self.nodes)) if groups is None else np.asarray(groups, dtype=np.int64)
        kept = np.flatnonzero(group >= 0)
        names, rows = np.unique(group[kept], return_inverse=True)
        row_of = np.full(len(self.nodes), -1)
        row_of[kept] = rows
        offered = np.zeros((len(names), len(columns)))
        np.add.at(offered, rows, self.offers()[kept][:, columns])
        requested = np.zeros((len(times_s) + 1, len(names), len(columns)))
        if count:
            times, nodes, asks = self._columns(count)
            seen = np.flatnonzero(row_of[nodes] >= 0)
            places = np.searchsorted(times_s, times[seen], side="left") * len(names) + row_of[nodes[seen]]
            for number, column in enumerate(columns):
                changes = np.bincount(places, weights=asks[seen, column], minlength=requested[:, :, number].size)
                requested[:, :, number] = changes.reshape(requested.shape[:2])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(offered > 0, requested[:-1].cumsum(axis=0) / offered, np.nan))

    def there(self, times_s: FloatArray) -> npt.NDArray[np.bool_]:
        """Return [T, N], which nodes there were at these times, which rise."""
        found = np.zeros((len(times_s), len(self.nodes)), dtype=np.bool_)
        for at_s, place, came in self.comings[:]:
            if place < len(self.nodes):
                found[np.searchsorted(times_s, at_s, side="left") :, place] = came
        return found

    def queue(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the times at which waiting pods were counted, the counts, and the times of the decisions.

        Pods are counted at each attempt, or where `on_waiting` was called.
        """
        count = len(self.attempts), len(self.waits)
        if self._queued != count:
            attempts = self.attempts[: count[0]]
            waits = self.waits[: count[1]] or [
                (record.time_s, record.pending + (record.kind in ("unschedulable", "declined"))) for record in attempts
            ]
            times, waiting = np.array(waits, dtype=np.float64).reshape(-1, 2).T
            self._queue = times, waiting, np.array([each.time_s for each in attempts if each.kind != "unschedulable"])
            self._queued = count
        return self._queue

    def latest(self, uid: str) -> AttemptRecord | None:
        """Return the latest decision on a pod, None where there was none."""
        place = self._pod_of.get(uid, -1)
        return next((record for record in reversed(self.decisions) if record.pod == place), None)

    def state_before(self, record: AttemptRecord) -> ClusterState:
        """Return the state in which a decision was made.

        Nodes that were not there are cordoned in it, so that node indices are those of `nodes`.
        """
        there = self.there(np.array([record.time_s]))[0].tolist()
        state = ClusterState(
            node if here else replace(node, unschedulable=True) for node, here in zip(self.nodes, there, strict=True)
        )
        placed: dict[int, Move] = {}
        for move in self.moves[: record.moves]:
            if move.comes:
                placed[move.pod] = move
            else:
                placed.pop(move.pod, None)
        for move in placed.values():
            state.assume(self.pods[move.pod], self.nodes[move.node].name, move.gpus, move.since_s)
        return state

    def context(self, record: AttemptRecord, policy: Policy) -> Context:
        """Return the context of a decision, for this or another policy."""
        latest, state = self._latest_state
        if latest is not record:  # several policies are asked about the same attempt
            state = self.state_before(record)
            self._latest_state = record, state
        pod = self.pods[record.pod]
        if record.kind == "bound":
            pod = replace(pod, node_name="")  # it was seen when it had its node already
        mask = feasible(state, pod).mask
        upcoming = tuple(self.pods[place] for place in record.upcoming)
        return Context(state, pod, mask, spec_of(policy), upcoming, record.pending, record.time_s)

    def decision(self, record: AttemptRecord) -> Decision:
        """Return what was decided; its `node_index` is one of `nodes`."""
        info = {"explored": 1.0} if record.explored else {}
        return Decision(record.node if record.node >= 0 else None, info=info)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _moved(self, pod: Pod, node_name: str, placed: bool) -> None:
        self._look_at_nodes()
        placement = self._state.placements.get(pod.uid) if placed else None
        gpus, since_s = ((), 0.0) if placement is None else (placement.gpus, placement.since_s)
        self.moves.append(Move(self._now_s(), self._pod(pod), self._node_of[node_name], placed, gpus, since_s))

    def _look_at_nodes(self) -> None:
        if self._seen_nodes == self._state.topology_generation:
            return
        self._seen_nodes = self._state.topology_generation
        for node in self._state.nodes:
            place = self._node_of.setdefault(node.name, len(self.nodes))
            self.nodes[place : place + 1] = [node]
        there, now_s = frozenset(self._state.names), self._now_s()
        for name in sorted(there ^ self._there):
            self.comings.append((now_s, self._node_of[name], name in there))
        self._there = there

    def _pod(self, pod: Pod) -> int:
        place = self._pod_of.setdefault(pod.uid, len(self.pods))
        if place == len(self.pods):
            self.pods.append(pod)
        return place

    def _columns(self, count: int) -> tuple[npt.NDArray[Any], ...]:
        """Return times, nodes and what comes or goes, [M, 4], of the first so many moves; kept for the next time."""
        if len(self._kept[0]) != count:
            times, pods, nodes, comes = map(np.array, list(zip(*self.moves[:count], strict=True))[:4])
            asks = np.array([self._asks(pod) for pod in self.pods])
            self._kept = times, nodes, np.where(comes, 1.0, -1.0)[:, None] * asks[pods]
        return self._kept

    @staticmethod
    def _asks(pod: Pod) -> tuple[float, ...]:
        return (pod.request(CPU), pod.request(MEMORY), pod.gpu.total_milli / DEVICE_MILLI, 1.0)
