"""Kueue in front of the simulated cluster: what it lets in when, and where its pods run."""

from dataclasses import replace

import pytest

from aaml.cluster.objects import GpuRequest, Pod, PodGroup
from aaml.errors import UserError
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.kueue import gate_of
from aaml.sim.metrics import OF_JOBS
from aaml.sim.tasks import find_task
from aaml.sim.timeline import Cordon
from aaml.workload.gangs import JobShape, Racks

NODES = Racks((2,))(4)  # two racks of two nodes of eight GPUs
SHAPE = JobShape(8, 2)


def job(name, gpus, created_s=0.0, lifetime_s=100.0):
    return SHAPE.pods(name, "team", gpus, created_s, lifetime_s)


def played(*jobs, queue="kueue"):
    cluster = SimCluster(NODES, sorted((pod for each in jobs for pod in each), key=lambda pod: pod.created_s),
                         gate=gate_of(queue, NODES), invariants=True)  # fmt: skip
    where = {}
    bind = cluster.bind

    def noted(pod, node_index, gpus=None):
        where[pod.name] = (cluster.state.names[node_index], cluster.now_s())
        return bind(pod, node_index, gpus)

    cluster.bind = noted
    play(cluster, make_policy("random", PolicyOptions(seed=1)))
    assert not cluster.journal.waiting_since_s
    return where


def test_pods_run_where_kueue_says_whatever_the_policy_draws():
    """Small jobs go to the fullest node that has room, of equal ones the first; a gang to the rack that is empty."""
    where = played(job("one", 2), job("two", 4, 1.0), job("gang", 16, 2.0), job("three", 2, 3.0))
    assert {name: node for name, (node, _) in where.items()} == {
        "one-0": "node-0", "two-0": "node-0", "gang-0": "node-2", "gang-1": "node-3", "three-0": "node-0"
    }  # fmt: skip


def test_what_did_not_fit_is_tried_a_second_after_another_has_ended():
    where = played(job("first", 16), job("second", 16, 1.0), job("third", 16, 2.0))
    assert where["first-0"] == ("node-0", 0.0)
    assert where["second-0"] == ("node-2", 1.0)
    assert where["third-0"] == ("node-0", 101.0), "at 100 s the first ends"
    assert where["third-1"] == ("node-1", 101.0)


def test_a_strict_queue_lets_nobody_pass():
    jobs = (job("a", 16, 0.0, 50.0), job("b", 8, 1.0, 100.0), job("large", 16, 2.0), job("small", 2, 3.0))
    assert played(*jobs)["small-0"][1] == 3.0
    strict = played(*jobs, queue="kueue-strict")
    assert strict["large-0"][1] == 50.0, "its head is tried without a second's wait"
    assert strict["small-0"][1] == 50.0


def test_a_gang_waits_for_all_of_its_pods():
    group = PodGroup("late", 2, "rack")
    pods = [Pod(f"p{n}", "team", gpu=GpuRequest(8, 1000), group=group, created_s=10.0 * n, lifetime_s=5.0)
            for n in range(2)]  # fmt: skip
    assert {at_s for _, at_s in played(pods).values()} == {10.0}


def test_a_job_that_loses_a_pod_while_it_waits_is_incomplete_and_holds_nobody_up():
    cluster = SimCluster(NODES, [*job("a", 16), *job("b", 16)], gate=gate_of("kueue-strict", NODES))
    assert cluster.advance()
    first, second = job("large", 16)
    cluster.submit((first, second))
    cluster.delete(first.uid)
    cluster.submit(job("small", 2, lifetime_s=1.0))
    for each in (cluster.fork(), cluster):
        play(each, make_policy("random", PolicyOptions(seed=1)))
        assert set(each.journal.waiting_since_s) == {second.uid}
    cluster.submit([replace(first, uid="again")])
    play(cluster, make_policy("random", PolicyOptions(seed=1)))
    assert not cluster.journal.waiting_since_s


def test_what_kueue_does_that_is_not_played_is_refused_in_a_line():
    with pytest.raises(UserError, match="queue: 'volcano' is not accepted; expected one of none, kueue, kueue-strict"):
        gate_of("volcano", NODES)
    shared = Pod("p", gpu=GpuRequest(1, 500))
    line = r"queue all: a share of a GPU \(default/p\) is not played; Kueue itself does it: `aaml cluster up --queue"
    with pytest.raises(UserError, match=line):
        play(SimCluster(NODES, [shared], gate=gate_of("kueue", NODES)), make_policy("random", PolicyOptions(seed=1)))
    with pytest.raises(UserError, match="nodes: 4 is not accepted; expected nodes with the label kubernetes"):
        gate_of("kueue", [replace(node, labels={}) for node in NODES])
    cluster = SimCluster(NODES, job("a", 2), gate=gate_of("kueue", NODES))
    with pytest.raises(UserError, match="timeline: Cordon is not accepted behind a queue such as Kueue's"):
        cluster.happen(Cordon(0.0, "node-0"))


def test_behind_kueue_no_policy_has_a_say():
    found = []
    for name in ("random", "kube-scheduler-packing"):
        cluster = find_task("train-philly-kueue@0.9").build(1000, pods=30)
        play(cluster, make_policy(name, PolicyOptions(seed=1)))
        found.append({key: cluster.metrics()[key] for key in OF_JOBS})
    assert found[0] == found[1]
