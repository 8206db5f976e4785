"""Many workers collect what one process would, and what it would when some of them are lost in the middle."""

import itertools
import multiprocessing
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.learning.agents import make_agent
from aaml.learning.config import LIVE
from aaml.parallel.pool import Keeper, KeptElsewhere
from aaml.parallel.worker import Desk, WorkerLostError
from aaml.scheduling.observation import ObservationSpec
from aaml.training.collectors import Actor, Collector, LocalCollector, collector
from aaml.training.rollouts import EnvConfig

SETTING = EnvConfig("seedc", (3,), pods=30, lookahead=2)
ACTOR = Actor(LIVE["dqn"])


def assert_same(ours, theirs):
    """Compare two lists of (stream, step) to the last bit."""
    assert len(ours) == len(theirs) > 0
    for (stream, mine), (other, yours) in zip(ours, theirs, strict=True):
        assert (stream, mine.action, mine.reward) == (other, yours.action, yours.reward)
        assert (mine.terminated, mine.truncated) == (yours.terminated, yours.truncated)
        np.testing.assert_array_equal(mine.observation.nodes, yours.observation.nodes)
        np.testing.assert_array_equal(mine.observation.pairs, yours.observation.pairs)


class Forgetful(KeptElsewhere):
    """What is kept by a worker in this process that can be lost with the answer it has ready."""

    def __init__(self, *arguments):
        self.made, self.lost = 0, False

        def start(_replaces):
            self.made += 1
            return Nearby(self, Desk(".", Keeper(LocalCollector, arguments)))

        super().__init__(start)


class Nearby:
    def __init__(self, kept, desk):
        self.kept, self.desk = kept, desk

    def send(self, request):
        self.request = request

    def receive(self):
        answer = self.desk.answer(self.request)
        if self.kept.lost:
            self.kept.lost = False
            raise WorkerLostError("out of memory")
        return answer

    def close(self):
        pass


class Pool:
    size = 2

    def __init__(self):
        self.kept = []

    def keep(self, _make, *arguments):
        self.kept.append(Forgetful(*arguments))
        return self.kept[-1]


def test_lost_workers_leave_no_trace_in_the_experience():
    pool = Pool()
    here, dealt = LocalCollector(SETTING, ACTOR, 7, range(4)), Collector(pool, SETTING, ACTOR, 7, 4)
    weights = make_agent(LIVE["dqn"], observation_spec=ObservationSpec(2), seed=5).weights()
    losing = itertools.cycle(pool.kept)

    def both(call):
        next(losing).lost = True
        return call(here), call(dealt)

    for steps in (20, 1, 35):  # within an episode, with a step that awaits its continuation, over an episode's end
        assert_same(*both(lambda each, steps=steps: each.collect(weights, steps)))
    states, theirs = both(lambda each: each.state())
    assert states == theirs
    both(lambda each: each.cut())
    assert_same(*both(lambda each: each.collect(weights, 9)))
    both(lambda each: each.restore(states))
    assert_same(*both(lambda each: each.collect(weights, 9)))
    assert [kept.made for kept in pool.kept] == [1 + 4, 1 + 4]


@pytest.mark.slow
def test_a_mistake_is_raised_as_it_was():
    wrong = replace(SETTING, task="none")
    with collector(wrong, ACTOR, 7, 2, workers="2") as there, pytest.raises(UserError, match="task: 'none'"):
        there.state()


@pytest.mark.slow
def test_a_killed_process_is_replaced():
    weights = make_agent(LIVE["dqn"], observation_spec=ObservationSpec(2), seed=5).weights()
    with collector(SETTING, ACTOR, 7, 2) as here, collector(SETTING, ACTOR, 7, 2, workers="2") as there:
        assert_same(here.collect(weights, 20), there.collect(weights, 20))
        victim, _ = multiprocessing.active_children()
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        assert_same(here.collect(weights, 25), there.collect(weights, 25))
    assert not multiprocessing.active_children()
