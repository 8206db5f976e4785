"""Why each node was chosen, a JSON line a decision in a scheduler's log."""

from dataclasses import replace

from aaml.insight.explain import explain
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Attempt, Decision, Observer, Outcome, Policy, RunWriter

NODES_KEPT = 5  # the best of a decision, and as many of the refused ones


class Explanations(Observer):
    """Writes an event "explanation" a decision, with its `NODES_KEPT` best nodes, numbered as in the log from 0.

    The state is copied for each decision and the policy asked again: a cluster of thousands of nodes feels it.
    """

    def __init__(self, writer: RunWriter, policy: Policy) -> None:
        self._writer, self._policy = writer, policy
        self._number = -1
        self._seconds: dict[str, float] = {}

    def on_attempt(self, attempt: Attempt) -> None:
        """Note how long the decision took."""
        self._seconds = {
            "filters and features": attempt.latency_s - attempt.policy_s, "policy": attempt.policy_s,
            "carrying it out": attempt.seconds - attempt.latency_s,
        }  # fmt: skip

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Explain one decision, as if its pod was not placed yet."""
        del outcome
        self._number += 1
        before = context.state.fork()
        before.forget(context.pod.uid)
        explained = explain(replace(context, state=before), self._policy, decision, number=self._number)
        fields = replace(explained, seconds=self._seconds).to_dict(NODES_KEPT)
        self._writer.event("explanation", {"uid": context.pod.uid, "explanation": fields})

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()
