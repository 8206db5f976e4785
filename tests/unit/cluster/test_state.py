"""ClusterState against sums worked out by hand and against a slow, obvious twin."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aaml.cluster import audit
from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from support.make import GIB, node, pod


def test_assume_confirm_and_remove_count_once() -> None:
    state = ClusterState([node("a"), node("b")])
    state.assume(pod("p"), "b")
    assert state.requested[1].tolist() == [500, GIB, 0, 1]
    state.upsert_pod(pod("p", node_name="b"))
    assert state.requested[1].tolist() == [500, GIB, 0, 1]
    assert not state.placements["default/p"].assumed
    state.forget("default/p")  # confirmed: stays
    assert state.requested[1, 0] == 500
    state.remove_pod("default/p")
    assert not state.requested.any()


def test_forget_frees_an_assumed_pod() -> None:
    state = ClusterState([node("a", gpus=2)])
    placement = state.assume(pod("p", gpu=GpuRequest(1, 300)), "a")
    assert placement.gpus == (0,)
    assert state.gpu_free[0].tolist() == [700, 1000]
    state.forget("default/p")
    assert state.gpu_free[0].tolist() == [1000, 1000]
    assert not state.placements


def test_a_bind_elsewhere_moves_the_assumed_pod() -> None:
    state = ClusterState([node("a"), node("b")])
    state.assume(pod("p"), "a")
    state.upsert_pod(pod("p", node_name="b"))
    assert state.requested[:, 0].tolist() == [0, 500]
    audit.check(state)


def test_an_unbound_update_leaves_the_assumed_pod() -> None:
    state = ClusterState([node("a")])
    state.assume(pod("p"), "a")
    state.upsert_pod(pod("p", labels={"changed": "yes"}))  # an old event, still without a node
    assert state.requested[0, 0] == 500


def test_finished_pods_hold_nothing() -> None:
    state = ClusterState([node("a")])
    state.upsert_pod(pod("p", node_name="a"))
    state.upsert_pod(pod("p", node_name="a", phase="Succeeded"))
    assert not state.requested.any()


def test_a_pod_seen_before_its_node_is_placed_when_the_node_comes() -> None:
    state = ClusterState()
    state.upsert_pod(pod("p", node_name="late"))
    state.upsert_node(node("late"))
    assert state.requested[0, 0] == 500
    audit.check(state)


def test_removing_a_node_keeps_the_order_and_its_pods_return_with_it() -> None:
    state = ClusterState([node("a"), node("b"), node("c")])
    state.upsert_pod(pod("p", node_name="b"))
    state.upsert_pod(pod("q", cpu=100, node_name="c"))
    displaced = state.remove_node("b")
    assert [placement.pod.name for placement in displaced] == ["p"]
    assert state.names == ["a", "c"]
    assert state.requested[:, 0].tolist() == [0, 100]
    state.upsert_node(node("b"))
    assert state.requested[state.index["b"], 0] == 500
    audit.check(state)


def test_share_takes_the_fullest_device_that_fits_and_whole_devices_come_first_by_index() -> None:
    state = ClusterState([node("a", gpus=4)])
    state.assume(pod("one", gpu=GpuRequest(1, 500)), "a")
    state.assume(pod("two", gpu=GpuRequest(1, 600)), "a")
    assert state.assume(pod("three", gpu=GpuRequest(1, 400)), "a").gpus == (1,)  # 400 left on 1, 500 left on 0
    assert state.assume(pod("four", gpu=GpuRequest(2, 1000)), "a").gpus == (2, 3)
    audit.check(state)


def test_extended_resources_get_a_column_of_their_own() -> None:
    state = ClusterState([Node("a", {"cpu": 1000, "example.com/fpga": 2})])
    state.assume(Pod("p", requests={"example.com/fpga": 1, "example.com/none": 3}), "a")
    row = dict(zip(state.resources, state.requested[0].tolist(), strict=True))
    assert row["example.com/fpga"] == 1
    assert row["example.com/none"] == 3
    assert row["pods"] == 1


def test_pods_without_requests_score_as_100m_and_200mi() -> None:
    state = ClusterState([node("a")])
    state.assume(Pod("p"), "a")
    assert state.nonzero[0].tolist() == [100, 200 * 2**20]
    assert state.requested[0, 0] == 0


def test_a_fork_lives_its_own_life() -> None:
    state = ClusterState([node("a"), node("b")])
    twin = state.fork()
    twin.assume(pod("p"), "a")
    assert state.requested[0, 0] == 0
    assert not state.placements
    audit.check(twin)
    audit.check(state)


def test_mistakes_of_callers_are_refused() -> None:
    state = ClusterState([node("a")])
    with pytest.raises(KeyError):
        state.assume(pod("p"), "nowhere")
    state.assume(pod("p"), "a")
    with pytest.raises(ValueError, match="placed on a already"):
        state.assume(pod("p"), "a")


class StateMachine(RuleBasedStateMachine):
    """Random histories; the twin is two dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.nodes: set[str] = set()
        self.bound: dict[str, tuple[str, int, bool]] = {}  # pod -> node, cpu, assumed
        self.count = 0

    @rule(name=st.sampled_from("abcdefgh"))
    def add_node(self, name: str) -> None:
        self.state.upsert_node(node(name, gpus=ord(name) % 3))
        self.nodes.add(name)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.state.remove_node(name)
        self.nodes.discard(name)
        self.bound = {p: b for p, b in self.bound.items() if not (b[0] == name and b[2])}

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), cpu=st.integers(0, 900), assumed=st.booleans())
    def place(self, data: st.DataObject, cpu: int, assumed: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.count += 1
        new = pod(f"p{self.count}", cpu=cpu)
        if assumed:
            self.state.assume(new, name)
        else:
            self.state.upsert_pod(pod(f"p{self.count}", cpu=cpu, node_name=name))
        self.bound[new.uid] = (name, cpu, assumed)

    @precondition(lambda self: self.bound)
    @rule(data=st.data(), action=st.sampled_from(["remove", "forget", "confirm"]))
    def change(self, data: st.DataObject, action: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.bound)))
        name, cpu, assumed = self.bound[uid]
        if action == "remove":
            self.state.remove_pod(uid)
            del self.bound[uid]
        elif action == "forget":
            self.state.forget(uid)
            if assumed:
                del self.bound[uid]
        else:
            self.state.upsert_pod(pod(uid.split("/")[1], cpu=cpu, node_name=name))
            self.bound[uid] = (name, cpu, False)

    @invariant()
    def sums_agree(self) -> None:
        audit.check(self.state)
        for name in self.nodes:
            expected = sum(cpu for where, cpu, _ in self.bound.values() if where == name)
            assert self.state.requested[self.state.index[name], 0] == expected
        assert sorted(self.state.names) == sorted(self.nodes)
        assert np.array_equal(self.state.node_generation > 0, np.ones(len(self.nodes), dtype=bool))


StateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStateMachine = StateMachine.TestCase


def test_a_placement_says_since_when_its_pod_runs_and_until_when_at_most():
    state = ClusterState([node("a")])
    state.assume(pod("p", deadline_s=60.0), "a", since_s=30.0)
    state.upsert_pod(pod("p", node_name="a", deadline_s=60.0), since_s=99.0)  # confirmed: it ran already
    state.upsert_pod(pod("q", node_name="a"), since_s=7.0)
    p, q = state.placements[pod("p").uid], state.placements[pod("q").uid]
    assert (p.since_s, p.until_s, q.since_s, q.until_s) == (30.0, 90.0, 7.0, float("inf"))
