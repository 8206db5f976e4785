"""Many workers collect what one process would, and what it would when some of them are lost in the middle."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.experiment.collectors import DealtCollector, Part, WorkerLostError, collector
from aaml.experiment.rollouts import Actor, LocalCollector, Setting
from aaml.learning.agent import make_agent
from aaml.learning.config import default_config

SETTING = Setting("seedc", (3,), pods=30, lookahead=2)
ACTOR = Actor("dqn", default_config("dqn"))


def assert_same(ours, theirs):
    """Compare two lists of (stream, step) to the last bit."""
    assert len(ours) == len(theirs) > 0
    for (stream, mine), (other, yours) in zip(ours, theirs, strict=True):
        assert (stream, mine.action, mine.reward) == (other, yours.action, yours.reward)
        assert (mine.terminated, mine.truncated) == (yours.terminated, yours.truncated)
        np.testing.assert_array_equal(mine.observation.nodes, yours.observation.nodes)
        np.testing.assert_array_equal(mine.observation.pairs, yours.observation.pairs)


class Nearby:
    """A worker in this process; `lost` says how many of its next answers never come."""

    def __init__(self, indices):
        self.part = Part(".", SETTING, ACTOR, 7, indices)
        self.lost = 0

    def send(self, request):
        self.request = request

    def receive(self):
        answer = self.part.answer(self.request)  # what is lost may be done already
        if self.lost:
            self.lost -= 1
            raise WorkerLostError("out of memory")
        return answer

    def close(self):
        pass


@pytest.fixture
def opened():
    return []


@pytest.fixture
def dealt(opened):
    """Four streams over two workers; `opened` has the workers in the order in which they were made."""

    def open_worker(indices, replaces):
        opened.append(Nearby(indices))
        return opened[-1]

    return DealtCollector(open_worker, streams=4, workers=2)


def test_lost_workers_leave_no_trace_in_the_experience(dealt, opened):
    weights = make_agent("dqn", lookahead=2, seed=5).weights()
    here = LocalCollector(SETTING, ACTOR, 7, range(4))

    def both(call):
        opened[-1].lost = 1  # the latest is lost with its answer
        return call(here), call(dealt)

    for steps in (20, 1, 35):  # within an episode, with a step that awaits its continuation, over an episode's end
        assert_same(*both(lambda each, steps=steps: each.collect(weights, steps)))
    states, theirs = both(lambda each: each.state())
    assert states == theirs
    both(lambda each: each.cut())
    assert_same(*both(lambda each: each.collect(weights, 9)))
    both(lambda each: each.restore(states))
    assert_same(*both(lambda each: each.collect(weights, 9)))
    assert len(opened) == 2 + 8


def test_workers_that_are_lost_again_and_again_end_the_run(dealt, opened, monkeypatch):
    monkeypatch.setattr(Nearby, "receive", lambda self: (_ for _ in ()).throw(WorkerLostError("out of memory")))
    with pytest.raises(RuntimeError, match="lost again and again: out of memory"):
        dealt.state()
    assert len(opened) == 2 + 3


def test_a_mistake_is_raised_as_it_was(dealt, monkeypatch):
    def refuse(*_):
        raise UserError("trace: 'none' is not accepted")

    monkeypatch.setattr("aaml.experiment.collectors.LocalCollector", refuse)
    with pytest.raises(UserError, match="trace: 'none' is not accepted"):
        dealt.state()


def test_a_killed_process_is_replaced():
    weights = make_agent("dqn", lookahead=2, seed=5).weights()
    with collector(SETTING, ACTOR, 7, 2) as here, collector(SETTING, ACTOR, 7, 2, workers="2") as there:
        assert_same(here.collect(weights, 20), there.collect(weights, 20))
        victim, _ = multiprocessing.active_children()
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        assert_same(here.collect(weights, 25), there.collect(weights, 25))
    assert not multiprocessing.active_children()
