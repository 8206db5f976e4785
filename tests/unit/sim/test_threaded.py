"""The in-process cluster with a scheduler in one thread and a workload player in another."""

import threading
from functools import partial

import numpy as np
import pytest

from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision, Observer
from aaml.sim.threaded import ThreadedCluster, ThreadedSink
from aaml.workload.deployments import Deployment, RandomDeployments
from aaml.workload.player import PlaySettings, WorkloadPlayer
from support import make
from support.make import GIB


class Log(Observer):
    """Writes down which pod goes where."""

    def __init__(self, decided):
        self.decided = decided

    def on_decision(self, context, decision, outcome):
        self.decided.append((context.pod.name, outcome.node_name))


class LeastCpu:
    name = "least-cpu"

    def act(self, context):
        used = np.where(context.mask, context.state.requested[:, 0], 2**62)
        return Decision(int(used.argmin()))


def four_nodes():
    return make.nodes(4, 8_000, 32 * GIB, 20)


@pytest.fixture
def scheduled():
    """A cluster with a scheduler at work in its own thread."""
    cluster = ThreadedCluster(four_nodes(), invariants=True)
    decided = []
    stop = threading.Event()
    run = partial(play, cluster, LeastCpu(), observers=[Log(decided)], stop=stop.is_set)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield cluster, decided
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def deployment(name, pods=2, cpu_milli=1000, lifetime_s=None):
    return Deployment(name, pods, cpu_milli, GIB, lifetime_s=lifetime_s)


def test_pods_are_placed_while_the_player_waits(scheduled):
    cluster, decided = scheduled
    sink = ThreadedSink(cluster)
    sink.create([deployment("a"), deployment("b", 3)])
    assert sink.wait_placed(["a", "b"], 10.0) == {}
    assert sorted(name for name, _ in decided) == ["a-0", "a-1", "b-0", "b-1", "b-2"]
    assert sink.load().cpu == 5 / 32
    assert sink.now_s() == 0.0  # nothing had to wait


def test_what_does_not_fit_is_told_and_placed_when_room_comes(scheduled):
    cluster, _ = scheduled
    sink = ThreadedSink(cluster)
    sink.create([deployment("full", 4, 8_000), deployment("late", 1, 4_000)])
    assert sink.wait_placed(["full", "late"], 5.0) == {"late": 1}
    assert sink.now_s() == 5.0
    sink.delete(["full"])
    assert sink.wait_placed(["late"], 60.0) == {}
    assert sink.load().cpu == 4 / 32


def test_time_goes_by_only_when_asked(scheduled):
    cluster, _ = scheduled
    sink = ThreadedSink(cluster)
    sink.sleep(100.0)
    assert sink.now_s() == 100.0


def test_the_state_can_be_looked_at_from_outside_while_it_works(scheduled):
    cluster, _ = scheduled
    sink = ThreadedSink(cluster)
    sink.create([deployment("a", 4)])
    sink.wait_placed(["a"], 10.0)
    assert cluster.call(lambda state: len(state.placements)) == 4
    with pytest.raises(ZeroDivisionError):
        cluster.call(lambda state: 1 // 0)


def test_one_scheduler_at_a_time_but_one_after_another():
    cluster = ThreadedCluster(four_nodes())
    cluster.do(lambda sim: sim.submit([Pod("a", requests={"cpu": 1})]))
    pod = cluster.next_pod(0.0)
    refused = []

    def second():
        try:
            cluster.next_pod(0.0)
        except UserError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert "has a scheduler already" in refused[0]
    cluster.bind(pod, 0)
    cluster.drain()
    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert len(refused) == 1


def test_without_a_scheduler_pods_stay_pending_and_the_wait_ends():
    sink = ThreadedSink(ThreadedCluster(four_nodes()))
    sink.create([deployment("a")])
    assert sink.wait_placed(["a"], 0.2) == {"a": 2}
    sink.interrupt()
    assert sink.wait_placed(["a"], 1e9) == {"a": 2}
    sink.delete(["a"])


def fill(cluster, **settings):
    source = RandomDeployments(np.random.default_rng(7))
    player = WorkloadPlayer(ThreadedSink(cluster), PlaySettings(**settings), source=source)
    return player.run()


def test_a_round_ends_at_the_load_and_the_next_begins_with_an_empty_cluster(scheduled):
    cluster, decided = scheduled
    first, second = fill(cluster, cpu_load=0.9, mem_load=0.9, pod_load=0.3, rounds=2)
    assert first.ended == "pods reached 30%"
    assert 0.3 <= first.load.pods < 0.3 + 15 / 80
    assert first.pending == {}
    assert second.load.pods == second.pods / 80
    assert len(decided) == first.pods + second.pods


def test_the_same_seed_takes_the_same_decisions():
    runs = []
    for _ in range(2):
        cluster, decided = ThreadedCluster(four_nodes()), []
        thread = threading.Thread(target=partial(play, cluster, LeastCpu(), observers=[Log(decided)]))
        thread.start()
        fill(cluster, cpu_load=0.9, mem_load=0.9, pod_load=0.8, interval_s=1.0)
        cluster.end()
        thread.join(30)
        assert not thread.is_alive()
        runs.append(decided)
    assert runs[0] == runs[1]
    assert len(runs[0]) > 40
