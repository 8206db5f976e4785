"""NodeSupply: the life of the nodes of a simulated cluster, from purchase to return, as an autoscaler orders it.

A node that is provisioned costs at once, and joins the cluster when it has registered and is ready. One that goes takes
no pods any more; its pods are evicted and wait again, and it is terminated when the last has left. When what happens
says `aaml.nodes.life_rules`, which compiled episodes ask too.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from itertools import chain
from math import inf

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import interpreted
from aaml.cluster.objects import HOSTNAME_LABEL, NO_GPU, NO_VOLUMES, NodeSelectorTerm, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.nodes import life_rules as life
from aaml.nodes.budgets import PodBudget, allowed_evictions, blocked_pods, stuck_pods
from aaml.nodes.catalogue import Catalogue, InstanceType
from aaml.nodes.commitments import Commitments
from aaml.nodes.committed import CommittedNodes
from aaml.nodes.descheduler import HighNodeUtilization
from aaml.nodes.fluid import Fluid
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.life_rules import DRAIN, READY, RECREATE, STEP, STOP
from aaml.nodes.meter import Meter, billed, charged
from aaml.nodes.ports import Autoscaler, Command, Delete, Evict, Observed, OwnedNode, Provision, Replace, Waiting
from aaml.nodes.settings import NodeTimes, Prices
from aaml.nodes.successors import begins_anew, chooser, drawn, is_made_again, node_name
from aaml.scheduling.costs import NodeCosts, is_released
from aaml.sim.cluster import SimCluster
from aaml.sim.timeline import AddNode, Cordon, RemoveNode

CONSOLIDATABLE_S = 60.0  # of an autoscaler that does not say after how long without a pod event a node may go


class NodeSupply:
    """Provisions and terminates nodes of a `SimCluster` (its `supply`) as an autoscaler orders.

    `rng` draws names of nodes and the rest of their delays: the same seed and decisions give the same bits. An evicted
    pod waits again as its owner's next one: for what was left of its lifetime, of a Job from the start. A pod without
    an owner is lost. Nodes that nobody provisioned stay as they are and cost nothing. `consolidatable_s`: after so
    many seconds without a pod event the autoscaler may give a node back, as policies are shown it.
    """

    def __init__(
        self,
        autoscaler: Autoscaler,
        catalogue: Catalogue,
        rng: np.random.Generator,
        *,
        times: NodeTimes = NodeTimes(),
        prices: Prices = Prices(),
        budgets: Sequence[PodBudget] = (),
        carbon_g_per_kwh: Sequence[float] = (),
        commitments: Commitments | None = None,
        consolidatable_s: float = CONSOLIDATABLE_S,
    ) -> None:
        self.autoscaler, self.catalogue, self.times, self.prices = autoscaler, catalogue, times, prices
        self._provisioner = autoscaler.beside if isinstance(autoscaler, HighNodeUtilization) else autoscaler
        self._learned = self._provisioner if isinstance(self._provisioner, LearnedNodes) else None
        committed = None if commitments is None else CommittedNodes(commitments, catalogue.types)
        self.meter = Meter(Fluid(catalogue), tuple(carbon_g_per_kwh), committed)
        self.seen = Observed(0.0)
        self.rng, self.budgets, self.consolidatable_s = rng, tuple(budgets), consolidatable_s
        self._heap: list[tuple[float, int, int, str]] = []
        self._sequence = 0
        self._later: dict[int, Pod] = {}  # successors, by the sequence number of their event
        self._replaced: dict[str, tuple[str, ...]] = {}  # by the node that is awaited: those that go then
        self._lacking: set[str] = set()  # uids of pods that request what no type names
        self._draining_s: dict[str, float] = {}  # by node: since when its pods are evicted

    def attach(self, cluster: SimCluster) -> None:
        """Look after this cluster's nodes from now on. Raises `UserError` for pods that no autoscaler here knows."""
        self._cluster = cluster
        self.seen.pods, self.seen.gpu_free = _Pods(cluster.state), _Devices(cluster.state)
        cluster.state.observe(self._observe)
        self.seen.released_s = NodeCosts(cluster.state, self.seen.nodes, self.consolidatable_s, self.paid).released_s
        self.seen.namespace_labels = cluster.state.namespace_labels
        gpus, plain = bool(self.catalogue.gpu_count.any()), not isinstance(self._provisioner, Karpenter)
        for pod in cluster.workload:
            _refuse(pod, gpus=gpus, plain=plain)

    def fork(self, cluster: SimCluster) -> "NodeSupply":
        """Return an independent copy that looks after a fork of the cluster."""
        twin = NodeSupply(
            self.autoscaler.copy(), self.catalogue, deepcopy(self.rng), times=self.times, prices=self.prices,
            budgets=self.budgets, consolidatable_s=self.consolidatable_s,
        )  # fmt: skip
        twin.meter, twin._sequence = self.meter.copy(), self._sequence
        nodes = {name: copy(node) for name, node in self.seen.nodes.items()}
        twin.seen = replace(
            self.seen, nodes=nodes, waiting=dict(self.seen.waiting), stopping=set(self.seen.stopping),
        )  # fmt: skip
        twin._heap, twin._later = list(self._heap), dict(self._later)
        twin._replaced, twin._draining_s = dict(self._replaced), dict(self._draining_s)
        twin._lacking = set(self._lacking)
        twin.attach(cluster)
        return twin

    # ---- what the cluster calls --------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When something happens next, or the autoscaler wants to be asked."""
        return min(self._heap[0][0] if self._heap else inf, self.autoscaler.next_s)

    def rejected(self, pod: Pod) -> float:
        """Take note of a pod that fits nowhere, and return for how many seconds no other pod is tried."""
        if pod.uid not in self.seen.waiting:
            self.seen.waiting[pod.uid] = Waiting(pod, self._cluster.now_s())
            if self.catalogue.lacking(pod):
                self._lacking.add(pod.uid)
        return self.times.failed_try_s

    def deleted(self, uid: str) -> None:
        """Take note of a pod that is deleted: its owner does not make it anew."""
        self._later = {sequence: pod for sequence, pod in self._later.items() if pod.uid != uid}

    def turn(self) -> bool:
        """Let what is due happen, else carry the autoscaler's orders out; returns whether pods may fit elsewhere now.

        Raises ValueError for an autoscaler that wants to be asked again at once.
        """
        now_s, happened = self._cluster.now_s(), False
        self.seen.now_s = now_s
        while self._heap and self._heap[0][0] <= now_s:
            _, sequence, kind, name = heapq.heappop(self._heap)
            happened |= self._happen(kind, name, sequence)
        if happened:
            return True
        seen, waits = self.seen, self._cluster.journal.waiting_since_s
        seen.waiting = {uid: each for uid, each in seen.waiting.items() if uid in waits}
        self._look_at_budgets()
        seen.evicted, seen.pod_hours = self._cluster.journal.counts["evicted"], self.meter.pod_hours
        while commands := self.autoscaler.act(self._planned()):
            for command in commands:
                happened |= self._carry_out(command)
        if self.autoscaler.next_s <= now_s:
            raise ValueError(f"the autoscaler wants to be asked at {self.autoscaler.next_s} s, and it is {now_s} s")
        return happened

    def _planned(self) -> Observed:
        """Return what is planned with: no node is provisioned, and no room kept, for a pod that no type can take."""
        if self._lacking.isdisjoint(self.seen.waiting):
            return self.seen
        waiting = {uid: each for uid, each in self.seen.waiting.items() if uid not in self._lacking}
        return replace(self.seen, waiting=waiting)

    def metrics(self) -> Mapping[str, float]:
        """Return the numbers of `aaml.sim.metrics.BILLED` so far."""
        now_s = self._cluster.now_s()
        return billed(self.meter, self._charged(now_s), self._cluster.journal.counts["evicted"], now_s)

    def paid(self, now_s: float) -> float:
        """Return the dollars that the cluster has cost so far: nodes, waits beyond the target and evictions."""
        self.meter.hold(now_s)
        return self.meter.dollars + self._charged(now_s)

    def _charged(self, now_s: float) -> float:
        """Return what waits beyond the target and evictions count, in dollars."""
        journal = self._cluster.journal
        return charged(self.prices, journal.waiting_times_s(now_s), journal.counts["evicted"])

    # ---- orders ------------------------------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> bool:
        match command:
            case Provision(types=types):
                self._provision(types)
                return False
            case Replace(names=names, types=types):
                self._mark(names)
                self._replaced[self._provision(types)] = names
            case Delete(names=names):
                self._mark(names)
                for name in names:
                    self._drain(name)
            case Evict(uid=uid):
                placement = self._cluster.state.placements.get(uid)
                if placement is None or uid in self.seen.stopping or not self._leaves(placement.pod):
                    return False
                self._look_at_budgets()
        return True

    def _provision(self, types: Sequence[InstanceType]) -> str:
        kind = min(types, key=lambda each: each.cheapest.price)
        now_s, times = self._cluster.now_s(), self.times
        letters, later_s = drawn(self.rng, times.initialization_spread_s)
        name, ways = node_name(letters), kind.launched
        offering = ways[interpreted(life.way_taken)(chooser(name), len(ways))]
        node = self.seen.nodes[name] = OwnedNode(name, self.catalogue[kind.name], offering, now_s)
        self.meter.hold(now_s)
        self.meter.launched(node)
        self.seen.changed_s = now_s
        ready_s = interpreted(life.ready_s)(times, now_s, later_s)
        for left in range(life.STEPS if times.join_step_s else 0, 0, -1):
            self._push(interpreted(life.step_s)(times, now_s, ready_s, left), STEP, name)
        self._push(ready_s, READY, name)
        return name

    def _mark(self, names: Sequence[str]) -> None:
        """Let nodes take no pods any more. Raises KeyError for a node that was not provisioned here."""
        self.seen.changed_s = self._cluster.now_s()
        for name in names:
            self.seen.nodes[name].deleting = True
            if name in self._cluster.state.index:
                self._cluster.happen(Cordon(self._cluster.now_s(), name))

    def _drain(self, name: str) -> None:
        """Begin to evict a node's pods, which is seen to again once it may be terminated or more of them may go."""
        if name in self.seen.nodes and name not in self._draining_s:
            now_s = self._draining_s[name] = self._cluster.now_s()
            self._push(interpreted(life.drained_s)(self.times, now_s), DRAIN, name)
            for uid in self.seen.pods_on(name):
                if not interpreted(is_released)(at_s := self.seen.released_s.get(uid, -inf), now_s):
                    self._push(at_s, DRAIN, name)
            self._evict(name)

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _push(self, at_s: float, kind: int, name: str) -> int:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, self._sequence, kind, name))
        return self._sequence

    def _happen(self, kind: int, name: str, sequence: int) -> bool:
        """Let an event happen; returns whether pods may fit elsewhere now."""
        if kind == READY:
            return self._ready(name)
        if kind == STEP:
            return self._step(name)
        if kind == STOP:
            return self._stop(name)
        if kind == RECREATE:
            if sequence in self._later:
                self._cluster.wait_again(self._later.pop(sequence))
            return True
        if name in self._draining_s:
            self._evict(name)
            self._give_back(name)
        return False

    def _step(self, name: str) -> bool:
        """A node that takes no pods yet is seen to change."""
        node = self.seen.nodes.get(name)
        if node is None or node.deleting:
            return False
        self._cluster.announce(node.type.node(name, node.offering))
        return True

    def _ready(self, name: str) -> bool:
        """A node joins the cluster; those that it replaces begin to go."""
        node, now_s = self.seen.nodes.get(name), self._cluster.now_s()
        if node is None or node.deleting:
            return False
        node.initialized_s = self.seen.changed_s = now_s
        if self._learned is not None:
            self._learned.came(now_s - node.launched_s)
        self._cluster.happen(AddNode(now_s, node.type.node(name, node.offering)))
        for other in self._replaced.pop(name, ()):
            self._drain(other)
        return True

    def _evict(self, name: str) -> None:
        """Evict the pods of a node that may be: others are tried again, or are waited for."""
        node_index, refused = self._cluster.state.index.get(name), False
        for uid, pod in () if node_index is None else list(self._cluster.state.node_pods[node_index].items()):
            if not self.seen.is_kept(pod) and uid not in self.seen.stopping:
                refused |= not self._leaves(pod)
        if refused:
            self._push(interpreted(life.retried_s)(self.times, self._cluster.now_s()), DRAIN, name)

    def _leaves(self, pod: Pod) -> bool:
        """Evict a pod, at once or after its grace; returns whether its disruption budgets let it go."""
        if self.budgets and allowed_evictions(self.budgets, pod, *self._pods()) < 1:
            return False
        if interpreted(life.has_grace)(self.times):
            self.seen.stopping.add(pod.uid)
            self._push(interpreted(life.stop_s)(self.times, self._cluster.now_s()), STOP, pod.uid)
        else:
            self._stop(pod.uid)
        return True

    def _stop(self, uid: str) -> bool:
        """An evicted pod leaves its node, and its owner makes the next one; nothing happens if it has ended itself."""
        cluster = self._cluster
        placement = cluster.state.placements.get(uid)
        if placement is None or (interpreted(life.has_grace)(self.times) and uid not in self.seen.stopping):
            return False
        pod, now_s = cluster.displace(uid), cluster.now_s()
        if not is_made_again(pod):
            cluster.journal.counts["lost"] += 1
            return True
        if pod.lifetime_s is not None and not begins_anew(pod):
            pod = replace(pod, lifetime_s=interpreted(life.left_s)(pod.lifetime_s, placement.since_s, now_s))
        pod = replace(pod, created_s=interpreted(life.recreated_s)(self.times, now_s))
        self._later[self._push(pod.created_s, RECREATE, uid)] = pod
        return True

    def _give_back(self, name: str) -> None:
        """Give a node back, if its pods are gone and it has been kept for long enough."""
        now_s, node_index = self._cluster.now_s(), self._cluster.state.index.get(name)
        if now_s < interpreted(life.drained_s)(self.times, self._draining_s[name]) or (
            node_index is not None and self._cluster.state.node_pods[node_index]
        ):
            return
        self.meter.hold(now_s)
        self.meter.gone(self.seen.nodes.pop(name))
        del self._draining_s[name]
        self.seen.changed_s = now_s
        if node_index is not None:
            self._cluster.happen(RemoveNode(now_s, name))

    def _look_at_budgets(self) -> None:
        """Note which pods their disruption budgets protect now."""
        if self.budgets:
            running, missing = self._pods()
            self.seen.blocked = blocked_pods(self.budgets, running, missing)
            self.seen.stuck = stuck_pods(self.budgets, running)

    def _pods(self) -> tuple[list[Pod], list[Pod]]:
        """Return the pods that run and stay, and those that stop, wait or are about to be made again."""
        placed = [placement.pod for placement in self._cluster.state.placements.values()]
        stopping = self.seen.stopping
        missing = [pod for pod in placed if pod.uid in stopping]
        missing += [*(each.pod for each in self.seen.waiting.values()), *self._later.values()]
        return [pod for pod in placed if pod.uid not in stopping], missing

    def _serve(self, uid: str, now_s: float) -> None:
        """Tell learned nodes how long a pod that has a node now has waited."""
        journal = self._cluster.journal
        if self._learned is not None and (since_s := journal.waiting_since_s.get(uid)) is not None:
            before_s = journal.waited_s.get(uid, -1.0)
            self._learned.serve(interpreted(life.waited_s)(before_s, since_s, now_s), before_s)

    def _observe(self, pod: Pod, node_name: str, placed: bool) -> None:
        """A pod is bound to a node, or has left it."""
        now_s = self._cluster.now_s()
        self.seen.stopping.discard(pod.uid)
        node = self.seen.nodes.get(node_name)
        if placed:
            self.seen.waiting.pop(pod.uid, None)
        if node is None:
            return
        if placed:
            self._serve(pod.uid, now_s)
        self.meter.hold(now_s)
        self.meter.placed(pod, node, 1 if placed else -1)
        self.seen.changed_s = now_s
        last_s = math.nan if node.last_pod_event_s is None else node.last_pod_event_s
        if interpreted(life.is_pod_event)(self.times, last_s, now_s):
            node.last_pod_event_s = now_s
        if node_name in self._draining_s and not placed:
            self._push(now_s, DRAIN, node_name)


class _Pods(Mapping[str, Mapping[str, Pod]]):
    """The pods of a state by the name of their node."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Mapping[str, Pod]:
        return self._state.node_pods[self._state.index[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.names)

    def __len__(self) -> int:
        return len(self._state)


class _Devices(Mapping[str, npt.NDArray[np.int64]]):
    """What is left of the devices of a state's nodes, by their names."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> npt.NDArray[np.int64]:
        node_index = self._state.index[name]
        return self._state.gpu_free[node_index, : self._state.gpu_count[node_index]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.names)

    def __len__(self) -> int:
        return len(self._state)


def _refuse(pod: Pod, *, gpus: bool, plain: bool) -> None:
    """Raise `UserError` for a pod whose constraints would mislead an autoscaler that does not look at them.

    With `gpus` there are types that have some. With `plain` the autoscaler looks at requests and selectors alone.
    """
    affinity, volumes = pod.affinity, pod.volumes
    bound = affinity.required_nodes is not None or affinity.required_pods or affinity.required_anti_pods
    found = (
        "volumes that are not bound" if volumes.unbound or volumes.missing
        else "a volume that is on one node" if any(map(_is_of_a_node, chain.from_iterable(volumes.node_terms)))
        else "GPUs, and no instance type has any" if pod.gpu != NO_GPU and not gpus
        else "a gang" if pod.group is not None
        else ""
    )  # fmt: skip
    if found:
        raise UserError(f"{pod.key}: it has {found}; simulated autoscalers take no such pods")
    found = (
        "" if not plain
        else "required affinity" if bound
        else "volumes" if volumes != NO_VOLUMES
        else "required topology spread" if any(each.hard for each in pod.spread)
        else "host ports" if pod.host_ports
        else ""
    )  # fmt: skip
    if found:
        raise UserError(
            f"{pod.key}: it has {found}; Karpenter heeds that, this autoscaler takes pods with requests, selectors of "
            "node labels, lifetimes and owners"
        )


def _is_of_a_node(term: NodeSelectorTerm) -> bool:
    return bool(term.fields) or any(each.key == HOSTNAME_LABEL for each in term.labels)
