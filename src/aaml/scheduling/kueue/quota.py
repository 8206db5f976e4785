"""Quotas of ClusterQueues and cohorts, and what is used of them, as Kueue 0.17 counts (pkg/cache/scheduler).

A node of the tree lends its parent all but what a lending limit keeps at home. What it uses beyond that counts against
its parent. Cohorts may have cohorts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aaml.errors import bad_value
from aaml.scheduling.kueue.objects import ClusterQueue, Cohort, FlavorResource, Quota

Amounts = Mapping[FlavorResource, int]
_NONE = Quota(0)


@dataclass
class _Node:
    """A ClusterQueue or a cohort: its quotas, those of all below it, and what is used."""

    quotas: Mapping[FlavorResource, Quota]
    parent: "_Node | None" = None
    children: list["_Node"] = field(default_factory=list)
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    usage: dict[FlavorResource, int] = field(default_factory=dict)

    def quota(self, of: FlavorResource) -> Quota:
        return self.quotas.get(of, _NONE)

    def used(self, of: FlavorResource) -> int:
        return self.usage.get(of, 0)

    def kept(self, of: FlavorResource) -> int:
        """Return how much is never lent."""
        limit = self.quota(of).lending_limit
        return 0 if limit is None else max(0, self.subtree.get(of, 0) - limit)

    def kept_free(self, of: FlavorResource) -> int:
        return max(0, self.kept(of) - self.used(of))

    def available(self, of: FlavorResource) -> int:
        """Return how much is free for it, what it may borrow included; less than 0 where it has too much."""
        total = self.subtree.get(of, 0)
        if self.parent is None:
            return total - self.used(of)
        from_parent = self.parent.available(of)
        limit = self.quota(of).borrowing_limit
        if limit is not None:
            stored = total - self.kept(of)
            from_parent = min(stored - max(0, self.used(of) - self.kept(of)) + limit, from_parent)
        return self.kept_free(of) + from_parent

    def potential(self, of: FlavorResource) -> int:
        """Return how much it could have if nothing were used."""
        total = self.subtree.get(of, 0)
        if self.parent is None:
            return total
        most = self.kept(of) + self.parent.potential(of)
        limit = self.quota(of).borrowing_limit
        return most if limit is None else min(total + limit, most)

    def add(self, of: FlavorResource, amount: int) -> None:
        free = self.kept_free(of)
        self.usage[of] = self.used(of) + amount
        if self.parent is not None and amount > free:
            self.parent.add(of, amount - free)

    def remove(self, of: FlavorResource, amount: int) -> None:
        in_parent = self.used(of) - self.kept(of)
        self.usage[of] = self.used(of) - amount
        if in_parent > 0 and self.parent is not None:
            self.parent.remove(of, min(amount, in_parent))

    def height(self) -> int:
        return max((child.height() + 1 for child in self.children), default=0)

    def sum_up(self) -> None:
        self.subtree = {of: quota.nominal for of, quota in self.quotas.items()}
        for child in self.children:
            child.sum_up()
            for of, total in child.subtree.items():
                self.subtree[of] = self.subtree.get(of, 0) + total - child.kept(of)


class Quotas:
    """The quotas of all ClusterQueues, and what is used of them. Raises `UserError` for cohorts in a circle."""

    def __init__(self, queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort] = ()) -> None:
        queues, known = list(queues), {cohort.name: cohort for cohort in cohorts}
        self._queues = {queue.name: _Node(queue.quotas) for queue in queues}
        nodes = {name: _Node(cohort.quotas) for name, cohort in known.items()}
        parents = {name: cohort.parent for name, cohort in known.items() if cohort.parent}
        for name in known:
            _root_of(name, parents)
        self._roots = {queue.name: _root_of(queue.cohort, parents) for queue in queues}
        self._below_others = {queue.name for queue in queues if queue.cohort in parents}
        for child, parent in (
            *((self._queues[queue.name], queue.cohort) for queue in queues if queue.cohort),
            *((nodes[name], parent) for name, parent in parents.items()),
        ):
            above = nodes.setdefault(parent, _Node({}))
            child.parent = above
            above.children.append(child)
        for node in (*self._queues.values(), *nodes.values()):
            if node.parent is None:
                node.sum_up()

    def related(self, queue: str) -> list[str]:
        """Return the queues of the same tree of cohorts, this one included."""
        root = self._roots[queue]
        return [name for name, other in self._roots.items() if name == queue or (root and other == root)]

    def stirs(self, queue: str) -> bool:
        """Say whether a queue's cohort is part of another one."""
        return queue in self._below_others

    def available(self, queue: str, of: FlavorResource) -> int:
        """Return how much a queue may take now, what it may borrow included."""
        return max(0, self._queues[queue].available(of))

    def potential(self, queue: str, of: FlavorResource) -> int:
        """Return how much a queue could take if nothing were used."""
        return self._queues[queue].potential(of)

    def used(self, queue: str, of: FlavorResource) -> int:
        """Return how much a queue has taken."""
        return self._queues[queue].used(of)

    def quota(self, queue: str, of: FlavorResource) -> Quota:
        """Return a queue's own quota."""
        return self._queues[queue].quota(of)

    def borrowing(self, queue: str, of: FlavorResource, amount: int) -> tuple[int, bool]:
        """Return the height of the smallest tree of cohorts in which so much more fits, and whether it has a parent.

        0 is the queue itself: it would borrow nothing.
        """
        node = self._queues[queue]
        if node.parent is None or node.used(of) + amount <= node.quota(of).nominal:
            return 0, node.parent is not None
        left = amount - node.kept_free(of)
        above: _Node | None = node.parent
        top = node.parent
        while above is not None:
            top = above
            if above.used(of) + left <= above.subtree.get(of, 0):
                return above.height(), above.parent is not None
            left -= above.kept_free(of)
            above = above.parent
        return top.height(), False

    def add(self, queue: str, amounts: Amounts) -> None:
        """Let a queue take so much more."""
        for of, amount in amounts.items():
            self._queues[queue].add(of, amount)

    def remove(self, queue: str, amounts: Amounts) -> None:
        """Let a queue give so much back."""
        for of, amount in amounts.items():
            self._queues[queue].remove(of, amount)


def _root_of(cohort: str, parents: Mapping[str, str]) -> str:
    """Return the cohort above all others that a cohort is in, "" of ""."""
    seen = [cohort]
    while (above := parents.get(seen[-1])) is not None:
        if above in seen:
            raise bad_value("parentName", " -> ".join([*seen, above]), "cohorts that are in no circle")
        seen.append(above)
    return seen[-1]
