"""SimCluster: by hand on small cases, and random event sequences against a slow reference."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from aaml.cluster import audit
from aaml.cluster.objects import GpuRequest, Node, Pod, PodGroup
from aaml.scheduling.queue import QueueSettings
from aaml.sim.cluster import SimCluster
from aaml.sim.timeline import AddNode, Cordon, DeletePod, Drain, RemoveNode
from support.make import GIB, node
from support.make import pod as make_pod
from support.slow_cluster import SlowCluster


def pod(name, cpu=1000, memory=GIB, **fields):
    """A pod of 1 core and 1 GiB that is known by its name."""
    return make_pod(name, cpu, memory, uid=name, **fields)


def first_fit(cluster):
    """Place everything on the first feasible node; returns [(pod, node or None, time)]."""
    log = []
    while (each := cluster.next_pod()) is not None:
        mask = cluster.feasible(each)
        if mask.any():
            log.append((each.name, cluster.bind(each, int(mask.argmax())), cluster.now_s()))
        else:
            cluster.reject(each)
            log.append((each.name, None, cluster.now_s()))
    return log


def test_a_pod_that_fits_nowhere_gets_the_room_of_the_first_that_leaves():
    cluster = SimCluster([node("a", cpu=1000)], [pod("p", life=30.0), pod("q", at=10.0)], invariants=True)
    assert first_fit(cluster) == [("p", "a", 0.0), ("q", None, 10.0), ("q", "a", 30.0)]
    assert cluster.exhausted
    metrics = cluster.metrics()
    assert metrics["waiting_mean_s"] == 10.0  # (0 + 20) / 2
    assert metrics["waiting_max_s"] == 20.0
    assert (metrics["bound"], metrics["departed"], metrics["rejected"]) == (2, 1, 1)


def test_averages_are_weighted_by_time():
    # CPU use of the two nodes: (0.5, 0) for 10 s, (0.5, 0.5) for 10 s, (0, 0.5) for 20 s, then the horizon.
    pods = [pod("p", cpu=2000, memory=0, life=20.0), pod("q", cpu=2000, memory=0, at=10.0)]
    cluster = SimCluster([node("a"), node("b")], pods, until_s=40.0)
    cluster.bind(cluster.next_pod(), 0)
    cluster.bind(cluster.next_pod(), 1)
    assert cluster.next_pod() is None
    assert cluster.now_s() == 40.0
    metrics = cluster.metrics()
    assert metrics["mean_cpu_variance"] == pytest.approx(0.0625 * 30 / 40)  # ((1/4)^2 where one is half used
    assert metrics["mean_variance"] == pytest.approx(0.5 * 0.0625 * 30 / 40)
    assert metrics["mean_empty_nodes"] == pytest.approx(30 / 40)
    assert metrics["mean_cpu_allocation"] == pytest.approx((0.25 * 10 + 0.5 * 10 + 0.25 * 20) / 40)
    assert metrics["final_cpu_variance"] == pytest.approx(0.0625)


def test_a_pod_that_waits_for_ever_counts_with_the_time_it_has_waited():
    cluster = SimCluster([node("a", cpu=500)], [pod("p"), pod("q", at=100.0)], until_s=100.0)
    first_fit(cluster)
    assert cluster.metrics()["waiting_mean_s"] == 50.0
    assert cluster.metrics()["mean_pending_pods"] == 1.0


def test_gang_is_bound_whole_or_not_at_all():
    gang = [pod(f"g{i}", group=PodGroup("g", 3), life=50.0) for i in range(3)]
    cluster = SimCluster([node("a", cpu=2000)], [*gang, pod("single", at=1.0)], timeline=[AddNode(5.0, node("b"))])
    log = first_fit(cluster)
    # Two members fit, the third does not: none stays, so that the single pod finds room a second later. The backoffs of
    # 1 and 2 s end with their seconds: at 2 s, and at 5 s, when the node comes.
    assert log[:4] == [("g0", "a", 0.0), ("g1", "a", 0.0), ("g2", None, 0.0), ("single", "a", 1.0)]
    assert log[4:6] == [("g0", "a", 2.0), ("g1", None, 2.0)]
    assert log[6:] == [("g0", "a", 5.0), ("g1", "b", 5.0), ("g2", "b", 5.0)]
    assert cluster.metrics()["bound"] == 4


def test_gang_is_not_tried_before_all_have_come_and_its_members_leave_after_their_time():
    gang = [pod(f"g{i}", at=10.0 * i, group=PodGroup("g", 2), life=5.0) for i in range(2)]
    cluster = SimCluster([node("a")], gang, invariants=True)
    assert first_fit(cluster) == [("g0", "a", 10.0), ("g1", "a", 10.0)]
    assert not cluster.state.placements


def test_a_gang_that_fits_nowhere_does_not_keep_the_simulation_going():
    """It is tried when it comes, and after the pod has come that may have changed something; then nothing can."""
    gang = [pod(f"g{i}", cpu=9000, group=PodGroup("g", 2)) for i in range(2)]
    cluster = SimCluster([node("a")], [*gang, pod("single", at=10.0)])
    log = first_fit(cluster)
    assert [each for each in log if each[0] == "single"] == [("single", "a", 10.0)]
    assert log[-1][0] == "g0"
    assert cluster.exhausted
    cluster.happen(AddNode(0.0, node("b", cpu=32000)))
    assert first_fit(cluster)[-2:] == [("g0", "b", cluster.now_s()), ("g1", "b", cluster.now_s())]


def test_a_gang_with_a_topology_is_in_one_rack_and_its_next_pod_goes_there_too():
    nodes = [node(f"{rack}{i}", cpu=1000, labels={"rack": rack}) for rack in "abc" for i in range(2)]
    gang = [pod(f"g{i}", group=PodGroup("g", 2, "rack")) for i in range(2)]
    other = pod("other", node_selector={"rack": "a"})
    cluster = SimCluster(nodes, [other, *gang], invariants=True)
    first_fit(cluster)
    racks = {cluster.state.placements[f"g{i}"].node_name[0] for i in range(2)}
    assert len(racks) == 1
    assert racks != {"a"}
    assert cluster.metrics()["bound"] == 3
    cluster.evict("g1")
    first_fit(cluster)
    assert {cluster.state.placements[f"g{i}"].node_name[0] for i in range(2)} == racks


@pytest.mark.parametrize("decisions", range(1, 7))
def test_a_fork_in_the_middle_of_a_gangs_trials_ends_as_the_original_does(decisions):
    """Three equal racks, two pods: six decisions, after each of which somebody may look ahead."""
    nodes = [node(f"{rack}{i}", cpu=1000, labels={"rack": rack}) for rack in "abc" for i in range(2)]
    gang = [pod(f"g{i}", group=PodGroup("g", 2, "rack")) for i in range(2)]
    cluster = SimCluster(nodes, [*gang, pod("later", at=5.0)], invariants=True, ties=3)
    for _ in range(decisions):
        each = cluster.next_pod()
        cluster.bind(each, int(cluster.feasible(each).argmax()))
    twin = cluster.fork()
    assert first_fit(twin) == first_fit(cluster)
    ends = [{uid: each.node_name for uid, each in one.state.placements.items()} for one in (cluster, twin)]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 3


def test_the_same_seed_draws_the_same_of_equal_racks():
    def rack(seed):
        nodes = [node(f"r{rack}", labels={"rack": f"r{rack}"}) for rack in range(8)]
        cluster = SimCluster(nodes, [pod("g", group=PodGroup("g", 1, "rack"))], ties=seed)
        first_fit(cluster)
        return cluster.state.placements["g"].node_name

    assert [rack(seed) for seed in range(4)] == [rack(seed) for seed in range(4)]
    assert len({rack(seed) for seed in range(20)}) > 3


def test_a_gang_that_the_policy_leaves_pending_is_tried_after_the_next_event():
    gang = [pod(f"g{i}", group=PodGroup("g", 2)) for i in range(2)]
    cluster = SimCluster([node("a")], [*gang, pod("single", at=10.0)])
    cluster.defer(cluster.next_pod())
    assert cluster.metrics()["declined"] == 1
    assert {name for name, _, _ in first_fit(cluster)} == {"g0", "g1", "single"}


def test_a_member_that_is_deleted_during_the_try_is_not_placed():
    gang = [pod(f"g{i}", group=PodGroup("g", 2)) for i in range(3)]
    cluster = SimCluster([node("a")], gang)
    cluster.bind(cluster.next_pod(), 0)
    cluster.delete("g2")
    first_fit(cluster)
    assert sorted(cluster.state.placements) == ["g0", "g1"]


def test_evicted_member_of_a_gang_comes_back_alone():
    gang = [pod(f"g{i}", group=PodGroup("g", 2)) for i in range(2)]
    cluster = SimCluster([node("a"), node("b")], gang)
    first_fit(cluster)
    cluster.evict("g1")
    assert first_fit(cluster) == [("g1", "a", 0.0)]


def test_pods_of_a_drained_or_lost_node_wait_again_and_start_anew():
    pods = [pod("p", life=100.0), pod("q", cpu=4000, at=1.0, life=1000.0)]
    timeline = [Drain(50.0, "a"), RemoveNode(60.0, "b"), AddNode(70.0, node("c")), Cordon(80.0, "a", on=False)]
    cluster = SimCluster([node("a"), node("b")], pods, timeline=timeline, invariants=True)
    log = first_fit(cluster)
    assert log[0] == ("p", "a", 0.0)
    assert log[1] == ("q", "b", 1.0)
    assert ("p", None, 50.0) in log  # b is full, a is cordoned
    assert ("p", "c", 70.0) in log  # it has waited longest
    assert ("q", "a", 80.0) in log
    assert cluster.now_s() == 1080.0
    assert cluster.metrics()["departed"] == 2


def test_deleting_frees_room_and_forgets_who_waits():
    pods = [pod("p", cpu=4000), pod("q", cpu=4000, at=1.0), pod("r", cpu=4000, at=2.0)]
    cluster = SimCluster([node("a")], pods, timeline=[DeletePod(5.0, "q"), DeletePod(6.0, "p")])
    assert [entry for entry in first_fit(cluster) if entry[1]] == [("p", "a", 0.0), ("r", "a", 6.0)]
    assert cluster.pending_count() == 0


def test_deferred_pod_comes_back_at_the_next_event():
    cluster = SimCluster([node("a")], [pod("p"), pod("q", at=7.0)])
    cluster.defer(cluster.next_pod())
    assert cluster.next_pod().name in {"p", "q"}
    assert cluster.now_s() == 7.0
    cluster.defer(cluster.next_pod())
    cluster.defer(cluster.next_pod())
    assert cluster.next_pod() is None  # nothing will happen any more: the policy would defer for ever
    assert cluster.exhausted


def test_migration_keeps_the_lifetime_and_respects_the_filters():
    cluster = SimCluster([node("a"), node("b", cpu=500)], [pod("p", life=10.0), pod("late", at=20.0)])
    cluster.bind(cluster.next_pod(), 0)
    assert not cluster.migrate("p", 1)
    assert cluster.state.placements["p"].node_name == "a"
    audit.check(cluster.state)
    cluster.next_pod()
    assert "p" not in cluster.state.placements


def test_a_pod_that_was_not_handed_out_cannot_be_bound():
    cluster = SimCluster([node("a")], [pod("p"), pod("q")])
    assert cluster.next_pod() is cluster.next_pod()
    with pytest.raises(RuntimeError, match="not the pod"):
        cluster.bind(pod("q"), 0)


def test_taints_and_unknown_resources_are_respected():
    cluster = SimCluster([node("a")], [Pod("p", requests={"example.com/fpga": 1})])
    assert not cluster.feasible(cluster.next_pod()).any()


def test_upcoming_shows_the_queue_in_order():
    cluster = SimCluster([node("a")], [pod(name) for name in "pqrs"] + [pod("later", at=1.0)])
    cluster.next_pod()
    assert [each.name for each in cluster.upcoming(2)] == ["q", "r"]
    assert [each.name for each in cluster.upcoming(9)] == ["q", "r", "s"]
    assert cluster.pending_count() == 3


@pytest.mark.parametrize("at_gang", [False, True])
def test_fork_goes_its_own_way_and_both_end_as_if_alone(at_gang):
    rng = np.random.default_rng(1)

    def workload():
        rng = np.random.default_rng(5)
        singles = [
            pod(f"p{i}", int(rng.integers(1, 3000)), at=float(i), life=float(rng.exponential(20))) for i in range(60)
        ]
        return sorted(
            [*singles, *(pod(f"g{i}", at=30.5, group=PodGroup("g", 3)) for i in range(3))], key=lambda p: p.created_s
        )

    nodes = [node(name) for name in "abc"]
    whole = SimCluster(nodes, workload(), invariants=True)
    expected = first_fit(whole)
    cluster = SimCluster(nodes, workload(), invariants=True)
    log = []
    while len(log) < 40:
        each = cluster.next_pod()
        mask = cluster.feasible(each)
        if at_gang and each.name == "g1":
            break
        if mask.any():
            log.append((each.name, cluster.bind(each, int(mask.argmax())), cluster.now_s()))
        else:
            cluster.reject(each)
            log.append((each.name, None, cluster.now_s()))
    if not at_gang:
        cluster.next_pod()
    twin = cluster.fork()
    while (each := twin.next_pod()) is not None:  # another policy on the fork
        nodes = np.flatnonzero(twin.feasible(each))
        if nodes.size:
            twin.bind(each, int(rng.choice(nodes)))
        else:
            twin.reject(each)
    second = cluster.fork()
    assert log + first_fit(cluster) == expected
    assert log + first_fit(second) == expected
    assert cluster.metrics() == whole.metrics() == second.metrics()


class Events(RuleBasedStateMachine):
    """Random binds, rejections, departures and node changes on both; every sum must agree."""

    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.slow = SlowCluster()
        self.names = ["n0", "n1", "n2"]
        nodes = []
        for i, name in enumerate(self.names):
            self.slow.sizes[name] = (3000 + 1000 * i, 6 * GIB, 4, i)
            nodes.append(node(name, cpu=3000 + 1000 * i, memory=6 * GIB, pods=4, gpus=i))
        self.cluster = SimCluster(nodes, queue=QueueSettings(initial_backoff_s=0.0), invariants=True)
        self.current = None
        self.count = 0
        self.time = 0.0
        self.variance_seconds = 0.0

    def _sync(self, until_s=None):
        """Let the slow cluster's clock run to the fast one's, event by event."""
        goal = self.cluster.now_s()
        while self.slow.leaves_s and min(self.slow.leaves_s.values()) <= goal:
            at_s = min(self.slow.leaves_s.values())
            self.variance_seconds += self.slow.cpu_variance() * (at_s - self.time)
            self.time = at_s
            self.slow.expire(at_s)
        self.variance_seconds += self.slow.cpu_variance() * (goal - self.time)
        self.time = goal

    @rule(
        cpu=st.integers(0, 2500),
        gib=st.integers(0, 4),
        gpu=st.sampled_from([0, 0, 0, 250, 600, 1000]),
        life=st.none() | st.integers(1, 40),
    )
    def arrive(self, cpu, gib, gpu, life):
        name = f"p{self.count}"
        self.count += 1
        self.slow.needs[name] = (cpu, gib * GIB, gpu)
        request = GpuRequest(1, gpu) if gpu else GpuRequest()
        self.cluster.submit([pod(name, cpu, gib * GIB, life=None if life is None else float(life), gpu=request)])

    @precondition(lambda self: self.current is None)
    @rule(choice=st.integers(0, 2))
    def decide(self, choice):
        # The horizon makes `next_pod` return instead of letting time run while pods wait.
        self.cluster.until_s = self.cluster.now_s()
        each = self.cluster.next_pod()
        if each is None:
            return
        mask = self.cluster.feasible(each)
        names = list(self.cluster.state.names)
        assert mask.tolist() == [self.slow.fits(each.name, name) for name in names]
        if not mask.any():
            self.cluster.reject(each)
            return
        nodes = np.flatnonzero(mask)
        node_index = int(nodes[choice % len(nodes)])
        self.cluster.bind(each, node_index)
        self.slow.place(each.name, names[node_index], self.cluster.now_s(), each.lifetime_s)

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds):
        self.cluster.until_s = self.cluster.now_s() + seconds
        while self.cluster.advance():
            pass
        self._sync()

    @rule(which=st.integers(0, 50))
    def evict(self, which):
        running = sorted(self.slow.running)
        if running:
            name = running[which % len(running)]
            self.cluster.evict(name)
            self.slow.remove(name)

    @rule(which=st.integers(0, 50), node_index=st.integers(0, 2))
    def migrate(self, which, node_index):
        running = sorted(self.slow.running)
        if not running:
            return
        name, target = running[which % len(running)], self.names[node_index]
        where, leaves_s = self.slow.running[name], self.slow.leaves_s.get(name)
        device = self.slow.device.get(name)
        self.slow.remove(name)
        fits = self.slow.fits(name, target)
        assert self.cluster.migrate(name, node_index) == fits
        self.slow.place(name, target if fits else where, 0.0, None)
        if not fits and device is not None:
            self.slow.device[name] = device
        if leaves_s is not None:
            self.slow.leaves_s[name] = leaves_s

    @rule(node_index=st.integers(0, 2), on=st.booleans())
    def cordon(self, node_index, on):
        self.cluster.happen(Cordon(self.cluster.now_s(), self.names[node_index], on=on))
        (self.slow.cordoned.add if on else self.slow.cordoned.discard)(self.names[node_index])

    @rule(node_index=st.integers(0, 2))
    def drain(self, node_index):
        name = self.names[node_index]
        self.cluster.happen(Drain(self.cluster.now_s(), name))
        self.slow.cordoned.add(name)
        for each in self.slow.on(name):
            self.slow.remove(each)

    @invariant()
    def sums_agree(self):
        state = self.cluster.state
        for node_index, name in enumerate(state.names):
            cpu, memory, pods = self.slow.used(name)
            assert state.requested[node_index, [0, 1, 3]].tolist() == [cpu, memory, pods]
            devices = self.slow.sizes[name][3]
            assert state.gpu_free[node_index, :devices].tolist() == self.slow.device_free(name)
        assert {uid: p.node_name for uid, p in state.placements.items()} == self.slow.running
        waiting = set(self.slow.needs) - set(self.slow.running) - self._gone()
        assert set(self.cluster.journal.waiting_since_s) == waiting
        assert self.cluster.pending_count() == len(waiting)
        if self.cluster.journal.averages.seconds:
            mean = self.cluster.metrics()["mean_cpu_variance"]
            assert mean * self.cluster.journal.averages.seconds == pytest.approx(self.variance_seconds, abs=1e-9)

    def _gone(self):
        counts = self.cluster.journal.counts
        gone = {name for name in self.slow.needs if name not in self.slow.running} - set(
            self.cluster.journal.waiting_since_s
        )
        assert len(gone) == counts["departed"]
        return gone


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_pod_runs_since_its_bind_also_after_a_move_and_not_beyond_its_deadline():
    pods = [Pod("p", requests={"cpu": 100}, created_s=10.0, lifetime_s=500.0, deadline_s=50.0)]
    pods.append(Pod("late", requests={"cpu": 100}, created_s=60.0))
    cluster = SimCluster([Node(name, {"cpu": 1000, "pods": 10}) for name in ("a", "b")], pods)
    cluster.bind(cluster.next_pod(), 0)
    assert cluster.migrate(pods[0].uid, 1)
    placement = cluster.state.placements[pods[0].uid]
    assert (placement.node_name, placement.since_s, placement.until_s) == ("b", 10.0, 60.0)
    assert cluster.next_pod().name == "late"
    assert cluster.now_s() == 60.0
    assert pods[0].uid not in cluster.state.placements
