"""The autoscaler `learned`: it provisions, drains and replaces nodes by prices, with the numbers of a `NodePolicy`.

All that it orders can be ordered from Karpenter through NodeClaims: one of a named instance type is created, or one is
deleted, which drains its node with grace and disruption budgets.

*Provisioning.* Pods that wait are placed on nodes that are there or in the making. For the others the type with the
most value for its price is provisioned, again and again.

*Draining.* Now and then it goes through the nodes, the one first whose price is worth the most against what moving its
pods counts. A node goes where all its pods fit elsewhere. One or two go for cheaper ones where that saves enough: these
are provisioned first, and the others go once they are ready, if all pods still fit then.

The rules are compiled (`aaml.nodes.learned_rules`). Here they are asked about an `Observed`; compiled episodes ask them
about their own arrays.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from math import inf, nan

import numpy as np

from aaml.cluster.kernels import called
from aaml.nodes import learned_rules as rules
from aaml.nodes.arrays import Sold, memory
from aaml.nodes.catalogue import Catalogue, Selection, selection
from aaml.nodes.commitments import NOTHING_COMMITTED, Book, Commitments
from aaml.nodes.committed import book_of
from aaml.nodes.kept_out import selections
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Command, Delete, Observed, Provision
from aaml.nodes.rows import BUYS, DELETES, NODE, NOTHING, POD, POD_TIME, STATE, TERMS


@dataclass
class LearnedNodes:
    """Provisions and drains nodes of a catalogue by a policy. `first_look_s`: when it first looks for some to drain.

    With `commitments` a node counts what it adds to what is paid anyway. Of a type that is launched in several zones at
    one price the first counts.
    """

    policy: NodePolicy
    catalogue: Catalogue
    first_look_s: float = 0.0
    replaced: tuple[str, ...] = ()
    """The nodes that go once what was provisioned in their place is ready."""
    commitments: Commitments = NOTHING_COMMITTED
    # by pod that waits: when it asks for a node again
    _again_s: dict[tuple[str, float], float] = field(default_factory=dict)
    _at: np.void = field(init=False, repr=False)
    _terms: np.void = field(init=False, repr=False)
    _sold: Sold = field(init=False, repr=False)
    _selections: frozenset[Selection] = field(init=False, repr=False)
    _book: Book = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._at = np.zeros(1, STATE)[0]
        for name, value in {
            "opened_s": inf, "latest_s": -inf, "due_s": self.first_look_s, "again_s": inf, "slower": 1.0,
            "loaded_s": -inf, "drained_s": -inf, "nothing_s": nan, "replaced_s": -inf, "replaced": -1,
            "replaced_too": -1, "launch_s": rules.LAUNCH_S, "lead_s": rules.LEAD_S,
            "patience_s": self.policy.patience_s,
        }.items():  # fmt: skip
            self._at[name] = value
        self.sell(self.catalogue)

    @property
    def lead_s(self) -> float:
        """How long before the promised second of a pod a node is provisioned: it moves with what pods have waited."""
        return float(self._at["launch_s"] + self._at["lead_s"])

    def eviction_dollars(self, pods: int, leaving: int = 0) -> float:
        """Return what evicting one of so many pods counts now, with so many on nodes on their way out.

        It moves with how many were evicted.
        """
        return float(rules.eviction_dollars(self._at, self._terms, pods, leaving))

    def evictions_left(self, leaving: int = 0) -> float:
        """Return how many more pods may be evicted by what is promised, with so many on nodes on their way out."""
        return float(rules.evictions_left(self._at, self._terms, leaving))

    @property
    def next_s(self) -> float:
        """The next purchase or look, or a pod that asks again."""
        return float(rules.next_s(self._at, self._terms))

    def sell(self, catalogue: Catalogue) -> None:
        """Go on with other types, offerings or prices. The types of nodes that are there stay in a catalogue."""
        self.catalogue, self._selections = catalogue, frozenset()
        self._offer(catalogue)

    def _offer(self, catalogue: Catalogue) -> None:
        """Plan with these types."""
        self._sold, self._at["nothing_s"] = Sold.of(catalogue, self.policy.size_power), nan
        self._terms = np.zeros(1, TERMS)[0]
        self._book = book_of(self.commitments, catalogue.types)
        sizes = {
            "kinds": len(catalogue), "corners": len(self._sold.corners), "by_node": 1,
            "commitments": len(self._book.amounts), "steps": len(self._book.steps), "knows": 1,
        }  # fmt: skip
        for name, value in (self.policy.terms() | sizes).items():
            self._terms[name] = value

    def serve(self, waited_s: float, before_s: float = -1.0) -> None:
        """Take note that a pod has got a node.

        It has waited so many seconds in all; `before_s` of them before it was evicted, -1 if it was not.
        """
        rules.served(self._at, self._terms, waited_s, before_s)

    def came(self, seconds: float) -> None:
        """Take note that a node has become ready so many seconds after its launch."""
        rules.came(self._at, seconds)

    def copy(self) -> "LearnedNodes":
        """Return an independent copy."""
        return deepcopy(self)

    def act(self, seen: Observed) -> Sequence[Command]:
        """Provision for pods that have waited for long enough, else let nodes go when it is time to look."""
        self._at["now_s"] = seen.now_s
        self._at["evicted"], self._at["pod_hours"] = seen.evicted, seen.pod_hours
        if not self._is_due(seen):
            return ()
        self._tell_apart(seen)
        self._at["changed_s"] = seen.changed_s
        names = [*seen.nodes, *(name for name in self.replaced if name not in seen.nodes)]
        self._at["replaced"], self._at["replaced_too"] = [*map(names.index, self.replaced), -1, -1][:2]
        found = self._sold.seen(seen, self._at, self._terms, book=self._book)
        work = memory(found)
        orders, count = called(rules.decide, found, work)
        self.replaced = tuple(
            names[number] for number in (self._at["replaced"], self._at["replaced_too"]) if number >= 0
        )
        if orders == BUYS:
            return [Provision((self._sold.catalogue.types[kind],)) for kind in work.bought[:count].tolist()]
        if orders == NOTHING:
            return []
        planned = [names[number] for number in found.nodes[NODE.plan, : self._at["planned"]].tolist()]
        return [Delete(tuple(planned))] if orders == DELETES else [Delete((name,)) for name in planned]

    def _tell_apart(self, seen: Observed) -> None:
        """Let the offerings of a type stand apart that pods select between, or are kept out of."""
        waiting = (each.pod for each in seen.waiting.values())
        pods = [*waiting, *chain.from_iterable(here.values() for here in seen.pods.values())]
        found = {selection(pod) for pod in pods if pod.node_selector}
        asked_for = frozenset(found.union(selections(seen, pods, self.catalogue))) - {frozenset()}
        if asked_for != self._selections:
            self._selections = asked_for
            if (catalogue := self.catalogue.apart(asked_for)) != self._sold.catalogue:
                self._offer(catalogue)

    def _is_due(self, seen: Observed) -> bool:
        """Take note of the pods that ask for nodes; returns whether it is time to provision or to look."""
        waits = len(seen.waiting)
        pods, times = np.zeros((len(POD), waits), np.int32), np.zeros((len(POD_TIME), waits))
        pods[POD.waiting] = np.arange(waits)
        times[POD_TIME.noted_s] = [each.since_s for each in seen.waiting.values()]
        known = [
            (uid, each.pod.created_s) for uid, each in seen.waiting.items()
        ]  # the next of an evicted pod is another
        times[POD_TIME.again_s] = [self._again_s.get(each, -inf) for each in known]
        self._at["noted"] = waits
        ready = sum(node.initialized_s is not None for node in seen.nodes.values())
        due = rules.collect(self._at, self._terms, ready, pods, times)
        self._again_s = dict(zip(known, times[POD_TIME.again_s].tolist(), strict=True))
        return bool(due)
