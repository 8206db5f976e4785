"""The in-process cluster with a scheduler in one thread and a workload player in another."""

import threading

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.observation import Featurizer
from aaml.scheduling.ports import Decision
from aaml.sim.live import LiveCluster, LiveSink
from aaml.workload.deployments import Deployment, RandomDeployments
from aaml.workload.player import PlaySettings, WorkloadPlayer

GIB = 1024**3


class NoReward:
    def before(self, context):
        pass

    def after(self, context, row):
        return 0.0


class LeastCpu:
    name = "least-cpu"

    def act(self, context):
        used = np.where(context.mask, context.state.requested[:, 0], 2**62)
        return Decision(int(used.argmin()))


def nodes(count=4, cpu_milli=8_000):
    return [Node(f"n{i}", {"cpu": cpu_milli, "memory": 32 * GIB, "pods": 20}) for i in range(count)]


@pytest.fixture
def scheduled():
    """A cluster with a scheduler at work in its own thread."""
    cluster = LiveCluster(nodes(), invariants=True)
    decided = []
    stop = threading.Event()
    loop = SchedulerLoop(
        SchedulingCycle(cluster, NoReward(), Featurizer()),
        LeastCpu(),
        on_step=lambda context, decision, outcome: decided.append((context.pod.name, outcome.node_name)),
    )
    thread = threading.Thread(target=loop.run, args=(stop.is_set,), daemon=True)
    thread.start()
    yield cluster, decided
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def deployment(name, pods=2, cpu_milli=1000, lifetime_s=None):
    return Deployment(name, pods, cpu_milli, GIB, lifetime_s=lifetime_s)


def test_pods_are_placed_while_the_player_waits(scheduled):
    cluster, decided = scheduled
    sink = LiveSink(cluster)
    sink.create([deployment("a"), deployment("b", 3)])
    assert sink.wait_placed(["a", "b"], 10.0) == {}
    assert sorted(name for name, _ in decided) == ["a-0", "a-1", "b-0", "b-1", "b-2"]
    assert sink.load().cpu == 5 / 32
    assert sink.now_s() == 0.0  # nothing had to wait


def test_what_does_not_fit_is_told_and_placed_when_room_comes(scheduled):
    cluster, _ = scheduled
    sink = LiveSink(cluster)
    sink.create([deployment("full", 4, 8_000), deployment("late", 1, 4_000)])
    assert sink.wait_placed(["full", "late"], 5.0) == {"late": 1}
    assert sink.now_s() == 5.0
    sink.delete(["full"])
    assert sink.wait_placed(["late"], 60.0) == {}
    assert sink.load().cpu == 4 / 32


def test_time_goes_by_only_when_asked(scheduled):
    cluster, _ = scheduled
    sink = LiveSink(cluster)
    sink.sleep(100.0)
    assert sink.now_s() == 100.0


def test_the_state_can_be_looked_at_from_outside_while_it_works(scheduled):
    cluster, _ = scheduled
    sink = LiveSink(cluster)
    sink.create([deployment("a", 4)])
    sink.wait_placed(["a"], 10.0)
    assert cluster.call(lambda state: len(state.placements)) == 4
    with pytest.raises(ZeroDivisionError):
        cluster.call(lambda state: 1 // 0)


def test_one_scheduler_at_a_time_but_one_after_another():
    cluster = LiveCluster(nodes())
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
    cluster.close()
    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert len(refused) == 1


def test_without_a_scheduler_pods_stay_pending_and_the_wait_ends():
    sink = LiveSink(LiveCluster(nodes()))
    sink.create([deployment("a")])
    assert sink.wait_placed(["a"], 0.2) == {"a": 2}
    sink.interrupt()
    assert sink.wait_placed(["a"], 1e9) == {"a": 2}
    sink.delete(["a"])


def play(cluster, **settings):
    source = RandomDeployments(np.random.default_rng(7))
    player = WorkloadPlayer(LiveSink(cluster), PlaySettings(**settings), source=source)
    return player.run()


def test_a_round_ends_at_the_load_and_the_next_begins_with_an_empty_cluster(scheduled):
    cluster, decided = scheduled
    first, second = play(cluster, cpu_load=0.9, mem_load=0.9, pod_load=0.3, rounds=2)
    assert first.ended == "pods reached 30%"
    assert 0.3 <= first.load.pods < 0.3 + 15 / 80
    assert first.pending == {}
    assert second.load.pods == second.pods / 80
    assert len(decided) == first.pods + second.pods


def test_the_same_seed_takes_the_same_decisions():
    runs = []
    for _ in range(2):
        cluster, decided = LiveCluster(nodes()), []
        loop = SchedulerLoop(
            SchedulingCycle(cluster, NoReward(), Featurizer()),
            LeastCpu(),
            on_step=lambda context, decision, outcome, out=decided: out.append((context.pod.name, outcome.node_name)),
        )
        thread = threading.Thread(target=loop.run)
        thread.start()
        play(cluster, cpu_load=0.9, mem_load=0.9, pod_load=0.8, interval_s=1.0)
        cluster.end()
        thread.join(30)
        assert not thread.is_alive()
        runs.append(decided)
    assert runs[0] == runs[1]
    assert len(runs[0]) > 40
