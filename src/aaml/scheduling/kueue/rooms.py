"""The nodes of a flavor as domains, and what is free in each: how many pods of a shape fit where."""

from collections.abc import Iterable, Mapping, Sequence

from aaml.cluster.objects import HOSTNAME_LABEL, Node, Pod
from aaml.cluster.quantity import PODS
from aaml.cluster.selectors import has_untolerated_taint, matches_required_nodes
from aaml.scheduling.kueue.objects import Flavor, PodSet, TopologyRequest
from aaml.scheduling.kueue.topology import Assignment, Domain, NoRoom, Topology

Amounts = Mapping[str, int]


class NodeRoom:
    """The nodes that a flavor's labels select and that have a label of each level; cordoned ones have no place in it.

    `name` is that of the Topology, for messages, and `balanced` Kueue's gate TASBalancedPlacement. Taints and selectors
    count where the narrowest level is the node.
    """

    def __init__(self, flavor: Flavor, nodes: Iterable[Node], name: str = "default", *, balanced: bool = False) -> None:
        self.flavor, self._balanced = flavor, balanced
        self._name = name
        self._by_node = bool(flavor.levels) and flavor.levels[-1] == HOSTNAME_LABEL
        self._used: dict[Domain, dict[str, int]] = {}
        self.set_nodes(nodes)

    def set_nodes(self, nodes: Iterable[Node], others: Mapping[str, Amounts] | None = None) -> None:
        """Take these nodes from now on; `others`: what pods that Kueue has not placed request on them, by node."""
        self._nodes: dict[Domain, Node] = {}
        self._free: dict[Domain, dict[str, int]] = {}
        for node in nodes:
            wanted = self.flavor.node_labels.items()
            if node.unschedulable or any(node.labels.get(key) != value for key, value in wanted):
                continue
            if any(level not in node.labels for level in self.flavor.levels):
                continue
            leaf = tuple(node.labels[level] for level in self.flavor.levels)
            self._nodes.setdefault(leaf, node)
            free = self._free.setdefault(leaf, {})
            _add(free, node.allocatable, 1)
            _add(free, (others or {}).get(node.name, {}), -1)
        self._topology = Topology(self.flavor.levels, tuple(self._free), self._name)

    @property
    def levels(self) -> Sequence[str]:
        """The labels of its levels, from wide to narrow."""
        return self.flavor.levels

    @property
    def leaves(self) -> Sequence[Domain]:
        """The domains of the narrowest level."""
        return list(self._free)

    def place(
        self, pods: PodSet, request: TopologyRequest, taken: Mapping[Domain, Amounts], *, empty: bool
    ) -> Assignment | NoRoom:
        """Return where a pod set goes (`flavors.Room`)."""
        asked = {**pods.requests, PODS: 1}
        fits: dict[Domain, int] = {}
        for leaf in self._free:
            if self._by_node and not self._takes(self._nodes[leaf], pods):
                continue
            left = self._left(leaf, empty=empty)
            _add(left, taken.get(leaf, {}), -1)
            fits[leaf] = count_in(asked, left)
        return self._topology.place(fits, pods.count, request, balanced=self._balanced)

    def holds(self, domains: Assignment, requests: Amounts) -> bool:
        """Say whether so many pods with these requests still fit in each of these domains."""
        return all(leaf in self._free and count_in(requests, self._left(leaf)) >= count for leaf, count in domains)

    def add(self, domains: Assignment, requests: Amounts, times: int = 1) -> None:
        """Let pods take their room, or give it back (`times` -1)."""
        for leaf, count in domains:
            used = self._used.setdefault(leaf, {})
            _add(used, requests, times * count)
            _add(used, {PODS: count}, times)

    def node_of(self, domain: Domain) -> Node:
        """Return the node that is a domain of the narrowest level."""
        return self._nodes[domain]

    def _left(self, leaf: Domain, *, empty: bool = False) -> dict[str, int]:
        left = dict(self._free[leaf])
        if not empty:
            for resource, amount in self._used.get(leaf, {}).items():
                if resource in left or amount:
                    left[resource] = left.get(resource, 0) - amount
        return left

    def _takes(self, node: Node, pods: PodSet) -> bool:
        if has_untolerated_taint((*pods.tolerations, *self.flavor.tolerations), node.taints):
            return False
        return matches_required_nodes(Pod("-", node_selector=pods.node_selector, affinity=pods.affinity), node)


def count_in(requests: Amounts, room: Amounts) -> int:
    """Return how often requests fit into a room; what the room has not got at all fits never."""
    fits = [int(room.get(resource, 0) / amount) for resource, amount in requests.items() if amount]
    return min(fits, default=0)


def _add(amounts: dict[str, int], more: Amounts, times: int) -> None:
    for resource, amount in more.items():
        amounts[resource] = amounts.get(resource, 0) + times * amount
