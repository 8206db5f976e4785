"""The curves of a scheduling run, and one event for each decision and each bind."""

from aaml.cluster.metrics import usage
from aaml.scheduling.curves import ACTIONS, CLUSTER_VARIANCE, CUMULATIVE_REWARD
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Attempt, BindResult, Decision, Observer, Outcome, RunWriter, Step

_ALL_UNTIL = 300  # decisions of which every point is kept: a usual round of the workload simulator
_THEN_EVERY = 10
_ACTIONS_EVERY = 50  # decisions in one histogram


class Curves(Observer):
    """Writes a run's curves: an observer of `aaml.scheduling.play`.

    =====================  ===========================================================================================
    1. CSR                 cumulative scheduling reward: the sum so far, of each bind once it has ended
    3. Cluster Variance    variance over the nodes of the requested fraction of CPU, the control plane left out
    4. Actions             indices of the chosen nodes, a histogram of each 50 decisions
    =====================  ===========================================================================================

    Decisions and binds are events with the decision's number, from 0, as `aaml explain` takes it. An attempt at a pod
    that fits no node is an event without a number, because the policy was not called.

    The agents' own curves (2, 5, 6) come from `Agent.learn` by way of `on_learned`. Steps count decisions. After 300
    decisions every tenth point is written; the rewards end with their last one.
    """

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._nodes: list[int] = []
        self._binding: dict[str, int] = {}  # uid -> number of the decision
        self._completed = self._written = 0
        self.step = 0
        self.reward = 0.0
        self.variance = 0.0

    def on_attempt(self, attempt: Attempt) -> None:
        """Take an attempt at a pod that fitted nowhere."""
        if attempt.outcome.kind == "unschedulable":
            self._writer.event("unschedulable", {"pod": attempt.pod.key, "uid": attempt.pod.uid})

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Take one decision; `context.state` holds its pod already."""
        number, pod = self.step, context.pod
        self.step += 1
        if outcome.kind == "assumed":
            self._binding[pod.uid] = number
        fields = {
            "number": number, "pod": pod.key, "uid": pod.uid, "outcome": outcome.kind, "node": outcome.node_name,
            "reward": outcome.reward, "feasible": int(context.mask.sum()), **decision.info,
        }  # fmt: skip
        self._writer.event("decision", {**fields, "by": decision.by} if decision.by else fields)
        if self.step <= _ALL_UNTIL or self.step % _THEN_EVERY == 0:
            self.variance = usage(context.state).cpu_variance
            self._writer.scalar(CLUSTER_VARIANCE, self.variance, self.step)
        if decision.node_index is not None:
            self._nodes.append(decision.node_index)
        if len(self._nodes) >= _ACTIONS_EVERY:
            self._flush()

    def on_step(self, step: Step) -> None:
        """Take one completed step."""
        self._completed += 1
        self.reward += step.outcome.reward
        if self._completed <= _ALL_UNTIL or self._completed % _THEN_EVERY == 0:
            self._write_reward()

    def on_result(self, result: BindResult) -> None:
        """Take the end of a bind."""
        self._writer.event(
            "bind",
            {"number": self._binding.pop(result.pod.uid, None), "pod": result.pod.key, "node": result.node_name,
             "status": result.status, "message": result.message, "latency_s": result.latency_s},
        )  # fmt: skip

    def close(self) -> None:
        """Write what the last points leave out."""
        self._flush()
        if self._written < self._completed:
            self._write_reward()

    def _write_reward(self) -> None:
        self._written = self._completed
        self._writer.scalar(CUMULATIVE_REWARD, self.reward, self._completed)

    def _flush(self) -> None:
        """Write the histogram of the decisions since the last one."""
        if self._nodes:
            self._writer.histogram(ACTIONS, [float(node_index) for node_index in self._nodes], self.step)
            self._nodes.clear()
