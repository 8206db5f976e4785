"""A model of lifetimes that learns from the pods of a cluster, against one that is told of each run at its end."""

from types import SimpleNamespace

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.live.observers.lifetimes import LifetimeWatch
from aaml.live.scheduler import Scheduler
from aaml.policies.registry import make_policy
from aaml.scheduling.lifetimes import LifetimeModel
from aaml.scheduling.ports import BindResult
from aaml.sim.tasks import find_task


class Clock:
    def __init__(self):
        self.s = 0.0
        self.state = ClusterState([Node(f"n{i}", {"cpu": 10**6, "memory": 1 << 40, "pods": 1000}) for i in range(3)])
        self.watch = LifetimeWatch(LifetimeModel(), SimpleNamespace(state=self.state, now_s=lambda: self.s))


def bands(model):
    """What was counted in all, by band of age: ends, and the parts that were passed."""
    return {band: values for band, *values in model.to_dict()["classes"][0]["bands"]}


def job(name, owner="Job/index", **more):
    return Pod(name, requests={"cpu": 100}, owner=owner, **more)


def test_runs_count_once_however_often_they_are_looked_at():
    rng, clock, whole = np.random.default_rng(0), Clock(), LifetimeModel()
    ends = {f"p{i}": (float(rng.integers(200)), float(rng.lognormal(4.0, 1.0))) for i in range(60)}
    pods = {name: job(name, f"Job/j{i % 4}") for i, name in enumerate(ends)}
    for clock.s in np.arange(0.0, 400.0, 0.5):
        for name, (start_s, runs_s) in ends.items():
            if clock.s == start_s:
                clock.state.assume(pods[name], "n1", since_s=clock.s)
            if start_s + runs_s <= clock.s < start_s + runs_s + 0.5:
                ends[name] = (start_s, clock.s - start_s)  # when it was seen to end
                clock.state.remove_pod(pods[name].uid)
        clock.watch.on_turn()
    for name, (start_s, runs_s) in ends.items():
        ended = start_s + runs_s < 400.0
        assert ended or pods[name].uid in clock.state.placements
        if ended:
            whole.learn(pods[name], runs_s)
    for uid in list(clock.state.placements):  # those that run on count in full once they have ended
        pod = clock.state.placements[uid].pod
        whole.learn(pod, 400.0 - ends[pod.name][0])
        clock.s = 400.0
        clock.state.remove_pod(uid)
    clock.watch.learn(400.0)
    for row, expected in enumerate(whole.to_dict()["classes"]):
        found = {each["key"]: each for each in clock.watch._model.to_dict()["classes"]}[expected["key"]]
        assert np.array(found["bands"]) == pytest.approx(np.array(expected["bands"])), row


def test_a_run_that_goes_on_counts_as_far_as_it_has_come():
    clock = Clock()
    clock.state.assume(job("a"), "n0", since_s=0.0)
    clock.s = 100.0
    clock.watch.on_turn()
    counted = bands(clock.watch._model)
    assert all(values == [0.0, 1.0] for values in counted.values())
    assert len(counted) == 14  # the edges up to 90.5 s, the last before 100 s


def test_pods_that_were_found_running_are_watched_from_then_on():
    state = ClusterState([Node("n", {"cpu": 1000, "memory": 1, "pods": 9})])
    state.assume(old := job("old"), "n", since_s=-10_000.0)
    watch = LifetimeWatch(LifetimeModel(), SimpleNamespace(state=state, now_s=lambda: 0.0))
    state.remove_pod(old.uid)
    watch.learn(0.0)
    (ended,) = bands(watch._model).items()
    assert ended == (27, [1.0, 0.0])  # 8,192 s to 11,585 s: nothing is known of its life before


def test_a_watch_that_was_closed_sees_no_more():
    clock = Clock()
    clock.state.assume(job("a"), "n0", since_s=0.0)
    clock.watch.close()
    clock.state.assume(job("b"), "n0", since_s=0.0)
    clock.state.remove_pod(job("a").uid)
    clock.watch.learn(1.0)
    assert [run.pod.name for run in clock.watch._runs.values()] == ["a"]


def test_neither_a_bind_that_failed_nor_a_node_that_left_ends_a_run():
    clock = Clock()
    failed, moved = job("failed"), job("moved")
    clock.state.assume(failed, "n0", since_s=0.0)
    clock.state.forget(failed.uid)
    clock.watch.on_result(BindResult(failed, "n0", "failed"))
    clock.state.assume(moved, "n1", since_s=0.0)
    clock.s = 3.0
    clock.state.remove_node("n1")
    clock.watch.learn(3.0)
    assert all(ends == 0.0 for ends, _ in bands(clock.watch._model).values())


def test_a_scheduler_that_expects_pods_to_end_learns_what_it_sees():
    cluster, policy = find_task("services-and-jobs").build(0, 4, pods=300), make_policy("nilas")
    model = policy.observation_spec.lifetime_model
    before = model.remaining_s(job("new", "Job/thumbnails"))
    Scheduler(cluster, policy).run()
    assert before == pytest.approx(LifetimeModel().remaining_s(job("new")))
    known = [key for key in (each["key"] for each in model.to_dict()["classes"]) if key.endswith("Job/thumbnails")]
    assert known
    assert sum(ends for ends, _ in bands(model).values()) > 100
