"""FilterIndex: what filters and scores look up about a state, kept current while pods come and go."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import NO_AFFINITY, NO_VOLUMES, LabelSelector, Pod, PodAffinityTerm
from aaml.cluster.selectors import matches_all_pod_terms, matches_labels, matches_pod
from aaml.cluster.state import ClusterState

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MAX_CACHED = 4096  # masks of [N] bytes: 4 MiB at 1,000 nodes
_MAX_COUNTERS = 512
_WILDCARD_IP = "0.0.0.0"  # noqa: S104  (Kubernetes' word for every address; nothing is bound here)

Owned = Literal["required", "required_anti", "preferred"]
Kind = tuple[str, frozenset[tuple[str, str]], bool]  # a pod as selectors see it: namespace, labels, terminating


class PodCounter:
    """How many pods of one kind each node has, int64 [N] in `counts`."""

    def __init__(self, wanted: Callable[[Pod], bool], nodes: int) -> None:
        self.wanted = wanted
        self.counts: IntArray = np.zeros(nodes, dtype=np.int64)


class FilterIndex:
    """Lookups over one cluster state.

    What depends on the nodes alone is remembered until a node changes (`topology_generation`). Counts of pods, which
    affinity terms and spread constraints ask for, follow each placement and removal: pods that are the same to every
    selector (namespace, labels, whether they terminate) are matched once. The arrays returned are shared, so do not
    write to them.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._generation = -1
        self._cache: dict[Hashable, Any] = {}
        self._counters: dict[Hashable, PodCounter] = {}
        self._interested: dict[Kind, list[PodCounter]] = {}
        self._term_version = 0  # rises when a term becomes owned, or is owned no more
        # By node name, so that they outlive changes of nodes.
        self.owned: dict[Owned, dict[PodAffinityTerm, Counter[str]]] = {
            "required": {},
            "required_anti": {},
            "preferred": {},
        }  # terms of placed pods -> node -> number of pods (sum of weights for preferred terms)
        self.ports: dict[tuple[str, int], dict[str, Counter[str]]] = {}  # (protocol, port) -> node -> address -> pods
        self.claims: Counter[str] = Counter()  # ReadWriteOncePod claims in use
        self.attached: dict[str, Counter[tuple[str, str]]] = {}  # node -> (driver, volume) -> pods
        for placement in state.placements.values():
            self._record(placement.pod, placement.node_name, 1)
        state.observe(self._observe)

    @classmethod
    def of(cls, state: ClusterState) -> "FilterIndex":
        """Return the state's own index, made at the first call."""
        index = state.indexes.get(cls)
        if index is None:
            index = state.indexes[cls] = cls(state)
        index.sync()
        return cast("FilterIndex", index)

    def sync(self) -> None:
        """Drop what a change of nodes has made outdated."""
        if self._generation != self.state.topology_generation:
            self._generation = self.state.topology_generation
            self._cache.clear()
            self._counters.clear()
            self._interested.clear()

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def cached(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return what `build` made for a key since nodes last changed."""
        try:
            return self._cache[key]
        except KeyError:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            value = self._cache[key] = build()
            return value

    def domains(self, key: str) -> IntArray:
        """Return [N], the number that stands for each node's value of a label, or -1 where it has none."""

        def build() -> IntArray:
            numbers: dict[str, int] = {}
            codes = np.full(len(self.state), -1, dtype=np.int64)
            for node_index, node in enumerate(self.state.nodes):
                value = node.labels.get(key)
                if value is not None:
                    codes[node_index] = numbers.setdefault(value, len(numbers))
            return codes

        return cast("IntArray", self.cached(("domains", key), build))

    def domain_totals(self, key: str, counts: IntArray) -> IntArray:
        """Return [N], the sum of `counts` [N] over each node's domain, and 0 for nodes without the label."""
        codes = self.domains(key)
        # Shifted by one, so that nodes without the label gather in a bin of their own.
        totals = np.bincount(codes + 1, weights=counts, minlength=1).astype(np.int64)
        totals[0] = 0
        return totals[codes + 1]

    # ---- placed pods -------------------------------------------------------------------------------------------------

    def matching(self, term: PodAffinityTerm) -> IntArray:
        """Return [N] how many pods each node has that an affinity term is about."""
        spaces = self.state.namespace_labels
        return self._count(term, lambda pod: matches_pod(term, pod, spaces))

    def matching_all(self, terms: tuple[PodAffinityTerm, ...]) -> IntArray:
        """Return [N] how many pods each node has that match every term."""
        spaces = self.state.namespace_labels
        return self._count(terms, lambda pod: matches_all_pod_terms(terms, pod, spaces))

    def selected(self, namespace: str, selector: LabelSelector | None) -> IntArray:
        """Return [N], how many pods each node has for a spread constraint, to which terminating pods do not count.

        An empty selector counts no pod here, as in kube-scheduler.
        """
        if selector is None or not selector.requirements:
            return self._count(None, lambda _pod: False)
        return self._count(
            (namespace, selector),
            lambda pod: pod.namespace == namespace and not pod.terminating and matches_labels(selector, pod.labels),
        )

    def terms_about(self, pod: Pod, owned: Owned) -> list[PodAffinityTerm]:
        """Return the terms of placed pods that match this pod."""
        terms = self.owned[owned]
        if not terms:
            return []
        spaces = self.state.namespace_labels
        key = ("about", owned, self._term_version, pod.namespace, frozenset(pod.labels.items()))
        return cast(
            "list[PodAffinityTerm]",
            self.cached(key, lambda: [term for term in terms if matches_pod(term, pod, spaces)]),
        )

    def holders(self, owned: Owned, term: PodAffinityTerm) -> IntArray:
        """Return [N], how many pods with this term each node has.

        For a preferred term it is the sum of their weights.
        """

        def build() -> IntArray:
            counts = np.zeros(len(self.state), dtype=np.int64)
            for name, amount in self.owned[owned].get(term, {}).items():
                counts[self.state.index[name]] = amount
            return counts

        return cast("IntArray", self.cached(("holders", owned, term), build))

    def ports_in_conflict(self, protocol: str, port: int, host_ip: str) -> list[str]:
        """Return the names of nodes where the port is taken on that address."""
        wanted = host_ip or _WILDCARD_IP
        return [
            node
            for node, addresses in self.ports.get((protocol or "TCP", port), {}).items()
            if wanted == _WILDCARD_IP or wanted in addresses or _WILDCARD_IP in addresses
        ]

    def faults(self) -> list[str]:
        """Return what differs from an index made anew, in words; empty when nothing does."""
        fresh = FilterIndex(self.state.fork())
        found = [
            f"{name} of placed pods are counted as {getattr(self, name)}, and are {getattr(fresh, name)}"
            for name in ("owned", "ports", "claims", "attached")
            if getattr(self, name) != getattr(fresh, name)
        ]
        if self._generation == self.state.topology_generation:
            found += [
                f"pods that match {key} are counted as {counter.counts.tolist()}"
                for key, counter in self._counters.items()
                if not np.array_equal(counter.counts, fresh._count(key, counter.wanted))
            ]
        return found

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _count(self, key: Hashable, wanted: Callable[[Pod], bool]) -> IntArray:
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= _MAX_COUNTERS:
                self._counters.clear()
                self._interested.clear()
            counter = self._counters[key] = PodCounter(wanted, len(self.state))
            verdicts: dict[Kind, bool] = {}
            indices = self.state.index
            for placement in self.state.placements.values():
                kind = _kind(placement.pod)
                if kind not in verdicts:
                    verdicts[kind] = wanted(placement.pod)
                if verdicts[kind]:
                    counter.counts[indices[placement.node_name]] += 1
            for kind, known in self._interested.items():
                if verdicts.get(kind, False):
                    known.append(counter)
            # Kinds that no pod has now are looked at afresh when they appear.
            for kind in [kind for kind in self._interested if kind not in verdicts]:
                del self._interested[kind]
        return counter.counts

    def _observe(self, pod: Pod, node_name: str, placed: bool) -> None:
        sign = 1 if placed else -1
        self._record(pod, node_name, sign)
        if not self._counters or self._generation != self.state.topology_generation:
            return
        kind = _kind(pod)
        interested = self._interested.get(kind)
        if interested is None:
            if len(self._interested) >= _MAX_CACHED:
                self._interested.clear()
            interested = [counter for counter in self._counters.values() if counter.wanted(pod)]
            self._interested[kind] = interested
        node_index = self.state.index[node_name]
        for counter in interested:
            counter.counts[node_index] += sign

    def _record(self, pod: Pod, node_name: str, sign: int) -> None:
        affinity, volumes = pod.affinity, pod.volumes
        if affinity is NO_AFFINITY and volumes is NO_VOLUMES and not pod.host_ports:
            return  # most pods
        for term in affinity.required_pods:
            self._own("required", term, node_name, sign)
        for term in affinity.required_anti_pods:
            self._own("required_anti", term, node_name, sign)
        for weighted in affinity.preferred_pods:
            self._own("preferred", weighted.term, node_name, sign * weighted.weight)
        for each in pod.host_ports:
            port = each.protocol or "TCP", each.port
            nodes = self.ports.setdefault(port, {})
            _tally(nodes, node_name, each.host_ip or _WILDCARD_IP, sign)
            if not nodes:
                del self.ports[port]
        for claim in volumes.exclusive:
            self.claims[claim] += sign
            if not self.claims[claim]:
                del self.claims[claim]
        for volume in volumes.attachments:
            _tally(self.attached, node_name, volume, sign)

    def _own(self, owned: Owned, term: PodAffinityTerm, node_name: str, amount: int) -> None:
        terms = self.owned[owned]
        if term not in terms:
            terms[term] = Counter()
            self._term_version += 1
        terms[term][node_name] += amount
        if not terms[term][node_name]:
            del terms[term][node_name]
            if not terms[term]:
                del terms[term]
                self._term_version += 1
        counts = self._cache.get(("holders", owned, term))
        node_index = self.state.index.get(node_name)
        if counts is not None and node_index is not None and self._generation == self.state.topology_generation:
            counts[node_index] += amount


def _kind(pod: Pod) -> Kind:
    return pod.namespace, frozenset(pod.labels.items()), pod.terminating


def _tally(table: dict[str, Counter[Any]], node_name: str, item: Hashable, sign: int) -> None:
    """Count an item of a node up or down, leaving no zeros and no empty nodes behind."""
    counter = table.setdefault(node_name, Counter())
    counter[item] += sign
    if not counter[item]:
        del counter[item]
    if not counter:
        del table[node_name]
