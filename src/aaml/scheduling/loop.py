"""SchedulerLoop: the one driver of every policy on every cluster."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import (
    Agent,
    BindResult,
    Decision,
    Outcome,
    OutcomeKind,
    Policy,
    Recorder,
    Sorter,
    Transition,
)

LATENCIES_KEPT = 100_000  # a scheduler may run for months
IDLE_S = 2.0  # with nothing to decide for this long, the last step's experience is handed to the agent as it is


@dataclass(slots=True)
class LoopStats:
    """What a run did so far. `latency_s` holds the seconds of the latest decisions (observe and choose)."""

    decisions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    binds: Counter[str] = field(default_factory=Counter)
    reward: float = 0.0
    started_s: float = field(default_factory=time.monotonic)
    last_bind_s: float = 0.0
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to place a pod, for metrics: what it led to, how long it took, and how long the policy took of it."""

    kind: OutcomeKind
    seconds: float
    policy_s: float = 0.0


@dataclass(slots=True)
class _Step:
    context: Context
    decision: Decision
    outcome: Outcome


class SchedulerLoop:
    """Takes pods from a cluster, asks the policy, carries decisions out, and lets an agent learn from them.

    A deployment (the pods of one owner) is an episode: the step before the first pod of another owner is truncated.
    `on_step(context, decision, outcome)` and `on_results(result)` are for recorders and progress;
    `on_attempt(attempt)` is told of pods that fit nowhere too.
    """

    def __init__(
        self,
        cycle: SchedulingCycle,
        policy: Policy,
        *,
        learn: bool = True,
        recorder: Recorder | None = None,
        on_step: Callable[[Context, Decision, Outcome], None] | None = None,
        on_result: Callable[[BindResult], None] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> None:
        self._cycle = cycle
        self._policy = policy
        self._agent = policy if learn and isinstance(policy, Agent) else None
        self._recorder = recorder
        self._on_step = on_step
        self._on_result = on_result
        self._on_attempt = on_attempt
        self._previous: _Step | None = None
        self.stats = LoopStats()

    def run(self, stop: Callable[[], bool] = lambda: False, max_decisions: int | None = None) -> LoopStats:
        """Go on until `stop()` is true, the cluster is exhausted or enough was decided; binds in flight are awaited."""
        cluster, quiet_since = self._cycle.cluster, time.monotonic()
        cluster.sort_queue(self._policy.queue_sort if isinstance(self._policy, Sorter) else None)
        while not stop() and (max_decisions is None or self.stats.decisions < max_decisions):
            pod = cluster.next_pod(timeout_s=0.2)
            self._take_results()
            if pod is None:
                if cluster.exhausted:
                    break
                if self._previous is not None and time.monotonic() - quiet_since > IDLE_S:
                    self._hand_over(None)
                continue
            quiet_since = time.monotonic()
            started = time.perf_counter()
            context = self._cycle.begin(pod)
            if context is None:
                self.stats.outcomes["unschedulable"] += 1
                self._tell(Attempt("unschedulable", time.perf_counter() - started))
                continue
            self._hand_over(context)
            asked = time.perf_counter()
            decision = self._policy.act(context)
            answered = time.perf_counter()
            self.stats.latency_s.append(answered - started)
            outcome = self._cycle.finish(context, decision)
            self._tell(Attempt(outcome.kind, time.perf_counter() - started, answered - asked))
            self._count(context, decision, outcome)
            if self._agent is not None:
                self._record(self._agent.learn())
        self._hand_over(None)
        cluster.close()
        self._take_results()
        return self.stats

    def _count(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        stats = self.stats
        stats.decisions += 1
        stats.outcomes[outcome.kind] += 1
        stats.reward += outcome.reward
        if outcome.kind == "assumed":
            self._previous = _Step(context, decision, outcome)
        if self._on_step is not None:
            self._on_step(context, decision, outcome)

    def _hand_over(self, context: Context | None) -> None:
        """Complete the previous step with the observation that followed it (None: nothing followed for now)."""
        step, self._previous = self._previous, None
        if step is None or self._agent is None or step.decision.row is None:
            return
        same_episode = context is not None and context.pod.owner == step.context.pod.owner
        self._agent.observe(
            Transition(
                observation=step.context.observation,
                action=step.decision.row,
                reward=step.outcome.reward,
                next_observation=None if context is None else context.observation,
                truncated=not same_episode,
                info=step.decision.info,
            )
        )

    def _tell(self, attempt: Attempt) -> None:
        if self._on_attempt is not None:
            self._on_attempt(attempt)

    def _take_results(self) -> None:
        for result in self._cycle.cluster.results():
            self.stats.binds[result.status] += 1
            if result.status == "bound":
                self.stats.last_bind_s = time.monotonic()
            if self._on_result is not None:
                self._on_result(result)

    def _record(self, scalars: object) -> None:
        if self._recorder is None or not isinstance(scalars, dict):
            return
        for name, value in scalars.items():
            self._recorder.scalar(name, float(value), self.stats.decisions)
