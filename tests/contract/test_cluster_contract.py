"""What the loop may expect of a cluster, simulated or real: the same cases on both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from aaml.cluster import audit
from aaml.cluster.fleet import standard_nodes
from aaml.cluster.objects import (
    CONTROL_PLANE_LABEL,
    HOSTNAME_LABEL,
    Affinity,
    HostPort,
    LabelSelector,
    Pod,
    PodAffinityTerm,
    Requirement,
    Toleration,
    TopologySpread,
)
from aaml.kube.cluster import KubeCluster
from aaml.kube.objects.convert import pod_to_json
from aaml.policies.registry import make_policy
from aaml.scheduling.play import Stats, play
from aaml.scheduling.ports import Cluster
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.cluster import SimCluster
from support.live_scheduler import result_of, take

GI = 1024**3
SCHEDULER = "contract"
WORKERS = [f"kwok-std-node-{index}" for index in range(10)]


@dataclass
class Rig:
    """A cluster of ten empty workers and a control plane, with its pods; `leave(pod)` makes a bound pod go."""

    cluster: Cluster
    leave: Callable[[Pod], None]

    def node(self, name: str) -> int:
        return self.cluster.state.index[name]

    def feasible(self, pod: Pod) -> set[str]:
        mask = self.cluster.feasible(pod)
        assert mask.dtype == np.bool_
        assert mask.shape == (len(self.cluster.state),)
        return {self.cluster.state.names[node_index] for node_index in np.flatnonzero(mask)}

    def place(self, pod: Pod, node: str) -> None:
        assert self.cluster.bind(pod, self.node(node)) == node
        assert result_of(self.cluster, pod).status == "bound"


def simulated(pods: Sequence[Pod]) -> Rig:
    # Pods leave by themselves after a while: the clock only moves when nothing can be tried.
    return Rig(SimCluster(standard_nodes(10), [replace(pod, lifetime_s=100.0) for pod in pods]), lambda _pod: None)


@pytest.fixture(params=["simulated", "real"])
def rig(request: pytest.FixtureRequest):
    """Build a cluster whose pods are these."""
    made: list[Cluster] = []

    def make(*pods: Pod) -> Rig:
        ours = [replace(pod, scheduler_name=SCHEDULER) for pod in pods]
        built = simulated(ours) if request.param == "simulated" else real(ours)
        made.append(built.cluster)
        return built

    def real(pods: Sequence[Pod]) -> Rig:
        kwok = request.getfixturevalue("kwok")
        namespace: str = request.getfixturevalue("namespace")
        path, api = f"/api/v1/namespaces/{namespace}/pods", kwok.api()
        for pod in pods:
            api.request("POST", path, pod_to_json(replace(pod, namespace=namespace)))
        cluster = KubeCluster.connect(SCHEDULER, kubeconfig=kwok.kubeconfig)
        return Rig(cluster, lambda pod: bool(api.request("DELETE", f"{path}/{pod.name}?gracePeriodSeconds=0")))

    yield make
    for cluster in made:
        cluster.close()


def small(name: str, **more) -> Pod:
    return Pod(name=name, requests={"cpu": 100, "memory": GI // 16}, **more)


def test_pods_come_once_each(rig):
    got = rig(small("a"), small("b"), small("c"))
    names = []
    for left in (2, 1, 0):
        pod = take(got.cluster)
        assert got.cluster.pending_count() == left
        names.append(pod.name)
        got.cluster.bind(pod, got.node(WORKERS[0]))
    assert sorted(names) == ["a", "b", "c"]  # the API's times are whole seconds, so their order is not told there
    assert got.cluster.next_pod(0.2) is None


def test_a_bound_pod_counts_from_the_decision_on(rig):
    got = rig(small("a"), small("b"))
    pod = take(got.cluster)
    node_index = got.node(WORKERS[4])
    before = got.cluster.state.requested[node_index].copy()
    got.cluster.bind(pod, node_index)
    grown = got.cluster.state.requested[node_index] - before
    assert dict(zip(got.cluster.state.resources, grown.tolist(), strict=True)) == {
        **dict.fromkeys(got.cluster.state.resources, 0), "cpu": 100, "memory": GI // 16, "pods": 1,
    }  # fmt: skip
    result = result_of(got.cluster, pod)
    assert (result.status, result.node_name) == ("bound", WORKERS[4])
    assert got.cluster.state.placements[pod.uid].node_name == WORKERS[4]
    audit.check(got.cluster.state)


def test_only_nodes_that_pass_every_filter_are_choices(rig):
    """The filters themselves are tested against kube-scheduler elsewhere; here: that the cluster asks them."""
    got = rig(small("first", labels={"app": "x"}, host_ports=(HostPort(8080),)))
    first = take(got.cluster)
    got.cluster.bind(first, got.node(WORKERS[0]))
    here = {"namespace": first.namespace}
    selector = LabelSelector((Requirement("app", "In", ("x",)),))
    term = PodAffinityTerm(HOSTNAME_LABEL, selector, frozenset({first.namespace}))
    spread = (TopologySpread(1, HOSTNAME_LABEL, selector),)
    toleration = Toleration(CONTROL_PLANE_LABEL, "Exists")
    everywhere, others = set(WORKERS), set(WORKERS[1:])
    assert got.feasible(small("any", **here)) == everywhere
    assert got.feasible(small("tolerates", tolerations=(toleration,), **here)) == {*everywhere, "kwok-ctl-node-0"}
    assert got.feasible(small("selects", node_selector={HOSTNAME_LABEL: WORKERS[2]}, **here)) == {WORKERS[2]}
    assert got.feasible(small("port", host_ports=(HostPort(8080),), **here)) == others
    assert got.feasible(small("spread", labels={"app": "x"}, spread=spread, **here)) == others
    assert got.feasible(small("apart", affinity=Affinity(required_anti_pods=(term,)), **here)) == others
    assert got.feasible(small("near", affinity=Affinity(required_pods=(term,)), **here)) == {WORKERS[0]}
    assert got.feasible(Pod("large", requests={"cpu": 64_000})) == others
    assert got.feasible(Pod("huge", requests={"cpu": 64_001})) == set()
    assert not got.cluster.state.capacity[got.node("kwok-ctl-node-0")]


def test_a_pod_that_fits_nowhere_comes_back_when_room_is_made(rig):
    here = {HOSTNAME_LABEL: WORKERS[7]}
    got = rig(
        Pod("holder", requests={"cpu": 40_000}, node_selector=here),
        Pod("waiter", requests={"cpu": 40_000}, node_selector=here),
    )
    holder = take(got.cluster)
    got.cluster.bind(holder, got.node(WORKERS[7]))
    waiter = take(got.cluster)
    assert got.feasible(waiter) == set()
    got.cluster.reject(waiter)
    assert got.cluster.pending_count() == 1
    got.leave(holder)
    again = take(got.cluster)
    assert again.uid == waiter.uid
    assert got.feasible(again) == {WORKERS[7]}
    got.place(again, WORKERS[7])


def test_a_pod_left_pending_comes_back(rig):
    got = rig(small("a"), small("b"))
    first = take(got.cluster)
    got.cluster.defer(first)
    assert got.cluster.pending_count() == 2
    second = take(got.cluster)
    assert second.uid != first.uid
    got.cluster.bind(second, got.node(WORKERS[3]))
    got.leave(second)
    assert take(got.cluster).uid == first.uid


def test_upcoming_pods_are_shown_and_not_taken(rig):
    got = rig(small("a"), small("b"), small("c"))
    now = take(got.cluster)
    shown = [pod.name for pod in got.cluster.upcoming(5)]
    assert sorted([now.name, *shown]) == ["a", "b", "c"]
    assert len(got.cluster.upcoming(1)) == 1
    for name in shown:
        got.cluster.bind(now, got.node(WORKERS[5]))
        now = take(got.cluster)
        assert now.name == name


def test_a_policy_may_sort_the_queue(rig):
    got = rig(small("a"), *(Pod(f"p{cores}", requests={"cpu": 1000 * cores}) for cores in (2, 9, 5, 7)))
    first = take(got.cluster)
    got.cluster.bind(first, got.node(WORKERS[0]))
    got.cluster.sort_queue(QueueSort(cpu_s=6_400.0))  # 100 s a core of a node's 64; pods came at about the same time
    shown = [pod.name for pod in got.cluster.upcoming(5)]
    by_size = [name for name in ("p2", "p5", "p7", "p9") if name != first.name]
    assert [name for name in shown if name != "a"] == by_size
    assert take(got.cluster).name == shown[0]


def test_a_gated_pod_is_not_handed_out(rig):
    got = rig(small("open"), small("gated", gates=("example.com/hold",)))
    pod = take(got.cluster)
    assert pod.name == "open"
    got.place(pod, WORKERS[1])
    assert got.cluster.next_pod(0.2) is None
    assert got.cluster.pending_count() == 1


def test_the_loop_places_a_whole_workload(rig):
    pods = [Pod(f"p{index}", requests={"cpu": 100 + 50 * (index % 7), "memory": GI}) for index in range(60)]
    got = rig(*pods)
    seen = Stats()
    stats = play(got.cluster, make_policy("least-allocated"), observers=[seen], stop=lambda: seen.binds["bound"] == 60)
    assert stats.binds == {"bound": 60}
    assert stats.outcomes == {"assumed": 60}
    audit.check(got.cluster.state)


def test_closing_twice_is_closing_once(rig):
    got = rig(small("a"))
    got.cluster.close()
    got.cluster.close()
