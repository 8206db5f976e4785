"""Room is held for the oldest gang that waits, and lent to who ends in time."""

import pytest

from aaml.cluster.objects import RACK_LABEL, GpuRequest, Node, Pod, PodGroup
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.policies.backfill import Backfill, reservation
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.workload.model import Workload

ROOM = {CPU: 4000, MEMORY: 16 << 30, PODS: 110}
KNOWN = KnownLifetimes()
FIRST_FIT = make_policy("first-fit", PolicyOptions())


def node(name, rack, gpus=0):
    return Node(name, ROOM, {RACK_LABEL: rack}, gpu_count=gpus, gpu_model="V100" if gpus else "")


def pod(name, runs_s, created_s=0.0, cpu=4000, **fields):
    return Pod(name, requests={CPU: cpu}, created_s=created_s, lifetime_s=runs_s, **fields)


def gang(name, count, runs_s, created_s, **fields):
    group = PodGroup(name, count, RACK_LABEL)
    return [pod(f"{name}-{number}", runs_s, created_s, group=group, **fields) for number in range(count)]


def starts(nodes, pods, policy):
    """Return when each pod got its node, on the clock of the simulation."""
    cluster = SimCluster(nodes, Workload.of(sorted(pods, key=lambda each: each.created_s)))
    play(cluster, policy)
    created = {each.uid: each.created_s for each in pods}
    return {each.name: created[each.uid] + cluster.journal.waited_s[each.uid] for each in pods}


def backfill(patience_s=1e9, lifetimes=KNOWN):
    return Backfill("backfill", FIRST_FIT, lifetimes, patience_s)


RACK = [node("a", "r"), node("b", "r")]
RUNS = pod("runs", 100.0)
GANG = gang("train", 2, 50.0, 10.0)


def test_a_long_pod_waits_where_it_would_keep_a_gang_from_starting():
    """Node a is free after 100 s, b is now. A pod of 1,000 s that comes after the gang would keep it until 1,020."""
    long = pod("long", 1000.0, 20.0)
    assert starts(RACK, [RUNS, *GANG, long], FIRST_FIT)["train-0"] >= 1020.0
    held = starts(RACK, [RUNS, *GANG, long], backfill())
    assert 100.0 <= held["train-0"] == held["train-1"] < 120.0  # the gang backs off for some seconds
    assert held["long"] >= held["train-0"] + 50.0


def test_a_pod_that_ends_before_is_let_in():
    short = pod("short", 70.0, 20.0)
    held = starts(RACK, [RUNS, *GANG, short], backfill())
    assert held["short"] == 20.0
    assert 100.0 <= held["train-0"] < 120.0


def test_a_node_that_the_gang_does_not_need_is_anybodys():
    """Rack q has a free node and one that is free after 300 s: the gang is to start in rack r after 100 s."""
    nodes = [*RACK, node("c", "q"), node("d", "q")]
    others = [RUNS, pod("on-b", 90.0), pod("on-c", 300.0)]
    held = starts(nodes, [*others, *GANG, pod("long", 1000.0, 20.0)], backfill())
    assert held["long"] == 20.0
    assert 100.0 <= held["train-0"] < 120.0


def test_without_a_gang_it_is_the_policy_that_it_narrows():
    pods = [pod(f"pod-{number}", 30.0 + number, 5.0 * number, 1500) for number in range(12)]
    assert starts(RACK, pods, backfill()) == starts(RACK, pods, FIRST_FIT)


def test_a_more_important_pod_heeds_no_reservation():
    urgent = pod("urgent", 1000.0, 20.0, priority=5)
    assert starts(RACK, [RUNS, *GANG, urgent], backfill())["urgent"] == 20.0


def test_a_gang_that_has_waited_long_lets_nobody_in_whatever_is_expected():
    """Each pod is taken for a short one, and runs for 400 s: with patience of 30 s the gang starts at 420 or so."""
    model = LifetimeModel()
    for number in range(100):
        model.learn(pod(f"old-{number}", 1.0), 1.0)
    others = [pod(f"other-{number}", 400.0, 20.0 + 60.0 * number) for number in range(20)]
    pods = [pod("runs", 1000.0), *GANG, *others]
    patient = starts(RACK, pods, backfill(30.0, model))
    assert patient["other-0"] == 20.0
    assert 1000.0 <= patient["train-0"] < 1060.0  # node a runs until then, and b is let to nobody after 420 s
    assert starts(RACK, pods, backfill(1e9, model))["train-0"] > 2000.0


def test_the_reservation_is_the_domain_with_room_first():
    """Rack r has two nodes free after 100 and 40 s, q after 30 and 200 s: r at 100 s, and q for one pod at 30 s."""
    nodes = [*RACK, node("c", "q"), node("d", "q")]
    state = ClusterState(nodes)
    for name, runs_s in (("a", 100.0), ("b", 40.0), ("c", 30.0), ("d", 200.0)):
        state.assume(pod(f"on-{name}", runs_s), name, None, 0.0)
    two, one = GANG[0], gang("one", 1, 1.0, 0.0)[0]
    found = reservation(state, two, 2, KNOWN, 0.0)
    assert (found.domain, found.at_s, found.nodes.tolist()) == ("r", 100.0, [True, True, False, False])
    found = reservation(state, one, 1, KNOWN, 0.0)
    assert (found.domain, found.at_s, found.nodes.tolist()) == ("q", 30.0, [False, False, True, False])
    assert reservation(state, two, 2, KNOWN, 0.0, "q").at_s == 200.0
    assert reservation(state, two, 3, KNOWN, 0.0) is None


@pytest.mark.parametrize(
    ("gpus", "pods", "at_s"), [(8, 1, 50.0), (8, 2, 90.0), (4, 1, 0.0), (4, 2, 0.0), (4, 3, 50.0), (4, 4, 90.0)]
)
def test_room_is_counted_in_whole_gpus(gpus, pods, at_s):
    """Each of two nodes of eight GPUs has four free; the pods on them end after 50 and 90 s."""
    state = ClusterState([node("a", "r", 8), node("b", "r", 8)])
    for name, runs_s in (("a", 90.0), ("b", 50.0)):
        state.assume(pod(f"on-{name}", runs_s, 0.0, 100, gpu=GpuRequest(4, 1000)), name, None, 0.0)
    asked = gang("train", 4, 1.0, 0.0, cpu=100, gpu=GpuRequest(gpus, 1000))[0]
    assert reservation(state, asked, pods, KNOWN, 0.0).at_s == at_s
