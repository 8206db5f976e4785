"""Let a policy schedule on a cluster, simulated or live, whether it learns from that or not; and what came of it."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

from aaml.scheduling.cycle import Reward
from aaml.scheduling.loop import Episodes, SchedulingLoop, deployments, never
from aaml.scheduling.ports import Agent, Attempt, Backer, BindResult, Cluster, Observer, Policy, Sorter, Step

LATENCIES_KEPT = 100_000  # a scheduler may run for months


@dataclass(slots=True)
class Stats(Observer):
    """What a run did so far.

    `outcomes` counts attempts by what they led to at once, `binds` the binds that have ended by their status. `reward`
    is the sum over completed steps. `latency_s` holds the seconds of the latest decisions (filters, features, choice).
    """

    decisions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    binds: Counter[str] = field(default_factory=Counter)
    reward: float = 0.0
    started_s: float = field(default_factory=time.monotonic)
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    def on_attempt(self, attempt: Attempt) -> None:
        """Count an attempt, and a decision where there was one."""
        self.outcomes[attempt.outcome.kind] += 1
        if attempt.decision is not None:
            self.decisions += 1
            self.latency_s.append(attempt.latency_s)

    def on_result(self, result: BindResult) -> None:
        """Count the end of a bind."""
        self.binds[result.status] += 1

    def on_step(self, step: Step) -> None:
        """Add a reward."""
        self.reward += step.outcome.reward


def play(  # noqa: C901
    cluster: Cluster,
    policy: Policy,
    reward: Reward | None = None,
    *,
    learn: bool = False,
    observers: Iterable[Observer] = (),
    stop: Callable[[], bool] = never,
    max_decisions: int | None = None,
    episodes: Episodes = deployments,
) -> Stats:
    """Schedule until `stop()` is true, the cluster is exhausted or enough was decided; binds in flight are awaited.

    The cluster stays open. Pods wait in the policy's order where it has one. With `learn`, a policy that can learns
    from each completed step; without a `reward` all rewards are 0. `episodes` says where an episode ends.
    """
    cluster.sort_queue(
        policy.queue_sort if isinstance(policy, Sorter) else None,
        policy.backoff_s if isinstance(policy, Backer) else None,
    )
    agent = policy if learn and isinstance(policy, Agent) else None
    stats, listeners = Stats(), tuple(observers)
    observation_of = None if agent is None else agent.observation_of
    loop = SchedulingLoop(cluster, policy, reward, observation_of=observation_of, episodes=episodes)

    def enough() -> bool:
        for each in listeners:
            each.on_turn()
        return stop() or (max_decisions is not None and stats.decisions >= max_decisions)

    with closing(loop.events(enough)) as events:
        for event in events:
            if isinstance(event, BindResult):
                stats.on_result(event)
                for each in listeners:
                    each.on_result(event)
            elif isinstance(event, Step):
                if agent is not None and event.transition is not None:
                    agent.observe(event.transition)
                stats.on_step(event)
                for each in listeners:
                    each.on_step(event)
            else:
                stats.on_attempt(event)
                for each in listeners:
                    each.on_attempt(event)
                if event.context is None or event.decision is None:
                    continue
                for each in listeners:
                    each.on_decision(event.context, event.decision, event.outcome)
                scalars = {} if agent is None else agent.learn()
                for each in listeners if scalars else ():
                    each.on_learned(scalars, stats.decisions)
    return stats
