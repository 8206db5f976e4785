"""The controller of `aaml autoscale`: it observes the cluster, and creates and deletes NodeClaims as `learned` orders.

Karpenter launches what is claimed, and drains what is deleted with grace and disruption budgets. Without `apply` the
orders are only logged. Limits are measured on the claims that exist (`OwnedNodes.mine`), and an order without an answer
counts as carried out.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import msgspec

from aaml.kube.objects import wire
from aaml.kube.sources import NODE_CLAIMS, NODE_POOLS
from aaml.kube.transport import NOT_FOUND, ApiError, Unreachable
from aaml.live.autoscale_metrics import AutoscaleMetrics
from aaml.live.node_claims import is_ours, new_claim
from aaml.live.node_pools import active
from aaml.live.node_template import NodeTemplate
from aaml.live.owned_nodes import OwnedNodes
from aaml.live.promise import PromiseMeter
from aaml.live.purchases import SETTLED_S, Purchases
from aaml.live.rate_limited_log import RateLimitedLog
from aaml.nodes.catalogue import InstanceType, price_of
from aaml.nodes.commitments import NOTHING_COMMITTED, Commitments
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Delete, Observed, OwnedNode, Provision, Waiting

_SERVER_ERROR = 500  # from here on a request may have been carried out
_SHORTEST_S, _LONGEST_S = 0.2, 1.0  # between two looks
_HOUR_S = 3600.0
_AGAIN_S = 60.0  # an order that a dry run repeats is told again once it was not given for so long
_NAMED = 3  # pods in a reason
_LATE_S = 900.0  # after which pods that still wait are told, whatever the reason
_FEW = 0.2  # of our nodes: while more are out of order none of them is drained, as in Karpenter (node/health)


@dataclass(frozen=True)
class MoveLimits:
    """What a controller may do: `moves` deletions in any `interval_s`, and `most_nodes` claims of ours at once."""

    moves: int = 3
    interval_s: float = 60.0
    most_nodes: int = 100


@dataclass(frozen=True)
class Order:
    """An order and its reason; `saves` are dollars an hour, negative for a cost, None where unknown."""

    verb: str
    what: str
    why: str
    saves: float | None
    done: bool

    def __str__(self) -> str:
        """Return it as a line."""
        line = f"{'' if self.done else 'would '}{self.verb} {self.what}: {self.why}"
        if self.saves is None:
            return line
        money = f"saves ${self.saves:.4f}" if self.saves >= 0.0 else f"costs ${-self.saves:.4f}"
        return f"{line}; {money} an hour"


class NodeController:
    """Runs `LearnedNodes` in a loop and carries out its orders, within limits.

    `template` is what all provisioned nodes have in common. `tell` is called with every order. Claims of others and
    nodes with a pod that may not be evicted are never deleted. While Karpenter provisions for NodePools itself, nothing
    is provisioned here, unless `beside_nodepools`. The seconds of the policy and of the limits are those of `nodes`.
    """

    def __init__(
        self,
        nodes: OwnedNodes,
        policy: NodePolicy,
        template: NodeTemplate,
        tell: Callable[[Order], object],
        *,
        limits: MoveLimits = MoveLimits(),
        apply: bool = False,
        beside_nodepools: bool = False,
        metrics: AutoscaleMetrics | None = None,
        clock: Callable[[], float] | None = None,
        commitments: Commitments = NOTHING_COMMITTED,
    ) -> None:
        self._nodes, self._policy, self._template, self._tell = nodes, policy, template, tell
        self._limits, self._apply, self._beside_nodepools = limits, apply, beside_nodepools
        self._clock = clock or steady_clock()
        self._metrics = metrics or AutoscaleMetrics()
        self._metrics.most_nodes.set(limits.most_nodes)
        for name, value in policy.promised.items():
            self._metrics.promised.labels(name).set(value)
        self._promise = PromiseMeter(policy)
        self.promise = ""
        """What is promised, kept and paid (`PromiseState`) as JSON, "" where nothing is promised."""
        self._autoscaler = LearnedNodes(policy, nodes.catalogue, commitments=commitments)
        self._log, self._purchases = RateLimitedLog(), Purchases()
        self._stopped: Callable[[], bool] = lambda: False
        self._came: set[str] | None = None  # nodes that have been ready: one that is so again has not come again
        self._evicting = 0  # pods of the nodes that were terminated at this look
        self._deleted_s: deque[float] = deque()
        self._begins_s = -inf  # before which nothing is terminated
        self._waits_s: dict[str, float] = {}  # by uid: since when a pod has waited without a break
        self._paid: deque[tuple[float, float]] = deque()  # when nodes were provisioned for pods, and their price
        self._gone: set[str] = set()  # in a dry run: the empty nodes that would have been deleted
        self._ordered_s: dict[tuple[str, str], float] = {}  # in a dry run: when an order was last given

    def run(self, stopped: Callable[[], bool], on_turn: Callable[[], object] = lambda: None) -> None:
        """Run until `stopped()`. Karpenter finishes what was ordered by then."""
        self.begin(stopped)
        wait_s = 0.0
        while not self._nodes.watch.pump_until(stopped, wait_s) and not stopped():
            wait_s = self.step()
            on_turn()

    def begin(self, stopped: Callable[[], bool]) -> None:
        """Begin to decide. Once `stopped()` nothing is written any more.

        What an earlier process terminated is unknown, so an interval passes before the first node is.
        """
        self._stopped = stopped
        if self._apply:
            self._begins_s = self._now_s() + self._limits.interval_s
        elif others := len(self._nodes.claims) - len(self._nodes.mine):
            text = f"NodeClaims that are not ours, and are left alone: {others}; --all-claims looks at them too"
            self._log.log("others", text, self._now_s(), logging.INFO)

    def step(self) -> float:
        """Observe once and act; returns the seconds until the next observation.

        While a watch is interrupted nothing is decided.
        """
        if self._nodes.watch.troubled:
            return _LONGEST_S
        now_s = self._now_s()
        if self._nodes.measure():
            text = "allocatable resources or DaemonSets' requests differ from the catalogue: measured ones count now"
            self._log.log("room", text, now_s, logging.INFO)
        seen, before = self._nodes.observe(now_s), self._autoscaler.replaced
        self._take_in(seen)
        self._tell_in_vain(seen)
        left = self._purchases.left(seen if self._apply else self._without_gone(seen))
        if self._autoscaler.catalogue is not self._nodes.catalogue:
            self._autoscaler.sell(self._nodes.catalogue)
        self._evicting = 0
        commands = self._autoscaler.act(left)
        replaced = self._autoscaler.replaced if self._autoscaler.replaced != before else ()
        self._provision([command.types[0] for command in commands if isinstance(command, Provision)], replaced, left)
        for command in commands:
            for name in command.names if isinstance(command, Delete) else ():
                self._delete(seen.nodes[name], seen)
        self._clear_up(seen)
        self._tell_late(seen)
        self._count(seen)
        wait_s = (self._autoscaler.next_s - self._now_s()) / self._nodes.speed
        return min(max(wait_s, _SHORTEST_S), _LONGEST_S)

    def _now_s(self) -> float:
        return self._clock() * self._nodes.speed

    # ---- provisioning ------------------------------------------------------------------------------------------------

    def _provision(self, kinds: Sequence[InstanceType], replaced: Sequence[str], seen: Observed) -> None:
        """Provision a node of each type, for pods that wait or to replace nodes."""
        allowed = list(kinds)[: self._allowed(len(kinds), replaced, seen)] if kinds else []
        if not allowed or (replaced and len(allowed) < len(kinds)):
            return
        price = price_of(kinds)
        freed = sum(seen.nodes[name].price for name in replaced)
        why = f"in place of {', '.join(replaced)}" if replaced else _who_waits(seen)
        provisioned = allowed if not self._apply else self._post_all(allowed, seen, for_pods=not replaced)
        if not provisioned:
            return
        paid = price_of(provisioned)
        counts = Counter(kind.name for kind in provisioned)
        what = ", ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
        order = Order("provision", what, why, (paid / price * freed if price else 0.0) - paid, self._apply)
        if self._apply:
            self._tell(order)
        if (self._apply or self._suggest(order, seen.now_s)) and not replaced:
            self._paid.append((seen.now_s, paid))

    def _allowed(self, count: int, replaced: Sequence[str], seen: Observed) -> int:
        """Return how many of `count` nodes may be provisioned now."""
        if replaced and self._moves_left(seen.now_s) < len(replaced):
            self._refuse("moves", count)
            return 0
        there = len(self._nodes.mine)
        left = max(self._limits.most_nodes - there, 0)
        if count > left and not replaced:
            self._refuse("most-nodes", count - left)
            how = f"{count - left} of {count} are not" if left else "nothing is"
            waits = _pods_wait(list(seen.waiting.values()))
            text = f"{there} of {self._limits.most_nodes} nodes (--most-nodes): {how} provisioned; {waits}"
            self._log.log("most-nodes", text, seen.now_s)
        if not self._apply:
            return left
        if pools := self._pools():
            self._refuse("node-pool", count)
            text = (
                "nothing is provisioned: Karpenter provisions for the same pods itself, by the NodePool "
                + ", ".join(pools)
            )
            self._log.log("node-pool", text, seen.now_s)
            return 0
        if self._nodes.unavailable.pauses(seen.now_s):
            self._refuse("sold-out", count)
            return 0
        return left

    def _pools(self) -> list[str]:
        return [] if self._beside_nodepools else active(self._nodes.watch.more[NODE_POOLS.name].values())

    def _post_all(self, kinds: Sequence[InstanceType], left: Observed, *, for_pods: bool) -> list[InstanceType]:
        """Order nodes until one order fails; returns those that were ordered."""
        provisioned: list[InstanceType] = []
        for kind in kinds:
            if self._stopped() or not (name := self._post(kind, left.now_s)):
                break
            provisioned.append(kind)
            if for_pods:
                self._purchases.ordered(name, left)
        self._metrics.orders.labels("buy").inc(len(provisioned))
        return provisioned

    def _post(self, kind: InstanceType, now_s: float) -> str:
        """Order a node; returns the name of its claim, "" where that failed."""
        body = new_claim(kind, self._template)
        try:
            answer = self._nodes.watch.transport.request("POST", NODE_CLAIMS.path, body)
        except (ApiError, Unreachable) as error:
            self._refuse("api")
            self._log.log(("provision", _kind(error)), f"no node of type {kind.name} is provisioned: {error}", now_s)
            self._nodes.unavailable.failed((), now_s)
            if not isinstance(error, ApiError) or error.status >= _SERVER_ERROR:
                self._nodes.provisioned(msgspec.convert(body, wire.NodeClaimObject), now_s, answered=False)
            return ""
        claim = msgspec.json.decode(answer, type=wire.NodeClaimObject)
        self._nodes.provisioned(claim, now_s)
        return claim.metadata.name

    # ---- terminating -------------------------------------------------------------------------------------------------

    def _delete(self, node: OwnedNode, seen: Observed) -> None:
        """Terminate a node, if limits allow it."""
        if self._is_awaited(node, seen):
            return
        count = len(seen.pods_on(node.name))
        moved = f"its {count} pods fit" if count > 1 else "its pod fits"
        moved = f"{moved} on other nodes" if count else "it has no pods"
        self._terminate(self._nodes.claims[node.name], node.type.name, moved, node.price, seen)

    def _clear_up(self, seen: Observed) -> None:
        """Terminate nodes that have been out of order for too long: those without pods, or where few nodes are so."""
        due = [each for each in self._nodes.troubles if each.due and each.kind != "drain"]
        drained = sum(bool(self._nodes.pods_of(each.claim)) for each in self._nodes.troubles if each.kind != "drain")
        for each in due:
            if any(not pod.terminating for pod in self._nodes.pods_of(each.claim).values()):
                if each.only_when_empty:
                    continue
                if drained > ceil(_FEW * len(self._nodes.mine)):
                    self._refuse("many-troubles")
                    text = f"{drained} nodes with pods are out of order, more than a fifth: none of them is drained"
                    self._log.log("many", text, seen.now_s)
                    continue
            if each.works and (self._nodes.stays(each.claim, seen.now_s) or self._is_promised(each.claim, seen)):
                continue
            self._terminate(each.claim, "", f"it {each.what}", None, seen)

    def _is_promised(self, claim: wire.NodeClaimObject, seen: Observed) -> bool:
        """Whether a promise forbids to evict the pods of a claim's node now."""
        pods = len(self._nodes.pods_of(claim)) + self._evicting
        return pods > self._autoscaler.evictions_left(_pods_leaving(seen))

    def _terminate(self, claim: wire.NodeClaimObject, kind: str, why: str, saves: float | None, seen: Observed) -> None:
        mine = is_ours(claim)
        if self._apply and not mine:
            return
        if self._nodes.kept_by(claim, seen):
            self._refuse("kept-pods")
            return
        if self._moves_left(seen.now_s) < 1:
            self._refuse("moves")
            return
        notes = ", ".join(filter(None, (kind, "" if mine else "not ours")))
        order = Order("delete", claim.metadata.name + (notes and f" ({notes})"), why, saves, self._apply)
        if not self._apply:
            self._suggest(order, seen.now_s)
            self._gone.add(claim.metadata.name)
        elif not self._stopped() and self._remove(claim, seen.now_s):
            self._nodes.terminated(claim)
            self._take_evictions(claim)
            self._metrics.orders.labels("delete").inc()
            self._tell(order)

    def _without_gone(self, seen: Observed) -> Observed:
        """Return what a dry run plans with: without the nodes that it would have deleted, as long as they are empty.

        Else these would be all that it ever says, or be room for the pods of others.
        """
        self._gone = {name for name in self._gone if name in seen.nodes and not seen.pods_on(name)}
        return replace(seen, nodes={name: node for name, node in seen.nodes.items() if name not in self._gone})

    def _is_awaited(self, node: OwnedNode, seen: Observed) -> bool:
        """Whether an empty node became so, or ready, just now, while pods wait or move that may be placed there."""
        since_s = max(node.initialized_s or 0.0, node.last_pod_event_s or 0.0)
        if seen.pods_on(node.name) or seen.now_s - since_s >= SETTLED_S:
            return False
        return bool(seen.waiting) or any(other.deleting and seen.pods_on(other.name) for other in seen.nodes.values())

    def _moves_left(self, now_s: float) -> int:
        if now_s < self._begins_s:
            return 0
        while self._deleted_s and self._deleted_s[0] <= now_s - self._limits.interval_s:
            self._deleted_s.popleft()
        return self._limits.moves - len(self._deleted_s)

    def _remove(self, claim: wire.NodeClaimObject, now_s: float) -> bool:
        """Delete a claim; without an answer it counts as a move, and is deleted again if it is still there."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": claim.metadata.uid}}
        try:
            self._nodes.watch.transport.request("DELETE", f"{NODE_CLAIMS.path}/{claim.metadata.name}", body)
        except (ApiError, Unreachable) as error:
            status = error.status if isinstance(error, ApiError) else _SERVER_ERROR
            if status != NOT_FOUND:
                self._refuse("api")
                self._log.log(("delete", _kind(error)), f"{claim.metadata.name} is not terminated: {error}", now_s)
                self._nodes.not_terminated(claim, now_s)
            if status >= _SERVER_ERROR:
                self._deleted_s.append(now_s)
                self._take_evictions(claim)
            return False
        self._deleted_s.append(now_s)
        return True

    def _take_evictions(self, claim: wire.NodeClaimObject) -> None:
        """Count the pods of a claim that is deleted, or may be, against what budgets and promises allow."""
        pods = self._nodes.pods_of(claim)
        self._evicting += len(pods)
        self._nodes.evictions.take(pods.values())
        self._nodes.served.drained(pods)

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _suggest(self, order: Order, now_s: float) -> bool:
        """Log an order of a dry run, unless it repeats; returns whether it does not."""
        key = (order.verb, order.what)
        is_new = now_s - self._ordered_s.get(key, -_AGAIN_S) >= _AGAIN_S
        if is_new:
            self._tell(order)
        self._ordered_s[key] = now_s
        return is_new

    def _tell_late(self, seen: Observed) -> None:
        """Log pods that have waited for long: a limit holds them, or something that the controller does not look at."""
        self._waits_s = {uid: self._waits_s.get(uid, seen.now_s) for uid in seen.waiting}
        late = [seen.waiting[uid] for uid, since_s in self._waits_s.items() if seen.now_s - since_s >= _LATE_S]
        if late:
            first = min(late, key=lambda each: (each.since_s, each.pod.key))
            text = (
                f"{_pods_wait(late)} for 15 min and longer ({_named(late)}); kube-scheduler says of {first.pod.key}: "
                f"{self._nodes.watch.why.get(first.pod.uid, '')}"
            )
            self._log.log("late", text, seen.now_s)

    def _tell_in_vain(self, seen: Observed) -> None:
        """Log nodes that did not help the pods that they were provisioned for."""
        for each in self._purchases.look(seen, self._nodes.is_empty, self._nodes.would_take):
            first, kind = each.pods[0].pod, each.node.type.name
            text = (
                f"{each.node.name} ({kind}) stays empty, and {_pods_wait(each.pods)} for which it was provisioned "
                f"({_named(each.pods)}): no node is provisioned for {'it' if len(each.pods) == 1 else 'them'} in the "
                f"next {each.pause_s / 60:.0f} min; kube-scheduler says of {first.key}: "
                f"{self._nodes.watch.why.get(first.uid, '')}"
            )
            self._log.log(("in vain", each.node.name), text, seen.now_s)

    def _refuse(self, reason: str, count: int = 1) -> None:
        self._metrics.refused.labels(reason).inc(count)

    def _count(self, seen: Observed) -> None:
        states = Counter(
            "draining" if node.deleting else "starting" if node.initialized_s is None else "ready"
            for node in seen.nodes.values()
        )
        states["trouble"] = len(self._nodes.troubles)
        for state in ("ready", "starting", "draining", "trouble"):
            self._metrics.nodes.labels(state).set(states[state])
        self._metrics.claims.set(len(self._nodes.mine))
        self._metrics.waiting.set(len(seen.waiting))
        while self._paid and self._paid[0][0] <= seen.now_s - _HOUR_S:
            self._paid.popleft()
        second = sum(price for _, price in self._paid) / _HOUR_S
        self._metrics.second.set(second)
        self._metrics.lead.set(self._autoscaler.lead_s)
        pods = sum(len(seen.pods_on(name)) for name in seen.nodes)
        eviction = self._autoscaler.eviction_dollars(pods, _pods_leaving(seen))
        self._metrics.eviction.set(eviction)
        self.promise = self._promise.state(
            evicted=seen.evicted, pod_hours=seen.pod_hours, second_dollars_per_hour=second, eviction_dollars=eviction
        ).to_json()

    def _take_in(self, seen: Observed) -> None:
        """Take in the nodes that became ready since the last look, the pods that got a node, and those evicted."""
        took_s = {
            name: node.initialized_s - node.launched_s
            for name, node in seen.nodes.items()
            if node.initialized_s is not None
        }
        for name in () if self._came is None else took_s.keys() - self._came:
            self._autoscaler.came(took_s[name])
        mine = {claim.metadata.name for claim in self._nodes.mine}
        self._came = ((self._came or set()) | took_s.keys()) & mine
        for waited_s in self._nodes.served.waited_s.values():
            self._autoscaler.serve(waited_s)
            self._metrics.served.inc()
            self._metrics.waited.inc(waited_s)
            self._metrics.late.inc(self._promise.serve(waited_s))
        self._metrics.evicted.inc(self._nodes.served.evictions)


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that does not jump when the machine's clock is set."""
    begun_s = time.time() - time.monotonic()
    return lambda: begun_s + time.monotonic()


def _pods_leaving(seen: Observed) -> int:
    """Return how many pods are on nodes on their way out."""
    return sum(len(seen.pods_on(name)) for name, node in seen.nodes.items() if node.deleting)


def _who_waits(seen: Observed) -> str:
    waiting = list(seen.waiting.values())
    if not waiting:
        return "pods need nodes"
    longest = f"{seen.now_s - min(each.since_s for each in waiting):.0f} s"
    return f"{_pods_wait(waiting)} ({_named(waiting)}), {longest}" + (" the longest" if len(waiting) > 1 else "")


def _pods_wait(waiting: Sequence[Waiting]) -> str:
    return "1 pod waits" if len(waiting) == 1 else f"{len(waiting)} pods wait"


def _named(waiting: Sequence[Waiting]) -> str:
    first = sorted(waiting, key=lambda each: (each.since_s, each.pod.key))[:_NAMED]
    return ", ".join(each.pod.key for each in first) + (", ..." if len(waiting) > _NAMED else "")


def _kind(error: ApiError | Unreachable) -> object:
    """Return the part of an error that repeats, for the rate limit: the whole text names the claim."""
    return error.status if isinstance(error, ApiError) else str(error)
