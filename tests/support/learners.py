"""Learners whose runs are short: small settings, and a far end without a process."""

import pickle
from dataclasses import replace

from aaml.learning.config import LIVE
from aaml.live.learner_process import LearnerWorker, Pace
from aaml.parallel.worker import Desk


def small(kind):
    """Settings by which a short run has several updates."""
    if kind == "dqn":
        return replace(LIVE["dqn"], batch_size=16, update_frequency=5, target_update_frequency=10, hidden_size=8)
    return replace(LIVE["acdqn"], update_steps=8, hidden_size=8)


def unpaced():
    """A pace that never rests."""
    return Pace(lambda _seconds: True)


class InThisProcess:
    """A learner's far end without a process around it."""

    pid = 1

    def __init__(self, *, awaited):
        self.desk = Desk(".", LearnerWorker(unpaced()))

    def teach(self, batch):
        return self.desk.answer(pickle.dumps((batch,)))

    def hurry(self):
        """Nothing rests."""

    def kill(self):
        """Nothing runs beside this process."""

    def close(self):
        return 0
