"""Nodes of a live cluster by the autoscaler `learned`: it looks, and its orders become NodeClaims made and deleted.

Karpenter launches what is claimed, and drains what is deleted with grace and disruption budgets. Without `apply` the
orders are only told.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from aaml.kube.objects import wire
from aaml.kube.sources import NODE_CLAIMS
from aaml.kube.transport import ApiError, Unreachable
from aaml.live.owned_nodes import OwnedNodes, claim_of, is_ours
from aaml.nodes.catalogue import InstanceType
from aaml.nodes.fitting import price_of
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Buy, Delete, Observed, OwnedNode

log = logging.getLogger(__name__)

_NOT_FOUND = 404
_SHORTEST_S, _LONGEST_S = 0.2, 1.0  # between two looks
_SETTLED_S = 60.0  # an empty node is kept for so long while pods wait or are on their way
_AGAIN_S = 60.0  # an order that a dry run repeats is told again once it was not given for so long
_NAMED = 3  # pods in a reason


@dataclass(frozen=True)
class MoveLimits:
    """What a controller may do: `moves` deletions in any `interval_s`, and `most_nodes` of ours at once."""

    moves: int = 3
    interval_s: float = 60.0
    most_nodes: int = 100


@dataclass(frozen=True)
class Order:
    """An order and why it is given; `saves` are dollars an hour, below 0 what it costs."""

    verb: str
    what: str
    why: str
    saves: float
    done: bool

    def __str__(self) -> str:
        """Return it as a line."""
        money = f"saves ${self.saves:.4f}" if self.saves >= 0.0 else f"costs ${-self.saves:.4f}"
        return f"{'' if self.done else 'would '}{self.verb} {self.what}: {self.why}; {money} an hour"


class NodeController:
    """Asks `LearnedNodes` again and again, and carries out what it orders, within limits.

    `node_class` is the class of the nodes that are bought, GROUP/KIND/NAME. `tell` gets every order. Never deleted are
    claims that are not ours and nodes with a pod that may not be disrupted. The seconds of the policy and of the limits
    pass as fast as those of `nodes`.
    """

    def __init__(
        self,
        nodes: OwnedNodes,
        policy: NodePolicy,
        node_class: str,
        tell: Callable[[Order], object],
        *,
        limits: MoveLimits = MoveLimits(),
        apply: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        claim_of(nodes.catalogue.types[0], node_class)  # refuses what is no class
        self._nodes, self._policy, self._class, self._tell = nodes, policy, node_class, tell
        self._limits, self._apply, self._clock = limits, apply, clock
        self._autoscaler = LearnedNodes(policy, nodes.catalogue)
        self._deleted_s: deque[float] = deque()
        self._ordered_s: dict[tuple[str, str, int], float] = {}  # in a dry run: when an order was last given

    def run(self, stopped: Callable[[], bool]) -> None:
        """Go on until `stopped()`; what is deleted or bought by then Karpenter carries to its end."""
        wait_s = 0.0
        while not self._nodes.watch.pump_until(stopped, wait_s) and not stopped():
            wait_s = self.step()

    def step(self) -> float:
        """Look once and do what follows; returns in how many seconds to look again.

        While some part of the cluster is not heard nothing is decided.
        """
        if self._nodes.watch.troubled:
            return _LONGEST_S
        now_s = self._now_s()
        if self._nodes.measure():
            log.info("nodes keep more of their room for themselves than the instance types say; counted from now on")
            self._autoscaler = LearnedNodes(self._policy, self._nodes.catalogue, first_look_s=now_s)
        seen, before = self._nodes.observe(now_s), self._autoscaler.replaced
        commands = self._autoscaler.act(seen)
        replaced = self._autoscaler.replaced if self._autoscaler.replaced != before else ()
        self._buy([command.types[0] for command in commands if isinstance(command, Buy)], replaced, seen)
        for command in commands:
            for name in command.names if isinstance(command, Delete) else ():
                self._delete(seen.nodes[name], seen)
        wait_s = (self._autoscaler.next_s - self._now_s()) / self._nodes.speed
        return min(max(wait_s, _SHORTEST_S), _LONGEST_S)

    def _now_s(self) -> float:
        return self._clock() * self._nodes.speed

    # ---- orders ------------------------------------------------------------------------------------------------------

    def _buy(self, kinds: Sequence[InstanceType], replaced: Sequence[str], seen: Observed) -> None:
        """Buy a node of each type: for pods that wait, or in place of nodes of which the moves are left to go."""
        if replaced and self._moves_left(seen.now_s) < len(replaced):
            return
        there = sum(not node.deleting for node in seen.nodes.values())
        room = max(self._limits.most_nodes - there, 0)
        if len(kinds) > room:
            log.warning("%d nodes are not bought: there are %d, and at most %d may be", len(kinds) - room, there,
                        self._limits.most_nodes)  # fmt: skip
        price = price_of(kinds)
        freed = sum(seen.nodes[name].price for name in replaced)
        for number, kind in enumerate(kinds[:room]):
            share = kind.cheapest.price / price * freed if price else 0.0
            why = f"in place of {', '.join(replaced)}" if replaced else _who_waits(seen)
            order = Order("buy", kind.name, why, share - kind.cheapest.price, self._apply)
            if not self._apply:
                self._suggest(order, number, seen.now_s)
            elif self._post(kind, seen.now_s):
                self._tell(order)

    def _delete(self, node: OwnedNode, seen: Observed) -> None:
        """Give a node back, if limits allow it."""
        claim, pods = self._nodes.claims[node.name], seen.pods_on(node.name)
        if any(map(seen.is_kept, pods.values())) or self._is_awaited(node, seen):
            return
        if self._moves_left(seen.now_s) < 1:
            return
        mine = "" if is_ours(claim) else ", not ours"
        moved = f"its {len(pods)} pods fit on other nodes" if pods else "it has no pods"
        order = Order("delete", f"{node.name} ({node.type.name}{mine})", moved, node.price, self._apply)
        if not self._apply:
            self._suggest(order, 0, seen.now_s)
        elif is_ours(claim) and self._remove(claim):
            self._deleted_s.append(seen.now_s)
            self._nodes.given_back(claim)
            self._tell(order)

    def _is_awaited(self, node: OwnedNode, seen: Observed) -> bool:
        """Whether an empty node became so, or ready, just now, while pods wait or leave others: they come here soon."""
        since_s = max(node.initialized_s or 0.0, node.last_pod_event_s or 0.0)
        if seen.pods_on(node.name) or seen.now_s - since_s >= _SETTLED_S:
            return False
        return bool(seen.waiting) or any(other.deleting and seen.pods_on(other.name) for other in seen.nodes.values())

    def _moves_left(self, now_s: float) -> int:
        while self._deleted_s and self._deleted_s[0] <= now_s - self._limits.interval_s:
            self._deleted_s.popleft()
        return self._limits.moves - len(self._deleted_s)

    def _suggest(self, order: Order, number: int, now_s: float) -> None:
        """Tell an order of a dry run, unless it is given again and again."""
        key = (order.verb, order.what, number)
        if now_s - self._ordered_s.get(key, -_AGAIN_S) >= _AGAIN_S:
            self._tell(order)
        self._ordered_s[key] = now_s

    def _post(self, kind: InstanceType, now_s: float) -> bool:
        try:
            answer = self._nodes.watch.transport.request("POST", NODE_CLAIMS.path, claim_of(kind, self._class))
        except (ApiError, Unreachable) as error:
            log.warning("no node of type %s is bought: %s", kind.name, error)
            return False
        self._nodes.bought(msgspec.json.decode(answer, type=wire.NodeClaimObject), now_s)
        return True

    def _remove(self, claim: wire.NodeClaimObject) -> bool:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": claim.metadata.uid}}
        try:
            self._nodes.watch.transport.request("DELETE", f"{NODE_CLAIMS.path}/{claim.metadata.name}", body)
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.status == _NOT_FOUND):
                log.warning("%s is not given back: %s", claim.metadata.name, error)
            return False
        return True


def _who_waits(seen: Observed) -> str:
    waiting = sorted(seen.waiting.values(), key=lambda each: (each.since_s, each.pod.key))
    if not waiting:
        return "pods need room"
    named = ", ".join(each.pod.key for each in waiting[:_NAMED]) + (", ..." if len(waiting) > _NAMED else "")
    one = len(waiting) == 1
    return (
        f"{len(waiting)} pod{'s wait' if not one else ' waits'} ({named}), {seen.now_s - waiting[0].since_s:.0f} s"
        + ("" if one else " the longest")
    )
