"""The one scheduling loop: whoever schedules, trains, evaluates or looks ahead takes events and steps from it.

A step is complete, and yielded, once its continuation is known (the next decision's pod, or that none follows) and
its bind has ended. Steps come in the order of their decisions, so that they chain: on a live cluster, where a bind
takes milliseconds, a few of them wait for that. In the simulator a bind ends at once, and a step is complete as soon as
the next context is there, before the policy is asked about that one.
"""

import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

from aaml.cluster.objects import Pod
from aaml.errors import bad_value
from aaml.scheduling.cycle import Reward, SchedulingCycle, spec_of
from aaml.scheduling.observation import Context, ObservationSpec
from aaml.scheduling.ports import (
    Attempt,
    BindResult,
    BindStatus,
    Cluster,
    Decision,
    Outcome,
    Policy,
    Step,
    Transition,
)
from aaml.scheduling.rewards import after_bind

IDLE_S = 2.0  # with nothing to decide for this long, the last step is completed as it is
_TURN_S = 0.2  # how long a live cluster is waited for before `stop` is asked again
_UNSCHEDULABLE = Outcome("unschedulable")

Event = Attempt | BindResult | Step
Ending = Literal["", "terminated", "truncated"]
Episodes = Callable[[Pod, Pod | None], Ending]
"""(a decision's pod, the next one's or None) -> how the episode ends between them, "" while it goes on."""
Observe = Callable[[Context], Any]
"""A context -> what a learner remembers of it."""


def deployments(pod: Pod, following: Pod | None) -> Ending:
    """Let a deployment (the pods of one owner) be an episode: truncated, never terminated, as the cluster lives on."""
    return "" if following is not None and following.owner == pod.owner else "truncated"


def whole_run(*, continuing: bool) -> Episodes:
    """Return the rule of simulated tasks: an episode lasts until no pod is left to decide on.

    Where the cluster would go on after that (`continuing`) it is truncated, else terminated.
    """
    ending: Ending = "truncated" if continuing else "terminated"
    return lambda _pod, following: ending if following is None else ""


def never() -> bool:
    """Return False: the loop runs until the cluster is exhausted."""
    return False


@dataclass(slots=True)
class _PendingStep:
    """A placement whose bind has not ended, or whose continuation is not known.

    Only the pod of its context is kept: with hundreds of binds in flight, the features of 5,000 nodes would take
    hundreds of MiB.
    """

    pod: Pod
    decision: Decision
    outcome: Outcome
    observation: Any
    bind: BindStatus | None = None
    ending: Ending | None = None
    next_observation: Any = None

    def complete(self) -> Step | None:
        """Return the step, None while its bind or continuation is awaited."""
        node_index = self.decision.node_index
        if self.bind is None or self.ending is None or node_index is None:
            return None
        outcome = Outcome(self.bind, after_bind(self.outcome.reward, self.bind), self.outcome.node_name)
        transition = None
        if self.observation is not None:
            transition = Transition(
                self.observation, node_index, outcome.reward, self.next_observation,
                self.ending == "terminated", self.ending == "truncated", self.decision.info,
            )  # fmt: skip
        return Step(self.pod, self.decision, outcome, transition)


class SchedulingLoop:
    """Takes pods from a cluster, asks a policy, carries its decisions out, and completes their steps.

    `spec` is what contexts show, by default what the policy looks at. `observation_of` says what transitions hold of a
    context; without it nobody learns, and steps have no transition. `episodes` says where an episode ends. `policy` and
    `observation_of` may be replaced between two events.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        reward: Reward | None = None,
        *,
        spec: ObservationSpec | None = None,
        observation_of: Observe | None = None,
        episodes: Episodes = deployments,
    ) -> None:
        self._cycle = SchedulingCycle(cluster, reward, spec_of(policy) if spec is None else spec)
        self.policy = policy
        self.observation_of = observation_of
        self._episodes = episodes
        self._pending: deque[_PendingStep] = deque()
        self._binding: dict[str, _PendingStep] = {}

    @property
    def awaited(self) -> int:
        """The number of placements that are not complete."""
        return len(self._pending)

    def cut(self, keep: int = 0) -> None:
        """Drop the placements that are not complete, except the latest `keep`."""
        while len(self._pending) > keep:
            self._binding.pop(self._pending.popleft().pod.uid, None)

    def events(self, stop: Callable[[], bool] = never) -> Generator[Event, None, None]:  # noqa: C901, PLR0912
        """Yield what happens until `stop()` is true or the cluster is exhausted; binds in flight are awaited then.

        Close the iterator (`contextlib.closing`) where it may be left early: binds in flight are awaited then too.
        Raises ValueError when the policy chooses a node that is not feasible, `UserError` when it returns no Decision.
        """
        cluster, cycle, idle_since = self._cycle.cluster, self._cycle, time.monotonic()
        try:
            while not stop():
                pod = cluster.next_pod(_TURN_S)
                for result in cluster.results():
                    yield self._ended(result)
                if pod is None:
                    if cluster.exhausted:
                        break
                    if time.monotonic() - idle_since > IDLE_S:
                        self._follow(None, None)
                    while (step := self._completed()) is not None:
                        yield step
                    continue
                idle_since = time.monotonic()
                started = time.perf_counter()
                context = cycle.begin(pod)
                if context is None:
                    yield Attempt(pod, _UNSCHEDULABLE, time.perf_counter() - started)
                    continue
                observation = None if self.observation_of is None else self.observation_of(context)
                begun_s = time.perf_counter() - started
                self._follow(pod, observation)
                while (step := self._completed()) is not None:
                    yield step
                called_s = time.perf_counter()
                decision = self.policy.act(context)
                policy_s = time.perf_counter() - called_s
                if not isinstance(decision, Decision):
                    name = getattr(self.policy, "name", type(self.policy).__name__)
                    raise bad_value(f"policy {name}: act(context)", decision, "a Decision, such as Decision(index)")
                outcome = cycle.finish(context, decision)
                if outcome.kind == "assumed":
                    self._binding[pod.uid] = placement = _PendingStep(pod, decision, outcome, observation)
                    self._pending.append(placement)
                seconds = begun_s + time.perf_counter() - called_s
                yield Attempt(pod, outcome, seconds, begun_s + policy_s, policy_s, context, decision)
        finally:
            cluster.drain()
        for result in cluster.results():
            yield self._ended(result)
        self._follow(None, None)
        while (step := self._completed()) is not None:
            yield step

    def _ended(self, result: BindResult) -> BindResult:
        """Give the result of a bind to its placement."""
        placement = self._binding.pop(result.pod.uid, None)
        if placement is not None:
            placement.bind = result.status
        return result

    def _follow(self, following: Pod | None, observation: Any) -> None:
        """Set what followed the latest placement; None: nothing did, for now."""
        latest = self._pending[-1] if self._pending else None
        if latest is not None and latest.ending is None:
            latest.ending, latest.next_observation = self._episodes(latest.pod, following), observation

    def _completed(self) -> Step | None:
        """Return and drop the first complete step; None while it is awaited."""
        step = self._pending[0].complete() if self._pending else None
        if step is not None:
            self._pending.popleft()
        return step
