"""What pods ask of a node beside resources, as Karpenter heeds it: labels, other pods, host ports, bound volumes.

A preference is required at first, and given up when the pod has no place. Of the terms of required node affinity the
first is tried, then the next. (Karpenter 1.15, pkg/controllers/provisioning/scheduling: `existingnode.go`,
`nodeclaim.go`, `preferences.go`, `volumetopology.go`; pkg/scheduling/hostportusage.go.)
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
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
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.ports import Observed, OwnedNode
from aaml.nodes.requirements import (
    WELL_KNOWN,
    Labels,
    compatible,
    is_refused,
    labels_of,
    meet,
    merged,
    only,
    required,
)
from aaml.nodes.rules import Ruled, Rules, Shape
from aaml.nodes.topology import Chosen, Placed, Topology

_OF_POOL = (ARCH_LABEL, OS_LABEL, CAPACITY_TYPE_LABEL)  # labels of which a NodePool says what they may be
_ANYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (addresses that stand for all; nothing is bound here)
_NONE_BOUND: tuple[Labels | None, ...] = (None,)


def is_constrained(pod: Pod) -> bool:
    """Whether a pod has scheduling constraints."""
    return bool(
        pod.node_selector or pod.spread or pod.host_ports
        or (pod.affinity is not NO_AFFINITY and pod.affinity != NO_AFFINITY)
        or (pod.volumes is not NO_VOLUMES and pod.volumes.node_terms)
    )  # fmt: skip


@dataclass(eq=False, slots=True)
class Wish:
    """What some pods ask for beside resources and ports, with the preferences that they have not given up.

    They ask for one of `volumes` too. `strict` is what they ask of labels without preferences.
    """

    like: Pod
    shape: Shape
    labels: Labels
    strict: Labels
    volumes: tuple[Labels | None, ...]
    rules: tuple[Ruled, ...]
    inverse: tuple[Ruled, ...]
    refused: bool
    _relaxed: "Wish | None" = None

    @classmethod
    def of(cls, pod: Pod, rules: Rules) -> "Wish":
        """Return what a pod asks for at first (scheduling/requirements.go)."""
        terms, selector = pod.affinity.required_nodes, labels_of(pod.node_selector)
        first = required(terms[0].labels) if terms else {}
        strict = merged(selector, first)
        preferred = _heaviest_first(pod.affinity).preferred_nodes
        labels = merged(selector, required(preferred[0].term.labels), first) if preferred else strict
        inverse = tuple(set(map(rules.apart, pod.affinity.required_anti_pods)))
        return cls(pod, rules.shape(pod), labels, strict, _volumes(pod), rules.of(pod), inverse, is_refused(pod))

    def relaxed(self, rules: Rules) -> "Wish | None":
        """Return it with one term or preference less; None where there is none to give up."""
        if self._relaxed is None and (pod := _relaxed(self.like)) is not None:
            self._relaxed = Wish.of(pod, rules)
        return self._relaxed


class Wishes:
    """What pods ask for, by the identity of what says so, which pods of a kind share."""

    def __init__(self) -> None:
        self.rules, self._known = Rules(), dict[tuple[str, int, int, int, int, int, int], Wish]()

    def of(self, pod: Pod) -> Wish:
        """Return what a pod asks for."""
        labels, selector = id(pod.labels) if pod.labels else 0, id(pod.node_selector) if pod.node_selector else 0
        key = pod.namespace, labels, selector, id(pod.affinity), id(pod.spread), id(pod.volumes), id(pod.tolerations)
        wish = self._known.get(key)
        if wish is None:
            wish = self._known[key] = Wish.of(pod, self.rules)  # which keeps what the key names
        return wish

    @classmethod
    def known(cls, seen: Observed) -> "Wishes":
        """Return what has been found out about the pods of a cluster so far."""
        if cls not in seen.known:
            seen.known[cls] = cls()
        found: Wishes = seen.known[cls]
        return found


def _relaxed(pod: Pod) -> Pod | None:
    """Return a pod with one term of node affinity or preference less; None where none is left (preferences.go)."""
    affinity, spread = pod.affinity, pod.spread
    if affinity.required_nodes and len(affinity.required_nodes) > 1:
        return replace(pod, affinity=replace(affinity, required_nodes=affinity.required_nodes[1:]))
    for sign in (1, -1):
        pods = affinity.preferred_pods
        mine = sorted((each for each in pods if each.weight * sign > 0), key=lambda each: -each.weight * sign)
        if mine:
            others = tuple(each for each in pods if each.weight * sign <= 0)
            return replace(pod, affinity=replace(affinity, preferred_pods=(*mine[1:], *others)))
    if affinity.preferred_nodes:
        ordered = _heaviest_first(affinity)
        return replace(pod, affinity=replace(affinity, preferred_nodes=ordered.preferred_nodes[1:]))
    for number, each in enumerate(spread):
        if not each.hard:  # the last takes its place
            left = (*spread[:number], *spread[-1:], *spread[number + 1 : -1])[: len(spread) - 1]
            return replace(pod, spread=left)
    return None


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


class Constraints:
    """What matters beside resources while pods are packed on nodes and claims. `without` names nodes that might go."""

    def __init__(
        self, catalogue: Catalogue, nodes: Sequence[OwnedNode], placed: Placed, pods: Sequence[Pod],
        without: Collection[str],
    ) -> None:  # fmt: skip
        self._nodes, self._placed = nodes, placed
        self._wishes = Wishes.known(placed.seen)
        self._first = {pod.uid: self._wishes.of(pod) for pod in pods}
        chosen = [
            Chosen(pod, wish.shape, wish.rules, wish.inverse)
            for pod, wish in zip(pods, self._first.values(), strict=True)
        ]
        self.topology = Topology(catalogue.domains, placed, chosen, without)
        self._targets: dict[int, Target] = {}  # by node index
        self._hosts = 0
        self._pool = {key: only(*catalogue.domains[key]) for key in _OF_POOL}

    def wishes(self, pod: Pod) -> Iterator[Wish]:
        """Return what a pod asks for, and then again and again with a preference less."""
        wish: Wish | None = self._first[pod.uid]
        while wish is not None:
            yield wish
            wish = wish.relaxed(self._wishes.rules)
            if wish is not None:
                self.topology.update(pod.uid, wish.rules)
        self.topology.update(pod.uid, self._first[pod.uid].rules)

    def node(self, node_index: int) -> Target:
        """Return a node as it is with the pods that are meant for it."""
        if node_index not in self._targets:
            node = self._nodes[node_index]
            self._targets[node_index] = Target(node.requirements, list(self._placed.ports.get(node.name, ())))
        return self._targets[node_index]

    def claim(self) -> Target:
        """Return a new claim."""
        self._hosts += 1
        return Target({**self._pool, HOSTNAME_LABEL: only(f"claim {self._hosts}")}, [], WELL_KNOWN)

    def with_pod(self, target: Target, pod: Pod, wish: Wish) -> Iterator[Labels]:
        """Return the labels that a node has with a pod on it, one for each way in which it may have its volumes."""
        if not target.has_ports(pod) or not compatible(target.labels, wish.labels, target.undefined):
            return
        base = merged(target.labels, wish.labels) if wish.labels else target.labels
        for volumes in wish.volumes:
            labels = base
            if volumes is not None:
                if not compatible(labels, volumes, target.undefined):
                    continue
                labels = merged(labels, volumes)
            domains = self.topology.narrowed(pod, wish.shape, wish.strict, labels)
            if domains is not None and compatible(labels, domains, target.undefined):
                yield merged(labels, domains) if domains else labels

    def put(self, target: Target, pod: Pod, wish: Wish, labels: Labels) -> None:
        """Let a pod go to a node or claim, which then has these labels."""
        target.labels = labels
        target.ports += [(pod.key, each) for each in pod.host_ports]
        self.topology.record(pod, wish.shape, labels)
