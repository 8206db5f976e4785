"""What is made of events: lives, changes of nodes, and what happened while nobody looked."""

import pytest

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError
from aaml.workload.trace.events import Began, Listed, Lost, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen, Watched
from aaml.workload.trace.summary import summarise
from aaml.workload.trace.trace import Follower, Trace

A, B = Node("a", {"cpu": 1000, "pods": 9}), Node("b", {"cpu": 1000, "pods": 9})


def pod(name, created_s=0.0, **more):
    return Pod(name, requests={"cpu": 100}, created_s=created_s, **more)


def begin(at, *there):
    return [Began(at=at), *there, Listed(at=at)]


def test_a_pod_has_the_times_at_which_things_happened_from_the_traces_beginning():
    """Seen at 3.5 s, which its own time tells as 3: it waited for half a second, not for one."""
    trace = Trace.of([
        *begin(1000.0, NodeSeen(at=1000.0, node=A)), PodSeen(at=1003.5, pod=pod("p", 1003.0)),
        PodBound(at=1004.0, uid="default/p", node_name="a"), PodEnded(at=1010.0, uid="default/p", how="succeeded"),
    ])  # fmt: skip
    life = trace.lives["default/p"]
    assert (life.created_s, life.bound_s, life.ended_s, life.ran_s) == (3.5, 4.0, 10.0, 6.0)
    assert (life.node_name, life.how, life.found) == ("a", "succeeded", False)
    assert (trace.began_s, trace.end_s, trace.gaps) == (1000.0, 10.0, ())
    assert trace.schedulers == {"default-scheduler": 1}


def test_the_mean_load_of_a_trace_counts_the_time_after_its_last_event():
    """A tenth of the node is requested from 0 to 30 s, two tenths from then to the end at 40 s."""
    trace = Trace.of([
        *begin(1000.0, NodeSeen(at=1000.0, node=A), PodSeen(at=900.0, pod=pod("p", 900.0)),
               PodBound(at=905.0, uid="default/p", node_name="a", found=True)),
        PodSeen(at=1030.0, pod=pod("q", 1030.0)), PodBound(at=1030.0, uid="default/q", node_name="a"),
        Watched(at=1040.0),
    ])  # fmt: skip
    assert summarise(trace).load["cpu"] == pytest.approx((30 * 0.1 + 10 * 0.2) / 40)


def test_what_was_there_before_has_its_times_from_before_the_trace():
    trace = Trace.of(
        begin(1000.0, NodeSeen(at=1000.0, node=A), PodSeen(at=900.0, pod=pod("p", 900.0)),
              PodBound(at=905.0, uid="default/p", node_name="a", found=True))
    )  # fmt: skip
    life = trace.lives["default/p"]
    assert (life.created_s, life.bound_s, life.ended_s, life.found) == (-100.0, -95.0, None, True)


def test_a_recorder_that_comes_back_ends_what_is_gone_and_tells_nothing_twice():
    p, q = pod("p", 1001.0), pod("q", 1001.0)
    bound = PodBound(at=1002.0, uid="default/p", node_name="a")
    trace = Trace.of([
        *begin(1000.0, NodeSeen(at=1000.0, node=A), NodeSeen(at=1000.0, node=B)),
        PodSeen(at=1001.0, pod=p), PodSeen(at=1001.0, pod=q), bound,
        *begin(1060.0, NodeSeen(at=1060.0, node=A), PodSeen(at=1001.0, pod=p),
               PodBound(at=1002.0, uid="default/p", node_name="a", found=True)),
        PodEnded(at=1070.0, uid="default/p"),
    ])  # fmt: skip
    assert trace.gaps == ((2.0, 60.0),)
    gone = trace.lives["default/q"]
    assert (gone.how, gone.ended_s) == ("unseen", 2.0), "nobody saw it run any longer: the gap is no lifetime"
    p_life = trace.lives["default/p"]
    assert (p_life.bound_s, p_life.found, p_life.ended_s) == (2.0, False, 70.0)
    assert [type(event).__name__ for event in trace.events] == [
        "NodeSeen", "NodeSeen", "PodSeen", "PodSeen", "PodBound", "PodEnded", "NodeGone", "PodEnded",
    ]  # fmt: skip
    assert trace.events[6] == NodeGone(at=60.0, name="b")


def test_a_quiet_cluster_was_watched_until_the_recorder_says_so():
    trace = Trace.of([*begin(1000.0, NodeSeen(at=1000.0, node=A)), Watched(at=1070.0), Began(at=1100.0)])
    assert (trace.gaps, trace.end_s) == (((70.0, 100.0),), 100.0)


def test_a_lost_connection_is_a_gap():
    trace = Trace.of([*begin(0.0, NodeSeen(at=0.0, node=A)), Lost(at=90.0, since=30.0)])
    assert trace.gaps == ((30.0, 90.0),)


def test_parts_with_and_without_names_do_not_mix():
    with pytest.raises(UserError, match="partly with names"):
        Trace.of([*begin(0.0, NodeSeen(at=0.0, node=A)), Began(at=1.0, hashed=True)])


def test_a_follower_has_the_state_of_before_each_decision_and_knows_what_is_none():
    events = [
        NodeSeen(at=0.0, node=A), NodeSeen(at=0.0, node=B), PodSeen(at=0.0, pod=pod("old")),
        PodBound(at=0.0, uid="default/old", node_name="a", found=True), PodSeen(at=1.0, pod=pod("new")),
        PodBound(at=2.0, uid="default/new", node_name="b"), PodEnded(at=3.0, uid="default/old"),
    ]  # fmt: skip
    follower, decided, used = Follower(), [], []
    for event in events:
        decision = follower.decided(event)
        if decision is not None:
            decided.append(decision.name)
            used.append(follower.state.requested[:, 0].tolist())
        follower.apply(event)
    assert decided == ["new"]
    assert used == [[100, 0]]
    assert follower.state.requested[:, 0].tolist() == [0, 100]
    assert set(follower.pods) == {"default/new"}
