"""Whatever happens in whatever order, `aaml autoscale` stays within its limits, and leaks nothing."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aaml.live.node_claims import OURS
from aaml.live.node_controller import MoveLimits, NodeController
from aaml.live.node_template import NodeTemplate
from aaml.live.owned_nodes import OwnedNodes
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.node_policy import NodePolicy
from support.fake_karpenter import LATE_S, NOT_READY, FakeClaim, FakeCluster, Follower
from support.make import GIB

EXAMPLES = int(os.environ.get("AAML_AUTOSCALE_EXAMPLES", "15"))
SIZES = {"small": 1000, "large": 2000}
ZONES = ("a", "b")
OFFERS = tuple((kind, zone) for kind in SIZES for zone in ZONES)
TYPES = tuple(
    InstanceType(
        name, (("cpu", cores), ("memory", 64 * GIB), ("pods", 110)),
        tuple(Offering(price + 0.1 * number, zone=zone) for number, zone in enumerate(ZONES)),
    )
    for name, cores, price in (("small", 1000, 1.0), ("large", 2000, 1.9))
)  # fmt: skip
LIMITS = MoveLimits(moves=2, interval_s=60.0, most_nodes=3)
POLICY = NodePolicy(idle_s=0.0, patience_s=0.0, eviction_dollars=0.0001)
MOST_PODS = 7  # more than three nodes of any type have room for


class Controller:
    """One process that decides, from its start on."""

    def __init__(self, cluster: FakeCluster, types: tuple[InstanceType, ...]) -> None:
        self.cluster, self.follower, self.ended = cluster, Follower(cluster), False
        nodes = OwnedNodes(self.follower.watch, Catalogue(types))
        self.controller = NodeController(
            nodes, POLICY, NodeTemplate.plain(), lambda order: None, limits=LIMITS, apply=True,
            clock=lambda: cluster.now_s,
        )  # fmt: skip
        self.controller.begin(lambda: self.ended)

    def step(self) -> None:
        """Decide once; within it the budget is the one that was told."""
        deleted, created = len(self.cluster.deleted), len(self.cluster.created)
        allowed, least = self.cluster.allowed, self.cluster.least
        self.follower.hear()
        self.controller.step()
        if self.ended:
            assert (len(self.cluster.deleted), len(self.cluster.created)) == (deleted, created), "another one decides"
        for _, claim in self.cluster.deleted[deleted:]:
            assert claim.labels.items() >= OURS.items(), "it is not ours"
            assert not claim.stays or claim.ready_s is None or NOT_READY in claim.taints, "it is to stay"
            assert least is None or allowed > 0 or not self.cluster.on(claim), "the budget lets no pod go"


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = FakeCluster(SIZES, 1_000_000.0)
        now_s = self.cluster.now_s
        self.cluster.claims["theirs"] = FakeClaim("theirs", "small", "a", {}, now_s, launched_s=now_s)
        self.leader = Controller(self.cluster, TYPES)

    @initialize(
        replicas=st.integers(1, MOST_PODS), lost=st.booleans(), taint=st.sampled_from(["", NOT_READY, "mine"]),
        cordoned=st.booleans(), known=st.sampled_from([TYPES, TYPES[1:]]), fewer=st.integers(0, 2),
        least=st.sampled_from([None, 1, MOST_PODS]), sold_out=st.sets(st.sampled_from(OFFERS)),
    )  # fmt: skip
    def begin(
        self, replicas: int, lost: bool, taint: str, cordoned: bool, known: tuple[InstanceType, ...], fewer: int,
        least: int | None, sold_out: set[tuple[str, str]],
    ) -> None:  # fmt: skip
        """Begin in the middle of a bad day, so that a few steps come to what is rare."""
        self.cluster.replicas, self.cluster.sold_out = replicas, sold_out
        self.change_the_api(away=False, lost=lost, late=lost)
        self.go_on(20, 5.0)
        self.change_the_api(away=False, lost=False, late=False)
        for claim in self.ours:
            claim.taints, claim.cordoned, claim.closed_s = {taint} - {""}, cordoned, self.cluster.now_s
        self.restart(known, replicas)
        self.cluster.least = least
        self.go_on(10, 100.0)
        self.cluster.least = None
        self.restart(TYPES, min(fewer, replicas))
        self.change_the_api(away=False, lost=lost, late=False)
        self.go_on(8, 10.0)
        self.restart(TYPES, min(fewer, replicas))
        self.change_the_api(away=False, lost=False, late=False)
        self.go_on(15, 10.0)
        self.restart(TYPES, MOST_PODS)
        self.go_on(5, 5.0)

    @rule(steps=st.integers(1, 30), seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def go_on(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.cluster.tick(seconds)
            self.leader.step()
            self.check()

    @property
    def ours(self) -> list[FakeClaim]:
        return [each for each in self.cluster.claims.values() if each.labels.items() >= OURS.items()]

    def check(self) -> None:
        assert len(self.ours) <= LIMITS.most_nodes
        times = [at_s for at_s, _ in self.cluster.deleted]
        assert sum(at_s > self.cluster.now_s - LIMITS.interval_s for at_s in times) <= LIMITS.moves
        assert "theirs" in self.cluster.claims
        assert self.cluster.too_soon == [], "ordered again, less than three minutes after it could not be had"

    # ---- what may go wrong -------------------------------------------------------------------------------------------

    def some(self, data: st.DataObject) -> FakeClaim | None:
        return data.draw(st.sampled_from(self.ours)) if self.ours else None

    @rule(replicas=st.integers(0, MOST_PODS))
    def scale(self, replicas: int) -> None:
        self.cluster.replicas = replicas

    @rule(
        what=st.sets(st.sampled_from(OFFERS)), says_why=st.booleans(),
        mute=st.booleans(),
    )  # fmt: skip
    def change_supply(self, what: set[tuple[str, str]], says_why: bool, mute: bool) -> None:
        self.cluster.sold_out, self.cluster.says_why, self.cluster.mute = what, says_why, mute

    @rule(
        data=st.data(), taint=st.sampled_from(["", NOT_READY, "mine"]), cordoned=st.booleans(), everyone=st.booleans()
    )
    def close(self, data: st.DataObject, taint: str, cordoned: bool, everyone: bool) -> None:
        for claim in self.ours if everyone else filter(None, [self.some(data)]):
            claim.taints, claim.cordoned, claim.closed_s = {taint} - {""}, cordoned, self.cluster.now_s

    @rule(data=st.data(), stays=st.booleans())
    def annotate(self, data: st.DataObject, stays: bool) -> None:
        if claim := self.some(data):
            claim.stays = stays

    @rule(data=st.data())
    def delete_by_hand(self, data: st.DataObject) -> None:
        if (claim := self.some(data)) and claim.deleted_s is None:
            claim.deleted_s = self.cluster.now_s

    @rule(least=st.sampled_from([None, 0, 1, MOST_PODS]))
    def protect(self, least: int | None) -> None:
        self.cluster.least = least

    @rule(refuses=st.booleans())
    def refuse_pods(self, refuses: bool) -> None:
        self.cluster.refuses = refuses

    @rule(away=st.booleans(), lost=st.booleans(), late=st.booleans())
    def change_the_api(self, away: bool, lost: bool, late: bool) -> None:
        self.cluster.away, self.cluster.answers_are_lost = away, lost
        self.leader.follower.late_until_s = self.cluster.now_s + LATE_S if late else 0.0

    @rule(known=st.sampled_from([TYPES, TYPES[:1], TYPES[1:]]), replicas=st.integers(0, MOST_PODS))
    def restart(self, known: tuple[InstanceType, ...], replicas: int) -> None:
        """Another process takes over, perhaps with other instance types; the one before it has just much to do."""
        before, self.cluster.replicas = self.leader, replicas
        if self.cluster.away:
            return
        self.cluster.tick(1.0)
        before.ended = True
        for _ in range(3):
            before.step()
            self.cluster.tick(5.0)
        self.cluster.failed_s.clear()
        self.leader = Controller(self.cluster, known)
        self.leader.step()

    # ---- and in the end ----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once all is well pods run as far as nodes may be provisioned; once there are none no node of ours is left."""
        cluster = self.cluster
        cluster.sold_out, cluster.least = set(), None
        cluster.away = cluster.answers_are_lost = cluster.mute = cluster.refuses = False
        for claim in cluster.claims.values():
            claim.taints, claim.cordoned, claim.stays = set(), False, False
        self.go_on(60, 40.0)
        assert cluster.bound == cluster.replicas or len(self.ours) == LIMITS.most_nodes
        cluster.replicas = 0
        self.go_on(60, 40.0)
        assert cluster.claims.keys() == {"theirs"}


TestAnyOrder: Any = AnyOrder.TestCase
TestAnyOrder.pytestmark = [pytest.mark.timeout(120 + EXAMPLES)]
TestAnyOrder.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=8, deadline=None, derandomize=EXAMPLES <= 15,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
