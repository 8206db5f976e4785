"""What pods ask of a node beside room, as Karpenter heeds it: labels, other pods, host ports, volumes that are bound.

A preference is required at first, and given up when the pod has no place. Of the terms of required node affinity the
first is tried, then the next. (Karpenter 1.15, pkg/controllers/provisioning/scheduling: `existingnode.go`,
`nodeclaim.go`, `preferences.go`, `volumetopology.go`; pkg/scheduling/hostportusage.go.)
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from aaml.cluster.objects import (
    ARCH_LABEL,
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    NO_AFFINITY,
    NO_VOLUMES,
    OS_LABEL,
    Affinity,
    HostPort,
    Pod,
)
from aaml.sim.autoscaler.catalogue import Catalogue
from aaml.sim.autoscaler.ports import OwnedNode
from aaml.sim.autoscaler.requirements import (
    WELL_KNOWN,
    Labels,
    compatible,
    labels_of,
    meet,
    merged,
    only,
    required,
)
from aaml.sim.autoscaler.topology import Placed, Shape, Topology, node_labels, shape_of

_OF_POOL = (ARCH_LABEL, OS_LABEL, CAPACITY_TYPE_LABEL)  # labels of which a NodePool says what they may be
_ANYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (addresses that stand for all; nothing is bound here)
_NONE_BOUND: tuple[Labels | None, ...] = (None,)


def is_constrained(pod: Pod) -> bool:
    """Whether a pod asks for more than room."""
    return bool(
        pod.node_selector or pod.spread or pod.host_ports
        or (pod.affinity is not NO_AFFINITY and pod.affinity != NO_AFFINITY)
        or (pod.volumes is not NO_VOLUMES and pod.volumes.node_terms)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod, with the preferences that it has not given up. It is asked for one of `volumes` too."""

    pod: Pod
    shape: Shape
    labels: Labels
    strict: Labels  # without preferences
    volumes: tuple[Labels | None, ...] = _NONE_BOUND

    @classmethod
    def of(cls, pod: Pod) -> "Wish":
        """Return what a pod asks for at first (scheduling/requirements.go)."""
        terms, selector = pod.affinity.required_nodes, labels_of(pod.node_selector)
        first = required(terms[0].labels) if terms else {}
        strict = merged(selector, first)
        preferred = _heaviest_first(pod.affinity).preferred_nodes
        labels = merged(selector, required(preferred[0].term.labels), first) if preferred else strict
        return cls(pod, shape_of(pod), labels, strict, _volumes(pod))

    def relaxed(self) -> "Wish | None":
        """Return it with one term or preference less; None where there is none to give up (preferences.go)."""
        affinity, spread = self.pod.affinity, self.pod.spread
        if affinity.required_nodes and len(affinity.required_nodes) > 1:
            return self._with(replace(affinity, required_nodes=affinity.required_nodes[1:]))
        for sign in (1, -1):
            pods = affinity.preferred_pods
            mine = sorted((each for each in pods if each.weight * sign > 0), key=lambda each: -each.weight * sign)
            if mine:
                others = tuple(each for each in pods if each.weight * sign <= 0)
                return self._with(replace(affinity, preferred_pods=(*mine[1:], *others)))
        if affinity.preferred_nodes:
            ordered = _heaviest_first(affinity)
            return self._with(replace(affinity, preferred_nodes=ordered.preferred_nodes[1:]))
        for number, each in enumerate(spread):
            if not each.hard:  # the last takes its place
                left = (*spread[:number], *spread[-1:], *spread[number + 1 : -1])[: len(spread) - 1]
                return Wish.of(replace(self.pod, spread=left))
        return None

    def _with(self, affinity: Affinity) -> "Wish":
        return Wish.of(replace(self.pod, affinity=affinity))


def _heaviest_first(affinity: Affinity) -> Affinity:
    ordered = tuple(sorted(affinity.preferred_nodes, key=lambda each: -each.weight))
    return affinity if ordered == affinity.preferred_nodes else replace(affinity, preferred_nodes=ordered)


def _volumes(pod: Pod) -> tuple[Labels | None, ...]:
    """Return what a node needs for a pod's bound volumes: one of these; combinations that cannot be, if all are."""
    of_each = [[required(term.labels) for term in terms if term.labels] for terms in pod.volumes.node_terms]
    of_each = [terms for terms in of_each if terms]
    if not of_each:
        return _NONE_BOUND
    chosen: list[Labels] = [{}]
    for terms in of_each:
        pairs = list(product(chosen, terms))
        chosen = [merged(*pair) for pair in pairs if meet(*pair)] or [merged(*pair) for pair in pairs]
    return tuple(chosen)


@dataclass(slots=True)
class Target:
    """A node, or a claim for one, with the pods that are meant for it: its labels, and who has which host ports."""

    labels: Labels
    ports: list[tuple[str, HostPort]]
    undefined: frozenset[str] = frozenset()  # labels that it need not have yet

    def has_ports(self, pod: Pod) -> bool:
        """Whether the host ports of a pod are free."""
        return not any(
            _clash(mine, taken) and key != pod.key for mine in pod.host_ports for key, taken in self.ports
        )  # fmt: skip


def _clash(one: HostPort, other: HostPort) -> bool:
    if (one.protocol or "TCP", one.port) != (other.protocol or "TCP", other.port):
        return False
    return one.host_ip == other.host_ip or bool(_ANYWHERE & {one.host_ip, other.host_ip})


@dataclass
class Constraints:
    """What matters beside room while some pods are packed on nodes and claims."""

    catalogue: Catalogue
    topology: Topology
    nodes: Sequence[OwnedNode]
    placed: Placed
    _targets: dict[int, Target] = field(default_factory=dict)  # nodes by row
    _hosts: int = 0

    @classmethod
    def of(
        cls, catalogue: Catalogue, nodes: Sequence[OwnedNode], placed: Placed, pods: Sequence[Pod],
        without: Collection[str],
    ) -> "Constraints":  # fmt: skip
        """Return those of pods; `without` names nodes that might go."""
        hosts = (node.name for node in nodes if node.name not in without)
        return cls(catalogue, Topology(catalogue.domains, placed, pods, without, hosts), nodes, placed)

    def node(self, row: int) -> Target:
        """Return a node as it is with the pods that are meant for it."""
        if row not in self._targets:
            node = self.nodes[row]
            pods = self.placed.seen.pods_on(node.name).values()
            ports = [(pod.key, each) for pod in pods for each in pod.host_ports]
            self._targets[row] = Target(node_labels(node), ports)
        return self._targets[row]

    def claim(self) -> Target:
        """Return a new claim."""
        self._hosts += 1
        pool = {key: only(*self.catalogue.domains[key]) for key in _OF_POOL}
        return Target({**pool, HOSTNAME_LABEL: only(f"claim {self._hosts}")}, [], WELL_KNOWN)

    def with_pod(self, target: Target, wish: Wish) -> Iterator[Labels]:
        """Return the labels that a node has with a pod on it, one for each way in which it may have its volumes."""
        if not target.has_ports(wish.pod) or not compatible(target.labels, wish.labels, target.undefined):
            return
        base = merged(target.labels, wish.labels)
        for volumes in wish.volumes:
            labels = base
            if volumes is not None:
                if not compatible(labels, volumes, target.undefined):
                    continue
                labels = merged(labels, volumes)
            domains = self.topology.narrowed(wish.pod, wish.shape, wish.strict, labels)
            if domains is not None and compatible(labels, domains, target.undefined):
                yield merged(labels, domains)

    def put(self, target: Target, wish: Wish, labels: Labels) -> None:
        """Let a pod go to a node or claim, which then has these labels."""
        target.labels = labels
        target.ports += [(wish.pod.key, each) for each in wish.pod.host_ports]
        if target.undefined:
            self.topology.register(next(iter(labels[HOSTNAME_LABEL].listed)))
        self.topology.record(wish.pod, wish.shape, labels)
