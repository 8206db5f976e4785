"""When a job starts, by futures of the cluster as it is."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from aaml.cluster.objects import RACK_LABEL, GpuRequest, Node, Pod, PodGroup
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.sim.cluster import SimCluster
from aaml.sim.forecast import Forecast, Futures, RunningPod, snapshot
from aaml.sim.sooner import changes, needed
from aaml.workload.model import Workload

FIRST_FIT = make_policy("first-fit", PolicyOptions())
ROOM = {CPU: 4000, MEMORY: 16 << 30, PODS: 110}


def node(name, rack="", gpus=0):
    labels = {"kubernetes.io/hostname": name} | ({RACK_LABEL: rack} if rack else {})
    return Node(name, ROOM, labels, gpu_count=gpus, gpu_model="V100" if gpus else "")


def pod(name, cpu=4000, **fields):
    return Pod(name, requests={CPU: cpu}, **fields)


def gang(name, count, least=None, rack=RACK_LABEL):
    group = PodGroup(name, least or count, rack)
    return [pod(f"{name}-{number}", group=group) for number in range(count)]


def futures(**fields):
    return Futures(FIRST_FIT, fields.pop("lifetimes", LifetimeModel()), **({"samples": 50} | fields))


def known(name, rest_s, node_name, age_s=40.0):
    """A pod that its deadline ends in so many seconds."""
    return RunningPod(pod(name, deadline_s=age_s + rest_s), node_name, None, age_s)


CLAIRVOYANT = KnownLifetimes()


def test_a_pod_starts_when_the_one_before_it_ends():
    waits = pod("waits")
    cluster = snapshot([node("a")], [known("runs", 60.0, "a")], [waits])
    found = futures(lifetimes=CLAIRVOYANT).forecast(cluster, [waits.uid])
    assert found.starts_s == pytest.approx(60.0)
    assert cluster.now_s() == 0.0
    assert cluster.pending_count() == 1


def test_who_waits_before_it_starts_before_it():
    """Each runs for 100 seconds: the third in the queue starts when the pod that runs and two others have ended."""
    queue = [pod(name, deadline_s=100.0) for name in ("first", "second", "third")]
    cluster = snapshot([node("a")], [known("runs", 60.0, "a")], queue)
    starts = [futures(lifetimes=CLAIRVOYANT, samples=1).forecast(cluster, [each.uid]).quantile(0.5) for each in queue]
    assert starts == pytest.approx([60.0, 160.0, 260.0])


def test_a_gang_starts_when_one_rack_has_room_for_all_of_it():
    """One of two pods of each rack ends after 10 and 20 seconds, the others after 300 and 200: rack s is free first."""
    nodes = [node("r-1", "r"), node("r-2", "r"), node("s-1", "s"), node("s-2", "s")]
    rests = {"r-1": 10.0, "r-2": 300.0, "s-1": 20.0, "s-2": 200.0}
    wanted = gang("train", 2)
    cluster = snapshot(nodes, [known(f"on-{name}", rest, name) for name, rest in rests.items()], wanted)
    found = futures(lifetimes=CLAIRVOYANT, samples=1)
    assert found.forecast(cluster, [each.uid for each in wanted]).quantile(0.5) == pytest.approx(200.0, abs=15.0)
    offers = {each.what: found.forecast(each.cluster, each.uids, each.needed) for each in changes(cluster, wanted)}
    assert list(offers) == [
        "half as large: 1 of 2 pods", "as two gangs, of 1 and 1 pods", f"anywhere, not in one {RACK_LABEL}",
        "one node more, like r-1",
    ]  # fmt: skip
    half, two, anywhere, more = (each.quantile(0.5) for each in offers.values())
    assert 10.0 <= half < 20.0  # it backs off for a few seconds when a node becomes free
    assert 20.0 <= two < 40.0
    assert 20.0 <= anywhere < 40.0
    assert 10.0 <= more < 20.0


def test_pods_of_one_group_end_together_and_others_do_not():
    """Of two pods of a group the second never ends after the first, so a pod of two nodes' room waits less."""
    nodes = [node("a", "r"), node("b", "r")]
    wanted = gang("train", 2)
    together = [RunningPod(each, name, None, 600.0) for each, name in zip(gang("runs", 2), "ab", strict=True)]
    apart = [RunningPod(pod(f"runs-{name}"), name, None, 600.0) for name in "ab"]
    medians = [
        futures(samples=60).forecast(snapshot(nodes, running, wanted), [each.uid for each in wanted]).quantile(0.5)
        for running in (together, apart)
    ]
    assert medians[0] < 0.7 * medians[1]


def test_what_nothing_is_known_of_runs_on_as_long_as_the_life_table_says():
    """The prior is Lomax's law of median 600 s: of pods of 1,800 s half run on for another 2,400 s."""
    waits = pod("waits")
    cluster = snapshot([node("a")], [RunningPod(pod("runs"), "a", None, 1800.0)], [waits])
    found = futures(samples=2000, horizon_s=1e9).forecast(cluster, [waits.uid])
    assert found.quantile(0.5) == pytest.approx(2400.0, rel=0.1)


def test_lifetimes_of_its_owner_count_more_than_the_rest():
    model = LifetimeModel()
    for number in range(50):
        model.learn(pod(f"old-{number}", owner="Job/short"), 100.0)
    waits = pod("waits")
    cluster = snapshot([node("a")], [RunningPod(pod("runs", owner="Job/short"), "a", None, 20.0)], [waits])
    found = futures(lifetimes=model, samples=200).forecast(cluster, [waits.uid])
    assert 50.0 < found.quantile(0.1) <= found.quantile(0.9) < 110.0  # the band of ages that ends at 128 s


def test_newcomers_that_fit_overtake_a_gang_and_more_important_ones_a_pod():
    """A pod of higher priority comes after 30 seconds and takes the node that is free after 60, for 100 seconds."""
    waits = pod("waits")
    cluster = snapshot([node("a")], [known("runs", 60.0, "a")], [waits])

    def coming(seconds, _rng):
        assert seconds == 86_400.0
        return [pod("comes", created_s=30.0, priority=5, deadline_s=100.0)]

    found = futures(lifetimes=CLAIRVOYANT, arrivals=coming, samples=3).forecast(cluster, [waits.uid])
    assert found.starts_s == pytest.approx(160.0)


def test_what_does_not_start_within_the_horizon_is_told_as_that():
    waits = pod("waits", 8000)
    found = futures(samples=4).forecast(snapshot([node("a")], [], [waits]), [waits.uid])
    assert (found.never, found.quantile(0.5)) == (1.0, inf)
    assert Forecast(np.array([1.0, 2.0, inf, inf]), 9.0).never == 0.5
    assert Forecast(np.array([1.0, 2.0, inf, inf]), 9.0).quantile(0.5) == 2.0


def test_daemon_pods_never_end():
    waits = pod("waits")
    daemon = RunningPod(pod("daemon", owner="DaemonSet/d"), "a", None, 5.0)
    assert futures(samples=5).forecast(snapshot([node("a")], [daemon], [waits]), [waits.uid]).never == 1.0


def test_a_forecast_from_the_middle_of_a_simulation_knows_ages_and_not_ends():
    """At 100 s a pod has run for 100 s; that it will end at 150 s nobody tells, and drawn rests are spread."""
    runs, waits = pod("runs", lifetime_s=150.0), pod("waits", created_s=100.0)
    cluster = SimCluster([node("a")], Workload.of([runs, waits]))
    cluster.bind(cluster.next_pod(), 0)
    cluster.reject(cluster.next_pod())
    assert cluster.now_s() == 100.0
    found = futures(samples=400, horizon_s=1e9).forecast(cluster, [waits.uid])
    assert len(set(found.starts_s.tolist())) > 300
    assert found.quantile(0.5) == pytest.approx(700.0, rel=0.15)  # Lomax: the age and 600 s more
    assert futures(lifetimes=CLAIRVOYANT, samples=1).forecast(cluster, [waits.uid]).quantile(0.5) == 50.0


def test_the_smallest_pod_that_can_go_elsewhere_is_moved():
    """Six cores are free in all, and the pod of four has no node with as many until the pod of one core moves."""
    nodes = [node("a"), node("b")]
    running = [RunningPod(pod("one", 1000), "a", None, 1.0), RunningPod(pod("three", 1500), "b", None, 1.0)]
    waits = pod("waits")
    offers = {each.what: each for each in changes(snapshot(nodes, running, [waits]), [waits])}
    moved = offers["default/one moved from a to b"]
    assert futures(samples=1).forecast(moved.cluster, moved.uids).quantile(0.5) == 0.0


def test_half_of_the_gpus_and_no_selector_are_offered():
    waits = pod("waits", 100, gpu=GpuRequest(8, 1000), node_selector={"gpu": "A100"})
    running = [RunningPod(pod("runs", 100, gpu=GpuRequest(2, 1000)), "a", None, 1.0)]
    offers = {each.what: each for each in changes(snapshot([node("a", gpus=8)], running, [waits]), [waits])}
    assert list(offers) == ["half as large: 4 of 8 GPUs", "without its node selector (gpu)"]
    assert offers["half as large: 4 of 8 GPUs"].cluster.pending_count() == 1


def test_a_plain_jobs_group_has_started_when_all_its_pods_have_nodes():
    """Kubernetes 1.37 gives each Job a group of the policy basic: none of its pods waits for another."""
    basic = PodGroup("job", None)
    pods = [pod(f"job-{number}", group=basic) for number in range(3)]
    cluster = snapshot([node("a")], [known("runs", 60.0, "a")], pods)
    assert needed(cluster, pods) == 3
    assert needed(cluster, gang("train", 4, 2)) == 2
    assert needed(cluster, [*gang("one", 2), *gang("two", 3)]) == 5
    assert all("node more" in each.what for each in changes(cluster, [*gang("one", 2), *gang("two", 3)]))


def test_a_gang_that_comes_is_another_one_though_its_name_is_the_same():
    """Two of four pods are there, and a gang of that name comes: they still lack two."""
    waits = gang("train", 4)[:2]

    def coming(_seconds, _rng):
        return [replace(each, created_s=10.0) for each in gang("train", 4)[2:]]

    cluster = snapshot([node(name, "r") for name in "abcd"], [], waits)
    assert futures(arrivals=coming, samples=2).forecast(cluster, [each.uid for each in waits]).never == 1.0


def test_pods_of_a_live_cluster_may_move_and_those_that_terminate_end():
    """What is bound names its node, which holds it nowhere else; a deleted pod is gone within the grace of 30 s."""
    nodes = [node("a"), node("b")]
    one, three = pod("one", 1000, node_name="a"), pod("three", 1500, node_name="b")
    waits = pod("waits")
    running = [RunningPod(one, "a", None, 1.0), RunningPod(three, "b", None, 1.0)]
    assert "default/one moved from a to b" in {
        each.what for each in changes(snapshot(nodes, running, [waits]), [waits])
    }
    going = RunningPod(pod("going", terminating=True), "a", None, 1e6)
    assert futures(samples=1).forecast(snapshot([node("a")], [going], [waits]), [waits.uid]).quantile(0.5) == 30.0
