"""What a person reads of a run while it goes on: a line a decision, and a bar."""

from aaml.cluster.metrics import usage
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Cluster, Decision, Observer, Outcome, Step
from aaml.telemetry.console import DECISIONS, Bar


class DecisionLog(Observer):
    """Logs a line for each decision; it scrolls where `run_log` says so, and is in the log file where there is one.

    Decisions are numbered from 0, as `aaml explain` takes them. Where another policy decided, the line ends with its
    name.
    """

    def __init__(self) -> None:
        self._number = -1

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Log one decision."""
        self._number += 1
        DECISIONS.info(
            "decision %d: %s -> %s (%d feasible, reward %.3f%s)",
            self._number, context.pod.key, outcome.node_name or outcome.kind, int(context.mask.sum()), outcome.reward,
            f", by {decision.by}" if decision.by else "",
        )  # fmt: skip


class ProgressBar(Observer):
    """A bar of decisions with the reward so far, the variance of CPU use over nodes, and how many pods wait."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._bar, self._cluster = Bar(name, enabled=True), cluster
        self._reward = 0.0

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Advance the bar by one decision."""
        del decision, outcome
        self._bar.advance(
            reward=round(self._reward, 2),
            variance=f"{usage(context.state).cpu_variance:.2g}",
            pending=self._cluster.pending_count(),
        )

    def on_step(self, step: Step) -> None:
        """Add the reward of a completed step."""
        self._reward += step.outcome.reward

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
