"""The published evaluator of *Can't Be Late* written once more, plainly: floats, one tick after another, no kernel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SPOT_HOUR, ON_DEMAND_HOUR = 0.9731, 3.06
NONE, SPOT, ON_DEMAND = "none", "spot", "on-demand"


@dataclass
class Job:
    """What a policy sees: seconds of work, done and left, of a restart, to the deadline; what runs, whether spot is."""

    tick_s: float
    work_s: float
    deadline_s: float
    overhead_s: float
    elapsed_s: float = 0.0
    done_s: float = 0.0
    pending_s: float = 0.0
    runs: str = NONE
    has_spot: bool = False

    @property
    def left_s(self) -> float:
        return self.work_s - self.done_s

    @property
    def remaining_s(self) -> float:
        return self.deadline_s - self.elapsed_s

    def is_forced(self, restarts: int = 1) -> bool:
        needed = math.ceil((self.left_s + restarts * self.overhead_s) / self.tick_s)
        return needed >= math.floor(self.remaining_s / self.tick_s)


def always(_job: Job) -> str:
    return ON_DEMAND


def greedy(job: Job) -> str:
    if job.is_forced():
        return ON_DEMAND
    if job.is_forced(2):
        return SPOT if job.runs == SPOT else ON_DEMAND
    return SPOT if job.has_spot else NONE


def uniform_progress(job: Job) -> str:
    if job.is_forced():
        return ON_DEMAND
    if job.has_spot:
        return SPOT
    pace = job.work_s / job.deadline_s
    if job.runs == ON_DEMAND and job.done_s <= (job.elapsed_s + 2 * job.overhead_s) * pace:
        return ON_DEMAND
    return ON_DEMAND if job.done_s < job.elapsed_s * pace else NONE


def slack_line(job: Job) -> str:
    slack_s = job.remaining_s - job.left_s - job.overhead_s
    if slack_s <= job.tick_s:
        return SPOT if job.runs == SPOT else ON_DEMAND
    if job.has_spot:
        return SPOT
    waits = job.runs != ON_DEMAND and slack_s > 2 * job.tick_s + 0.1 * job.left_s
    return NONE if waits else ON_DEMAND


POLICIES = {"on-demand": always, "greedy": greedy, "uniform-progress": uniform_progress, "slack-line": slack_line}


def evaluate(up: Sequence[bool], job: Job, policy: Callable[[Job], str]) -> tuple[float, float]:
    """Return dollars, and seconds after the deadline."""
    dollars, last = 0.0, NONE
    for tick, has_spot in enumerate(up):
        job.elapsed_s = tick * job.tick_s
        if last != NONE:
            useful = max(job.tick_s - job.pending_s, 0.0)
            job.pending_s -= job.tick_s - useful
            if useful >= job.left_s - 1e-8:
                ended_s = job.elapsed_s - useful + job.left_s
                return dollars, max(ended_s - job.deadline_s, 0.0)
            job.done_s += useful
        job.has_spot = has_spot
        job.runs = NONE if last == SPOT and not has_spot else last
        wanted = policy(job)
        if job.is_forced():
            wanted = SPOT if last == SPOT and job.pending_s < 1e-3 else ON_DEMAND
        if wanted == SPOT and not has_spot:
            wanted = NONE
        if wanted not in (NONE, job.runs):
            job.pending_s = job.overhead_s
        price = {NONE: 0.0, SPOT: SPOT_HOUR, ON_DEMAND: ON_DEMAND_HOUR}[wanted]
        dollars += price * job.tick_s / 3600.0
        last = wanted
    raise AssertionError("the trace ended before the job")
