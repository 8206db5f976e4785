"""Why each node was chosen, a JSON line a decision in a scheduler's log."""

from dataclasses import dataclass, replace

from aaml.insight.explain import explain
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Attempt, Decision, Observer, Outcome, Policy
from aaml.telemetry.writers import JsonLinesWriter, Lenient

NODES_KEPT = 5  # the best of a decision, and as many of the refused ones


class Explanations(Observer):
    """Writes an event "explanation" for each decision, with its `NODES_KEPT` best nodes, numbered from 0 as in the log.

    The state is copied and the policy called again for each decision, which takes time on thousands of nodes. Each line
    is flushed at once. Where the disk is full, or the policy fails, scheduling goes on.
    """

    def __init__(self, lines: JsonLinesWriter, policy: Policy) -> None:
        self._lines, self._policy = lines, policy
        self._writer = Lenient(lines, str(lines.path))
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
        earlier = replace(context, state=before)
        try:
            explained = explain(earlier, self._policy, decision, number=self._number)
        except Exception as error:  # noqa: BLE001  (a policy that fails has somebody who decides in its place)
            note = f"{self._policy.name} fails when it is asked for its scores ({type(error).__name__}: {error})"
            explained = explain(earlier, _Scoreless(self._policy.name), decision, number=self._number)
            explained = replace(explained, notes=(*explained.notes[:-1], note))  # not that it has none
        fields = replace(explained, seconds=self._seconds).to_dict(NODES_KEPT)
        self._writer.event("explanation", {"uid": context.pod.uid, "explanation": fields})
        self._writer.attempt(self._lines.flush)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


@dataclass(frozen=True)
class _Scoreless:
    """Stands for a policy that cannot be asked."""

    name: str

    def act(self, context: Context) -> Decision:  # noqa: ARG002  (never asked)
        raise AssertionError("its decision is known")
