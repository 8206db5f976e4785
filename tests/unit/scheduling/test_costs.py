"""What policies are shown of what nodes cost, and the reward in dollars."""

from math import log

import numpy as np
import pytest

from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.nodes.ports import OwnedNode, Provision
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.text import parse
from aaml.policies.registry import make_policy, make_reward
from aaml.scheduling.costs import COST_FEATURES, NodeCosts
from aaml.scheduling.observation import NODE_FEATURES, ObservationSpec
from aaml.scheduling.play import play
from aaml.sim.tasks import find_task
from support import make
from support.nodes_to_buy import LARGE, SMALL, pod
from unit.nodes.test_node_supply import simulated

SHOWN = ObservationSpec(costs=True)


def two_nodes():
    """A small node, on which a pod that may not be disrupted began to run 6 s ago, and an empty large one."""
    bought = {
        "small": OwnedNode("small", SMALL, SMALL.cheapest, 0.0, 20.0, 594.0),
        "large": OwnedNode("large", LARGE, LARGE.cheapest, 540.0, 580.0),
    }
    state = ClusterState(each.type.node(name, each.offering) for name, each in bought.items())
    costs = NodeCosts(state, bought, 15.0, lambda _now_s: 0.0)
    state.assume(pod("kept", 1, 1, do_not_disrupt=True), "small")
    return state, bought, costs


def test_a_policy_is_shown_what_nodes_cost_and_what_keeps_them():
    state, bought, _ = two_nodes()
    seen = make.context(state, make.pod(), spec=SHOWN, now_s=600.0).observation
    shown = {name: seen.nodes[:, len(NODE_FEATURES) + k].tolist() for k, name in enumerate(COST_FEATURES)}
    assert shown["price"] == pytest.approx([1 / 3.6, 1.0])
    # Of the mean node of 5 cores and 20 GiB the small one has 0.8 (both added), the large one 3.2.
    assert shown["price_for_size"] == pytest.approx([log(1.25 / 1.1875), log(1.125 / 1.1875)])
    assert shown["unused_price"] == pytest.approx([0.5 / 3.6, 1.0])
    assert shown["age"] == pytest.approx([log(11) / 5, log(2) / 5])
    assert shown["quiet"] == pytest.approx([6 / 15, 1.0]), "of 15 s; the large one has been ready for 20 s"
    assert shown["kept_pods"] == pytest.approx([log(2) / 3, 0.0])
    assert shown["disruption_order"] == pytest.approx([0.5 / 3.6, 1.0])
    assert shown["to_move"] == pytest.approx([1 / 8, 0.0])
    assert shown["leaving"] == [0.0, 0.0]
    bought["large"].deleting = True
    seen = make.context(state, make.pod(), spec=SHOWN, now_s=600.0).observation
    assert seen.nodes[:, len(NODE_FEATURES) + COST_FEATURES.index("leaving")].tolist() == [0.0, 1.0]
    assert seen.nodes[0, len(NODE_FEATURES) + COST_FEATURES.index("to_move")] == 1.0, "nowhere is room for its pod"


def test_a_pod_that_may_not_be_disrupted_for_a_time_counts_until_that_is_over():
    state, _, costs = two_nodes()
    state.assume(pod("awhile", 1, 1, do_not_disrupt=True, do_not_disrupt_s=60.0), "small", since_s=540.9)
    kept = [costs.features(now_s)[:, COST_FEATURES.index("kept_pods")].tolist() for now_s in (599.9, 600.0)]
    assert kept == [pytest.approx([log(3) / 3, 0.0]), pytest.approx([log(2) / 3, 0.0])], "its start was at 540 s"
    assert costs.released_s == {"awhile": 600.0}
    state.remove_pod("awhile")
    assert not costs.released_s
    assert not costs.faults()


def test_a_policy_that_does_not_ask_is_shown_what_it_always_was():
    state, _, _ = two_nodes()
    plain = make.context(state, make.pod(), now_s=600.0).observation
    assert plain.nodes.shape == (2, len(NODE_FEATURES))
    seen = make.context(state, make.pod(), spec=SHOWN, now_s=600.0).observation
    np.testing.assert_array_equal(seen.nodes[:, : len(NODE_FEATURES)], plain.nodes)
    np.testing.assert_array_equal(seen.pairs, plain.pairs)


def test_where_nobody_buys_nodes_their_costs_are_zero():
    seen = make.context(make.cluster(make.nodes(2)), make.pod(), spec=SHOWN).observation
    assert not seen.nodes[:, len(NODE_FEATURES) :].any()


def test_a_formula_reads_costs_by_name():
    state, _, _ = two_nodes()
    cheapest = parse("-node.price")
    context = make.context(state, make.pod(), now_s=600.0)
    assert FormulaPolicy(Formula(cheapest, SHOWN)).act(context).node_index == 0
    assert FormulaPolicy(Formula(cheapest)).scores(context).tolist() == [0.0, 0.0], "it did not ask"


def test_the_reward_is_the_dollars_since_the_last_decision():
    """A node for 1 dollar an hour from 0 s on; decisions at 20 and at 110 s, when a pod has waited 60 s too long."""
    reward = make_reward("bill")
    earned = []

    class FirstFit:
        name = "first"

        def act(self, context):
            reward.before(context)
            earned.append(reward.after(context, 0))
            return make_policy("first-fit").act(context)

    first, second = pod("a", 2, lifetime_s=90.0), pod("b", 1, created_s=20.0, lifetime_s=10.0)
    simulated([first, second], (0.0, Provision((SMALL,))), policy=FirstFit())
    assert earned == pytest.approx([0.0, -1000 * (90 / 3600 + 60 * 1.0 / 3600)])


def test_the_reward_in_dollars_needs_somebody_who_buys_nodes():
    with pytest.raises(UserError, match="reward bill: no nodes are provisioned here"):
        make_reward("bill").before(make.context(make.cluster(make.nodes(1)), make.pod()))


def test_rewards_of_an_episode_add_up_to_what_it_cost():
    task = find_task("bill")
    cluster = task.build(1, 4, pods=80)
    last = []

    class Packing:
        name = "packing"

        def act(self, context):
            last.append(NodeCosts.of(context.state).paid(context.now_s))
            return make_policy("most-allocated").act(context)

    stats = play(cluster, Packing(), make_reward(task.reward))
    assert stats.reward == pytest.approx(-1000 * (last[-1] - last[0]))
    assert cluster.metrics()["evicted"] >= 0


def test_a_fork_of_a_cluster_sees_its_own_nodes():
    cluster = find_task("bill").build(1, 4, pods=60)
    play(cluster, make_policy("most-allocated"), max_decisions=20)
    twin = cluster.fork()
    mine, theirs = NodeCosts.of(cluster.state), NodeCosts.of(twin.state)
    assert mine is not theirs
    np.testing.assert_array_equal(mine.features(cluster.now_s()), theirs.features(twin.now_s()))
    play(twin, make_policy("most-allocated"))
    assert theirs.paid(twin.now_s()) > mine.paid(cluster.now_s())
    assert not mine.faults()
    assert not theirs.faults()
