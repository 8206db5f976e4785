"""A policy under guard: pods go on being placed, whatever it does, and by the better of two."""

import json
import math
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.live.failover import Failover
from aaml.live.fallback import with_fallback
from aaml.live.run import SchedulerRun
from aaml.live.scheduler import Scheduler, learns
from aaml.live.settings import Folders, SchedulerSettings
from aaml.live.source import PolicySource
from aaml.policies.registry import make_policy, make_reward
from aaml.scheduling.ports import Decision
from aaml.sim.threaded import ThreadedCluster
from support import make


def cluster_with(count, nodes=2):
    cluster = ThreadedCluster(make.nodes(nodes, memory=512 * make.GIB, pods=1000))
    cluster.do(lambda sim: sim.submit([make.pod(f"p{i}", cpu=5) for i in range(count)]))
    cluster.end()
    return cluster


def context():
    """Two nodes; the second one has no room."""
    return make.context(make.cluster(make.nodes(2)), make.pod(), [1, 0])


class Does:
    """A policy that does what a function says."""

    name = "does"

    def __init__(self, act):
        self.act = act


class First:
    name = "first"

    def act(self, context):
        return Decision(int(np.flatnonzero(context.mask)[0]), info={"first": 1.0})


def fails(_context):
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("act", "reason", "said"),
    [
        (fails, "error", r"RuntimeError: no idea"),
        (lambda _: Decision(1), "infeasible", r"node_index=1.*not feasible"),
        (lambda _: Decision(2), "infeasible", r"node_index=2.*not feasible"),
        (lambda _: Decision(-1), "infeasible", r"node_index=-1.*not feasible"),
        (lambda _: Decision("n0"), "infeasible", r"node_index='n0'.*not feasible"),
        (lambda _: 0, "infeasible", r"chose 0 "),
    ],
)
def test_what_a_policy_cannot_decide_the_fallback_does_and_it_is_told_once(act, reason, said, caplog):
    counted = []
    guarded = with_fallback(Does(act), First(), count=counted.append)
    for _ in range(3):
        assert guarded.act(context()).node_index == 0
    assert counted == [reason] * 3
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert caplog.text.count("first decides instead") == 1
    assert re.search(said, record.getMessage())


def test_a_policy_may_leave_a_pod_pending():
    assert with_fallback(Does(lambda _: Decision(None)), First()).act(context()).node_index is None


@pytest.mark.parametrize("trusted", [True, False])
def test_the_fallback_decides_as_long_as_a_policy_is_late(trusted):
    answer, counted = threading.Event(), []

    def slow(_context):
        answer.wait(60 if counted or not trusted else 0.1)  # one that is trusted is waited for the first time
        return Decision(0)

    guarded = with_fallback(Does(slow), First(), deadline_s=0.01, trusted=trusted, count=counted.append)
    assert [guarded.act(context()).info for _ in range(2)] == [{"first": 1.0}] * 2
    assert counted == ["deadline"] * 2
    answer.set()
    for _ in range(60_000):
        if not guarded.act(context()).info:
            return
        time.sleep(0.001)  # its thread has to have its turn
    pytest.fail("the policy was not asked again after it had answered")


def test_a_trusted_policy_is_asked_in_the_thread_that_schedules_until_it_is_late(monkeypatch):
    threads, now_s = [], [0.0]
    monkeypatch.setattr("aaml.live.fallback.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def slow_at_second(_context):
        threads.append(threading.current_thread())
        if len(threads) == 2:
            now_s[0] += 61.0
        return Decision(0)

    guarded = with_fallback(Does(slow_at_second), First(), deadline_s=60.0, trusted=True)
    for _ in range(3):
        guarded.act(context())
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, True, False]


def test_an_error_of_a_policy_with_a_deadline_is_told_as_one():
    counted = []
    assert with_fallback(Does(fails), First(), deadline_s=60.0, count=counted.append).act(context()).node_index == 0
    assert counted == ["error"]


class Learner(First):
    """Learns until it fails at it."""

    name = "learner"

    def __init__(self):
        self.seen = []

    def observation_of(self, context):
        return context.pod.name

    def observe(self, transition):
        self.seen.append(transition.observation)

    def learn(self):
        if len(self.seen) == 3:
            raise FloatingPointError("loss is nan")
        return {"loss": 0.0}

    def save(self, directory, stem):
        return ()


def test_a_learner_that_fails_goes_on_deciding(caplog):
    learner = Learner()
    stats = Scheduler(cluster_with(10), with_fallback(learner, First())).run()
    assert stats.binds["bound"] == 10
    assert learner.seen == ["p0", "p1", "p2"]
    assert caplog.text.count("learner learns no more, it goes on with the weights it has: ") == 1
    assert "FloatingPointError: loss is nan" in caplog.text


def test_a_guarded_policy_learns_sorts_and_sees_as_it_would_by_itself():
    sorter = make_policy("smallest-first")
    guarded = with_fallback(sorter, First())
    assert (guarded.name, guarded.queue_sort, guarded.observation_spec) == (
        sorter.name,
        sorter.queue_sort,
        sorter.observation_spec,
    )
    assert not learns(guarded)
    learner = Learner()
    assert learns(with_fallback(learner, First()))
    learner.learning = False
    assert not learns(with_fallback(learner, First()))


def run_against(policy, fallback, count=lambda _reason: None):
    """Place 300 pods, comparing the choices for all of them."""
    failover = Failover(make_policy(fallback), make_reward("balance"), share=math.inf)
    guarded = with_fallback(policy, make_policy(fallback), failover=failover, count=count)
    Scheduler(cluster_with(300), guarded).run()
    return guarded


def test_a_policy_that_does_worse_hands_over_and_says_so(caplog):
    counted = []
    assert run_against(make_policy("most-allocated"), "least-variance", counted.append).failed_over
    assert set(counted) == {"handed-over"}
    assert len(counted) > 0
    assert caplog.text.count("most-allocated fails over to least-variance, which does better") == 1


def test_after_a_hand_over_whoever_looks_is_told_who_decides(tmp_path, monkeypatch):
    """The cluster's events, the log of decisions, the records and the metrics: each says it, and from which pod on."""
    told, seen = [], []
    cluster = cluster_with(300)
    cluster.failed_over = lambda pod, said: told.append((pod.name, said))
    monkeypatch.setattr("aaml.live.failover.Failover.worse", lambda *_: "mean -0.01" if len(seen) == 10 else None)
    monkeypatch.setattr(
        "aaml.live.scheduler_replica.SchedulerReplica.on_turn",
        lambda replica: seen.append(replica._metrics.text().decode()) if len(seen) < 12 else None,
    )
    run = SchedulerRun(
        PolicySource(lambda: make_policy("most-allocated")),
        SchedulerSettings(failover="always", fallback="least-variance"),
        cluster=cluster,
        folders=Folders(*(tmp_path / each for each in "abcde")),
    )
    assert run.run(20).decisions == 20
    pod, said = told[0]
    assert len(told) == 1
    assert said == "most-allocated fails over to least-variance, which does better: mean -0.01"
    (log,) = (tmp_path / "c").glob("*.log")
    lines = [line for line in log.read_text().splitlines() if " INFO    decision " in line]
    first = next(number for number, line in enumerate(lines) if line.endswith(", by least-variance)"))
    assert f"default/{pod} " in lines[first - 1], "the pod that was decided on is the policy's last one"
    assert all(line.endswith(", by least-variance)") for line in lines[first:])
    assert not any("least-variance" in line for line in lines[:first])
    (events,) = (tmp_path / "c").glob("*.jsonl")
    by = [each.get("by", "") for each in map(json.loads, events.read_text().splitlines()) if each["kind"] == "decision"]
    assert by == [""] * first + ["least-variance"] * (20 - first)
    assert 'aaml_policy_deciding{policy="most-allocated"} 1.0' in seen[0]
    assert 'aaml_policy_deciding{policy="least-variance"} 0.0' in seen[0]
    assert 'aaml_policy_replaced_total{reason="handed-over"} 0.0' in seen[0], "a counter that is there before its event"
    assert 'aaml_policy_deciding{policy="most-allocated"} 0.0' in seen[-1]
    assert 'aaml_policy_deciding{policy="least-variance"} 1.0' in seen[-1]


@pytest.mark.parametrize("fallback", ["least-variance", "most-allocated"])
def test_a_policy_that_is_as_good_or_better_keeps_deciding(fallback):
    assert not run_against(make_policy("least-variance"), fallback).failed_over


def test_what_is_only_tried_out_is_not_held_against_a_policy():
    worst = make_policy("most-allocated")
    tries = Does(lambda context: Decision(worst.act(context).node_index, info={"explored": 1.0}))
    assert not run_against(tries, "least-variance").failed_over


OWN = """
def fails_on_pods(context):
    if context.pod.name != "warm-up":
        raise LookupError("lost")
    return -context.state.requested[:, 0]
"""


def test_a_run_guards_its_policy_unless_told_not_to(tmp_path, caplog):
    (tmp_path / "mine.py").write_text(OWN)

    def run(**settings):
        return SchedulerRun(
            PolicySource(lambda: make_policy(f"{tmp_path}/mine.py:fails_on_pods")),
            SchedulerSettings(records=False, **settings),
            cluster=cluster_with(5),
            folders=Folders(*(tmp_path / each for each in "abcde")),
        ).run()

    assert run().binds["bound"] == 5
    assert "fails_on_pods failed on default/p0 (LookupError: lost): kube-scheduler decides instead" in caplog.text
    with pytest.raises(LookupError):
        run(fallback="none")
    with pytest.raises(UserError, match=r"policy: 'nobody' is not accepted"):
        run(fallback="nobody")
