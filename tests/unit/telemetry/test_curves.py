"""Which points of a live run's curves are kept."""

from aaml.scheduling.curves import CUMULATIVE_REWARD
from aaml.scheduling.ports import Decision, Outcome, RunWriter, Step
from aaml.telemetry.curves import Curves


class Kept(RunWriter):
    def __init__(self):
        self.points = []

    def scalar(self, name, value, step):
        if name == CUMULATIVE_REWARD:
            self.points.append((step, value))


def test_rewards_keep_their_first_points_then_every_tenth_and_the_last():
    kept = Kept()
    curves = Curves(kept)
    for _ in range(312):
        curves.on_step(Step(None, Decision(0), Outcome("bound", 0.5, "n"), None))
    curves.close()
    assert [step for step, _ in kept.points] == [*range(1, 301), 310, 312]
    assert kept.points[-1] == (312, 156.0)
    curves.close()
    assert len(kept.points) == 302
