"""PluginCluster: the cluster that kube-scheduler works on, as the plugin inside it describes it.

It is a `Cluster` of the scheduling loop whose pods come with their node, so that learning, recording and explaining
work as they do in `aaml schedule`. It sends no request to the Kubernetes API.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.kube.informer_handlers import runs_since_s
from aaml.kube.objects.convert import node_from_api
from aaml.kube.sources import see_pod
from aaml.plugin.listener import Listener
from aaml.plugin.messages import Bind, ClusterChanges, Explore, Hello, TakenChoice
from aaml.scheduling.loop import Ending, deployments
from aaml.scheduling.ports import BindResult, BindStatus, Decision
from aaml.scheduling.queue_sort import QueueSort

_LOG = logging.getLogger("aaml")
_END_S = 2.0  # what binds under way may take once nobody decides any more


class PluginCluster:
    """The `Cluster` behind a socket; all methods belong to one thread. Raises `UserError` where nobody can listen.

    `next_pod` returns a pod that kube-scheduler has chosen a node for, and `decision` is that choice. The state is the
    one that it chose from. Where the plugin begins anew, so does the state; binds whose end was not heard count as done
    where the pod has its node by then.
    """

    def __init__(self, path: Path) -> None:
        self._listener = Listener(path)
        self._state = ClusterState()
        self._names: dict[int, str] = {}  # by the plugin's number
        self._indices = np.zeros(0, dtype=np.int64)  # by the plugin's number; -1: no such node
        self._indices_of = -1  # the topology that the indices are of
        self._fresh: tuple[set[str], set[str]] | None = None  # nodes and pods told since the plugin began anew
        self._flights: dict[str, tuple[Pod, str, float]] = {}
        self._results: list[BindResult] = []
        self._mask: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._pending = 0
        self._explore: Explore | None = None  # what the plugin heard last
        self._begins = False  # the current choice does not follow the one before
        self.decision = Decision(None)
        """The choice for the pod that `next_pod` returned last."""
        self.weights = ""
        """The SHA-256 of the weights file that made it."""
        self.lost = 0
        """How many choices the plugin could not send."""

    @property
    def where(self) -> str:
        """The socket."""
        return str(self._listener.path.absolute())

    def ending(self, pod: Pod, following: Pod | None) -> Ending:
        """Return how an episode ends: with its deployment, as live, and where what followed is unknown."""
        return "truncated" if self._begins else deployments(pod, following)

    def explore(self, how: Explore) -> None:
        """Tell the plugin how much to explore, where it does not know."""
        if how != self._explore and self._listener.say(how):
            self._explore = how

    # ---- the Cluster port --------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """What runs where."""
        return self._state

    @property
    def exhausted(self) -> bool:
        """False: a plugin may come back."""
        return False

    def now_s(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def next_pod(self, timeout_s: float) -> Pod | None:
        """Apply messages until a pod got a node, and return that pod; None after `timeout_s` without one."""
        deadline_s = time.monotonic() + timeout_s
        while (message := self._listener.next(deadline_s - time.monotonic())) is not None:
            try:
                pod = self._take(message)
            except (KeyError, ValueError, UserError) as error:
                why = f"{error.args[0]} is not known" if isinstance(error, KeyError) else str(error)
                self._listener.hang_up(f"a message makes no sense ({why})")
                continue
            if pod is not None:
                return pod
        return None

    def sort_queue(self, sort: QueueSort | None, backoff_s: tuple[float, float] | None = None) -> None:
        """Do nothing: the queue is kube-scheduler's."""

    def upcoming(self, count: int) -> Sequence[Pod]:  # noqa: ARG002
        """Return nothing: kube-scheduler does not show the pods that follow."""
        return ()

    def pending_count(self) -> int:
        """Return how many pods wait."""
        return self._pending

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:  # noqa: ARG002  (of the pod that `next_pod` returned)
        """Return [N], the nodes that passed kube-scheduler's filters and were scored."""
        return self._mask

    def bind(self, pod: Pod, node_index: int, gpus: tuple[int, ...] | None = None) -> str:
        """Place the pod on a node, as kube-scheduler has; what becomes of it comes by `results`."""
        node_name = self._state.names[node_index]
        self._state.assume(pod, node_name, gpus, self.now_s())
        self._flights[pod.uid] = (pod, node_name, time.monotonic())
        return node_name

    def reject(self, pod: Pod) -> None:
        """Raise: a pod that fits nowhere is not reported."""
        raise AssertionError(f"{pod.key} has a node")

    def defer(self, pod: Pod) -> None:
        """Raise: a pod without a node is not reported."""
        raise AssertionError(f"{pod.key} has a node")

    def results(self) -> Sequence[BindResult]:
        """Return the binds that ended since the last call."""
        ended, self._results = self._results, []
        return ended

    def drain(self) -> None:
        """Wait a moment for what becomes of the latest choices."""
        deadline_s = time.monotonic() + _END_S
        while self._flights and self._listener.connected and (left_s := deadline_s - time.monotonic()) > 0:
            if isinstance(message := self._listener.next(left_s), Bind):
                self._settle(message)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    # ---- taking in what is told --------------------------------------------------------------------------------------

    def _take(self, message: Hello | ClusterChanges | TakenChoice | Bind) -> Pod | None:
        """Take one message in; returns the pod of a choice. Raises ValueError, KeyError or `UserError` for nonsense."""
        match message:
            case Hello():
                _LOG.info("the plugin in kube-scheduler is there")
                self._names, self._fresh, self._explore = {}, (set(), set()), None
            case ClusterChanges():
                self._change(message)
            case Bind():
                self._settle(message)
            case TakenChoice():
                self._begins = self._begin() or message.lost > 0
                return self._choose(message)
        return None

    def _change(self, changes: ClusterChanges) -> None:
        state = self._state
        for number in changes.gone_nodes:
            if (name := self._names.pop(number)) in state.index:
                state.remove_node(name)
        for change in changes.nodes:
            if change.number < 0:
                raise ValueError(f"number {change.number} of a node is negative")
            node = node_from_api(change.node)
            self._names[change.number] = node.name
            node_index = state.index.get(node.name)
            if node_index is None or replace(state.nodes[node_index], resource_version=node.resource_version) != node:
                state.upsert_node(node)  # not for a heartbeat
        for uid in changes.gone_pods:
            state.remove_pod(uid)
        for raw in changes.pods:
            seen = see_pod(raw)
            state.upsert_pod(seen.pod, seen.gpus, runs_since_s(seen.pod))
        if self._fresh is not None:
            self._fresh[0].update(change.node.metadata.name for change in changes.nodes)
            self._fresh[1].update(raw.metadata.uid for raw in changes.pods)

    def _begin(self) -> bool:
        """After a reconnect, forget what the plugin has not sent again, and end the binds whose outcome is unknown.

        Returns whether it reconnected.
        """
        if self._fresh is None:
            return False
        (nodes, pods), self._fresh = self._fresh, None
        for uid, (pod, node_name, _) in list(self._flights.items()):
            placement = self._state.placements.get(uid)
            there = uid in pods and placement is not None and placement.node_name == node_name
            self._settle(Bind(pod.uid, "" if there else "no message came"))
        for uid in self._state.placements.keys() - pods:
            self._state.remove_pod(uid)
        for name in self._state.index.keys() - nodes:
            self._state.remove_node(name)
        self._indices_of = -1
        return True

    def _choose(self, choice: TakenChoice) -> Pod:
        state = self._state
        seen = see_pod(choice.pod)
        pod = replace(seen.pod, node_name="") if seen.pod.node_name else seen.pod
        node_index = state.index[self._names[choice.node]]
        if pod.uid in state.placements:  # of an attempt before
            state.remove_pod(pod.uid)
        self._mask = self._nodes_in(choice.mask)
        self._mask[node_index] = True
        self._pending, self.weights = choice.pending, choice.weights
        self.lost += choice.lost
        self.decision = Decision(node_index, info={"explored": 1.0} if choice.explored else {}, by=choice.by)
        return pod

    def _nodes_in(self, mask: bytes) -> npt.NDArray[np.bool_]:
        """Return bool [N]: the nodes whose bit is set in a message's mask."""
        state = self._state
        if self._indices_of != state.topology_generation:
            self._indices = np.full(max(self._names, default=-1) + 1, -1, dtype=np.int64)
            for number, name in self._names.items():
                self._indices[number] = state.index[name]
            self._indices_of = state.topology_generation
        numbers = np.flatnonzero(np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little"))
        known = numbers < len(self._indices)
        known[known] = self._indices[numbers[known]] >= 0
        if not known.all():
            raise ValueError(f"node {int(numbers[~known][0])} of a mask is not known")
        found = np.zeros(len(state), dtype=np.bool_)
        found[self._indices[numbers]] = True
        return found

    def _settle(self, bind: Bind) -> None:
        """End a flight; one that nobody knows any more is none."""
        flight = self._flights.pop(bind.uid, None)
        if flight is None:
            return
        pod, node_name, begun_s = flight
        if bind.failed:
            self._state.forget(bind.uid)
        status: BindStatus = "failed" if bind.failed else "bound"
        self._results.append(BindResult(pod, node_name, status, bind.failed, time.monotonic() - begun_s))
