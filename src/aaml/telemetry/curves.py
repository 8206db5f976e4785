"""The curves of a scheduling run, named as in TensorBoard, and one event a decision and a bind."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aaml.cluster.metrics import usage
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import BindResult, Decision, Outcome, Recorder
from aaml.telemetry.recorder import NullRecorder

CUMULATIVE_REWARD = "1. CSR"
VALUE_LOSS = "2. Loss/Train"
ADVANTAGE = "2. Advantage"
CLUSTER_VARIANCE = "3. Cluster Variance"
ACTIONS = "4. Actions"
ACTOR_LOSS = "5. Actor Loss"
CRITIC_LOSS = "6. Critic Loss"

# TensorBoard's custom-scalars page: what a person compares first, on one page.
LAYOUT = {
    "Scheduling": {"cumulative reward": [CUMULATIVE_REWARD], "variance of CPU use": [CLUSTER_VARIANCE]},
    "Learning": {
        "loss or advantage": [VALUE_LOSS, ADVANTAGE],
        "actor and critic": [ACTOR_LOSS, CRITIC_LOSS],
    },
}

_ALL_UNTIL = 1_000  # decisions of which every point is kept
_THEN_EVERY = 10
_ACTIONS_EVERY = 50  # decisions in one histogram


class Curves:
    """Writes a run's curves as the loop reports steps: hand `on_step` and `on_result` to `SchedulerLoop`.

    =====================  ===========================================================================================
    1. CSR                 sum of the rewards so far
    3. Cluster Variance    variance over the nodes of the requested fraction of CPU, the control plane left out
    4. Actions             rows (node numbers) chosen, a histogram of each 50 decisions
    =====================  ===========================================================================================

    The agents' own curves (2, 5, 6) come from `Agent.learn` by way of the loop. Steps count decisions. After 1,000
    decisions every tenth point is written.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rows: list[int] = []
        self.step = 0
        self.reward = 0.0
        self.variance = 0.0

    def on_step(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Take one decision; `context.state` holds its pod already."""
        self.step += 1
        self.reward += outcome.reward
        pod = context.pod
        self._recorder.event(
            "decision",
            {"step": self.step, "pod": pod.key, "outcome": outcome.kind, "node": outcome.node_name,
             "reward": outcome.reward, "feasible": int(context.mask.sum()), **decision.info},
        )  # fmt: skip
        if self.step <= _ALL_UNTIL or self.step % _THEN_EVERY == 0:
            self.variance = usage(context.state).cpu_variance
            self._recorder.scalar(CUMULATIVE_REWARD, self.reward, self.step)
            self._recorder.scalar(CLUSTER_VARIANCE, self.variance, self.step)
        if decision.row is not None:
            self._rows.append(decision.row)
        if len(self._rows) >= _ACTIONS_EVERY:
            self.flush()

    def on_result(self, result: BindResult) -> None:
        """Take the end of a bind."""
        self._recorder.event(
            "bind",
            {"pod": result.pod.key, "node": result.node_name, "status": result.status, "message": result.message,
             "latency_s": result.latency_s},
        )  # fmt: skip

    def flush(self) -> None:
        """Write the histogram of the decisions since the last one."""
        if self._rows:
            self._recorder.histogram(ACTIONS, [float(row) for row in self._rows], self.step)
            self._rows.clear()


class AgentCurves(NullRecorder):
    """Passes on what an agent records, except the cumulative reward, which `Curves` has for every decision."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def scalar(self, name: str, value: float, step: int) -> None:
        """Record one point of a curve."""
        if name != CUMULATIVE_REWARD:
            self._recorder.scalar(name, value, step)

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Record a distribution."""
        self._recorder.histogram(name, values, step)
