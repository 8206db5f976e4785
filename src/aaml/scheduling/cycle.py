"""SchedulingCycle: one pod from filters to outcome, which the scheduling loop and the Gymnasium environment share."""

from dataclasses import dataclass
from typing import Protocol

from aaml.cluster.objects import Pod
from aaml.scheduling.observation import PLAIN, Context, ObservationSpec
from aaml.scheduling.ports import Cluster, Decision, Observing, Outcome, Policy


class Reward(Protocol):
    """Judges a decision by looking at the state just before and just after the pod was assumed."""

    def before(self, context: Context) -> None:
        """Remember what is needed of the state before."""
        ...

    def after(self, context: Context, node_index: int) -> float:
        """Return the reward; `context.state` holds the pod on `node_index` now."""
        ...


def spec_of(policy: Policy) -> ObservationSpec:
    """Return what a policy looks at; one that does not say reads plain features, or none."""
    return policy.observation_spec if isinstance(policy, Observing) else PLAIN


@dataclass
class SchedulingCycle:
    """begin(pod) -> Context; finish(context, decision) -> Outcome. Knows neither the policy nor the kind of cluster.

    `spec` is what the policy looks at: `spec_of(policy)`. Without a `reward` every outcome has a reward of 0.
    """

    cluster: Cluster
    reward: Reward | None = None
    spec: ObservationSpec = PLAIN

    def begin(self, pod: Pod) -> Context | None:
        """Filter the nodes; a pod that fits nowhere is rejected at once and gives None."""
        mask = self.cluster.feasible(pod)
        if not mask.any():
            self.cluster.reject(pod)
            return None
        return Context(
            state=self.cluster.state,
            pod=pod,
            mask=mask,
            spec=self.spec,
            upcoming=self.cluster.upcoming(self.spec.lookahead) if self.spec.lookahead else (),
            queue_length=self.cluster.pending_count(),
            now_s=self.cluster.now_s(),
        )

    def finish(self, context: Context, decision: Decision) -> Outcome:
        """Carry a decision out. Raises ValueError for a node that is not feasible: a policy must respect the mask."""
        if decision.node_index is None:
            self.cluster.defer(context.pod)
            return Outcome("declined")
        if not context.mask[decision.node_index]:
            raise ValueError(
                f"the policy chose node index {decision.node_index} for {context.pod.key}, which is not feasible"
            )
        if self.reward is None:
            return Outcome("assumed", 0.0, self.cluster.bind(context.pod, decision.node_index, decision.gpus))
        self.reward.before(context)
        node_name = self.cluster.bind(context.pod, decision.node_index, decision.gpus)
        return Outcome("assumed", self.reward.after(context, decision.node_index), node_name)
