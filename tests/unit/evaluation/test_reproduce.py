"""Recorded decisions beside those of the simulated kube-scheduler: each kind by a cluster small enough for a hand."""

from aaml.cluster.objects import Node, Pod, PodGroup, Taint
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.evaluation.reproduce import reproduce
from aaml.policies.kube_scores.siblings import owner_selector
from aaml.workload.trace.events import Began, Listed, NodeSeen, PodBound, PodSeen
from aaml.workload.trace.trace import Trace

GIB = 1 << 30


def node(name, cpu=4000, taints=(), **labels):
    return Node(name, {CPU: cpu, MEMORY: 16 * GIB, PODS: 110}, labels, taints)


def pod(name, cpu=1000, memory=4 * GIB, **more):
    return Pod(name, requests={CPU: cpu, MEMORY: memory}, **more)


def bind(pod, node_name, at, *, found=False):
    return PodBound(at=at, uid=pod.uid, node_name=node_name, found=found)


def reproduced(nodes, *events, scheduler="default-scheduler"):
    begin = [Began(at=0.0), *(NodeSeen(at=0.0, node=each) for each in nodes)]
    return reproduce(Trace.of([*begin, Listed(at=0.0), *events]), scheduler)


def decide(pod, node_name, at):
    return [PodSeen(at=at, pod=pod), bind(pod, node_name, at)]


OLD = pod("old")
HERE = [PodSeen(at=0.0, pod=OLD), bind(OLD, "a", 0.0, found=True)]  # a has less room than b


def kinds(reproduction):
    return [verdict.kind for verdict in reproduction.verdicts]


def test_the_emptier_of_two_nodes_is_the_best_and_of_two_alike_either_is():
    found = reproduced([node("a"), node("b")], *HERE, *decide(pod("p"), "b", 5.0), *decide(pod("q"), "a", 9.0))
    assert kinds(found) == ["best", "tied"]
    assert found.share() == 1.0
    assert found.by_chance == 0.75  # one of two, then two of two
    assert "reproduces 100.0% (chance: 75.0%)" in str(found)


def test_what_was_found_bound_and_what_others_decided_is_not_judged():
    other = pod("p", scheduler_name="mine")
    found = reproduced([node("a"), node("b")], *HERE, *decide(other, "a", 5.0))
    assert found.verdicts == ()
    assert "nothing to reproduce" in str(found)
    assert kinds(reproduced([node("a"), node("b")], *HERE, *decide(other, "a", 5.0), scheduler="mine")) == ["outscored"]


def test_decisions_on_pods_of_groups_are_counted_and_not_judged():
    grouped = pod("g", group=PodGroup("gang", 1))
    found = reproduced([node("a"), node("b")], *HERE, *decide(grouped, "a", 5.0), *decide(pod("p"), "b", 9.0))
    assert (kinds(found), found.grouped) == (["best"], 1)
    assert "0.0% differ; 1 decisions on pods of groups are not judged" in str(found)
    alone = reproduced([node("a"), node("b")], *HERE, *decide(grouped, "a", 5.0))
    assert "nothing to reproduce; 1 decisions on pods of groups are not judged" in str(alone)


def test_a_decision_that_ours_would_not_make_is_told_with_the_scores_of_each_plugin():
    """p (1 of 4 CPU, 4 of 16 GiB) on a, which holds as much: half is left of both, 50; on b three quarters, 75."""
    found = reproduced([node("a"), node("b")], *HERE, *decide(pod("p"), "a", 5.0))
    (verdict,) = found.differences()
    assert (verdict.kind, verdict.feasible, verdict.best) == ("outscored", 2, 1)
    assert "b has" in verdict.why
    assert verdict.why.endswith("(NodeResourcesFit +25)")
    assert verdict.why in str(found)


def test_a_node_that_our_filters_refuse_is_told_with_their_reason():
    found = reproduced([node("a", taints=(Taint("gpu", "only"),)), node("b")], *decide(pod("p"), "a", 5.0))
    assert kinds(found) == ["refused"]
    assert "untolerated taint" in found.verdicts[0].why
    assert kinds(reproduced([node("a"), node("b", 500)], *decide(pod("p"), "a", 5.0))) == ["only"]


def test_binds_that_overtook_each_other_are_told_apart_from_wrong_decisions():
    """a is fuller, so first went to b; then both were alike, and second went to a. Its bind was the faster one."""
    first, second = pod("first"), pod("second", cpu=100, memory=GIB)
    waiting = [PodSeen(at=5.0, pod=first), PodSeen(at=5.0, pod=second)]
    nodes = [node("a"), node("b")]
    found = reproduced(nodes, *HERE, *waiting, bind(second, "a", 5.1), bind(first, "b", 5.2))
    assert kinds(found) == ["order", "best"]
    assert found.share() == 0.5
    assert found.differences() == []
    late = reproduced(nodes, *HERE, *waiting, bind(second, "a", 5.1), bind(first, "b", 9.2))
    assert kinds(late) == ["outscored", "best"]


def test_in_a_large_cluster_the_better_nodes_may_not_have_been_looked_at():
    """Of 200 nodes 100 are looked at, so a loaded one may win; of 99 all are."""
    nodes = [node(f"n{i:03d}") for i in range(200)]
    loads = [pod(f"load{i}") for i in range(150)]
    held = [event for i, each in enumerate(loads) for event in
            (PodSeen(at=0.0, pod=each), bind(each, f"n{i:03d}", 0.0, found=True))]  # fmt: skip
    assert kinds(reproduced(nodes, *held, *decide(pod("p"), "n075", 5.0))) == ["sampled"]
    free = [pod(f"more{i}") for i in range(49)]
    more = [event for i, each in enumerate(free) for event in
            (PodSeen(at=0.0, pod=each), bind(each, f"n{150 + i:03d}", 0.0, found=True))]  # fmt: skip
    assert kinds(reproduced(nodes, *held, *more, *decide(pod("p"), "n075", 5.0))) == ["sampled"]
    assert kinds(reproduced(nodes[:99], *held[: 2 * 90], *decide(pod("p"), "n005", 5.0))) == ["outscored"]


def test_siblings_are_those_of_the_same_revision():
    labels = {"app": "web", "pod-template-hash": "5d4f"}
    (only,) = owner_selector(Pod("p", labels=labels, owner="ReplicaSet/web-5d4f")).requirements
    assert (only.key, only.values) == ("pod-template-hash", ("5d4f",))
    stateful = {"app": "db", "statefulset.kubernetes.io/pod-name": "db-0"}
    (label,) = owner_selector(Pod("p", labels=stateful, owner="StatefulSet/db")).requirements
    assert label.key == "app"
    assert owner_selector(Pod("p", labels=labels, owner="Job/x")) is None


def test_default_spreading_is_part_of_what_is_reproduced():
    """Two nodes alike but for a sibling on a: kube-scheduler's default spreading sends the next one to b."""

    def web(name):
        return pod(name, cpu=0, memory=0, labels={"pod-template-hash": "5d4f"}, owner="ReplicaSet/web")  # fmt: skip

    first = web("w1")
    there = [PodSeen(at=0.0, pod=first), bind(first, "a", 0.0, found=True)]
    nodes = [node("a", **{"kubernetes.io/hostname": "a"}), node("b", **{"kubernetes.io/hostname": "b"})]
    assert kinds(reproduced(nodes, *there, *decide(web("w2"), "b", 5.0))) == ["best"]
    (verdict,) = reproduced(nodes, *there, *decide(web("w2"), "a", 5.0)).verdicts
    assert verdict.kind == "outscored"
    assert "PodTopologySpread" in verdict.why
